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

-- Take the tags of events that are about to be appended, and of those that were asked for.
--
-- names, steps: all of these tags, in the order of their bytes, each once; and of how many of the events each is (0: it is only asked for).
-- Of each tag of each event: which of the names it is, the how manieth event of it, the part and the place in it where the event is, its
-- type, and all of its tags as an array's text. Part number n is a stream, categories[n] and streams[n], of so many events before these.
-- Of what was asked for: which of the names, the version that was seen, the types as an array's text (null: all), all tags likewise.
--
-- The result is 0, or the number of one that was asked for, counted from 1, for which there is another event by now; nothing was written
-- then.
--
-- All tags are taken in one order everywhere, behind the heads of streams. One that was only asked for is held, too: nobody appends an
-- event with it before the caller's transaction ends. Under READ COMMITTED the look for other events is a statement of its own, so it sees
-- what was waited for; under REPEATABLE READ and SERIALIZABLE the server answers with a serialization failure (40001).
CREATE FUNCTION tailrace.put_tags(
    categories text[], streams text[], before bigint[], names text[], steps bigint[],
    tag_of integer[], rank_of bigint[], part_of integer[], place_of bigint[], type_of text[], tags_of text[],
    asked integer[], seen bigint[], asked_types text[], asked_tags text[]
) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $body$
DECLARE
    taken   text[];
    reached bigint[];
BEGIN
    WITH moved AS (
        INSERT INTO tailrace.tags AS g (tag, version) SELECT u.tag, u.step FROM unnest(names, steps) AS u(tag, step)
        ON CONFLICT (tag) DO UPDATE SET version = g.version + EXCLUDED.version
        RETURNING g.tag, g.version
    )
    SELECT array_agg(m.tag ORDER BY m.tag COLLATE "C"), array_agg(m.version ORDER BY m.tag COLLATE "C")
    INTO taken, reached FROM moved m;
    IF taken IS DISTINCT FROM names THEN
        RAISE EXCEPTION 'tags are given in the order of their bytes, each once';
    END IF;

    FOR n IN 1 .. cardinality(asked) LOOP
        CONTINUE WHEN reached[asked[n]] - steps[asked[n]] = seen[n];
        PERFORM FROM tailrace.tagged_events e
        WHERE e.tag = names[asked[n]] AND e.version > seen[n]
            AND (asked_types[n] IS NULL OR e.type = ANY (asked_types[n]::text[])) AND e.tags @> asked_tags[n]::text[]
        LIMIT 1;
        IF FOUND THEN
            UPDATE tailrace.tags g SET version = g.version - u.step
            FROM unnest(names, steps) AS u(tag, step) WHERE g.tag = u.tag AND u.step > 0;
            RETURN n;
        END IF;
    END LOOP;

    INSERT INTO tailrace.tagged_events (tag, version, category, stream, stream_version, type, tags)
    SELECT names[u.tag], reached[u.tag] - steps[u.tag] + u.rank, categories[u.part], streams[u.part],
           before[u.part] + u.place, u.type, u.tags::text[]
    FROM unnest(tag_of, rank_of, part_of, place_of, type_of, tags_of) AS u(tag, rank, part, place, type, tags);
    RETURN 0;
END
$body$;

-- append_many with tags, as put_tags has them. failed: 0, and version is that of the last event; 1: the stream is not where it was
-- expected, but at version; behind that, the number of one that was asked for, whose tag is at version.
CREATE FUNCTION tailrace.append_tagged(
    in_category text, in_stream text, expected bigint, events jsonb, in_metadata jsonb, names text[], steps bigint[],
    tag_of integer[], rank_of bigint[], part_of integer[], place_of bigint[], type_of text[], tags_of text[],
    asked integer[], seen bigint[], asked_types text[], asked_tags text[], OUT failed integer, OUT version bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
DECLARE
    count_new bigint := jsonb_array_length(events);
BEGIN
    failed := 0;
    version := tailrace.move_head(in_category, in_stream, expected, count_new);
    IF version <= 0 THEN
        failed := 1;
        version := -version;
        RETURN;
    END IF;
    IF cardinality(names) > 0 THEN
        failed := tailrace.put_tags(
            ARRAY[in_category], ARRAY[in_stream], ARRAY[version - count_new], names, steps, tag_of, rank_of, part_of, place_of,
            type_of, tags_of, asked, seen, asked_types, asked_tags);
    END IF;
    IF failed > 0 THEN
        UPDATE tailrace.streams s SET version = s.version - count_new
        WHERE s.category = in_category AND s.stream = in_stream;
        SELECT g.version INTO version FROM tailrace.tags g WHERE g.tag = names[asked[failed]];
        failed := failed + 1;
        RETURN;
    END IF;
    INSERT INTO tailrace.events
        (category, stream, version, type, schema_version, data, metadata, event_id, recorded_at)
    SELECT in_category, in_stream, append_tagged.version - count_new + n.place, n.event ->> 0, (n.event ->> 1)::integer,
           n.event -> 3, in_metadata, (n.event ->> 2)::uuid, clock_timestamp()
    FROM jsonb_array_elements(events) WITH ORDINALITY AS n(event, place);
END
$body$;

-- append_streams of migration 4, which earlier releases call, with tags, as put_tags has them. failed goes on behind the parts with those that
-- were asked for: then versions[1] is where its tag is.
CREATE FUNCTION tailrace.append_all(
    parts jsonb, in_metadata jsonb, names text[], steps bigint[],
    tag_of integer[], rank_of bigint[], part_of integer[], place_of bigint[], type_of text[], tags_of text[],
    asked integer[], seen bigint[], asked_types text[], asked_tags text[], OUT failed integer, OUT versions bigint[]
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

    IF failed = 0 AND cardinality(names) > 0 THEN
        SELECT tailrace.put_tags(
                   array_agg(p.part ->> 0 ORDER BY p.place), array_agg(p.part ->> 1 ORDER BY p.place),
                   array_agg(versions[p.place] - jsonb_array_length(p.part -> 3) ORDER BY p.place), names, steps, tag_of,
                   rank_of, part_of, place_of, type_of, tags_of, asked, seen, asked_types, asked_tags)
        INTO failed FROM jsonb_array_elements(parts) WITH ORDINALITY AS p(part, place);
        IF failed > 0 THEN
            SELECT g.version INTO head FROM tailrace.tags g WHERE g.tag = names[asked[failed]];
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

-- append_events of migration 2, which earlier releases call, with tags, as put_tags has them.
CREATE FUNCTION tailrace.append_once(
    in_category text, in_stream text, expected bigint, events jsonb, names text[], steps bigint[],
    tag_of integer[], rank_of bigint[], part_of integer[], place_of bigint[], type_of text[], tags_of text[],
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

    IF cardinality(names) > 0 THEN
        PERFORM tailrace.put_tags(
            ARRAY[in_category], ARRAY[in_stream], ARRAY[stream_version], names, steps, tag_of, rank_of, part_of, place_of,
            type_of, tags_of, '{}', '{}', '{}', '{}');
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

REVOKE ALL ON FUNCTION tailrace.put_tags, tailrace.append_tagged, tailrace.append_all, tailrace.append_once FROM PUBLIC;

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
    -- One look-up each: a join that was planned while there were few tags would read all of them.
    SELECT a.tag, coalesce((SELECT g.version FROM tailrace.tags g WHERE g.tag = a.tag), 0), NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::integer, NULL::text, NULL::text,
           NULL::uuid, NULL::timestamptz
    FROM (SELECT DISTINCT i.item ->> 0 AS tag FROM jsonb_array_elements(asked) AS i(item)) AS a;
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
        FROM (SELECT 'GRANT EXECUTE ON FUNCTION tailrace.append_tagged, tailrace.append_all, tailrace.append_once TO %s', a.grantee, a.privilege_type, p.proowner
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
