DROP FUNCTION tailrace.put_snapshot;
DROP TABLE tailrace.snapshots;
