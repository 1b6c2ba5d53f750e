DROP FUNCTION tailrace.append_streams;
