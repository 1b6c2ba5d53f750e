"""The inputs of a read plan as DataFrames. Each task reads its share of an input's buckets, without the catalog."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.log.personal_values import opened
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.segment.kept_answers import KeptAnswers
from tailrace.eventstore.segment.segment import read_segment
from tailrace.eventstore.state.assembly import ERASED
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.state import readable_states
from tailrace.eventstore.storage import Storage
from tailrace.projections.compute.char_padding import unpad, unpad_changes
from tailrace.projections.compute.compute import define, keyed_frame
from tailrace.projections.compute.read_plan import ChangesInput, Planned, ReadPlan
from tailrace.projections.definition.model import Input, Projection, State
from tailrace.projections.generations.result_input import ResultInput
from tailrace.projections.round.plans import Contents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_ROWS_PER_BATCH = 65_536


def frames(
    spark: SparkSession, storage: Storage, projection: Projection, plan: ReadPlan, parallelism: int
) -> dict[str, DataFrame]:
    """A DataFrame for each input, under its declared name (also as an alias: ``F.col("orders.amount")``)."""
    result: dict[str, DataFrame] = {}
    for name, planned in plan.inputs.items():
        frame = _frame(spark, storage, planned, parallelism, shown_columns(planned, projection.inputs[name]))
        result[name] = declare(frame, projection, name)
    for name, other in plan.computed_inputs.items():
        read = frames(spark, storage, other.projection, other.reads, parallelism)
        computed = define(other.projection, read, plan.cut.commit_ts)
        split = other.reads.split(parallelism)
        result[name] = keyed_frame(other.projection, computed, split, parallelism).alias(name)
    return result


def local_frame(spark: SparkSession, projection: Projection, name: str, rows: pa.Table) -> DataFrame:
    """An input's DataFrame as ``frames`` makes it, from rows on the driver in the columns that the function sees."""
    return declare(_given(spark, rows).frame, projection, name)


def shared_frame(
    kept: KeptAnswers, spark: SparkSession, projection: Projection, name: str, rows: pa.Table
) -> DataFrame:
    """As ``local_frame``; for the same rows under the same name Spark is given them once while they are ``kept``. Two
    inputs of one projection never are one DataFrame: Spark could not tell their columns apart."""
    given = kept.get((spark, name, _place(rows)), lambda: _given(spark, rows))
    return declare(given.frame, projection, name)


def contents_of(spark: SparkSession, name: str, rows: pa.Table, at: str = "") -> Contents:
    """What an input holds that is restricted to ``rows``, those ``at`` one end of a step."""
    columns = zip(rows.schema.names, map(str, rows.schema.types), strict=True)
    view = view_name(f"rows{at}", name, repr([*columns]))
    return Contents(view, _place(rows), rows, lambda: _given(spark, rows).frame)


def view_name(kind: str, name: str, columns: str) -> str:
    """Another one for each input and each text that says its ``columns``."""
    digest = hashlib.sha256(f"{name}:{columns}".encode()).hexdigest()
    return f"{kind}_{digest[:32]}"


@dataclass(frozen=True, slots=True)
class _GivenRows:
    """``rows`` are held with their DataFrame, so that others are never in their place."""

    rows: pa.Table
    frame: DataFrame
    nbytes: int


def _given(spark: SparkSession, rows: pa.Table) -> _GivenRows:
    spark_schema, arrow = schemas(rows.schema)
    given = rows.cast(arrow).combine_chunks()
    return _GivenRows(rows, spark.createDataFrame(given, spark_schema), rows.nbytes + given.nbytes)


def _place(rows: pa.Table) -> Hashable:
    """Where in memory rows are."""
    chunks = [chunk for column in rows.columns for chunk in column.chunks]
    buffers = [
        (each.offset, len(each), *(0 if part is None else part.address for part in each.buffers()))
        for each in chunks
    ]
    return (*rows.column_names, *map(str, rows.schema.types), *buffers)


def partial_frame(
    spark: SparkSession,
    storage: Storage,
    projection: Projection,
    name: str,
    planned: Planned,
    parallelism: int,
    columns: Sequence[str],
) -> DataFrame:
    """An input's DataFrame with these of its columns, also such as the function does not see."""
    frame = _frame(spark, storage, planned, parallelism, columns)
    return declare(frame, with_columns(projection, name, columns), name)


def with_columns(projection: Projection, name: str, columns: Sequence[str]) -> Projection:
    """The projection as it is declared of these columns of an input alone."""
    source = projection.inputs[name]
    if not isinstance(source, State):
        return projection
    cast = {column: ddl for column, ddl in source.cast.items() if column in columns}
    return replace(projection, inputs={**projection.inputs, name: replace(source, cast=cast)})


def declare(frame: DataFrame, projection: Projection, name: str) -> DataFrame:
    source = projection.inputs[name]
    if isinstance(source, State):
        frame = cast_columns(frame, projection, name, source)
    return frame.alias(name)


def schemas(schema: pa.Schema) -> tuple[StructType, pa.Schema]:
    """The columns as Spark has them, and as Arrow gives them to Spark."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    spark_schema = from_arrow_schema(schema)
    return spark_schema, to_arrow_schema(spark_schema, timezone="UTC")


def cast_columns(frame: DataFrame, projection: Projection, name: str, source: State) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    from tailrace.projections.spark.errors import translate_errors

    for column, ddl in source.cast.items():
        cell = F.col(f"`{column}`")
        policy = source.on_unreadable
        if not isinstance(policy, str):
            policy = policy.get(column, "error")
        with translate_errors(projection, f"casting {name}.{column} to {ddl}"):
            cast = cell.try_cast(ddl) if policy == "null" else cell.cast(ddl)
            frame = frame.withColumn(column, cast)
            _ = frame.schema
    return frame


def _frame(
    spark: SparkSession, storage: Storage, planned: Planned, parallelism: int, names: Sequence[str]
) -> DataFrame:
    spark_schema, arrow = schemas(pa.schema([planned.schema.field(name) for name in names]))
    count = max(1, min(parallelism, planned.buckets))
    # Neighbours: buckets of one partition are decoded together.
    bounds = [planned.buckets * at // count for at in range(count + 1)]
    shares = [range(low, high) for low, high in pairwise(bounds)]
    units = pa.table(
        {"unit": pa.array([pickle.dumps((storage, planned, share)) for share in shares], pa.binary())}
    )
    return spark.createDataFrame(units).mapInArrow(partial(_rows, arrow), spark_schema)


def shown_columns(planned: Planned, source: Input) -> list[str]:
    """The columns that the function sees: of a state those that the input names, of changes all."""
    if isinstance(planned, StateInput) and isinstance(source, State):
        marks = [ERASED.name] if source.erased else []
        mine = [column.name for column in planned.selected_columns]
        return [*(name for name in mine if source.columns is None or name in source.columns), *marks]
    names: list[str] = planned.schema.names
    return names


def _rows(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark task: the rows of some units of work."""
    for batch in batches:
        for unit in batch.column(0).to_pylist():
            storage, planned, share = pickle.loads(unit)
            for table in read_buckets(storage, planned, share):
                yield from table.select(schema.names).cast(schema).to_batches(max_chunksize=_ROWS_PER_BATCH)


def read_buckets(storage: Storage, planned: Planned, share: range) -> Iterator[pa.Table]:
    """Rows of an input as projections see them; of changes the ``share`` is one of partitions."""
    if isinstance(planned, StateInput):
        columns = planned.selected_columns
        yield from (unpad(rows, columns) for rows in readable_states(storage, planned, share))
    elif isinstance(planned, ResultInput):
        yield from (planned.read(storage, bucket) for bucket in share)
    else:
        yield from (read_changes(storage, planned, partition) for partition in share)


def read_changes(storage: Storage, planned: ChangesInput, partition: int) -> pa.Table:
    pieces = [planned.schema.empty_table()]
    for ref in planned.refs:
        if any(piece.partition == partition for piece in ref.ranges):
            version = planned.versions[ref.version]
            table = read_segment(storage, ref, version, partitions=(partition,))
            pieces.append(
                _event_rows(table, planned) if planned.as_events else _unify(table, version, planned)
            )
    return unpad_changes(pa.concat_tables(pieces), planned.target.columns)


def _event_rows(table: pa.Table, planned: ChangesInput) -> pa.Table:
    """The inserts of an events table. It is insert-only, so anything else is evidence of tampering and no event."""
    table = opened(table.filter(pc.is_in(table["_op"], pa.array(["r", "c"]))), planned.keys)
    after = table["after"].combine_chunks()
    if planned.typed is None:
        cells = {field.name: after.field(field.name) for field in after.type}
    else:
        kept, cells = planned.typed.read(after)
        table = table.take(kept)
    columns = [cells[field.name] if field.name in cells else table[field.name] for field in planned.schema]
    return pa.Table.from_arrays(columns, schema=planned.schema)


def _unify(table: pa.Table, version: TopicSchema, planned: ChangesInput) -> pa.Table:
    """Rows of an older version with the columns of the latest one, matched by identity. Columns that the older one did
    not have are NULL."""
    if version == planned.target:
        return table
    arrays = [
        _restructure(table[field.name], version, field.type, planned.target)
        if field.name in ("key", "after", "before", "_moved_from")
        else table[field.name]
        for field in planned.schema
    ]
    return pa.Table.from_arrays(arrays, schema=planned.schema)


def _restructure(
    column: pa.ChunkedArray, version: TopicSchema, kind: pa.StructType, target: TopicSchema
) -> pa.Array:
    rows = column.combine_chunks()
    names = {field.id: field.name for field in version.columns}
    held = {rows.type.field(i).name for i in range(rows.type.num_fields)}
    children = []
    for i in range(kind.num_fields):
        wanted = kind.field(i)
        identity = next(field.id for field in target.columns if field.name == wanted.name)
        old = names.get(identity)
        children.append(
            pc.struct_field(rows, old).cast(wanted.type) if old in held else pa.nulls(len(rows), wanted.type)
        )
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(rows))
