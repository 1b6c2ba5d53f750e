"""Rows as documents of a search index: the sink, its reader and how documents lie there."""
