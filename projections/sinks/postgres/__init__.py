"""Rows as Postgres tables behind a view: the sink, its reader and how rows lie there."""
