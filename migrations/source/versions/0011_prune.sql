-- Remove events that snapshots have made superfluous, and that were recorded before a time: the first ones of each stream of a category, at most
-- so many at once; gives how many. The log has them. Heads stay, so no id and no version is used anew, and so does the last event of each
-- stream, by which readers see that earlier ones are gone. What stays, with all that is behind it: events that have tags, which decisions across
-- streams need, and those with personal values, with which the snapshot ends.
CREATE FUNCTION tailrace.prune_events(in_category text, before timestamptz, at_most bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    pruned bigint;
BEGIN
    IF EXISTS (SELECT FROM tailrace.events e WHERE e.category = in_category AND starts_with(e.type, 'tailrace_')) THEN
        RAISE EXCEPTION '% is a category of Tailrace''s own', in_category USING ERRCODE = 'invalid_parameter_value',
            HINT = 'a process knows by its events what it has reacted to';
    END IF;
    WITH kept AS (
        SELECT e.stream, min(e.version) AS version FROM tailrace.events e
        WHERE e.category = in_category AND (e.recorded_at >= before OR e.data::text LIKE '%"$personal"%') GROUP BY e.stream
    ), tagged AS (
        SELECT t.stream, min(t.stream_version) AS version FROM tailrace.tagged_events t
        WHERE t.category = in_category GROUP BY t.stream
    ), bounds AS (
        SELECT n.stream, least(n.version, h.version - 1, k.version - 1, t.version - 1) AS upto
        FROM tailrace.snapshots n
        JOIN tailrace.streams h ON h.category = n.category AND h.stream = n.stream
        LEFT JOIN kept k ON k.stream = n.stream
        LEFT JOIN tagged t ON t.stream = n.stream
        WHERE n.category = in_category
    ), gone AS (
        SELECT e.stream, e.version FROM bounds b
        JOIN tailrace.events e ON e.category = in_category AND e.stream = b.stream AND e.version <= b.upto
        ORDER BY e.stream, e.version LIMIT at_most
    )
    DELETE FROM tailrace.events e USING gone g
    WHERE e.category = in_category AND e.stream = g.stream AND e.version = g.version;
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END
$body$;
REVOKE ALL ON FUNCTION tailrace.prune_events FROM PUBLIC;
