"""Rows of the log as Python has them: cells, changes, typed domain events."""
