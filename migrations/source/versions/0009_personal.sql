-- Keys that personal values of events are encrypted with, before they come here. Whoever deletes a key forgets its subject: nobody reads
-- what was encrypted with it. Never captured: the log has what is encrypted, and that a key was forgotten, by its id.
CREATE TABLE tailrace.subject_keys (
    id         uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    subject    text        NOT NULL CHECK (octet_length(subject) BETWEEN 1 AND 1000),
    secret     bytea       NOT NULL CHECK (octet_length(secret) = 32),
    retired    boolean     NOT NULL DEFAULT false,  -- by a rotation: it decrypts, and encrypts nothing any more
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX subject_keys_current ON tailrace.subject_keys (subject) WHERE NOT retired;
CREATE INDEX subject_keys_subject ON tailrace.subject_keys (subject);

-- What personal tags are hidden with. One row.
CREATE TABLE tailrace.tag_secret (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    secret   bytea   NOT NULL CHECK (octet_length(secret) = 32)
);

-- The current keys of subjects, for an append. Those that are missing are made of what is proposed, in hexadecimal digits. Until the caller's
-- transaction ends nobody forgets them, so an event is written before its subject is forgotten, or with another key.
CREATE FUNCTION tailrace.seal_keys(subjects text[], proposed text[])
RETURNS TABLE (subject text, id uuid, secret text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
#variable_conflict use_column
BEGIN
    LOOP
        RETURN QUERY
        SELECT k.subject, k.id, encode(k.secret, 'hex') FROM tailrace.subject_keys k
        WHERE k.subject = ANY (subjects) AND NOT k.retired ORDER BY k.subject FOR KEY SHARE;
        EXIT WHEN (SELECT count(*) FROM tailrace.subject_keys k
                   WHERE k.subject = ANY (subjects) AND NOT k.retired) = cardinality(subjects);
        INSERT INTO tailrace.subject_keys (subject, secret)
        SELECT p.subject, decode(p.secret, 'hex') FROM unnest(subjects, proposed) AS p(subject, secret)
        WHERE NOT EXISTS (SELECT FROM tailrace.subject_keys k WHERE k.subject = p.subject AND NOT k.retired)
        ORDER BY p.subject
        ON CONFLICT (subject) WHERE NOT retired DO NOTHING;
    END LOOP;
END
$body$;

-- Keys by their ids. One that was forgotten has none; what is not here, and was not forgotten either, has no row. The head of the stream that
-- says that a key was forgotten stays for ever, so a table of keys that is restored from a backup brings nobody back.
CREATE FUNCTION tailrace.open_keys(ids text[]) RETURNS TABLE (id text, secret text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
    SELECT i.id, CASE WHEN s.stream IS NULL THEN encode(k.secret, 'hex') END
    FROM unnest(ids) AS i(id)
    LEFT JOIN tailrace.subject_keys k ON k.id = i.id::uuid
    LEFT JOIN tailrace.streams s ON s.category = 'tailrace_forgotten' AND s.stream = i.id
    WHERE k.id IS NOT NULL OR s.stream IS NOT NULL
$body$;

CREATE FUNCTION tailrace.tag_secret(proposed text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF NOT EXISTS (SELECT FROM tailrace.tag_secret) THEN
        INSERT INTO tailrace.tag_secret (secret) VALUES (decode(proposed, 'hex')) ON CONFLICT DO NOTHING;
    END IF;
    RETURN (SELECT encode(t.secret, 'hex') FROM tailrace.tag_secret t);
END
$body$;

-- That a key was forgotten is an event, of the category tailrace_forgotten, and is believed here and by readers of the log. So only who may
-- forget appends one: what is set for the transaction nobody makes up who cannot read the secret.
CREATE FUNCTION tailrace.forgetting_code() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT encode(sha256(decode(tailrace.tag_secret(encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
                  || uuid_send(gen_random_uuid())), 'hex')), 'hex') || convert_to(pg_current_xact_id()::text, 'UTF8')), 'hex')
$body$;

CREATE FUNCTION tailrace.begin_forgetting() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT set_config('tailrace.forgetting', tailrace.forgetting_code(), true)
$body$;

CREATE FUNCTION tailrace.check_forgetting() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF current_setting('tailrace.forgetting', true) IS DISTINCT FROM tailrace.forgetting_code() THEN
        RAISE EXCEPTION 'that a key was forgotten is said after tailrace.begin_forgetting alone' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$body$;
CREATE TRIGGER forgetting BEFORE INSERT ON tailrace.streams FOR EACH ROW
WHEN (NEW.category = 'tailrace_forgotten') EXECUTE FUNCTION tailrace.check_forgetting();

-- Everybody's keys: for those who forget and rotate.
CREATE FUNCTION tailrace.keys_of(in_subject text) RETURNS TABLE (id uuid, secret text)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT k.id, encode(k.secret, 'hex') FROM tailrace.subject_keys k
    WHERE k.subject = in_subject ORDER BY k.retired, k.created_at DESC FOR UPDATE
$body$;

CREATE FUNCTION tailrace.forget_keys(ids text[]) RETURNS SETOF text
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    DELETE FROM tailrace.subject_keys k WHERE k.id = ANY (ids::uuid[]) RETURNING k.id::text
$body$;

CREATE FUNCTION tailrace.rotate_key(in_subject text, proposed text) RETURNS TABLE (id uuid, secret text)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    UPDATE tailrace.subject_keys SET retired = true WHERE subject = in_subject AND NOT retired;
    INSERT INTO tailrace.subject_keys AS k (subject, secret)
    SELECT in_subject, decode(proposed, 'hex')
    WHERE EXISTS (SELECT FROM tailrace.subject_keys o WHERE o.subject = in_subject)
    RETURNING k.id, encode(k.secret, 'hex');
$body$;

-- Events with values of these keys, and their personal tags: what else of a subject there is to be removed.
CREATE FUNCTION tailrace.events_of_keys(ids text[])
RETURNS TABLE (category text, stream text, version bigint, data text, tags text[])
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
    SELECT e.category, e.stream, e.version, e.data::text,
           (SELECT t.tags FROM tailrace.tagged_events t
            WHERE t.category = e.category AND t.stream = e.stream AND t.stream_version = e.version LIMIT 1)
    FROM tailrace.events e
    WHERE e.data::text LIKE '%"$personal"%'
        AND EXISTS (SELECT FROM regexp_matches(e.data::text, '"\$personal": \["([0-9a-f-]{36})"', 'g') AS m WHERE m[1] = ANY (ids))
    ORDER BY 1, 2, 3
$body$;

-- Take tags off one event. Heads of tags that no event has any more go, too.
CREATE FUNCTION tailrace.drop_tags(in_category text, in_stream text, in_version bigint, gone text[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    dropped bigint;
BEGIN
    PERFORM FROM tailrace.tags g WHERE g.tag = ANY (gone) ORDER BY g.tag FOR UPDATE;
    DELETE FROM tailrace.tagged_events t
    WHERE t.category = in_category AND t.stream = in_stream AND t.stream_version = in_version AND t.tag = ANY (gone);
    GET DIAGNOSTICS dropped = ROW_COUNT;
    UPDATE tailrace.tagged_events t SET tags = ARRAY(SELECT u FROM unnest(t.tags) AS u WHERE u <> ALL (gone))
    WHERE t.category = in_category AND t.stream = in_stream AND t.stream_version = in_version AND t.tags && gone;
    DELETE FROM tailrace.tags g WHERE g.tag = ANY (gone) AND NOT EXISTS (SELECT FROM tailrace.tagged_events t WHERE t.tag = g.tag);
    RETURN dropped;
END
$body$;

-- What services keep beside the events of a stream: snapshots, and what is said of timers that failed.
CREATE FUNCTION tailrace.drop_derived(in_category text, in_stream text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    dropped bigint;
BEGIN
    DELETE FROM tailrace.snapshots s WHERE s.category = in_category AND s.stream = in_stream;
    GET DIAGNOSTICS dropped = ROW_COUNT;
    UPDATE tailrace.timers t SET error = NULL WHERE t.process = in_category AND t.instance = in_stream AND t.error IS NOT NULL;
    RETURN dropped;
END
$body$;

-- put_tags of migration 7, but for this: the head of a personal tag begins at the time, in microseconds. It goes with the tag's last event, and
-- who has read the head from before must not take the next one for it.
CREATE OR REPLACE FUNCTION tailrace.put_tags(
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
        INSERT INTO tailrace.tags AS g (tag, version)
        SELECT u.tag, u.step + CASE WHEN position(':' IN u.tag) = 0
                                    THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint ELSE 0 END
        FROM unnest(names, steps) AS u(tag, step)
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

REVOKE ALL ON TABLE tailrace.subject_keys, tailrace.tag_secret FROM PUBLIC;
REVOKE ALL ON FUNCTION tailrace.seal_keys, tailrace.open_keys, tailrace.tag_secret, tailrace.keys_of, tailrace.forget_keys,
    tailrace.rotate_key, tailrace.events_of_keys, tailrace.drop_tags, tailrace.drop_derived, tailrace.forgetting_code,
    tailrace.begin_forgetting, tailrace.check_forgetting FROM PUBLIC;
