-- Domain events: streams of one category and id, each a gap-free sequence of versions 1, 2, 3 …
CREATE TABLE tailrace.streams (
    category text   NOT NULL,
    stream   text   NOT NULL,
    version  bigint NOT NULL,  -- of the last event; the row is the lock that appends to the stream take
    PRIMARY KEY (category, stream),
    -- Together well below what an index row can hold.
    CHECK (octet_length(category) BETWEEN 1 AND 200),
    CHECK (octet_length(stream) BETWEEN 1 AND 1000)
);

CREATE TABLE tailrace.events (
    category       text        NOT NULL,
    stream         text        NOT NULL,
    version        bigint      NOT NULL CHECK (version > 0),
    type           text        NOT NULL,
    schema_version integer     NOT NULL,
    data           jsonb       NOT NULL,
    metadata       jsonb       NOT NULL,
    event_id       uuid        NOT NULL UNIQUE,
    recorded_at    timestamptz NOT NULL,
    PRIMARY KEY (category, stream, version)
);

COMMENT ON TABLE tailrace.events IS 'Written by tailrace.append_events alone; rows are never changed';
