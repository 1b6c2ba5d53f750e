"""Epochs without rows: what somebody other than the source's writer did to a topic, told in the log's order."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.metadata import topics as registry
from tailrace.eventstore.segment import hash_chain


def locked_source(connection: Connection, source: str) -> Row[*tuple[Any, ...]]:
    """A source's row, as its writer takes it first: its epochs come before this transaction's, or after."""
    query = select(tables.sources).where(tables.sources.c.name == source)
    return connection.execute(query.with_for_update()).one()


def add_notice(
    connection: Connection, source: Row[*tuple[Any, ...]], content: str, topics: Collection[int] = ()
) -> int:
    """An epoch of a locked source; its number. ``content``: a hash over what it tells, so that the log's hash tells of
    it, too. ``topics``: those whose rows read otherwise since."""
    epoch, before = registry.next_epoch(connection)
    values = {
        "epoch": epoch,
        "append_id": uuid.uuid4().hex,
        "source": source.name,
        "incarnation": source.incarnation,
        "commit_lsn": source.commit_lsn,
        "end_lsn": source.end_lsn,
        "first_lsn": None,
        "last_lsn": None,
        "commit_ts": None,
        "first_ts": None,
        "last_ts": None,
        "transactions": 0,
        "rows": 0,
        "content": content,
        "topics": segment_index.topics_text(topics),
        "parts": "[]",
        "blob_bytes": None,
    }
    values["hash"] = hash_chain.epoch_hash(before, values)
    registry.add_epoch(connection, values)
    return epoch
