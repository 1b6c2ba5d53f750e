"""The files of a derived step: what one refresh of one generation wrote, by bucket.

A *run* file holds a bucket's whole result, sorted by (hash, key); a *delta* file the rows that differ from the run
before, with ``_op`` ``u`` or ``d`` (a ``d`` row has only its key). Buckets that did not change keep the earlier run
file and have no delta. Content follows from the rows alone; names are unique per attempt, because two drivers may
compute the same step and only the catalog decides whose is kept.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eventstore import segment
from eventstore.errors import IntegrityError
from eventstore.storage import Storage
from projections.difference import HASH, Difference

OP = "_op"
UPSERT, DELETE = "u", "d"
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class DerivedFile:
    """One Parquet file of a step. ``upserts`` and ``deletes`` count a delta's rows; a run has only ``rows``."""

    bucket: int
    path: str
    rows: int
    bytes: int
    checksum: str
    upserts: int = 0
    deletes: int = 0


@dataclass(frozen=True, slots=True)
class StepFiles:
    """All files of a step: the runs that are the result after it, the deltas that lead to it.

    ``epoch_hash`` is the log's hash at the step's last epoch: the fence that the sink holds after it.
    """

    runs: tuple[DerivedFile, ...]
    deltas: tuple[DerivedFile, ...]
    epoch_hash: str

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.runs)

    @property
    def upserts(self) -> int:
        return sum(file.upserts for file in self.deltas)

    @property
    def deletes(self) -> int:
        return sum(file.deletes for file in self.deltas)

    @property
    def run_of(self) -> dict[int, DerivedFile]:
        return {file.bucket: file for file in self.runs}

    def paths(self) -> set[str]:
        return {file.path for file in (*self.runs, *self.deltas)}

    def to_data(self) -> dict[str, Any]:
        """As the catalog keeps it: plain JSON values."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StepFiles:
        return cls(
            runs=tuple(DerivedFile(**file) for file in data["runs"]),
            deltas=tuple(DerivedFile(**file) for file in data["deltas"]),
            epoch_hash=data["epoch_hash"],
        )


def folder_of(projection: str, generation: int | None = None) -> str:
    """The folder of a generation's files, or of all of a projection's, relative to the segments folder."""
    folder = f"derived/{projection}"
    return folder if generation is None else f"{folder}/{generation}"


def generation_of(path: str) -> int:
    """Whose file that is."""
    return int(path.split("/")[2])


def next_runs(previous: Mapping[int, DerivedFile], written: Iterable[DerivedFile]) -> tuple[DerivedFile, ...]:
    """The runs after a step: those it wrote instead of the earlier ones. A bucket without rows has no file."""
    runs = dict(previous) | {file.bucket: file for file in written}
    return tuple(runs[bucket] for bucket in sorted(runs) if runs[bucket].rows)


def write_run(storage: Storage, path: str, bucket: int, table: pa.Table) -> DerivedFile:
    """Write a bucket's result. With no rows nothing is written and the file has no path."""
    if not table.num_rows:
        return DerivedFile(bucket, "", 0, 0, "")
    return _write(storage, path, bucket, table, table.num_rows, 0)


def write_delta(
    storage: Storage, path: str, bucket: int, found: Difference, key: Sequence[str]
) -> DerivedFile:
    """Write what differs. Raises IntegrityError when the path is taken."""
    table = pa.concat_tables([_tagged(found.upserts, UPSERT), _tagged(_only_key(found.deletes, key), DELETE)])
    return _write(storage, path, bucket, table, found.upserts.num_rows, found.deletes.num_rows)


def _tagged(table: pa.Table, op: str) -> pa.Table:
    return table.add_column(1, OP, pa.array([op] * table.num_rows, pa.string()))


def _only_key(table: pa.Table, key: Sequence[str]) -> pa.Table:
    columns = [
        column if name == HASH or name in key else pa.nulls(table.num_rows, column.type)
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, names=table.column_names)


def _write(
    storage: Storage, path: str, bucket: int, table: pa.Table, upserts: int, deletes: int
) -> DerivedFile:
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(None), sink, compression="zstd", compression_level=_LEVEL)
    data = sink.getvalue()
    storage.write(path, data)
    return DerivedFile(
        bucket, path, table.num_rows, data.size, segment.checksum(data), upserts=upserts, deletes=deletes
    )


def read_run(storage: Storage, file: DerivedFile | None, schema: pa.Schema) -> pa.Table:
    """A bucket's result, ``_hash`` and the columns of ``schema``; empty when there is no file."""
    if file is None or not file.rows:
        return run_schema(schema).empty_table()
    table = _read(storage, file)
    if OP in table.column_names:
        table = table.drop_columns([OP])
    return table.cast(run_schema(schema))


def read_delta(
    storage: Storage, file: DerivedFile, schema: pa.Schema, key: Sequence[str]
) -> tuple[pa.Table, pa.Table]:
    """The upserts (``_hash`` and all columns) and the deletes (``_hash`` and key columns) of a delta. A run file is
    read as one of upserts alone: so a first build writes its rows once."""
    table = _read(storage, file)
    deletes_schema = run_schema(pa.schema([schema.field(name) for name in key]))
    if OP not in table.column_names:
        return table.cast(run_schema(schema)), deletes_schema.empty_table()
    upserts = table.filter(pc.equal(table[OP], UPSERT)).drop_columns([OP])
    deletes = table.filter(pc.equal(table[OP], DELETE)).select([HASH, *key])
    return upserts.cast(run_schema(schema)), deletes.cast(deletes_schema)


def run_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(HASH, pa.int64()), *schema])


def _read(storage: Storage, file: DerivedFile) -> pa.Table:
    data = storage.open(file.path)
    if segment.checksum(data) != file.checksum:
        raise IntegrityError(
            f"{storage.place(file.path)} is damaged: its checksum is not the one in the catalog",
            hint="rebuild the projection: its result is computed again from the log",
        )
    return pq.read_table(pa.BufferReader(data), use_threads=False)


def schema_bytes(schema: pa.Schema) -> bytes:
    """An Arrow schema as the catalog keeps it."""
    data: bytes = schema.serialize().to_pybytes()
    return data


def schema_from_bytes(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(io.BytesIO(data))
