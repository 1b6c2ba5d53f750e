"""Alembic's entry: run on the connection and in the transaction that the caller brings."""

from __future__ import annotations

from alembic import context

from tailrace.eventstore.catalog.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
