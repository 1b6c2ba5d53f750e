-- Loads as functions, so that their plans are kept with enable_seqscan = off: a driver that prepares a query itself keeps the plan
-- that fits the small table of the first minutes, and reads all events for each stream when there are many. They run with the
-- caller's rights, who needs SELECT on the tables; row-level security holds.
CREATE FUNCTION tailrace.load_stream(in_category text, in_stream text, from_version bigint, to_version bigint)
RETURNS TABLE (version bigint, type text, schema_version integer, data text, metadata text, event_id uuid,
               recorded_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
BEGIN
    RETURN QUERY
    SELECT e.version, e.type, e.schema_version, e.data::text, e.metadata::text, e.event_id, e.recorded_at
    FROM tailrace.events e
    WHERE e.category = in_category AND e.stream = in_stream AND e.version BETWEEN from_version AND to_version
    ORDER BY e.version;
END
$body$;

-- First the snapshot of this code, if there is one, with its state as data and without a type; then the events behind it.
CREATE FUNCTION tailrace.load_tail(in_category text, in_stream text, in_code text)
RETURNS TABLE (version bigint, type text, schema_version integer, data text, metadata text, event_id uuid,
               recorded_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
DECLARE
    behind bigint := 0;
    state  text;
BEGIN
    SELECT s.version, s.state::text INTO behind, state FROM tailrace.snapshots s
    WHERE s.category = in_category AND s.stream = in_stream AND s.code = in_code;
    IF FOUND THEN
        RETURN QUERY SELECT behind, NULL::text, NULL::integer, state, NULL::text, NULL::uuid, NULL::timestamptz;
    END IF;
    RETURN QUERY SELECT * FROM tailrace.load_stream(in_category, in_stream, coalesce(behind, 0) + 1, 9223372036854775807);
END
$body$;

-- At most so many events of the category's streams whose ids begin with a prefix, behind a stream's version.
CREATE FUNCTION tailrace.load_category(
    in_category text, prefix text, after_stream text, after_version bigint, at_most bigint
)
RETURNS TABLE (stream text, version bigint, type text, schema_version integer, data text, metadata text, event_id uuid,
               recorded_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off
AS $body$
BEGIN
    RETURN QUERY
    SELECT e.stream, e.version, e.type, e.schema_version, e.data::text, e.metadata::text, e.event_id, e.recorded_at
    FROM tailrace.events e
    WHERE e.category = in_category AND (e.stream, e.version) > (after_stream, after_version)
        AND starts_with(e.stream, prefix)
    ORDER BY e.category, e.stream, e.version
    LIMIT at_most;
END
$body$;

GRANT EXECUTE ON FUNCTION tailrace.load_stream, tailrace.load_tail, tailrace.load_category TO PUBLIC;
