DROP FUNCTION tailrace.load_stream, tailrace.load_tail, tailrace.load_category;
