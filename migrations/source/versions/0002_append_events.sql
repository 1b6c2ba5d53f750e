-- Append events to one stream in the caller's transaction, if the stream is where the caller expects it.
--
-- expected: the version of the last event the caller knows (0: no event yet), -1 any, -2 any but 0.
-- events:   array of {"type", "schema_version", "data", "metadata", "event_id"}, in order.
--
-- The outcome is returned, not raised, so that it does not fail the transaction:
--   appended  the events are versions (stream_version - count + 1) … stream_version
--   repeated  these very events, by id and order, are in this stream already; stream_version is that of the last
--   conflict  nothing was written; stream_version is where the stream is
--   reused    nothing was written; some of the ids belong to other events
--
-- The head row is locked first. Whoever waits for it sees, under READ COMMITTED, all that the other one wrote; under
-- REPEATABLE READ and SERIALIZABLE the server answers with a serialization failure (40001), to be tried again.
--
-- SECURITY DEFINER: writers need EXECUTE on this function and no right on the tables, so that nobody can write a gap.
CREATE FUNCTION tailrace.append_events(
    in_category text, in_stream text, expected bigint, events jsonb,
    OUT outcome text, OUT stream_version bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
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

REVOKE ALL ON FUNCTION tailrace.append_events(text, text, bigint, jsonb) FROM PUBLIC;
