"""Rows as Redis keys: the sink, its reader and how rows lie there."""
