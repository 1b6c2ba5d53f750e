"""Small generations for the tests of sinks and readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.contract import Sink, Target
from tailrace.testing.sink_steps import SinkStep, pieces

SCHEMA = pa.schema(
    [
        pa.field("customer_id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("total", pa.decimal128(12, 2)),
    ]
)
ANNA = {"customer_id": 1, "name": "Anna Blum", "total": Decimal("10.50")}
BERT = {"customer_id": 2, "name": "Bert", "total": None}


def target(
    generation: int = 1,
    *,
    schema: pa.Schema = SCHEMA,
    key: Sequence[str] = ("customer_id",),
    store: str = "acme",
    projection: str = "customer_totals",
) -> Target:
    return Target(store, "log-1", projection, generation, tuple(key), schema, partitions=2, split=1)


def fence(of: Target, epoch: int) -> Fence:
    return Fence("log-1", of.projection, of.generation, epoch, f"hash-{epoch}")


def apply(
    sink: Sink,
    of: Target,
    before: int | None,
    epoch: int,
    upserts: Iterable[dict[str, Any]] = (),
    deletes: Iterable[dict[str, Any]] = (),
) -> None:
    """One step from the fence of epoch ``before``."""
    step = SinkStep(fence(of, epoch), tuple(upserts), tuple(deletes))
    with sink.load(of, None if before is None else fence(of, before), step.to) as load:
        for part in pieces(of, step):
            load.write(*part)
        load.commit()


def fill(sink: Sink, of: Target, rows: Iterable[dict[str, Any]], epoch: int = 10) -> None:
    """Create a generation with these rows."""
    sink.create(of)
    apply(sink, of, None, epoch, rows)


def rows_of(sink: Sink, of: Target) -> list[dict[str, Any]]:
    """All rows, by key."""
    rows: list[dict[str, Any]] = [row for batch in sink.scan(of) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: tuple(row[name] for name in of.key))
