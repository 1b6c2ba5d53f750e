"""How fast projections are built, refreshed and brought into sinks, and how fresh their readers are."""
