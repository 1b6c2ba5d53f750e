-- Appends of events whose ids the client has just made, so that none of them can be there: the caller's transaction, if the
-- stream is where the caller expects it.
--
-- expected: the version of the last event the caller knows (0: no event yet), -1 any, -2 any but 0.
--
-- The result is returned, not raised, so that it does not fail the transaction: above 0 the version of the last event that
-- was appended, otherwise nothing was written and the stream is at minus the result (0: it has no event). In either case
-- the caller has the head row until its transaction ends: whoever looks again after a conflict is the next to append.
--
-- Whoever waits for the head row sees, under READ COMMITTED, what the other one wrote; under REPEATABLE READ and SERIALIZABLE
-- the server answers with a serialization failure (40001), to be tried again.
--
-- enable_seqscan: PL/pgSQL keeps a plan for the session. One that was made while a table was small, or never analysed, would
-- read it whole at each append when it has grown.
--
-- SECURITY DEFINER: writers need EXECUTE on these functions and no right on the tables, so that nobody can write a gap.
CREATE FUNCTION tailrace.move_head(in_category text, in_stream text, expected bigint, steps bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $body$
DECLARE
    head bigint;
BEGIN
    IF expected > 0 THEN
        UPDATE tailrace.streams s SET version = s.version + steps
        WHERE s.category = in_category AND s.stream = in_stream AND s.version = expected
        RETURNING s.version INTO head;
    ELSIF expected = 0 THEN
        INSERT INTO tailrace.streams AS s (category, stream, version) VALUES (in_category, in_stream, steps)
        ON CONFLICT (category, stream) DO UPDATE SET version = EXCLUDED.version WHERE s.version = 0
        RETURNING s.version INTO head;
    ELSIF expected = -1 THEN
        INSERT INTO tailrace.streams AS s (category, stream, version) VALUES (in_category, in_stream, steps)
        ON CONFLICT (category, stream) DO UPDATE SET version = s.version + EXCLUDED.version
        RETURNING s.version INTO head;
    ELSE
        UPDATE tailrace.streams s SET version = s.version + steps
        WHERE s.category = in_category AND s.stream = in_stream AND s.version > 0
        RETURNING s.version INTO head;
    END IF;
    IF head IS NULL THEN  -- a statement of its own: under READ COMMITTED it sees what the first one waited for
        SELECT -s.version INTO head FROM tailrace.streams s
        WHERE s.category = in_category AND s.stream = in_stream FOR UPDATE;
    END IF;
    RETURN coalesce(head, 0);
END
$body$;

CREATE FUNCTION tailrace.append_one(
    in_category text, in_stream text, expected bigint, in_type text, in_schema_version integer, in_data jsonb,
    in_metadata jsonb, in_event_id uuid
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
DECLARE
    head bigint := tailrace.move_head(in_category, in_stream, expected, 1);
BEGIN
    IF head > 0 THEN
        INSERT INTO tailrace.events
            (category, stream, version, type, schema_version, data, metadata, event_id, recorded_at)
        VALUES (in_category, in_stream, head, in_type, in_schema_version, in_data, in_metadata, in_event_id,
                clock_timestamp());
    END IF;
    RETURN head;
END
$body$;

-- events: array of [type, schema_version, event_id, data], in order.
CREATE FUNCTION tailrace.append_many(
    in_category text, in_stream text, expected bigint, events jsonb, in_metadata jsonb
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
DECLARE
    steps bigint := jsonb_array_length(events);
    head  bigint := tailrace.move_head(in_category, in_stream, expected, steps);
BEGIN
    IF head > 0 THEN
        INSERT INTO tailrace.events
            (category, stream, version, type, schema_version, data, metadata, event_id, recorded_at)
        SELECT in_category, in_stream, head - steps + n.place, n.event ->> 0, (n.event ->> 1)::integer,
               n.event -> 3, in_metadata, (n.event ->> 2)::uuid, clock_timestamp()
        FROM jsonb_array_elements(events) WITH ORDINALITY AS n(event, place);
    END IF;
    RETURN head;
END
$body$;

-- The one that looks for ids that were given.
ALTER FUNCTION tailrace.append_events(text, text, bigint, jsonb) SET enable_seqscan = off;

REVOKE ALL ON FUNCTION tailrace.move_head(text, text, bigint, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION tailrace.append_one(text, text, bigint, text, integer, jsonb, jsonb, uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION tailrace.append_many(text, text, bigint, jsonb, jsonb) FROM PUBLIC;

-- Whoever may append goes on to.
DO $grants$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_proc p, aclexplode(p.proacl) a
        WHERE p.oid = 'tailrace.append_events'::regproc AND a.privilege_type = 'EXECUTE' AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION tailrace.append_one, tailrace.append_many TO %s', grantee);
    END LOOP;
END
$grants$;
