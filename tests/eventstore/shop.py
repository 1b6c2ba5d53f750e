"""A small source for tests of the log: topics, transactions as rows, and reading them back as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import Column, TopicSchema, change_schema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store

ORDERS = TopicId.table("shop", "public", "orders")
CUSTOMERS = TopicId.table("shop", "public", "customers")
SCHEMA = TopicSchema(
    1, (Column(1, "id", 23, type_name="integer", key=True), Column(2, "note", 25, type_name="text"))
)
WIDER = TopicSchema(2, (*SCHEMA.columns, Column(3, "amount", 1700, (12 << 16 | 2) + 4, "numeric(12,2)")))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

Change = tuple[str, int]  # operation, id


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def rows(
    lsn: int, changes: Sequence[Change], commit_ts: datetime | None = None, schema: TopicSchema = SCHEMA
) -> pa.Table:
    """One transaction's rows of one topic. The note tells them apart."""
    return pa.Table.from_pylist(
        [_row(lsn, ordinal, op, key, commit_ts or at(lsn)) for ordinal, (op, key) in enumerate(changes)],
        schema=change_schema(schema),
    )


def _row(lsn: int, ordinal: int, op: str, key: int, commit_ts: datetime) -> dict[str, Any]:
    whole = op not in "dt"
    return {
        "_hash": 0 if op == "t" else hash_texts([str(key)]),
        "_op": op,
        "_lsn": lsn,
        "_txn": lsn * 10,
        "_ordinal": ordinal,
        "_commit_ts": commit_ts,
        "key": None if op == "t" else {"id": key},
        "after": {"id": key, "note": f"{lsn}.{ordinal}"} if whole else None,
        "_before": "none",
        "_raw": [(2, b"raw")] if key % 7 == 0 else None,
    }


def batch(
    lsn: int,
    orders: Sequence[Change] = (),
    customers: Sequence[Change] = (),
    commit_ts: datetime | None = None,
    **more: Any,
) -> EpochBatch:
    """One transaction that commits at ``lsn``, as an epoch of its own."""
    moment = commit_ts or at(lsn)
    given = [(ORDERS, orders), (CUSTOMERS, customers)]
    found = [TopicRows(topic, 1, rows(lsn, changes, moment)) for topic, changes in given if changes]
    return EpochBatch("shop", lsn, lsn + 1, lsn + 1, moment, transactions=1, rows=found, **more)


def register(store: Store, source: str = "shop") -> None:
    register_source(
        store.catalog, source, slot=f"{source}_slot", publication=f"{source}_pub", system_id="7001"
    )
    for table in ("orders", "customers"):
        register_topic(store, TopicId.table(source, "public", table), SCHEMA)


def writer(store: Store) -> SourceWriter:
    register(store)
    return store.take_over("shop")


def content(store: Store, topic: TopicId = ORDERS, **how: Any) -> list[dict[str, Any]]:
    return [row for found in store.read(topic, **how) for row in found.to_pylist()]


def notes(store: Store, topic: TopicId = ORDERS, cut: Cut | None = None) -> list[str]:
    """Which transactions' rows a reader sees: ``lsn.ordinal`` texts, sorted by offset within partitions."""
    return [f"{row['_lsn']}.{row['_ordinal']}" for row in content(store, topic, cut=cut)]


def assert_dense(found: Sequence[dict[str, Any]]) -> None:
    """Offsets of every partition go 0, 1, 2, … in the order read, and epochs never go back."""
    following: dict[int, int] = {}
    epoch = 0
    for row in found:
        assert row["_offset"] == following.setdefault(row["_partition"], 0)
        following[row["_partition"]] += 1
        assert row["_epoch"] >= epoch
        epoch = row["_epoch"]
