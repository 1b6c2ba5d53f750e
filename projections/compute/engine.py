"""What computes DataFrames: Spark, or Sail where it may. Both give the rows of a result as Arrow.

Spark reads inputs in its tasks. Sail, which shares this process, is given files of them, which all projections of a
round share (``input_files``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol

import pyarrow as pa

from tailrace.eventstore.model.position import Cut
from tailrace.projections.compute.compute import define
from tailrace.projections.compute.frames import (
    contents_of,
    declare,
    frames,
    partial_frame,
    shared_frame,
    shown_columns,
    view_name,
    with_columns,
)
from tailrace.projections.compute.input_files import input_folder
from tailrace.projections.compute.read_plan import Planned, ReadPlan
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.round.plans import Contents
from tailrace.projections.spark.connect import functions_for, remote_functions
from tailrace.projections.spark.errors import translate_errors
from tailrace.projections.spark.sail import sail_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EngineName = Literal["spark", "sail"]
NO_ROWS: Final[Mapping[str, pa.Table]] = MappingProxyType({})
_FEW_BYTES: Final = 4 << 20
"""Rows of a step that are shown to a plan that is kept: they are held until others take their place."""


class Engine(Protocol):
    """Work of one process on one engine."""

    name: EngineName

    @property
    def session(self) -> SparkSession:
        """Started at the first use."""

    def active(self) -> AbstractContextManager[None]:
        """Inside, pyspark's functions build columns for this engine."""

    def frames(self, projection: Projection, reads: ReadPlan) -> dict[str, DataFrame]:
        """A DataFrame of all rows of each input of a read plan, under its declared name."""

    def partial_frame(
        self, projection: Projection, name: str, planned: Planned, cut: Cut, columns: Sequence[str]
    ) -> DataFrame:
        """An input's DataFrame with these of its columns, also such as the function does not see."""

    def result(
        self,
        projection: Projection,
        reads: ReadPlan,
        rows: Mapping[str, pa.Table | DataFrame] = NO_ROWS,
        at: str = "",
    ) -> DataFrame:
        """The definition over its inputs: ``rows`` of some, all rows of those in the read plan. ``at`` tells those of
        several ends of a step apart. It is computed before the next one is asked for. Raises ProjectionFailed."""


class SparkEngine:
    """The session of the settings, in a JVM or at a server of Spark Connect. Its tasks read the inputs."""

    name: EngineName = "spark"

    def __init__(self, ctx: ProjectionContext) -> None:
        self._ctx = ctx

    @property
    def session(self) -> SparkSession:
        return self._ctx.computing_session

    def active(self) -> AbstractContextManager[None]:
        return functions_for(self._ctx.master)

    def frames(self, projection: Projection, reads: ReadPlan) -> dict[str, DataFrame]:
        ctx = self._ctx
        return frames(self.session, ctx.store.storage, projection, reads, ctx.parallelism)

    def partial_frame(
        self, projection: Projection, name: str, planned: Planned, cut: Cut, columns: Sequence[str]
    ) -> DataFrame:
        ctx = self._ctx
        return partial_frame(
            self.session, ctx.store.storage, projection, name, planned, ctx.parallelism, columns
        )

    def result(
        self,
        projection: Projection,
        reads: ReadPlan,
        rows: Mapping[str, pa.Table | DataFrame] = NO_ROWS,
        at: str = "",
    ) -> DataFrame:
        return _defined(self, self._ctx, projection, reads, rows)


class SparkOverFiles(SparkEngine):
    """The same, for inputs that were read into files of this machine."""

    def frames(self, projection: Projection, reads: ReadPlan) -> dict[str, DataFrame]:
        return frames_of_files(self, self._ctx, projection, reads)


class SailEngine:
    """The session of Sail."""

    name: EngineName = "sail"

    def __init__(self, ctx: ProjectionContext) -> None:
        self._ctx = ctx

    @property
    def session(self) -> SparkSession:
        return sail_session(self._ctx.settings)

    def active(self) -> AbstractContextManager[None]:
        return remote_functions()

    def frames(self, projection: Projection, reads: ReadPlan) -> dict[str, DataFrame]:
        return frames_of_files(self, self._ctx, projection, reads)

    def partial_frame(
        self, projection: Projection, name: str, planned: Planned, cut: Cut, columns: Sequence[str]
    ) -> DataFrame:
        narrow = with_columns(projection, name, columns)
        return _frame_of_files(self, self._ctx, narrow, name, planned, cut, columns)

    def result(
        self,
        projection: Projection,
        reads: ReadPlan,
        rows: Mapping[str, pa.Table | DataFrame] = NO_ROWS,
        at: str = "",
    ) -> DataFrame:
        """The plan is kept, with the rows that it reads, which are few or in files."""
        few = {name: given for name, given in rows.items() if isinstance(given, pa.Table)}
        if (
            len(few) < len(rows)
            or sum(given.nbytes for given in few.values()) > _FEW_BYTES
            or projection.wants_now
        ):
            return _defined(self, self._ctx, projection, reads, rows)
        with translate_errors(projection, "reading its inputs"):
            held = {
                name: self._contents(projection, name, planned, reads.cut)
                for name, planned in reads.inputs.items()
            }
            held |= {name: contents_of(self.session, name, given, at) for name, given in few.items()}

        def define_over(tables: dict[str, DataFrame]) -> DataFrame:
            with translate_errors(projection, "reading its inputs"):
                inputs = {name: declare(table, projection, name) for name, table in tables.items()}
            return define(projection, inputs, reads.cut.commit_ts)

        return self._ctx.kept_plans.result(self.session, projection, held, define_over)

    def _contents(self, projection: Projection, name: str, planned: Planned, cut: Cut) -> Contents:
        source = projection.inputs[name]
        columns = shown_columns(planned, source)
        folder, schema = input_folder(self._ctx, source, planned, cut, columns)
        view = view_name("files", name, schema.json())
        return Contents(
            view, folder, folder, lambda: self.session.read.schema(schema).parquet(str(folder)), columns
        )


def _defined(
    engine: Engine,
    ctx: ProjectionContext,
    projection: Projection,
    reads: ReadPlan,
    rows: Mapping[str, pa.Table | DataFrame],
) -> DataFrame:
    with translate_errors(projection, "reading its inputs"):
        inputs = engine.frames(projection, reads)
        inputs |= {
            name: shared_frame(ctx.round_rows, engine.session, projection, name, given)
            if isinstance(given, pa.Table)
            else given
            for name, given in rows.items()
        }
    return define(projection, inputs, reads.cut.commit_ts)


def frames_of_files(
    engine: Engine, ctx: ProjectionContext, projection: Projection, reads: ReadPlan
) -> dict[str, DataFrame]:
    """All rows of each input, from files that they are written to once for all projections."""
    return {
        name: _frame_of_files(
            engine, ctx, projection, name, planned, reads.cut, shown_columns(planned, projection.inputs[name])
        )
        for name, planned in reads.inputs.items()
    }


def _frame_of_files(
    engine: Engine,
    ctx: ProjectionContext,
    projection: Projection,
    name: str,
    planned: Planned,
    cut: Cut,
    columns: Sequence[str],
) -> DataFrame:
    from pyspark.sql.types import StructType

    folder, schema = input_folder(ctx, projection.inputs[name], planned, cut, columns)
    shown = StructType([schema[column] for column in columns])
    return declare(engine.session.read.schema(shown).parquet(str(folder)), projection, name)
