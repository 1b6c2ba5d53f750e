"""Inputs that have columns and refuse to give rows: what a projection's function is called with to see its plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.projections.compute.compute import define
from tailrace.projections.compute.frames import cast_columns, shown_columns
from tailrace.projections.compute.read_plan import Planned
from tailrace.projections.compute.scalar_subqueries import marked
from tailrace.projections.definition.model import Projection, ProjectionFailed, State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOKS = "it looks at rows while it defines its result"
ACTIONS = (
    "checkpoint", "collect", "first", "head", "isEmpty", "localCheckpoint", "pivot", "rdd", "take", "toArrow",
    "toLocalIterator", "toPandas",
)  # fmt: skip
NO_ROWS = "use joins and aggregates instead of collect; give pivot its values"


def empty_inputs(
    spark: SparkSession, projection: Projection, inputs: Mapping[str, Planned]
) -> dict[str, DataFrame]:
    """Inputs that have columns and refuse to be computed: a function that looks at rows while it defines its result
    (``collect``, ``count``) would have another plan each time."""
    from pyspark.sql.pandas.types import from_arrow_schema

    frames = {}
    for name, planned in inputs.items():
        source = projection.inputs[name]
        shown = pa.schema([planned.schema.field(column) for column in shown_columns(planned, source)])
        frame = spark.range(1).mapInArrow(_refuse, from_arrow_schema(shown))
        if isinstance(source, State):
            frame = cast_columns(frame, projection, name, source)
        frames[name] = marked(frame, name)
    return frames


def _refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise ProjectionFailed(LOOKS, hint=NO_ROWS)


_MOST_UNKNOWN = 20
"""So many unknown columns are named at once; each takes another call of the function."""


def with_unknown_columns(
    projection: Projection, frames: dict[str, DataFrame], now: datetime, failures: list[ProjectionFailed]
) -> dict[str, DataFrame]:
    """The inputs with the columns that the function names and none of them has, NULL in each row: so that all of these
    are found, and what else is wrong. Raises ProjectionFailed for what cannot be helped so."""
    from pyspark.sql import functions as F  # noqa: N812

    tried: set[tuple[str, str]] = set()
    for _ in range(_MOST_UNKNOWN):
        try:
            define(projection, frames, now)
            return frames
        except ProjectionFailed as error:
            column, near = unknown_column(error)
            untried = [name for name in _owners(frames, near) if (name, column) not in tried]
            if not column or not untried:
                raise
            owner = untried[0]
            tried.add((owner, column))
            if all(error.message != known.message for known in failures):
                failures.append(error)
            added = frames[owner].withColumn(column, F.lit(None))
            frames = {**frames, owner: marked(added, owner)}
    return frames


def unknown_column(error: ProjectionFailed) -> tuple[str, tuple[str, ...]]:
    """The column that Spark does not find, "" for another failure, and the names that come close."""
    from pyspark.errors import AnalysisException, PySparkAttributeError

    cause = error.__cause__
    if isinstance(cause, PySparkAttributeError):  # orders.customr_id
        return str((cause.getMessageParameters() or {}).get("attr_name", "")), ()
    if not isinstance(cause, AnalysisException) or not str(cause.getCondition()).startswith(
        "UNRESOLVED_COLUMN"
    ):
        return "", ()
    parameters = cause.getMessageParameters() or {}
    parts = _QUOTED.findall(parameters.get("objectName", ""))
    return (parts[-1] if parts else ""), (*parts[:-1], *_QUOTED.findall(parameters.get("proposal", "")))


_QUOTED = re.compile(r"`([^`]+)`")


def _owners(frames: Mapping[str, DataFrame], near: tuple[str, ...]) -> list[str]:
    """The inputs that a name may be meant of, first the one that it is qualified by, or whose columns come close."""
    named = [name for name in near if name in frames]
    others = sorted(frames, key=lambda name: -len(set(near) & set(frames[name].columns)))
    return named[:1] or others
