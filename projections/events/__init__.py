"""Which columns have domain events in Spark: those of all, and those of declared models."""
