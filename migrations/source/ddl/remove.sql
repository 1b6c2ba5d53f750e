-- Removes what install.sql made, but for tailrace.secret: capture may still have to check messages in the WAL. Once it is
-- past them, DROP TABLE tailrace.secret.
DROP EVENT TRIGGER IF EXISTS tailrace_ddl_start;
DROP EVENT TRIGGER IF EXISTS tailrace_ddl_drop;
DROP EVENT TRIGGER IF EXISTS tailrace_ddl_rewrite;
DROP EVENT TRIGGER IF EXISTS tailrace_ddl_end;
DROP FUNCTION IF EXISTS tailrace.ddl_start(), tailrace.ddl_end(), tailrace.ddl_drop(), tailrace.ddl_rewrite(),
    tailrace.ddl_failed(text, text), tailrace.ddl_types(), tailrace.ddl_moved(text, text, text), tailrace.ddl_partitions(), tailrace.ddl_users(oid[]),
    tailrace.ddl_say(oid, text, text, jsonb), tailrace.ddl_tell(oid[], text, text), tailrace.ddl_emit(jsonb), tailrace.ddl_unseal(text, text),
    tailrace.ddl_seal(text, text), tailrace.ddl_sign(bytea), tailrace.ddl_collation(oid);
DO $body$
BEGIN
    DROP SCHEMA IF EXISTS tailrace;
EXCEPTION WHEN dependent_objects_still_exist THEN
    NULL;
END
$body$;
