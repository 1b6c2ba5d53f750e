DROP FUNCTION tailrace.emit_events;
DROP TABLE tailrace.emit_secret;
