-- Inputs of processes that are due at a time. Whoever takes one deletes it in the transaction of what it leads to. Only
-- applications that run process managers need rights on it.
CREATE TABLE tailrace.timers (
    id       uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    process  text        NOT NULL,
    instance text        NOT NULL,
    name     text        NOT NULL,
    due_at   timestamptz NOT NULL,
    try_at   timestamptz NOT NULL,  -- due_at; later after a failure, infinity when it waits for somebody
    tries    integer     NOT NULL DEFAULT 0,
    error    text,
    UNIQUE (process, instance, name)
);
CREATE INDEX timers_next ON tailrace.timers (process, try_at);
