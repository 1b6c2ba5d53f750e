"""Histories of one small table as capture would write them, and the table's true contents: the oracle of compaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tailrace.eventstore.model import keys
from tailrace.eventstore.model.partitioning import Partitioning, TopicIncarnation
from tailrace.eventstore.model.schema import Column, TopicSchema, change_schema
from tailrace.eventstore.model.segment_ref import PartitionRange, SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment.row_order import arrange
from tailrace.eventstore.segment.segment import encode_part
from tailrace.eventstore.state.input import StateInput

TOPIC = TopicId.table("shop", "public", "notes")
ID = Column(1, "id", 20, type_name="bigint", key=True)
BODY = Column(2, "body", 25, type_name="text")
EXTRA = Column(3, "extra", 25, type_name="text")
SIZE = Column(4, "size", 23, type_name="integer", fill="7")
FIRST = TopicSchema(version=1, columns=(ID, BODY, EXTRA))
SECOND = TopicSchema(version=2, columns=(ID, BODY, EXTRA, SIZE))

Row = dict[str, Any]


@dataclass
class History:
    """Change rows by epoch. ``table`` is what the source's table holds now, by key."""

    hash_modulus: int = 0  # small: different keys share a hash
    schema: TopicSchema = FIRST
    epochs: list[tuple[TopicSchema, list[Row]]] = field(default_factory=list)
    table: dict[int, Row] = field(default_factory=dict)
    _ordinal: int = 0

    def hash_of(self, key: int) -> int:
        true_hash = keys.hash_texts([str(key)])
        return true_hash % self.hash_modulus if self.hash_modulus else true_hash

    def _emit(self, op: str, key: int | None, after: Row | None, **more: Any) -> None:
        if not self.epochs or self.epochs[-1][0] is not self.schema:
            self.cut()
        self._ordinal += 1
        row = dict.fromkeys(change_schema(self.schema).names)
        row |= {
            "_hash": 0 if key is None else self.hash_of(key),
            "_op": op,
            "_lsn": 100 * len(self.epochs),
            "_txn": 1,
            "_ordinal": self._ordinal,
            "_commit_ts": datetime(2026, 1, 1, tzinfo=UTC),
            "key": None if key is None else {"id": key},
            "after": after,
            **more,
        }
        self.epochs[-1][1].append(row)

    def cut(self) -> None:
        """Later rows belong to a new epoch."""
        self.epochs.append((self.schema, []))

    def add_column(self) -> None:
        """ALTER TABLE notes ADD COLUMN size int DEFAULT 7"""
        if self.schema is FIRST:
            self.schema = SECOND
            self.table = {key: row | {"size": 7} for key, row in self.table.items()}

    def put(self, key: int, cells: Row, unchanged: Sequence[str] = (), new_key: int | None = None) -> None:
        """Insert the key, or update its row; ``unchanged`` columns keep their value and are not sent."""
        old = self.table.get(key)
        if old is None:
            self.table[key] = self._full(cells)
            self._emit("c", key, {"id": key, **self.table[key]})
            return
        kept = {name: old[name] for name in unchanged}
        row = self._full(cells) | kept
        sent = {**row, **dict.fromkeys(unchanged)}
        ids = [column.id for column in self.schema.columns if column.name in unchanged] or None
        if new_key is None or new_key == key or new_key in self.table:
            self.table[key] = row
            self._emit("u", key, {"id": key, **sent}, _unchanged=ids)
            return
        del self.table[key]
        self.table[new_key] = row
        self._emit("d", key, None)
        self._emit("c", new_key, {"id": new_key, **sent}, _unchanged=ids, _moved_from={"id": key})

    def move(self, key: int, new_key: int, unchanged: Sequence[str]) -> None:
        """UPDATE … SET id = new_key of a row that is there, onto a key that is not."""
        if key in self.table:
            self.put(key, {"body": f"moved from {key}"}, unchanged, new_key)

    def _full(self, cells: Row) -> Row:
        return {column.name: cells.get(column.name) for column in self.schema.columns if not column.key}

    def delete(self, key: int) -> None:
        if self.table.pop(key, None) is not None:
            self._emit("d", key, None)

    def truncate(self) -> None:
        self.table.clear()
        self._emit("t", None, None)

    def contents(self) -> dict[int, Row]:
        """The table's rows under the newest schema that has rows in the log."""
        written = max((schema.version for schema, rows in self.epochs if rows), default=1)
        return {
            key: {n: v for n, v in row.items() if n != "size" or written == 2}
            for key, row in self.table.items()
        }

    def state_input(self, partitions: int, split: int, **more: Any) -> StateInput:
        return state_input(self.epochs, partitions, split, **more)


def state_input(
    epochs: Sequence[tuple[TopicSchema, Sequence[Row]]], partitions: int, split: int = 1, **more: Any
) -> StateInput:
    """The rows as inline segments, without a catalog."""
    refs = []
    following = dict.fromkeys(range(partitions), 0)
    versions = {}
    for epoch, (schema, rows) in enumerate(epochs, start=1):
        if not rows:
            continue
        versions[schema.version] = schema
        arranged = arrange(
            pa.Table.from_pylist(list(rows), schema=change_schema(schema)), TopicIncarnation(0, 0, partitions)
        )
        ranges = tuple(PartitionRange(p, following[p], n) for p, n in arranged.counts)
        for piece in ranges:
            following[piece.partition] += piece.rows
        data = encode_part(arranged.table).to_pybytes()
        count = arranged.table.num_rows
        refs.append(SegmentRef(TOPIC, schema.version, epoch, epoch, count, len(data), ranges, inline=data))
    target = versions[max(versions)] if versions else FIRST
    columns = tuple(column.name for column in target.columns)
    settings = {"columns": columns, "on_unreadable": {}} | more
    return StateInput(
        TOPIC, target, versions, Partitioning.of(partitions), split=split, refs=tuple(refs), **settings
    )
