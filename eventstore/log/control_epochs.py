"""Control epochs: epochs without rows that record what maintenance did to a topic, in the log's order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy import Connection, Row, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.metadata.epochs import EpochFilter, Timeline
from tailrace.eventstore.metadata.topics import add_epoch, next_epoch
from tailrace.eventstore.segment import hash_chain
from tailrace.eventstore.storage import Storage


def locked_source(connection: Connection, source: str) -> Row[*tuple[Any, ...]]:
    """A source's row, locked as its writer locks it first: its epochs come before this transaction's, or after."""
    query = select(tables.sources).where(tables.sources.c.name == source)
    return connection.execute(query.with_for_update()).one()


def add_control_epoch(
    connection: Connection,
    storage: Storage,
    source: Row[*tuple[Any, ...]],
    content: str,
    topic_ids: Collection[int] = (),
    declare: Callable[[int], int] = lambda epoch: 0,
) -> int:
    """Add a control epoch of a locked source and give its number. ``content`` is a hash over what it records, which the
    log's hash chain covers. ``topic_ids``: the topics whose rows read otherwise from then on. ``declare`` is given the
    epoch's number, writes what it says of topics, and gives how the sum over them changes (``declared.amend``).

    Its position is that of the source's epoch before: what the source's row alone claims must not get into the chain.
    """
    last = Timeline(connection, storage).last(EpochFilter(source=source.name)) or source
    epoch, before, declared = next_epoch(connection)
    values = {
        "epoch": epoch,
        "append_id": uuid.uuid4().hex,
        "source": source.name,
        "incarnation": last.incarnation,
        "commit_lsn": last.commit_lsn,
        "end_lsn": last.end_lsn,
        "first_lsn": None,
        "last_lsn": None,
        "commit_ts": None,
        "first_ts": None,
        "last_ts": None,
        "transactions": 0,
        "rows": 0,
        "content": content,
        "topics": segment_index.topics_text(topic_ids),
        "parts": "[]",
        "blob_bytes": None,
        "declared": declared.plus(declare(epoch)).text,
    }
    values["hash"] = hash_chain.epoch_hash(before, values)
    add_epoch(connection, values)
    return epoch
