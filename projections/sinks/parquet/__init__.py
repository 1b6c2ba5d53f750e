"""Rows as Parquet files: the sink, its reader and how files lie there."""
