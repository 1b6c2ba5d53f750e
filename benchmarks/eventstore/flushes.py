"""A log that is written to in small flushes: each an epoch with a few rows of every topic, appended as capture does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import func, select

from benchmarks.eventstore.forecast import COUNTED, Held, Line, Load, Sizes
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_columns
from tailrace.eventstore.model.retention import Retention
from tailrace.eventstore.model.schema import Column, TopicSchema, change_schema
from tailrace.eventstore.model.time import to_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings, TopicSettings, UpkeepSettings
from tailrace.eventstore.store import Store

PER_SECOND = 10
BEGAN = datetime(2025, 1, 1, tzinfo=UTC)
SCHEMA = TopicSchema(
    version=1,
    columns=(
        Column(1, "id", 20, type_name="bigint", key=True),
        Column(2, "note", 25, type_name="text"),
        Column(3, "amount", 1700, (12 << 16 | 2) + 4, type_name="numeric(12,2)"),
    ),
)
_PREPARED = 40_000  # rows that are made at once
_HASHES = Line(0, 33)  # files of epochs are little more than a hash each, when there is none to measure


def lsn_of(epoch: int) -> int:
    return epoch * 1000


def time_of(epoch: int) -> datetime:
    return BEGAN + timedelta(seconds=epoch / PER_SECOND)


def topic(number: int) -> TopicId:
    return TopicId.table("shop", "public", f"t{number}")


def settings_of(load: Load) -> StoreSettings:
    """Of a store that is kept as ``load`` says, but for files that were replaced: they go at once."""
    limited = {
        topic(number).text: TopicSettings(retention=Retention(bytes=load.limit_bytes))
        for number in range(load.limited)
    }
    upkeep = UpkeepSettings(keep_seconds=0, keep_epochs=load.keep_epochs, state_bytes=load.state_bytes)
    return StoreSettings(upkeep=upkeep, topics=limited)


def register(store: Store, topics: int) -> SourceWriter:
    register_source(store.catalog, "shop", slot="s", publication="p", system_id="1")
    for number in range(topics):
        register_topic(store, topic(number), SCHEMA)
    return store.take_over("shop")


@dataclass(slots=True)
class Flushes:
    """Appends, and what the files of the log come to."""

    store: Store
    load: Load
    epoch: int = 0
    blobs: Counter[int] = field(default_factory=Counter)
    _writer: SourceWriter = field(init=False)
    _rows: Iterator[pa.Table] = field(init=False)
    _files: dict[str, tuple[int, int]] = field(default_factory=dict)
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(20261122))

    def __post_init__(self) -> None:
        self._writer = register(self.store, self.load.topics)
        self._rows = self._slices()

    def append(self, epochs: int) -> None:
        for rows in (next(self._rows) for _ in range(epochs)):
            self.epoch += 1
            lsn = lsn_of(self.epoch)
            parts = [TopicRows(topic(number), 1, rows) for number in range(self.load.topics)]
            begun = [topic(number) for number in range(self.load.topics)] if self.epoch == 1 else []
            batch = EpochBatch("shop", lsn, lsn + 1, lsn + 1, time_of(self.epoch), 1, parts, completes=begun)
            self._writer.append(batch)
        with self.store.catalog.read() as connection:
            stored = select(func.count(), func.sum(tables.epochs.c.blob_bytes))
            count, size = connection.execute(stored.where(tables.epochs.c.blob_bytes.is_not(None))).one()
        if count:
            self.blobs[int(size) // int(count)] += 1

    def held(self) -> Held:
        """What there is now; every file on the disk must be one that the catalog names."""
        with self.store.catalog.read() as connection:
            rows = {
                name: connection.scalar(select(func.count()).select_from(tables.metadata.tables[name])) or 0
                for name in COUNTED
            }
            stored = sum(
                connection.scalar(select(func.sum(table.c.bytes))) or 0
                for table in (tables.segments, tables.state_runs, tables.epoch_files, tables.retired)
            )
            for table in (tables.segments, tables.state_runs):
                found = connection.execute(select(table.c.path, table.c.rows, table.c.bytes))
                self._files |= {row.path: (row.rows, row.bytes) for row in found}
        held = Held(self.epoch, rows, int(stored))
        on_disk = [path for folder in ("log", "epochs") for path in self.store.storage.list(folder)]
        if len(on_disk) != held.files:
            raise AssertionError(f"{len(on_disk)} files, of which the catalog names {held.files}")
        return held

    def sizes(self) -> Sizes:
        """As files were whenever ``held`` looked."""
        with self.store.catalog.read() as connection:
            table = tables.epoch_files
            found = connection.execute(select(table.c.last_epoch - table.c.first_epoch + 1, table.c.bytes))
            folded = [(int(count), int(size)) for count, size in found]
        blob = max(self.blobs, default=1)
        return Sizes(fitted(list(self._files.values())), fitted(folded) if folded else _HASHES, blob)

    def _slices(self) -> Iterator[pa.Table]:
        """The rows of one epoch after the other, the same for each topic."""
        per_epoch, made = self.load.rows_per_epoch, 0
        epochs = max(1, _PREPARED // per_epoch)
        while True:
            block = self._block(made, epochs)
            for at in range(epochs):
                # Copied: a slice would take buffers of the whole block into the blob.
                yield block.take(np.arange(at * per_epoch, (at + 1) * per_epoch))
            made += epochs

    def _block(self, epochs_before: int, epochs: int) -> pa.Table:
        per_epoch = self.load.rows_per_epoch
        count = epochs * per_epoch
        number = np.arange(epochs_before * per_epoch, epochs_before * per_epoch + count)
        epoch = number // per_epoch + 1
        keys = pa.array(number % self.load.keys)
        notes = pa.array([f"{each:012x}" for each in self._random.integers(0, 1 << 48, count)])
        cents = pa.array(self._random.integers(100, 1_000_000, count))
        amounts = pc.multiply(cents, pa.scalar(Decimal("0.01"))).cast(pa.decimal128(12, 2))
        schema = change_schema(SCHEMA)
        began = to_micros(BEGAN) or 0
        columns = {
            "_hash": hash_columns([keys.cast(pa.string())]),
            "_op": pa.array(np.where(number < self.load.keys, "c", "u"), pa.string()),
            "_lsn": pa.array(epoch * 1000),
            "_txn": pa.array(epoch),
            "_ordinal": pa.array(number % per_epoch),
            "_commit_ts": pa.array(began + epoch * (1_000_000 // PER_SECOND), pa.timestamp("us", "UTC")),
            "key": pa.StructArray.from_arrays([keys], fields=list(schema.field("key").type)),
            "after": pa.StructArray.from_arrays(
                [keys, notes, amounts], fields=list(schema.field("after").type)
            ),
            "_before": pa.repeat("none", count),
        }
        arrays = [
            columns[each.name].cast(each.type) if each.name in columns else pa.nulls(count, each.type)
            for each in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema)


def fitted(files: list[tuple[int, int]]) -> Line:
    """The line through (held, bytes), by least relative error, and means."""
    counts, sizes = (np.array(each, np.float64) for each in zip(*files, strict=True))
    means = {int(count): round(sizes[counts == count].mean()) for count in np.unique(counts)}
    if len(means) == 1:
        return Line(0.0, float(sizes.mean() / counts.mean()), means)
    each, fixed = np.polyfit(counts, sizes, 1, w=1 / sizes)
    return Line(float(fixed), float(each), means)


def store_in(folder: Path, load: Load) -> Store:
    return Store.open(settings_of(load), create=True, root=folder)
