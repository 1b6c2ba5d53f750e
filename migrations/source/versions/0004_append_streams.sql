-- Append to several streams at once, if all of them, and those that are only guarded, are where the caller expects them.
--
-- parts: array of [category, stream, expected, events], where expected and the events are those of append_many; a part without
-- events is a guard. No stream stands in two parts.
--
-- failed: 0, and versions has where each stream is now, in the order of parts; or the number of a part, counted from 1, whose
-- stream is not where it was expected but at versions[1], and nothing was written.
--
-- Heads are taken in one order everywhere, so that two of these calls cannot wait for each other. A guard holds its head, so that
-- nobody appends to the stream before the caller's transaction ends; guards of a stream that has events do not wait for
-- each other.
CREATE FUNCTION tailrace.append_streams(parts jsonb, in_metadata jsonb, OUT failed integer, OUT versions bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
DECLARE
    part  record;
    head  bigint;
    moved integer[] := '{}';
BEGIN
    versions := array_fill(0::bigint, ARRAY[jsonb_array_length(parts)]);
    failed := 0;
    FOR part IN
        SELECT p.place::integer AS place, p.part ->> 0 AS category, p.part ->> 1 AS stream,
               (p.part ->> 2)::bigint AS expected, jsonb_array_length(p.part -> 3) AS steps
        FROM jsonb_array_elements(parts) WITH ORDINALITY AS p(part, place)
        ORDER BY (p.part ->> 0) COLLATE "C", (p.part ->> 1) COLLATE "C"
    LOOP
        IF part.steps > 0 THEN
            head := tailrace.move_head(part.category, part.stream, part.expected, part.steps);
            IF head > 0 THEN
                moved := moved || part.place;
            ELSE
                failed := part.place;
                head := -head;
            END IF;
        ELSE
            INSERT INTO tailrace.streams AS s (category, stream, version) VALUES (part.category, part.stream, 0)
            ON CONFLICT (category, stream) DO NOTHING;  -- a head without an event, to be held
            SELECT s.version INTO head FROM tailrace.streams s
            WHERE s.category = part.category AND s.stream = part.stream FOR SHARE;
            IF part.expected >= 0 AND head <> part.expected OR part.expected = -2 AND head = 0 THEN
                failed := part.place;
            END IF;
        END IF;
        versions[part.place] := head;
        EXIT WHEN failed > 0;
    END LOOP;

    IF failed > 0 THEN
        UPDATE tailrace.streams s SET version = s.version - jsonb_array_length(parts -> (m.place - 1) -> 3)
        FROM unnest(moved) AS m(place)
        WHERE s.category = parts -> (m.place - 1) ->> 0 AND s.stream = parts -> (m.place - 1) ->> 1;
        versions := ARRAY[head];
        RETURN;
    END IF;

    INSERT INTO tailrace.events
        (category, stream, version, type, schema_version, data, metadata, event_id, recorded_at)
    SELECT p.part ->> 0, p.part ->> 1, versions[p.place] - jsonb_array_length(p.part -> 3) + n.place, n.event ->> 0,
           (n.event ->> 1)::integer, n.event -> 3, in_metadata, (n.event ->> 2)::uuid, clock_timestamp()
    FROM jsonb_array_elements(parts) WITH ORDINALITY AS p(part, place),
         jsonb_array_elements(p.part -> 3) WITH ORDINALITY AS n(event, place)
    ORDER BY p.place, n.place;
END
$body$;

REVOKE ALL ON FUNCTION tailrace.append_streams(jsonb, jsonb) FROM PUBLIC;

-- Whoever may append goes on to.
DO $grants$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_proc p, aclexplode(p.proacl) a
        WHERE p.oid = 'tailrace.append_one'::regproc AND a.privilege_type = 'EXECUTE' AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION tailrace.append_streams TO %s', grantee);
    END LOOP;
END
$grants$;
