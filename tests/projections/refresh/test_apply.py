"""Committed steps are brought into the sink in their order, each once, whatever was cut off. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.metadata.generations import NewGeneration
from tailrace.eventstore.metadata.projection_steps import DerivedRun, NewStep
from tailrace.eventstore.model.keys import bucket_of, hash_texts
from tailrace.eventstore.model.position import Fence
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.eventstore.store import Store
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.difference import HASH, TableDifference
from tailrace.projections.generations.generation import Generation
from tailrace.projections.generations.step_files import (
    DerivedFile,
    StepFiles,
    folder_of,
    schema_bytes,
    write_delta,
)
from tailrace.projections.refresh.apply import ApplyResult, StepRefused, apply, missing_steps
from tailrace.projections.sinks.record import spec_to_text
from tailrace.projections.sinks.specs import ParquetFolder
from tests.eventstore.shop import batch, writer

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())])
BUCKETS = 2


@dataclass
class Built:
    """A generation without a definition, whose steps a test commits. ``said``: what was reported."""

    ctx: ProjectionContext
    generation: Generation
    said: list[tuple[str, int, int | None, str]]

    def commit(self, before: int, after: int, rows: dict[Any, str], gone: tuple[int, ...] = ()) -> DerivedRun:
        """A step between two epochs."""
        store, name, number = self.ctx.store, self.generation.projection, self.generation.number
        given = table(rows)
        dropped = table(dict.fromkeys(gone, ""))
        files: list[DerivedFile] = []
        for bucket in range(BUCKETS):
            upserts, deletes = of_bucket(given, bucket), of_bucket(dropped, bucket)
            if upserts.num_rows or deletes.num_rows:
                difference = TableDifference(
                    upserts, np.ones(upserts.num_rows, np.bool_), deletes, upserts, np.arange(0)
                )
                path = f"{folder_of(name, number)}/{after}-{bucket}.parquet"
                files.append(write_delta(store.storage, path, bucket, difference, ("id",)))
        epoch_hash = store.epochs(after=after - 1, limit=1)[0].hash
        step = StepFiles((), (), tuple(files), epoch_hash, len(rows))
        kind = "full" if before == 0 else "delta"
        return store.steps.commit(NewStep(name, number, before, after, kind, [step.to_data()], len(rows)))

    def rows(self) -> dict[int, str]:
        found = self.ctx.sink(self.generation).scan(self.ctx.target(self.generation))
        return {row["id"]: row["note"] for part in found for row in part.to_pylist()}

    def fence(self, step: DerivedRun) -> Fence:
        return self.generation.fence(self.ctx.store.log_id, step)


def table(rows: dict[Any, str]) -> pa.Table:
    hashes = [hash_texts([str(key)]) for key in rows]
    return pa.table({HASH: pa.array(hashes, pa.int64()), "id": pa.array(rows, pa.int64()),
                     "note": pa.array(rows.values(), pa.string())})  # fmt: skip


def of_bucket(rows: pa.Table, bucket: int) -> pa.Table:
    places = [bucket_of(value, BUCKETS, 1) == bucket for value in rows[HASH].to_pylist()]
    return rows.filter(pa.array(places, pa.bool_()))


@pytest.fixture
def built(store_dir: Path) -> Iterator[Built]:
    sinks = {"lake": SinkSettings(kind="parquet", path=store_dir / "lake")}
    settings, said = Settings(sinks=sinks), list[tuple[str, int, int | None, str]]()
    with Store.open(settings.store, create=True, root=store_dir) as store:
        capture = writer(store)
        for lsn in range(10, 60, 10):
            capture.append(batch(lsn, orders=[("c", lsn)]))
        sink = spec_to_text(ParquetFolder("lake"))
        new = NewGeneration("totals", "f", sink, ("id",), schema_bytes(SCHEMA), BUCKETS, 1)
        number = store.derived.create_generation(new)
        ctx = ProjectionContext(store, settings, {}, report=lambda *each: said.append(each))
        yield Built(ctx, ctx.generation("totals", number), said)


def test_steps_are_applied_in_their_order_and_once(built: Built) -> None:
    assert apply(built.ctx, built.generation) == ApplyResult(0, 0, 0, None)
    built.commit(0, 1, dict.fromkeys(range(6), "first"))
    second = built.commit(1, 3, {0: "second", 6: "second"}, gone=(1, 2))
    assert apply(built.ctx, built.generation) == ApplyResult(2, 8, 2, built.fence(second))
    assert built.rows() == {0: "second", 3: "first", 4: "first", 5: "first", 6: "second"}
    assert built.said[:3] == [("applying totals", done, 2, "buckets") for done in range(3)]
    assert apply(built.ctx, built.generation) == ApplyResult(0, 0, 0, built.fence(second))
    third = built.commit(3, 4, {}, gone=(0,))
    built.ctx.store.steps.forget("totals", built.generation.number, 1)
    assert apply(built.ctx, built.generation) == ApplyResult(1, 0, 1, built.fence(third))
    assert 0 not in built.rows() and built.ctx.fence(built.generation) == built.fence(third)


def test_a_first_load_goes_on_behind_the_buckets_that_are_whole(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    built.commit(0, 1, dict.fromkeys(range(6), "first"))
    passed = failpoints.hit

    def cut_off(name: str) -> None:
        passed(name)
        if name == "bucket_applied":
            raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "hit", cut_off)
    with pytest.raises(KeyboardInterrupt):
        apply(built.ctx, built.generation)
    monkeypatch.undo()
    built.said.clear()
    assert apply(built.ctx, built.generation).upserts == 6
    assert [done for _, done, _, _ in built.said] == [1, 2] and len(built.rows()) == 6


def test_rows_that_the_sink_cannot_hold_are_refused_with_the_way_out(built: Built) -> None:
    built.commit(0, 1, {None: "no key"})
    with pytest.raises(StepRefused, match="NULL in key column 'id'") as refused:
        apply(built.ctx, built.generation)
    assert refused.value.generation == built.generation.number
    assert (
        refused.value.hint.startswith("filter them out") and "tailrace rebuild totals" in refused.value.hint
    )
    assert built.ctx.fence(built.generation) is None


def test_a_sink_that_stands_where_no_step_ends_is_refused(built: Built) -> None:
    of, number, hash_of = (built.ctx, built.generation), built.generation.number, built.ctx.epoch(1).hash
    for epoch in (0, 1):
        with pytest.raises(OperatorError, match=f"epoch {epoch}"):
            missing_steps(*of, Fence(built.ctx.store.log_id, "totals", number, epoch, hash_of))
    first = built.commit(0, 1, {1: "first"})
    built.commit(1, 3, {2: "second"})
    fence = built.fence(first)
    assert [step.to_epoch for step in missing_steps(*of, None)] == [1, 3]
    assert [step.to_epoch for step in missing_steps(*of, fence)] == [3]
    for other in (replace(fence, generation=9), replace(fence, projection="other")):
        with pytest.raises(OperatorError, match="holds generation"):
            missing_steps(*of, other)
    for epoch in (2, 5):
        known = built.ctx.epoch(epoch)
        with pytest.raises(OperatorError, match=f"holds epoch {epoch}, where none of its steps ends"):
            missing_steps(*of, replace(fence, epoch=epoch, epoch_hash=known.hash))
    with pytest.raises(OperatorError, match="another epoch 1 than this log's"):
        missing_steps(*of, replace(fence, epoch_hash="0"))
    built.ctx.store.steps.forget("totals", number, 1)
    with pytest.raises(OperatorError, match="nothing, although its first steps were applied") as refused:
        missing_steps(*of, None)
    assert "tailrace rebuild totals" in refused.value.hint
