-- Events stay; by which tags they are found does not.
DROP FUNCTION tailrace.load_tagged, tailrace.append_once, tailrace.append_all, tailrace.append_tagged, tailrace.put_tags;
DROP TABLE tailrace.tagged_events, tailrace.tags;
