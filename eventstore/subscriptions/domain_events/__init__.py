"""Domain events in the log: can they be read, streams as they were, processes that follow them."""
