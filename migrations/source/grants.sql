-- Least privileges; replace the role names. Nobody but the owner may write the tables: appending goes through the
-- function, which runs with its owner's rights.

-- An application that appends to streams and loads them:
GRANT USAGE ON SCHEMA tailrace TO app;
GRANT EXECUTE ON FUNCTION tailrace.append_events(text, text, bigint, jsonb) TO app;
GRANT SELECT ON tailrace.events TO app;

-- The user of capture, for the first load and for `tailrace verify --source`:
GRANT USAGE ON SCHEMA tailrace TO capture;
GRANT SELECT ON tailrace.events TO capture;
