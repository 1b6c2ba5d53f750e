-- Events and heads stay as they are.
DROP FUNCTION tailrace.append_one, tailrace.append_many, tailrace.move_head;
ALTER FUNCTION tailrace.append_events(text, text, bigint, jsonb) RESET enable_seqscan;
