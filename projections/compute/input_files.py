"""The rows of an input as Parquet files of this machine, for an engine that shares this process.

All projections that read a table at one position share its files, which have every column that one of them reads.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.state.assembly import ERASED
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.storage import Storage
from tailrace.projections.compute.frames import read_buckets, schemas, shown_columns
from tailrace.projections.compute.patched_files import ROW_GROUP, parquet_options, write_patched
from tailrace.projections.compute.read_plan import Planned, plan_input
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Events, Input, State
from tailrace.projections.generations.result_input import ResultInput
from tailrace.projections.round.files import Earlier

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def input_folder(
    ctx: ProjectionContext, source: Input, planned: Planned, cut: Cut, columns: Sequence[str]
) -> tuple[Path, StructType]:
    """The folder of an input's files, which have these of its columns at least, and their columns as Spark has them.
    Raises what reading the input raises."""
    if isinstance(planned, StateInput) and isinstance(source, State):
        wanted = _columns_read(ctx, source, planned, columns)
        if wanted != list(columns):
            # A cell of another projection's column that cannot be read is that one's to tell.
            with suppress(TailraceError):
                names = tuple(name for name in wanted if name != ERASED.name)
                wider = plan_input(ctx.store, replace(source, columns=names), cut)
                return _folder(ctx, source, wider, wanted, cut)
    return _folder(ctx, source, planned, columns, cut)


def some_rows(folder: Path, names: Sequence[str], count: int, random: Random) -> pa.Table:
    """So many rows of an input's files, or all, in these columns."""
    pieces: list[pa.RecordBatch] = []
    paths = sorted(folder.iterdir())
    for path in random.sample(paths, len(paths)):
        with pq.ParquetFile(path, memory_map=True) as file:
            schema = pa.schema([file.schema_arrow.field(name) for name in names])
            groups = random.sample(range(file.num_row_groups), file.num_row_groups)
            for batch in file.iter_batches(count, groups, list(names)):
                pieces.append(batch.slice(0, count - sum(map(len, pieces))))
                if sum(map(len, pieces)) == count:
                    return pa.Table.from_batches(pieces, schema)
    return pa.Table.from_batches(pieces, schema)


def _folder(
    ctx: ProjectionContext, source: Input, planned: Planned, names: Sequence[str], cut: Cut
) -> tuple[Path, StructType]:
    spark_schema, arrow = schemas(pa.schema([planned.schema.field(name) for name in names]))
    key = (*_identity(source, planned), tuple(names))

    def write(into: Path, earlier: Earlier | None) -> None:
        table = planned if isinstance(planned, StateInput) else None
        if earlier is None or table is None or not write_patched(ctx.store, table, cut, arrow, earlier, into):
            _write(ctx.store.storage, planned, arrow, into)

    return ctx.round_files.folder_of(cut, key, write), spark_schema


def _identity(source: Input, planned: Planned) -> tuple[Hashable, ...]:
    """What tells rows at one position from others, apart from their columns."""
    if isinstance(planned, ResultInput):
        return planned.projection, planned.generation, planned.epoch
    if isinstance(source, State):
        policy = source.on_unreadable
        return source.topic, policy if isinstance(policy, str) else tuple(sorted(policy.items()))
    types = source.types if isinstance(source, Events) else None
    return type(source).__name__, planned.topic.text, tuple(types or ())


def _columns_read(
    ctx: ProjectionContext, source: State, planned: StateInput, columns: Sequence[str]
) -> list[str]:
    """The columns of a table that some projection of the process reads under the same policies, in the table's
    order."""
    whole = replace(planned, columns=tuple(column.name for column in planned.target.columns))
    wanted = {*columns}
    for other in (each for projection in ctx.projections.values() for each in projection.inputs.values()):
        if (
            isinstance(other, State)
            and other.topic == source.topic
            and other.on_unreadable == source.on_unreadable
        ):
            wanted |= {*shown_columns(whole, other)}
    return [name for name in shown_columns(whole, State(source.topic, erased=True)) if name in wanted]


def _write(storage: Storage, planned: Planned, schema: pa.Schema, into: Path) -> None:
    count = max(1, min(os.cpu_count() or 1, planned.buckets))
    bounds = [planned.buckets * at // count for at in range(count + 1)]

    def write(share: tuple[int, int]) -> None:
        low, high = share
        states = read_buckets(storage, planned, range(low, high))
        tables = (each.select(schema.names).cast(schema) for each in states)
        rows: pa.Table | None = next(tables, schema.empty_table())
        with pq.ParquetWriter(into / f"{low}.parquet", schema, **parquet_options(rows)) as file:
            while rows is not None:
                file.write_table(rows, ROW_GROUP)
                rows = next(tables, None)

    with ThreadPoolExecutor(count, "tailrace-inputs") as pool:
        list(pool.map(write, pairwise(bounds)))
