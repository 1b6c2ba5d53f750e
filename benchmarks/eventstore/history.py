"""A table's change events in a store, as capture, sealing and merging leave them: what compaction is measured on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_columns
from tailrace.eventstore.model.schema import Column, TopicSchema, change_schema
from tailrace.eventstore.model.time import from_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings, UpkeepSettings
from tailrace.eventstore.state.input import StateInput, plan_known_state
from tailrace.eventstore.store import Store

TOPIC = TopicId.table("shop", "public", "orders")
NARROW = TopicSchema(
    version=1,
    columns=(
        Column(1, "id", 20, type_name="bigint", key=True),
        Column(2, "customer_id", 23, type_name="integer"),
        Column(3, "status", 25, type_name="text"),
        Column(4, "amount", 1700, (12 << 16 | 2) + 4, type_name="numeric(12,2)"),
        Column(5, "updated_at", 1184, type_name="timestamp with time zone"),
    ),
)
TEXTS = 15
WIDE = TopicSchema(
    version=1,
    columns=(
        *NARROW.columns,
        *(Column(6 + at, f"text_{at}", 25, type_name="text") for at in range(TEXTS)),
    ),
)
CUSTOMERS = 100_000
EVENTS_PER_EPOCH = 200_000
CHANGES_PER_TRANSACTION = 5
DELETED = 0.03
STATES = ["new", "paid", "packed", "shipped", "returned"]
_BEGAN = 1_780_000_000_000_000


@dataclass(slots=True)
class History:
    """Change events on ``keys`` keys. The wide table has REPLICA IDENTITY FULL, so its events carry the row before."""

    store: Store
    writer: SourceWriter
    schema: TopicSchema
    seen: np.ndarray[Any, np.dtype[np.bool_]]
    events: int = 0
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(20261121))

    def grow(self, events: int, rounds: int = 1) -> None:
        """Append until there are so many events (whole transactions), with rounds of upkeep, one at the end."""
        for goal in np.linspace(self.events, events, rounds + 1).astype(int)[1:].tolist():
            while self.events < goal:
                count = min(EVENTS_PER_EPOCH, goal - self.events)
                self.put(self._random.integers(0, len(self.seen), count))
            self.store.maintain()

    def put(self, keys: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Append one epoch with an event of each of these keys."""
        self.events += -self.events % CHANGES_PER_TRANSACTION  # its first transaction is a new one
        rows = self._rows(keys)
        self.events += rows.num_rows
        lsn = int(rows["_lsn"][-1].as_py())
        part = TopicRows(TOPIC, 1, rows)
        moment = from_micros(_BEGAN + self.events)
        done = [] if self.store.topic(TOPIC).complete_since is not None else [TOPIC]
        self.writer.append(EpochBatch("shop", lsn, lsn + 1, lsn + 1, moment, 1, [part], completes=done))

    def state(self, *, every_row: bool = True) -> StateInput:
        return plan_known_state(self.store, TOPIC, self.store.cut(), every_row=every_row)

    def _rows(self, keys: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Table:
        random, seen, count = self._random, self.seen, len(keys)
        first = np.zeros(count, np.bool_)
        first[np.unique(keys, return_index=True)[1]] = True
        ops = np.where(~seen[keys] & first, "c", np.where(random.random(count) < DELETED, "d", "u"))
        seen[keys] = True
        number = np.arange(self.events, self.events + count)
        ids, times = pa.array(keys), pa.array(_BEGAN + number, pa.timestamp("us", "UTC"))
        schema = change_schema(self.schema)
        lsns = 1000 + number // CHANGES_PER_TRANSACTION
        after = self._cells(ids, times, schema.field("after").type, pa.array(ops == "d"))
        columns = {
            "_hash": hash_columns([ids.cast(pa.string())]),
            "_op": pa.array(ops, pa.string()),
            "_lsn": pa.array(lsns),
            "_txn": pa.array(lsns),
            "_ordinal": pa.array(number % CHANGES_PER_TRANSACTION),
            "_commit_ts": times,
            "key": pa.StructArray.from_arrays([ids], fields=list(schema.field("key").type)),
            "after": after,
            "_before": pa.repeat("none", count),
        }
        if self.schema is WIDE:
            created = pa.array(ops == "c")
            columns["before"] = self._cells(ids, times, schema.field("before").type, created)
            columns["_before"] = pc.if_else(created, "none", "full")
        arrays = [columns.get(each.name, pa.nulls(count, each.type)) for each in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _cells(self, ids: pa.Array, times: pa.Array, kind: pa.StructType, absent: pa.Array) -> pa.Array:
        random, count = self._random, len(ids)
        cents = pa.array(random.integers(100, 1_000_000, count))
        cells = [
            ids,
            pa.array(random.integers(0, CUSTOMERS, count), pa.int32()),
            pa.array(STATES).take(pa.array(random.integers(0, len(STATES), count))),
            pc.multiply(cents, pa.scalar(Decimal("0.01"))).cast(pa.decimal128(12, 2)),
            times,
        ]
        if self.schema is WIDE:
            pool = pa.array([f"{each:024x}" for each in random.integers(0, 1 << 62, 20_000)])
            cells += [pool.take(pa.array(random.integers(0, len(pool), count))) for _ in range(TEXTS)]
        return pa.StructArray.from_arrays(cells, fields=list(kind), mask=absent)


@contextmanager
def history(folder: Path, schema: TopicSchema, keys: int, state_bytes: int = 0) -> Iterator[History]:
    """A new store with one table, of which upkeep makes no state runs unless ``state_bytes`` (as in its settings) says
    for how many new ones."""
    settings = StoreSettings(
        catalog="sqlite:///catalog.db",
        segments=Path("segments"),
        upkeep=UpkeepSettings(state_bytes=state_bytes, keep_seconds=0),
    )
    with Store.open(settings, create=True, root=folder) as store:
        register_source(store.catalog, "shop", slot="s", publication="p", system_id="1")
        register_topic(store, TOPIC, schema)
        yield History(store, store.take_over("shop"), schema, np.zeros(keys, np.bool_))
