"""What is a topic, a position, a column, a key, an epoch? Values only."""
