-- Events without a table: transactional logical messages (prefix tailrace.emit), one each. Any role may emit a message with any prefix, so each
-- carries 32 bytes of HMAC-SHA256 (RFC 2104) under the secret of this database, then what they authenticate:
--
--   tailrace.emit XID LSN    full id of the transaction, WAL position before the message; a newline ends them
--   JSON in UTF-8: {"topic", "stream", "type", "schema_version", "data", "metadata", "event_id", "recorded_at"}, all texts but the number
--
-- Capture reads the secret. Who reads it can write events that are believed; others can only call the function.
CREATE TABLE tailrace.emit_secret (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    secret   bytea   NOT NULL CHECK (octet_length(secret) = 32),
    inner_pad bytea  NOT NULL CHECK (octet_length(inner_pad) = 64),
    outer_pad bytea  NOT NULL CHECK (octet_length(outer_pad) = 64)
);
REVOKE ALL ON TABLE tailrace.emit_secret FROM PUBLIC;
INSERT INTO tailrace.emit_secret (secret, inner_pad, outer_pad)
SELECT s.secret,
       (SELECT string_agg(set_byte('\x00', 0, get_byte(s.secret || decode(repeat('00', 32), 'hex'), i) # 54), ''::bytea ORDER BY i)
        FROM generate_series(0, 63) AS i),
       (SELECT string_agg(set_byte('\x00', 0, get_byte(s.secret || decode(repeat('00', 32), 'hex'), i) # 92), ''::bytea ORDER BY i)
        FROM generate_series(0, 63) AS i)
FROM (SELECT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())) AS secret) s;

-- events: an array of [type, schema version, id, data], in order.
CREATE FUNCTION tailrace.emit_events(in_topic text, in_stream text, events jsonb, in_metadata jsonb) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $body$
DECLARE
    event  jsonb;
    key    tailrace.emit_secret;
    signed bytea;
BEGIN
    IF starts_with(in_topic, 'tailrace_') OR EXISTS (SELECT FROM tailrace.streams s WHERE s.category = in_topic) THEN
        RAISE EXCEPTION '% is a category of streams, or of Tailrace''s own', in_topic USING ERRCODE = 'invalid_parameter_value',
            HINT = 'emit to a topic of its own';
    END IF;
    SELECT * INTO STRICT key FROM tailrace.emit_secret;
    FOR event IN SELECT * FROM jsonb_array_elements(events) LOOP
        signed := convert_to(
            format('tailrace.emit %s %s', pg_current_xact_id(), pg_current_wal_insert_lsn()) || chr(10) || jsonb_build_object(
                'topic', in_topic, 'stream', in_stream, 'type', event ->> 0, 'schema_version', (event ->> 1)::integer,
                'data', (event -> 3)::text, 'metadata', in_metadata::text, 'event_id', ((event ->> 2)::uuid)::text,
                'recorded_at', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00')::text,
            'UTF8');
        IF octet_length(signed) > 4190000 THEN  -- capture skips what is longer
            RAISE EXCEPTION 'an event of % bytes cannot be emitted', octet_length(signed)
                USING ERRCODE = 'program_limit_exceeded', HINT = 'at most 4,190,000; append it to a stream';
        END IF;
        PERFORM pg_logical_emit_message(true, 'tailrace.emit',
            sha256(key.outer_pad || sha256(key.inner_pad || signed)) || signed);
    END LOOP;
    RETURN jsonb_array_length(events);
END
$body$;
REVOKE ALL ON FUNCTION tailrace.emit_events FROM PUBLIC;
