"""Alembic's entry: it runs on the connection and in the transaction that the caller brings."""

from __future__ import annotations

from alembic import context

attributes = context.config.attributes
context.configure(connection=attributes["connection"], target_metadata=attributes["metadata"])
context.run_migrations()
