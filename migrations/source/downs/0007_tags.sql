-- Events stay; by which tags they are found does not.
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

DROP FUNCTION tailrace.load_tagged, tailrace.append_all, tailrace.put_tags;
DROP TABLE tailrace.tagged_events, tailrace.tags;
