"""Steps of the contract suite: how they are made, brought into a sink, and compared with what it then holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.contract import Sink, Target
from tailrace.testing.sink_rows import AWKWARD, SCHEMA, value_of

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SinkStep:
    """One derived step: rows by key that are put, keys that go."""

    to: Fence
    upserts: tuple[Row, ...] = ()
    deletes: tuple[Row, ...] = ()


class SinkSteps:
    """What tests of a sink are made of. ``opener`` opens the sink as another process would."""

    opener: Callable[[], Sink]
    schema: ClassVar[pa.Schema] = SCHEMA
    key: ClassVar[tuple[str, ...]] = ("region", "id")
    partitions: ClassVar[int] = 2
    split: ClassVar[int] = 2

    def target(self, generation: int = 1, projection: str = "totals", log: str = "log-1") -> Target:
        return Target("acme", log, projection, generation, self.key, self.schema, self.partitions, self.split)

    def fence(self, target: Target, epoch: int, *, log: str = "log-1", hash: str = "") -> Fence:
        return Fence(log, target.projection, target.generation, epoch, hash or f"hash-{epoch}")

    def row(self, number: int, seed: int = 0) -> Row:
        """A row with the key that ``number`` stands for; its other cells are drawn."""
        draw = random.Random(f"{number}/{seed}")
        row = {field.name: value_of(field, draw) for field in self.schema}
        return row | self.key_of(number)

    def key_of(self, number: int) -> Row:
        cells = {}
        for name in self.key:
            kind = self.schema.field(name).type
            values = AWKWARD["region"]
            cells[name] = (
                number if pa.types.is_integer(kind) else f"{values[number % len(values)]}{number // 7}"
            )
        return cells

    def apply(self, target: Target, expected: Fence | None, step: SinkStep) -> None:
        with self.opener().load(target, expected, step.to) as load:
            for bucket, upserts, deletes in pieces(target, step):
                load.write(bucket, upserts, deletes)
            load.commit()

    def filled(self, target: Target, numbers: Iterable[int] = range(20), epoch: int = 10) -> SinkStep:
        """Create a generation and apply a first step to it."""
        self.opener().create(target)
        step = SinkStep(self.fence(target, epoch), tuple(self.row(number) for number in numbers))
        self.apply(target, None, step)
        return step

    def content(self, target: Target) -> list[str]:
        """All rows in a form that tells -0.0 from 0.0 and takes NaN as itself."""
        tables = [pa.table(batch) for batch in self.opener().scan(target)]
        for table in tables:
            assert table.schema.equals(target.schema), f"scan gave {table.schema}"
        return sorted(repr(row) for table in tables for row in table.to_pylist())

    def assert_holds(self, target: Target, rows: Iterable[Row], fence: Fence | None) -> None:
        expected = pa.Table.from_pylist(list(rows), target.schema).to_pylist()
        assert self.content(target) == sorted(map(repr, expected))
        assert self.opener().fence(target) == fence


def pieces(target: Target, step: SinkStep) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    """A step cut by bucket: (bucket, upserts, deletes) for every bucket, as a derived segment is."""
    upserts = _hashed(target, pa.Table.from_pylist(list(step.upserts), target.schema))
    key_schema = pa.schema([target.schema.field(name) for name in target.key])
    deletes = _hashed(target, pa.Table.from_pylist(list(step.deletes), key_schema))
    for bucket in range(target.buckets):
        yield bucket, _of_bucket(target, upserts, bucket), _of_bucket(target, deletes, bucket)


def _hashed(target: Target, rows: pa.Table) -> pa.Table:
    columns = [keys.column_texts(rows.column(name).combine_chunks()) for name in target.key]
    return rows.append_column("_hash", keys.hash_columns(columns))


def _of_bucket(target: Target, rows: pa.Table, bucket: int) -> pa.Table:
    buckets = keys.buckets_of(rows.column("_hash").combine_chunks(), target.partitions, target.split)
    return rows.filter(pa.array(buckets == bucket))


@contextmanager
def raises(kind: type[TailraceError]) -> Iterator[list[TailraceError]]:
    """The block must raise ``kind``; what it raised is put into the list."""
    caught: list[TailraceError] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    assert caught, f"{kind.__name__} was expected, nothing was raised"
