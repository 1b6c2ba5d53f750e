"""The ground: log, catalog, compaction, subscriptions and domain events."""
