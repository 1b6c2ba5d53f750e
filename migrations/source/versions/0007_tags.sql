-- Tags: values of events by which they are found beside their stream, for decisions that several streams are needed for.
CREATE TABLE tailrace.tags (
    tag     text   NOT NULL PRIMARY KEY CHECK (octet_length(tag) BETWEEN 1 AND 1000),
    version bigint NOT NULL  -- of the last event with it; the row is the lock that appends with the tag take
);

-- Where the events of a tag are, in the order of their commits.
CREATE TABLE tailrace.tagged_events (
    tag            text   NOT NULL,
    version        bigint NOT NULL CHECK (version > 0),
    category       text   NOT NULL,
    stream         text   NOT NULL,
    stream_version bigint NOT NULL,
    type           text   NOT NULL,
    tags           text[] NOT NULL,  -- all of the event's
    PRIMARY KEY (tag, version)
);

-- Take the tags of events that are about to be appended, and of those that were asked for. parts are those of append_streams, versions
-- where each of their streams will be.
--
-- asked: array of [tag, version, types, tags]: what was read of a tag up to its version; of these types (null: of all), with all of
-- these tags. The result is 0, or the number of one of them, counted from 1, for which there is another event by now; nothing was
-- written then.
--
-- All tags are taken in one order everywhere, behind the heads of streams. One that was only asked for is held, too: nobody appends an
-- event with it before the caller's transaction ends. Under READ COMMITTED the look for other events is a statement of its own, so it sees
-- what was waited for; under REPEATABLE READ and SERIALIZABLE the server answers with a serialization failure (40001).
CREATE FUNCTION tailrace.put_tags(parts jsonb, versions bigint[], asked jsonb) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $body$
DECLARE
    names  text[];
    steps  bigint[];
    before bigint[];
    item   record;
BEGIN
    SELECT array_agg(t.tag ORDER BY t.tag COLLATE "C"), array_agg(t.steps ORDER BY t.tag COLLATE "C") INTO names, steps
    FROM (SELECT u.tag, sum(u.step)::bigint AS steps
          FROM (SELECT t.tag, 1 AS step
                FROM jsonb_array_elements(parts) AS p(part), jsonb_array_elements(p.part -> 3) AS n(event),
                     jsonb_array_elements_text(n.event -> 4) AS t(tag)
                UNION ALL
                SELECT a.item ->> 0, 0 FROM jsonb_array_elements(asked) AS a(item)) AS u
          GROUP BY u.tag) AS t;
    IF names IS NULL THEN
        RETURN 0;
    END IF;

    WITH moved AS (
        INSERT INTO tailrace.tags AS g (tag, version)
        SELECT u.tag, u.step FROM unnest(names, steps) WITH ORDINALITY AS u(tag, step, place) ORDER BY u.place
        ON CONFLICT (tag) DO UPDATE SET version = g.version + EXCLUDED.version
        RETURNING g.tag, g.version
    )
    SELECT array_agg(m.version - u.step ORDER BY u.place) INTO before
    FROM unnest(names, steps) WITH ORDINALITY AS u(tag, step, place) JOIN moved m ON m.tag = u.tag;

    FOR item IN
        SELECT a.place::integer AS place, a.item ->> 0 AS tag, (a.item ->> 1)::bigint AS version, a.item -> 2 AS types,
               ARRAY(SELECT jsonb_array_elements_text(a.item -> 3)) AS tags
        FROM jsonb_array_elements(asked) WITH ORDINALITY AS a(item, place)
    LOOP
        CONTINUE WHEN before[array_position(names, item.tag)] = item.version;
        PERFORM FROM tailrace.tagged_events e
        WHERE e.tag = item.tag AND e.version > item.version AND (item.types = 'null'::jsonb OR item.types ? e.type)
            AND e.tags @> item.tags
        LIMIT 1;
        IF FOUND THEN
            UPDATE tailrace.tags g SET version = g.version - u.step
            FROM unnest(names, steps) AS u(tag, step) WHERE g.tag = u.tag AND u.step > 0;
            RETURN item.place;
        END IF;
    END LOOP;

    INSERT INTO tailrace.tagged_events (tag, version, category, stream, stream_version, type, tags)
    SELECT e.tag, before[array_position(names, e.tag)] + row_number() OVER (PARTITION BY e.tag ORDER BY e.part, e.place),
           e.category, e.stream, e.stream_version, e.type, e.tags
    FROM (SELECT t.tag, p.place AS part, n.place, p.part ->> 0 AS category, p.part ->> 1 AS stream,
                 versions[p.place] - jsonb_array_length(p.part -> 3) + n.place AS stream_version, n.event ->> 0 AS type,
                 ARRAY(SELECT jsonb_array_elements_text(n.event -> 4)) AS tags
          FROM jsonb_array_elements(parts) WITH ORDINALITY AS p(part, place),
               jsonb_array_elements(p.part -> 3) WITH ORDINALITY AS n(event, place),
               jsonb_array_elements_text(n.event -> 4) AS t(tag)) AS e;
    RETURN 0;
END
$body$;

REVOKE ALL ON FUNCTION tailrace.put_tags(jsonb, bigint[], jsonb) FROM PUBLIC;

-- append_streams of migration 4, which earlier releases call, with tags: of events, as a fifth part of each, and those that were asked
-- for, as put_tags has them.
--
-- failed: 0; the number of a part; or, behind the parts, that of one that was asked for: then versions[1] is where its tag is.
CREATE FUNCTION tailrace.append_all(
    parts jsonb, in_metadata jsonb, asked jsonb, OUT failed integer, OUT versions bigint[]
)
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

    IF failed = 0 THEN
        failed := tailrace.put_tags(parts, versions, asked);
        IF failed > 0 THEN
            SELECT g.version INTO head FROM tailrace.tags g WHERE g.tag = asked -> (failed - 1) ->> 0;
            failed := failed + jsonb_array_length(parts);
        END IF;
    END IF;

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

REVOKE ALL ON FUNCTION tailrace.append_all(jsonb, jsonb, jsonb) FROM PUBLIC;

-- append_events of migration 2, whose events may have "tags".
CREATE OR REPLACE FUNCTION tailrace.append_events(
    in_category text, in_stream text, expected bigint, events jsonb,
    OUT outcome text, OUT stream_version bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
DECLARE
    count_new   bigint := jsonb_array_length(events);
    count_found bigint;
    first_found bigint;
    in_order    boolean;
BEGIN
    IF expected IN (0, -1) THEN
        INSERT INTO tailrace.streams AS s (category, stream, version) VALUES (in_category, in_stream, 0)
        ON CONFLICT (category, stream) DO NOTHING;
    END IF;
    SELECT s.version INTO stream_version FROM tailrace.streams s
    WHERE s.category = in_category AND s.stream = in_stream FOR UPDATE;
    stream_version := coalesce(stream_version, 0);

    SELECT e.version INTO first_found FROM tailrace.events e
    WHERE e.event_id = (events -> 0 ->> 'event_id')::uuid;
    SELECT count(*), bool_and(e.category = in_category AND e.stream = in_stream
                              AND e.version = first_found + n.ordinality - 1)
    INTO count_found, in_order
    FROM jsonb_array_elements(events) WITH ORDINALITY AS n(event, ordinality)
    JOIN tailrace.events e ON e.event_id = (n.event ->> 'event_id')::uuid;
    IF count_found > 0 THEN
        outcome := 'reused';
        IF in_order AND count_found = count_new THEN
            outcome := 'repeated';
            stream_version := first_found + count_new - 1;
        END IF;
        RETURN;
    END IF;

    IF expected >= 0 AND stream_version <> expected OR expected = -2 AND stream_version = 0 THEN
        outcome := 'conflict';
        RETURN;
    END IF;

    IF jsonb_path_exists(events, '$[*].tags[*]') THEN
        PERFORM tailrace.put_tags(
            jsonb_build_array(jsonb_build_array(in_category, in_stream, 0, (
                SELECT jsonb_agg(jsonb_build_array(n.event -> 'type', 0, '', 0, coalesce(n.event -> 'tags', '[]'))
                                 ORDER BY n.ordinality)
                FROM jsonb_array_elements(events) WITH ORDINALITY AS n(event, ordinality)))),
            ARRAY[stream_version + count_new], '[]');
    END IF;
    INSERT INTO tailrace.events
        (category, stream, version, type, schema_version, data, metadata, event_id, recorded_at)
    SELECT in_category, in_stream, stream_version + n.ordinality, n.event ->> 'type',
           (n.event ->> 'schema_version')::integer, n.event -> 'data', n.event -> 'metadata',
           (n.event ->> 'event_id')::uuid, clock_timestamp()
    FROM jsonb_array_elements(events) WITH ORDINALITY AS n(event, ordinality);
    stream_version := stream_version + count_new;
    UPDATE tailrace.streams s SET version = stream_version
    WHERE s.category = in_category AND s.stream = in_stream;
    outcome := 'appended';
END
$body$;

-- The events that are asked for, and in front of them, without a type, the version of each tag: all as one snapshot has it. asked: array of
-- [tag, types, tags] as above. An event that is asked for twice, by different tags, comes twice.
CREATE FUNCTION tailrace.load_tagged(asked jsonb)
RETURNS TABLE (tag text, tag_version bigint, category text, stream text, version bigint, type text,
               schema_version integer, data text, metadata text, event_id uuid, recorded_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $body$
BEGIN
    RETURN QUERY
    SELECT a.tag, g.version, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::integer, NULL::text, NULL::text,
           NULL::uuid, NULL::timestamptz
    FROM (SELECT DISTINCT i.item ->> 0 AS tag FROM jsonb_array_elements(asked) AS i(item)) AS a
    JOIN tailrace.tags g ON g.tag = a.tag;
    RETURN QUERY
    SELECT t.tag, t.version, e.category, e.stream, e.version, e.type, e.schema_version, e.data::text, e.metadata::text,
           e.event_id, e.recorded_at
    FROM (SELECT i.item ->> 0 AS tag, i.item -> 1 AS types, ARRAY(SELECT jsonb_array_elements_text(i.item -> 2)) AS tags
          FROM jsonb_array_elements(asked) AS i(item)) AS a
    JOIN tailrace.tagged_events t
        ON t.tag = a.tag AND (a.types = 'null'::jsonb OR a.types ? t.type) AND t.tags @> a.tags
    JOIN tailrace.events e
        ON e.category = t.category AND e.stream = t.stream AND e.version = t.stream_version
    ORDER BY e.recorded_at, e.category, e.stream, e.version;
END
$body$;

GRANT EXECUTE ON FUNCTION tailrace.load_tagged TO PUBLIC;

-- Whoever may append goes on to, and whoever may load.
DO $grants$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT format(g.command, CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END)
        FROM (SELECT 'GRANT EXECUTE ON FUNCTION tailrace.append_all TO %s', a.grantee, a.privilege_type, p.proowner
              FROM pg_proc p, aclexplode(p.proacl) a WHERE p.oid = 'tailrace.append_streams'::regproc
              UNION ALL
              SELECT 'GRANT SELECT ON tailrace.tags, tailrace.tagged_events TO %s', a.grantee, a.privilege_type, c.relowner
              FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = 'tailrace.events'::regclass
             ) AS g(command, grantee, privilege, owner)
        WHERE g.privilege IN ('EXECUTE', 'SELECT') AND g.grantee <> g.owner
    LOOP
        EXECUTE statement;
    END LOOP;
END
$grants$;
