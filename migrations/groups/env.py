"""Alembic's entry: run on the connection and in the transaction that the caller brings."""

from __future__ import annotations

from alembic import context

from tailrace.eventstore.catalog.group_tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
context.run_migrations()
