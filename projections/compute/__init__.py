"""Spark: from the log's state to a derived run and its differences."""
