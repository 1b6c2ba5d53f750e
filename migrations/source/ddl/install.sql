-- DDL as transactional logical messages (prefix tailrace.ddl), so that schema changes and rows come in one order.
--
-- DDL sends no row events, and the stream shows a table's new columns only with its next row: without names that
-- stay, without what a rewrite did to rows. Event triggers say both at the place where it happened. One message per
-- table: 32 bytes of HMAC-SHA256 under the secret of this database, then what they authenticate:
--
--   tailrace.ddl XID LSN    full id of the transaction, WAL position before the message; a newline ends them
--   JSON in UTF-8, version 2:
--
--   {"v": 2, "command": "ALTER TABLE", "changed": "", "relid": 16384, "schema": "public", "name": "orders",
--    "identity": "d", "roots": [], "partial": false, "key": [1],
--    "columns": [{"id": 1, "name": "id", "type_oid": 23, "typmod": -1, "type_name": "integer",
--                 "generated": "", "fill": null, "base_oid": 0, "base_typmod": -1, "type_kind": "b", "collation": ""},
--                …]}
--
-- changed: ''         the table is described as it is now
--          rewritten  its rows are about to be written anew (no columns are given)
--          revalued   the text of stored values changed without a rewrite: a renamed enum label, another composite type
--          repartitioned  it was attached to a partitioned table or detached from one; "roots" are that one and those above
--                     it, of which rows came or went without an event (no columns are given)
--          dropped    it is gone (no columns are given)
--          failed     the trigger could not say what happened; "error" says why
--
-- A command of the user never fails because of these functions: an error becomes the message "failed". Only
-- query_canceled passes, so that timeouts and cancels go on to work. The functions read system catalogs alone, and lock no
-- table: they run in the user's transaction, which would hold the lock to its end. They run with their owner's rights so
-- that everybody's DDL is told, whatever may be read by whom.
CREATE SCHEMA IF NOT EXISTS tailrace;

-- Whoever owns one of these could write messages that are believed. CREATE OR REPLACE keeps the owner that there is.
DO $owners$
DECLARE
    found text;
BEGIN
    SELECT format('%s belongs to %I', o.what, r.rolname) INTO found
    FROM (SELECT 'schema tailrace', n.nspowner FROM pg_catalog.pg_namespace n WHERE n.nspname = 'tailrace'
          UNION ALL SELECT format('tailrace.%I', c.relname), c.relowner
          FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
          WHERE n.nspname = 'tailrace' AND c.relname = 'secret'
          UNION ALL SELECT format('function %s', p.oid::regprocedure), p.proowner
          FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
          WHERE n.nspname = 'tailrace' AND p.proname ~ '^ddl_') AS o(what, owner)
    JOIN pg_catalog.pg_roles r ON r.oid = o.owner
    WHERE NOT r.rolsuper AND r.rolname NOT IN (current_user, @capture_name@)
      AND r.oid <> (SELECT d.datdba FROM pg_catalog.pg_database d WHERE d.datname = current_database())
    LIMIT 1;
    IF found IS NOT NULL THEN
        RAISE EXCEPTION '%', found USING ERRCODE = 'insufficient_privilege',
            HINT = 'somebody else made it before: drop it, or give it to a superuser (ALTER … OWNER TO), and look why it is there';
    END IF;
END
$owners$;
REVOKE CREATE ON SCHEMA tailrace FROM PUBLIC;

-- What the messages are authenticated with: made once, and kept by another installation and by a removal, because the
-- WAL may hold messages that capture has not read yet. Who reads it can write messages that are believed.
CREATE TABLE IF NOT EXISTS tailrace.secret (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    secret bytea   NOT NULL CHECK (octet_length(secret) = 32)
);
REVOKE ALL ON TABLE tailrace.secret FROM PUBLIC;
INSERT INTO tailrace.secret (secret)
SELECT pg_catalog.sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
ON CONFLICT DO NOTHING;
GRANT USAGE ON SCHEMA tailrace TO @capture_role@;
GRANT SELECT ON TABLE tailrace.secret TO @capture_role@;

-- HMAC-SHA256 (RFC 2104). NULL without a secret.
CREATE OR REPLACE FUNCTION tailrace.ddl_sign(content bytea) RETURNS bytea
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT sha256(string_agg(set_byte(decode('00', 'hex'), 0, b.byte # 92), ''::bytea ORDER BY b.place)
        || sha256(string_agg(set_byte(decode('00', 'hex'), 0, b.byte # 54), ''::bytea ORDER BY b.place) || content))
    FROM tailrace.secret s, LATERAL (
        SELECT i, get_byte(s.secret || decode(repeat('00', 32), 'hex'), i) FROM generate_series(0, 63) i) AS b(place, byte);
$body$;

CREATE OR REPLACE FUNCTION tailrace.ddl_emit(content jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    signed bytea := convert_to(format('tailrace.ddl %s %s', pg_current_xact_id(), pg_current_wal_insert_lsn())
                               || chr(10) || content::text, 'UTF8');
BEGIN
    IF octet_length(signed) > 4190000 AND content ->> 'changed' <> 'failed' THEN  -- capture skips what is longer
        PERFORM tailrace.ddl_failed(content ->> 'command', format('the description of %s.%s has %s bytes',
            content ->> 'schema', content ->> 'name', octet_length(signed)));
        RETURN;
    END IF;
    IF pg_logical_emit_message(true, 'tailrace.ddl', tailrace.ddl_sign(signed) || signed) IS NULL THEN
        RAISE EXCEPTION 'tailrace.secret is empty: install the trigger again';
    END IF;
END
$body$;

-- Settings carry what was before a command to where it ends. Code of a user may run between the two (USING f()), and
-- change them: so they are signed, too.
CREATE OR REPLACE FUNCTION tailrace.ddl_seal(name text, value text) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT encode(tailrace.ddl_sign(convert_to(format('%s %s %s', name, pg_current_xact_id(), value), 'UTF8')), 'hex')
        || value;
$body$;

-- NULL when nothing was carried. An error when it is not what this transaction sealed.
CREATE OR REPLACE FUNCTION tailrace.ddl_unseal(name text, sealed text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF sealed = '' OR sealed IS NULL THEN
        RETURN NULL;
    END IF;
    IF tailrace.ddl_seal(name, substr(sealed, 65)) <> sealed THEN
        RAISE EXCEPTION 'setting tailrace.% was changed during the command', name;
    END IF;
    RETURN substr(sealed, 65);
END
$body$;

-- How texts under a collation are ordered: C by their bytes, otherwise its name.
CREATE OR REPLACE FUNCTION tailrace.ddl_collation(number oid) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT coalesce((
        SELECT CASE WHEN NOT l.collisdeterministic THEN l.collname || ' (nondeterministic)'
                    WHEN l.collprovider = 'd' THEN d.name
                    WHEN l.collprovider = 'b' OR l.collprovider = 'c' AND l.collcollate = ANY (d.bytes) THEN 'C'
                    ELSE l.collname END
        FROM pg_collation l, (
            SELECT c.bytes, CASE WHEN o.provider = 'b' OR o.provider = 'c' AND o.datcollate = ANY (c.bytes) THEN 'C'
                                 ELSE coalesce(o.locale, o.datcollate) END AS name
            FROM (SELECT datcollate::text, coalesce(to_jsonb(x) ->> 'datlocprovider', 'c') AS provider,
                         coalesce(to_jsonb(x) ->> 'datlocale', to_jsonb(x) ->> 'daticulocale') AS locale
                  FROM pg_database x WHERE x.datname = current_database()) o,
                 (SELECT ARRAY['C', 'POSIX', 'C.UTF-8', 'C.utf8'] AS bytes) c) d
        WHERE l.oid = number), '');
$body$;

-- Say of each of these tables what it is now. Settings are those of capture's sessions: they shape the texts of fills.
CREATE OR REPLACE FUNCTION tailrace.ddl_tell(relids oid[], command text, changed text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 3
SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmloption = 'content'
AS $body$
BEGIN
    PERFORM tailrace.ddl_emit(jsonb_build_object(
        'v', 2, 'command', command, 'changed', changed, 'relid', c.oid::bigint,
        'schema', n.nspname, 'name', c.relname, 'identity', c.relreplident,
        'roots', CASE WHEN c.relispartition THEN (
            SELECT coalesce(jsonb_agg(a.relid::oid::bigint), '[]') FROM pg_partition_ancestors(c.oid) a
            WHERE a.relid <> c.oid) ELSE '[]' END,
        -- A publication with a column list, or one of generated columns, sends others than all ordinary ones.
        'partial', EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = c.oid
                           AND to_jsonb(r) ->> 'prattrs' IS NOT NULL)
            OR EXISTS (SELECT FROM pg_publication p WHERE to_jsonb(p) ->> 'pubgencols' NOT IN ('n', 'false'))
               AND EXISTS (SELECT FROM pg_attribute g WHERE g.attrelid = c.oid AND g.attgenerated <> ''),
        'key', (
            SELECT coalesce(jsonb_agg(k.attnum ORDER BY k.place), '[]')
            FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
            WHERE i.indrelid = c.oid AND i.indimmediate AND i.indisvalid AND k.place <= i.indnkeyatts
              AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END),
        'columns', (
            SELECT coalesce(jsonb_agg(jsonb_build_object(
                'id', a.attnum, 'name', a.attname, 'type_oid', a.atttypid::bigint, 'typmod', a.atttypmod,
                'type_name', format_type(a.atttypid, a.atttypmod), 'generated', a.attgenerated,
                'fill', CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1]
                             WHEN c.relkind = 'p' THEN (  -- a root stores no rows: its partitions know the fill
                    WITH RECURSIVE tree(oid) AS (  -- pg_partition_tree would lock them all until the user's commit
                        SELECT c.oid UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
                        WHERE NOT i.inhdetachpending)
                    SELECT (l.attmissingval::text::text[])[1]
                    FROM tree t JOIN pg_attribute l ON l.attrelid = t.oid
                    WHERE l.attname = a.attname AND l.atthasmissing LIMIT 1) END,
                'base_oid', coalesce(b.oid::bigint, 0), 'base_typmod', coalesce(b.typmod, -1),
                'type_kind', coalesce(b.typtype, t.typtype), 'collation', tailrace.ddl_collation(a.attcollation)
                ) ORDER BY a.attnum), '[]')
            FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
            LEFT JOIN LATERAL (  -- the type at the end of a domain
                WITH RECURSIVE below(oid, typmod, typtype, next, next_typmod) AS (
                    SELECT t.typbasetype, t.typtypmod, n.typtype, n.typbasetype, n.typtypmod
                    FROM pg_type n WHERE n.oid = t.typbasetype
                    UNION ALL SELECT n.oid, w.next_typmod, n.typtype, n.typbasetype, n.typtypmod
                    FROM below w JOIN pg_type n ON n.oid = w.next)
                SELECT oid, typmod, typtype FROM below WHERE typtype <> 'd') b ON t.typtype = 'd'
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
        ))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = ANY (relids) AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
      AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'tailrace');
END
$body$;

-- Say something short of one table, or that nothing can be said.
CREATE OR REPLACE FUNCTION tailrace.ddl_say(relid oid, command text, changed text, more jsonb) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT tailrace.ddl_emit(jsonb_build_object(
        'v', 2, 'command', command, 'changed', changed, 'relid', relid::bigint) || more);
$body$;

-- Tables whose columns use one of these types: as it is, in an array, a domain, a composite type or a range. pg_depend has
-- an index of what depends on a type. What depends on it otherwise (a default's expression) is not part of its values.
-- OFFSET 0 keeps the planner to that index, one type at a time, whatever statistics say of a catalog that has just grown.
CREATE OR REPLACE FUNCTION tailrace.ddl_users(types oid[]) RETURNS oid[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $body$
    WITH RECURSIVE used(oid) AS (
        SELECT unnest(types) UNION SELECT whole.oid
        FROM used u
        CROSS JOIN LATERAL (SELECT * FROM pg_depend WHERE refclassid = 'pg_type'::regclass AND refobjid = u.oid OFFSET 0) d
        CROSS JOIN LATERAL (
            SELECT t.oid FROM pg_type t
            WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid AND (
                t.typelem = u.oid AND t.typcategory = 'A' OR t.typbasetype = u.oid
                OR EXISTS (SELECT FROM pg_range r WHERE r.rngtypid = t.oid AND r.rngsubtype = u.oid)
                OR EXISTS (SELECT FROM pg_range r WHERE r.rngtypid = u.oid AND r.rngmultitypid = t.oid))
            UNION ALL
            SELECT c.reltype FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.reltype <> 0
              AND a.attnum = d.objsubid AND a.attnum > 0 AND a.atttypid = u.oid
        ) whole
    )
    SELECT coalesce(array_agg(DISTINCT a.attrelid), '{}')
    FROM used u
    CROSS JOIN LATERAL (SELECT * FROM pg_depend WHERE refclassid = 'pg_type'::regclass AND refobjid = u.oid
        AND classid = 'pg_class'::regclass OFFSET 0) d
    CROSS JOIN LATERAL (SELECT * FROM pg_attribute WHERE attrelid = d.objid AND attnum = d.objsubid AND attnum > 0
        AND atttypid = u.oid OFFSET 0) a;
$body$;

-- What the labels of enums and the attributes of composite types are: compared before and after ALTER TYPE, which does
-- not tell an event trigger whether it renamed a label or added one.
CREATE OR REPLACE FUNCTION tailrace.ddl_types() RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT jsonb_build_object(
        'labels', (SELECT coalesce(jsonb_object_agg(e.oid, e.enumlabel), '{}') FROM pg_enum e),
        'attributes', (SELECT coalesce(jsonb_object_agg(c.reltype, (
            SELECT string_agg(format('%s %s %s', a.attnum, a.atttypid, a.attisdropped), ', ' ORDER BY a.attnum)
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)), '{}')
            FROM pg_class c WHERE c.relkind = 'c'));
$body$;

-- The ties of partitions: compared before and after ALTER TABLE, which does not tell an event trigger what it attached.
CREATE OR REPLACE FUNCTION tailrace.ddl_partitions() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT format('[%s]', string_agg(i.inhrelid || ' ' || i.inhparent, ',' ORDER BY i.inhrelid))
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent AND c.relkind = 'p'
    WHERE NOT i.inhdetachpending;
$body$;

-- Say of tables that are partitions of others than before, with all partitions of their own, whose these were and are.
CREATE OR REPLACE FUNCTION tailrace.ddl_moved(before text, after text, command text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    WITH RECURSIVE old(tie) AS MATERIALIZED (SELECT string_to_table(btrim(before, '[]'), ',')
    ), new(tie) AS MATERIALIZED (SELECT string_to_table(btrim(after, '[]'), ',')
    ), changed(tie) AS (
        (TABLE old EXCEPT TABLE new) UNION (TABLE new EXCEPT TABLE old)
    ), tie(child, parent) AS (
        SELECT split_part(c.tie, ' ', 1)::oid, split_part(c.tie, ' ', 2)::oid FROM changed c
    ), moved(oid, parent) AS (
        SELECT child, parent FROM tie UNION SELECT i.inhrelid, m.parent
        FROM moved m JOIN pg_inherits i ON i.inhparent = m.oid AND NOT i.inhdetachpending
    )
    SELECT tailrace.ddl_say(c.oid, command, 'repartitioned', jsonb_build_object(
        'schema', n.nspname, 'name', c.relname, 'roots', (
            SELECT jsonb_agg(DISTINCT r.relid::bigint) FROM (
                SELECT m.parent AS relid UNION ALL SELECT a.relid::oid FROM pg_partition_ancestors(m.parent) a) r)))
    FROM moved m JOIN pg_class c ON c.oid = m.oid AND c.relkind = 'r' AND c.relpersistence = 'p'
    JOIN pg_namespace n ON n.oid = c.relnamespace;
$body$;

CREATE OR REPLACE FUNCTION tailrace.ddl_failed(command text, error text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    PERFORM tailrace.ddl_say(0, command, 'failed', jsonb_build_object('error', error));
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'tailrace could not tell of %: %', command, error;
END
$body$;

CREATE OR REPLACE FUNCTION tailrace.ddl_start() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF tg_tag = 'ALTER TYPE' THEN
        PERFORM set_config('tailrace.types', tailrace.ddl_seal('types', tailrace.ddl_types()::text), true);
    ELSE
        PERFORM set_config('tailrace.partitions', tailrace.ddl_seal('partitions', tailrace.ddl_partitions()), true);
    END IF;
EXCEPTION WHEN OTHERS THEN
    PERFORM tailrace.ddl_failed(tg_tag, sqlerrm);
END
$body$;

CREATE OR REPLACE FUNCTION tailrace.ddl_end() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    changed oid[];
    types   oid[];
    before  jsonb;
    after   jsonb;
    was     text;
    now     text;
BEGIN
    -- Tables named by the command, those that inherit from them, and those of a renamed schema.
    WITH RECURSIVE command AS MATERIALIZED (
        SELECT d.classid, d.objid FROM pg_event_trigger_ddl_commands() d
        WHERE d.objid IS NOT NULL AND d.command_tag NOT LIKE 'CREATE %' AND d.command_tag <> 'COMMENT'
    ), touched(oid) AS (
        SELECT d.objid FROM command d WHERE d.classid = 'pg_class'::regclass
        UNION SELECT c.oid FROM command d JOIN pg_class c ON c.relnamespace = d.objid AND c.relkind IN ('r', 'p')
            WHERE d.classid = 'pg_namespace'::regclass AND tg_tag = 'ALTER SCHEMA'
        UNION SELECT i.inhrelid FROM touched t JOIN pg_inherits i ON i.inhparent = t.oid
    )
    SELECT (SELECT array_agg(t.oid) FROM touched t),
           (SELECT array_agg(d.objid) FROM command d WHERE d.classid = 'pg_type'::regclass)
    INTO changed, types;
    PERFORM tailrace.ddl_tell(changed, tg_tag, '');
    IF tg_tag = 'ALTER TABLE' THEN  -- a table's rows may be values of another table's column
        types := ARRAY(SELECT c.reltype FROM pg_class c WHERE c.oid = ANY (changed) AND c.reltype <> 0);
        changed := tailrace.ddl_users(types);
        was := tailrace.ddl_unseal('partitions', current_setting('tailrace.partitions', true));
        now := tailrace.ddl_partitions();
        IF was <> now THEN  -- not where DETACH CONCURRENTLY ends, which is in another transaction than it began in
            PERFORM tailrace.ddl_moved(was, now, tg_tag);
        END IF;
    ELSIF tg_tag = 'ALTER TYPE' THEN
        before := coalesce(tailrace.ddl_unseal('types', current_setting('tailrace.types', true)), '{}')::jsonb;
        after := tailrace.ddl_types();
        -- ALTER TYPE names a composite type or, of its attributes, the relation behind it.
        types := array_cat(types, ARRAY(SELECT c.reltype FROM pg_class c WHERE c.oid = ANY (changed)));
        changed := tailrace.ddl_users(ARRAY(
            SELECT t.oid FROM pg_type t WHERE t.oid = ANY (types) AND (
                t.typtype = 'e' AND EXISTS (
                    SELECT FROM pg_enum e WHERE e.enumtypid = t.oid
                    AND (NOT before ? 'labels' OR before -> 'labels' ->> e.oid::text <> e.enumlabel))
                OR t.typtype = 'c' AND before -> 'attributes' ->> t.oid::text
                    IS DISTINCT FROM after -> 'attributes' ->> t.oid::text)));
    ELSE
        changed := '{}';
    END IF;
    PERFORM tailrace.ddl_tell(changed, tg_tag, 'revalued');
EXCEPTION WHEN OTHERS THEN
    PERFORM tailrace.ddl_failed(tg_tag, sqlerrm);
END
$body$;

-- Tables that are gone, and columns that went with something else (DROP TYPE … CASCADE).
CREATE OR REPLACE FUNCTION tailrace.ddl_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    PERFORM tailrace.ddl_say(d.objid, tg_tag, 'dropped',
                             jsonb_build_object('schema', d.schema_name, 'name', d.object_name))
    FROM pg_event_trigger_dropped_objects() d WHERE d.object_type = 'table' AND NOT d.is_temporary;
    PERFORM tailrace.ddl_tell(
        ARRAY(SELECT DISTINCT d.objid FROM pg_event_trigger_dropped_objects() d
              WHERE d.object_type = 'table column' AND NOT d.original), tg_tag, '');
    PERFORM tailrace.ddl_tell(tailrace.ddl_users(
        ARRAY(SELECT DISTINCT c.reltype FROM pg_event_trigger_dropped_objects() d JOIN pg_class c ON c.oid = d.objid
              WHERE d.object_type = 'composite type column' AND NOT d.original)), tg_tag, 'revalued');
EXCEPTION WHEN OTHERS THEN
    PERFORM tailrace.ddl_failed(tg_tag, sqlerrm);
END
$body$;

-- Reason: 1 persistence, 2 a new column's values, 4 a column's type, 8 access method (event_trigger.h).
CREATE OR REPLACE FUNCTION tailrace.ddl_rewrite() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF pg_event_trigger_table_rewrite_reason() & 6 <> 0 THEN
        PERFORM tailrace.ddl_say(c.oid, tg_tag, 'rewritten', jsonb_build_object('roots', CASE WHEN c.relispartition THEN (
            SELECT coalesce(jsonb_agg(a.relid::oid::bigint), '[]') FROM pg_partition_ancestors(c.oid) a
            WHERE a.relid <> c.oid) ELSE '[]' END))
        FROM pg_class c WHERE c.oid = pg_event_trigger_table_rewrite_oid() AND c.relpersistence <> 't';
    END IF;
EXCEPTION WHEN OTHERS THEN
    PERFORM tailrace.ddl_failed(tg_tag, sqlerrm);
END
$body$;

REVOKE ALL ON FUNCTION tailrace.ddl_sign(bytea), tailrace.ddl_emit(jsonb), tailrace.ddl_seal(text, text), tailrace.ddl_collation(oid),
    tailrace.ddl_unseal(text, text), tailrace.ddl_tell(oid[], text, text), tailrace.ddl_say(oid, text, text, jsonb),
    tailrace.ddl_users(oid[]), tailrace.ddl_types(), tailrace.ddl_partitions(), tailrace.ddl_moved(text, text, text),
    tailrace.ddl_failed(text, text), tailrace.ddl_start(),
    tailrace.ddl_end(), tailrace.ddl_drop(), tailrace.ddl_rewrite() FROM PUBLIC;

DROP EVENT TRIGGER IF EXISTS tailrace_ddl_start;
DROP EVENT TRIGGER IF EXISTS tailrace_ddl_end;
DROP EVENT TRIGGER IF EXISTS tailrace_ddl_drop;
DROP EVENT TRIGGER IF EXISTS tailrace_ddl_rewrite;
CREATE EVENT TRIGGER tailrace_ddl_start ON ddl_command_start WHEN TAG IN ('ALTER TYPE', 'ALTER TABLE')
    EXECUTE FUNCTION tailrace.ddl_start();
CREATE EVENT TRIGGER tailrace_ddl_drop ON sql_drop EXECUTE FUNCTION tailrace.ddl_drop();
CREATE EVENT TRIGGER tailrace_ddl_rewrite ON table_rewrite EXECUTE FUNCTION tailrace.ddl_rewrite();
CREATE EVENT TRIGGER tailrace_ddl_end ON ddl_command_end EXECUTE FUNCTION tailrace.ddl_end();
-- Also where somebody applies DDL as a replica.
ALTER EVENT TRIGGER tailrace_ddl_start ENABLE ALWAYS;
ALTER EVENT TRIGGER tailrace_ddl_drop ENABLE ALWAYS;
ALTER EVENT TRIGGER tailrace_ddl_rewrite ENABLE ALWAYS;
ALTER EVENT TRIGGER tailrace_ddl_end ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER tailrace_ddl_end IS 'tailrace ddl 5';

-- What the tables are at this place: nobody told of what was done to them before.
SELECT tailrace.ddl_tell(ARRAY(SELECT c.oid FROM pg_catalog.pg_class c WHERE c.relkind IN ('r', 'p')), '', '');
