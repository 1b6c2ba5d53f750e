-- The newest snapshot of a stream: what a decider made of its events up to version. Each can be made anew from the events.
CREATE TABLE tailrace.snapshots (
    category text        NOT NULL,
    stream   text        NOT NULL,
    version  bigint      NOT NULL CHECK (version > 0),
    code     text        NOT NULL,  -- whose state it is: others do not read it
    state    jsonb       NOT NULL,
    taken_at timestamptz NOT NULL,
    PRIMARY KEY (category, stream)
);

-- One that is behind the one of the same code does not take its place.
CREATE FUNCTION tailrace.put_snapshot(
    in_category text, in_stream text, in_version bigint, in_code text, in_state jsonb
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
BEGIN
    INSERT INTO tailrace.snapshots AS s (category, stream, version, code, state, taken_at)
    VALUES (in_category, in_stream, in_version, in_code, in_state, clock_timestamp())
    ON CONFLICT (category, stream) DO UPDATE
    SET version = EXCLUDED.version, code = EXCLUDED.code, state = EXCLUDED.state, taken_at = EXCLUDED.taken_at
    WHERE s.version < EXCLUDED.version OR s.code <> EXCLUDED.code;
END
$body$;

REVOKE ALL ON FUNCTION tailrace.put_snapshot(text, text, bigint, text, jsonb) FROM PUBLIC;

-- Whoever may append goes on to, and whoever may load.
DO $grants$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT format(g.command, CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END)
        FROM (SELECT 'GRANT EXECUTE ON FUNCTION tailrace.put_snapshot TO %s', a.grantee, a.privilege_type, p.proowner
              FROM pg_proc p, aclexplode(p.proacl) a WHERE p.oid = 'tailrace.append_one'::regproc
              UNION ALL
              SELECT 'GRANT SELECT ON tailrace.snapshots TO %s', a.grantee, a.privilege_type, c.relowner
              FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = 'tailrace.events'::regclass
             ) AS g(command, grantee, privilege, owner)
        WHERE g.privilege IN ('EXECUTE', 'SELECT') AND g.grantee <> g.owner
    LOOP
        EXECUTE statement;
    END LOOP;
END
$grants$;
