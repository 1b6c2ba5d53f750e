DROP TRIGGER forgetting ON tailrace.streams;
DROP FUNCTION tailrace.begin_forgetting, tailrace.check_forgetting, tailrace.forgetting_code;
DROP FUNCTION tailrace.seal_keys, tailrace.open_keys, tailrace.tag_secret, tailrace.keys_of, tailrace.forget_keys, tailrace.rotate_key,
    tailrace.events_of_keys, tailrace.drop_tags, tailrace.drop_derived;
-- Without its keys nothing of this would ever be read again.
DO $body$
BEGIN
    IF EXISTS (SELECT FROM tailrace.subject_keys) THEN
        RAISE EXCEPTION 'tailrace.subject_keys has keys: without them personal values cannot be read'
            USING HINT = 'an earlier release cannot read them either; keep this one, or delete the keys yourself';
    END IF;
END
$body$;
DROP TABLE tailrace.subject_keys, tailrace.tag_secret;

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
