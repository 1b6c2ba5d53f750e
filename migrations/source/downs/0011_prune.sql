DROP FUNCTION tailrace.prune_events;
