"""A shop, and results of projections that are written by hand: what a refresh reads and decides, without Spark unless
it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pytest

from tailrace.eventstore.metadata.generations import InputNeed, NewGeneration
from tailrace.eventstore.metadata.projection_steps import NewStep
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.store import Store
from tailrace.projections.compute.bucket import BucketTask, placement_of
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Input, Projection
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.generations.key_set import KeySet
from tailrace.projections.generations.step_files import StepFiles, folder_of, next_files, schema_bytes
from tailrace.projections.refresh.by_key.incremental import compute_incrementally
from tailrace.projections.refresh.plan import Cause, NotIncremental
from tailrace.projections.refresh.step_input import StepInput
from tailrace.projections.sinks.record import spec_to_text
from tailrace.projections.sinks.specs import ParquetFolder
from tests.projections.shoplog import TABLES, Row, ShopLog, settings_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAKE = ParquetFolder("lake")
BUCKETS = 4
Keys = list[Any]


def never(**_: object) -> NoReturn:
    """A function that is not called."""
    raise AssertionError


def reading(key: Sequence[str], **inputs: Input) -> Projection:
    """A projection ``mine`` of these inputs."""
    return Projection("mine", tuple(key), LAKE, inputs, never, file="mine.py", line=1)


def set_of(*columns: list[Any]) -> KeySet:
    """Keys by their columns."""
    return KeySet.of([pa.array(column) for column in columns])


def columns(*described: tuple[str, int, int, bool]) -> TopicSchema:
    """Of a table: name, type, typmod, and whether it is of the key."""
    made = (Column(at, name, oid, mod, key=key) for at, (name, oid, mod, key) in enumerate(described, 1))
    return TopicSchema(1, tuple(made))


class NeedsSpark(BaseException):
    """What comes next is computed by Spark."""


class WithoutSpark(ProjectionContext):
    @property
    def spark(self) -> SparkSession:
        raise NeedsSpark


@dataclass
class Handmade:
    """``said``: what was reported."""

    log: ShopLog
    ctx: ProjectionContext
    said: list[tuple[str, int, int | None, str]] = field(default_factory=list)

    def limited(self, held: int) -> ProjectionContext:
        """Where inputs may take so many bytes."""
        update = {"incremental_bytes": held}
        settings = self.ctx.settings
        settings = settings.model_copy(update={"projections": settings.projections.model_copy(update=update)})
        return type(self.ctx)(self.ctx.store, settings, {}, report=self.ctx.report)

    def generation(
        self, name: str, key: Sequence[str], schema: pa.Schema, inputs: Sequence[InputNeed] = ()
    ) -> Generation:
        """A live one."""
        derived = self.ctx.store.derived
        made = NewGeneration(
            name, "f", spec_to_text(LAKE), key, schema_bytes(schema), BUCKETS, 1, inputs=inputs
        )
        number = derived.create_generation(made)
        derived.promote(name, number, derived.live(name))
        return self.ctx.generation(name, number)

    def task(self, generation: Generation) -> BucketTask:
        """Of the generation's next step."""
        last = self.ctx.store.steps.last(generation.projection, generation.number)
        return BucketTask(
            self.ctx.store.storage, placement_of(generation), files_of(last).buckets if last else {}, {},
            folder_of(generation.projection, generation.number), f"a{last.to_epoch if last else 0}",
        )  # fmt: skip

    def put(self, generation: Generation, rows: Sequence[Row]) -> None:
        """A step to the log's end, after which the result is these rows."""
        store, task = self.ctx.store, self.task(generation)
        epoch, last = store.cut().epoch, store.steps.last(generation.projection, generation.number)
        table = pa.Table.from_pylist(list(rows), generation.schema)
        hashes = task.placement.hashes(table.combine_chunks().to_batches()[0])
        placed = keys.buckets_of(hashes, BUCKETS, 1)
        outcomes = [
            task.compare(
                bucket, task.placement.rows(table.append_column(HASH, hashes).filter(placed == bucket))
            )
            for bucket in task.placement.buckets
        ]
        written = {each.bucket: each.files for each in outcomes if each.files is not None}
        deltas = tuple(each.delta for each in outcomes if each.delta is not None)
        files = StepFiles(*next_files(task.previous, written), deltas, self.ctx.epoch(epoch).hash, len(rows))
        store.steps.commit(
            NewStep(
                generation.projection, generation.number, last.to_epoch if last else 0, epoch,
                "delta" if last else "full", [files.to_data()], len(rows),
            )
        )  # fmt: skip

    def step(
        self, projection: Projection, inputs: Sequence[InputNeed] = (), **types: pa.DataType
    ) -> StepInput:
        """To the log's end, of a new generation with columns of these types."""
        generation = self.generation(projection.name, projection.key, pa.schema(types), inputs)
        return StepInput(self.ctx, projection, generation, self.ctx.store.cut())


@contextmanager
def handmade(
    folder: Path,
    more: dict[str, TopicSchema] | None = None,
    context: type[ProjectionContext] = WithoutSpark,
    **store: Any,
) -> Iterator[Handmade]:
    """With ``more`` tables, in a store with these settings."""
    settings = settings_in(folder, dsn="postgresql:///nowhere", redis_url="redis://nowhere")
    with Store.open(settings.store.model_copy(update=store), create=True) as opened:
        log = ShopLog.start(opened, TABLES | (more or {}))
        made = Handmade(log, context(opened, settings, {}))
        made.ctx.report = lambda *said: made.said.append(said)
        yield made


def affected(
    made: Handmade, projection: Projection, since: int, **types: pa.DataType
) -> tuple[Keys, bool, set[str]]:
    """The keys, whether a row had none, and which inputs had rows that lead nowhere."""
    found = list[tuple[Keys, bool, set[str]]]()

    def stop(keys: KeySet, null_links: set[str]) -> tuple[Cause, str]:
        rows = zip(*(column.to_pylist() for column in keys.table.columns), strict=True)
        found.append((sorted(row[0] if len(row) == 1 else row for row in rows), keys.nulls, set(null_links)))
        return "cost", "as the test says"

    step = made.step(projection, **types)
    with pytest.raises(NotIncremental) as refused:
        compute_incrementally(step, since, made.task(step.generation), stop)
    assert (str(refused.value), refused.value.cause) == ("as the test says", "cost")
    return found[0]


def refusal(made: Handmade, projection: Projection, since: int, **types: pa.DataType) -> tuple[str, Cause]:
    """Why no step is taken, and the kind of the reason."""
    step = made.step(projection, **types)
    with pytest.raises(NotIncremental) as refused:
        compute_incrementally(step, since, made.task(step.generation), lambda *_: None)
    return str(refused.value), refused.value.cause
