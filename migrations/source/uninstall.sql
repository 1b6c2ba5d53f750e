-- Removes the tables of domain events with everything in them. Take them out of the publication first:
--   ALTER PUBLICATION … DROP TABLE tailrace.events;
BEGIN;
DROP FUNCTION IF EXISTS tailrace.append_events(text, text, bigint, jsonb);
DROP TABLE IF EXISTS tailrace.events, tailrace.streams, tailrace.migrations;
DROP SCHEMA tailrace;  -- fails, and undoes all of this, when something else lives in it
COMMIT;
