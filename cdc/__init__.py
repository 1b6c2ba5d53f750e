"""Capture: the Postgres write-ahead log in, Arrow per topic out."""
