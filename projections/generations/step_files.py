"""The files of a derived step: what one refresh of one generation wrote, by bucket.

  - A *run* holds the whole result of a bucket, sorted by (hash, key).
  - A *delta* holds the rows that differ from the result before, with ``_op`` ``u`` or ``d`` (a ``d`` row has only its
    key).
  - *Overlays* are the deltas since the run. The result of a bucket is its run with the overlays applied in order.

So a step writes what it changed, not the whole bucket. Many overlays are merged into one, and large ones into the run
(``fold_overlays``). Buckets that did not change keep their files and have no delta. The content of files depends on the
rows alone. Their names are unique for each attempt: two drivers may compute the same step, and the catalog decides
whose files count.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.segment import file_reader
from tailrace.eventstore.segment.kept_answers import KeptAnswers
from tailrace.eventstore.storage import Storage
from tailrace.projections.generations.checked_files import CheckedFiles
from tailrace.projections.generations.difference import HASH, TableDifference, repeated_keys, sort_rows
from tailrace.projections.generations.key_subset import KeySubset
from tailrace.projections.generations.result_file import decode, encode

OP = "_op"
_DELETED = "_deleted"  # reserved, as the two others: no output has such a column
UPSERT, DELETE = "u", "d"

OVERLAYS_MOST = 8
"""Overlays of a bucket: each is a file that every reader of the bucket opens."""

_OVERLAY_SHARE = 0.25
_OVERLAY_BYTES_MIN = 64 << 10
_CRC_END = 1 << 32
"""Overlays may take this share of the run's bytes, up to twice as much of some, and at least so many bytes. By their
names runs differ in it: those that grow alike, of several buckets and projections, are not written at once."""

_TIER = 4
"""The latest overlays are merged with an older one that is at most so many times larger than all of them. So a row is
written again a few times, not at every step."""


_SMALL_BYTES = 256 << 10
_KEPT_BYTES = 64 << 20
"""Of files of at most so many bytes a process keeps the rows, so many bytes of them: a step looks into all overlays. It
keeps those of the deltas that it writes, too: they are read a moment later, for the sink and for the next step."""

_CHECKED = CheckedFiles()
_SMALL = KeptAnswers(_KEPT_BYTES)


@dataclass(frozen=True, slots=True)
class DerivedFile:
    """One file of a step, or the part of one that begins at byte ``start``: small deltas of a step lie together.
    ``upserts`` and ``deletes`` count a delta's rows; a run has only ``rows``."""

    bucket: int
    path: str
    rows: int
    bytes: int
    checksum: str
    upserts: int = 0
    deletes: int = 0
    start: int = 0


@dataclass(frozen=True, slots=True)
class BucketFiles:
    """The files of a bucket's result: its run (None: it has none) and the overlays since, oldest first."""

    run: DerivedFile | None = None
    overlays: tuple[DerivedFile, ...] = ()

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> BucketFiles:
        run = DerivedFile(**data["run"]) if data["run"] else None
        return cls(run, tuple(DerivedFile(**file) for file in data["overlays"]))

    @property
    def bucket(self) -> int:
        """Of a bucket that has files."""
        return (self.run or self.overlays[0]).bucket

    @property
    def outgrown(self) -> bool:
        """Whether the overlays should become part of the run."""
        most = _OVERLAY_BYTES_MIN
        if self.run is not None:
            share = _OVERLAY_SHARE * (1 + crc32(self.run.path.encode()) / _CRC_END)
            most = max(most, int(share * self.run.bytes))
        return sum(file.bytes for file in self.overlays) > most

    @property
    def overlays_to_fold(self) -> tuple[DerivedFile, ...]:
        """The latest overlays, if they should become one; none while they are few."""
        if len(self.overlays) <= OVERLAYS_MOST:
            return ()
        count, size = 1, self.overlays[-1].bytes
        while count < len(self.overlays) and (count < 2 or self.overlays[-count - 1].bytes <= _TIER * size):
            count += 1
            size += self.overlays[-count].bytes
        return self.overlays[-count:]


NO_FILES = BucketFiles()


@dataclass(frozen=True, slots=True)
class StepFiles:
    """All files of a step: the runs and overlays that are the result after it, and the deltas that lead to it.

    ``epoch_hash`` is the log's hash at the step's last epoch, for the sink's fence. ``rows`` counts those of the whole
    result. ``results`` are the generations of other projections whose results were read. ``kind``, ``reason`` and
    ``keys`` say how the step was computed; a later run that only applies it records them. ``moves``: so many steps in a
    row, this one among them, were full because the value of a scalar subquery changed, or was taken to have.
    """

    runs: tuple[DerivedFile, ...]
    overlays: tuple[DerivedFile, ...]
    deltas: tuple[DerivedFile, ...]
    epoch_hash: str
    rows: int
    results: Mapping[str, int] = field(default_factory=dict)
    kind: str = ""
    reason: str = ""
    keys: int | None = None
    moves: int = 0

    @property
    def upserts(self) -> int:
        return sum(file.upserts for file in self.deltas)

    @property
    def deletes(self) -> int:
        return sum(file.deletes for file in self.deltas)

    @property
    def buckets(self) -> dict[int, BucketFiles]:
        """The files of each bucket that has any."""
        files_of = {file.bucket: BucketFiles(file) for file in self.runs}
        for file in self.overlays:
            before = files_of.get(file.bucket, NO_FILES)
            files_of[file.bucket] = BucketFiles(before.run, (*before.overlays, file))
        return files_of

    def paths(self) -> set[str]:
        return {file.path for file in (*self.runs, *self.overlays, *self.deltas)}

    def to_data(self) -> dict[str, Any]:
        """As the catalog keeps it: plain JSON values."""
        return {name: _plain(getattr(self, name)) for name in _names(StepFiles)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StepFiles:
        return cls(
            runs=tuple(DerivedFile(**file) for file in data["runs"]),
            overlays=tuple(DerivedFile(**file) for file in data["overlays"]),
            deltas=tuple(DerivedFile(**file) for file in data["deltas"]),
            epoch_hash=data["epoch_hash"],
            rows=data["rows"],
            results=data.get("results", {}),
            kind=data.get("kind", ""),
            reason=data.get("reason", ""),
            keys=data.get("keys"),
            moves=data.get("moves", 0),
        )


def _plain(value: Any) -> Any:
    """As ``dataclasses.asdict``, which copies whatever it meets: each step has a hundred files."""
    if isinstance(value, tuple):
        return [{name: getattr(file, name) for name in _names(DerivedFile)} for file in value]
    return dict(value) if isinstance(value, Mapping) else value


@cache
def _names(kind: type[DerivedFile | StepFiles]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def folder_of(projection: str, generation: int | None = None) -> str:
    """The folder of a generation's files, or of all of a projection's, relative to the segments folder."""
    folder = f"derived/{projection}"
    return folder if generation is None else f"{folder}/{generation}"


def generation_of(path: str) -> int:
    """The generation that a file belongs to."""
    return int(path.split("/")[2])


def next_files(
    previous: Mapping[int, BucketFiles], written: Mapping[int, BucketFiles]
) -> tuple[tuple[DerivedFile, ...], tuple[DerivedFile, ...]]:
    """Runs and overlays after a step: what it has written takes the place of earlier files. A run without rows is no
    file."""
    files = dict(previous) | dict(written)
    ordered = [files[bucket] for bucket in sorted(files)]
    runs = tuple(each.run for each in ordered if each.run is not None and each.run.rows)
    return runs, tuple(file for each in ordered for file in each.overlays)


def write_run(storage: Storage, path: str, bucket: int, table: pa.Table) -> DerivedFile:
    """Write a bucket's result. With no rows nothing is written and the file has no path."""
    if not table.num_rows:
        return DerivedFile(bucket, "", 0, 0, "")
    return _write(storage, path, bucket, table, table.num_rows, 0)


def write_delta(
    storage: Storage, path: str, bucket: int, difference: TableDifference, key: Sequence[str]
) -> DerivedFile:
    """Write what differs. Raises IntegrityError when the path is taken."""
    deletes = difference.deletes.select([HASH, *key])
    return _write_overlay(storage, path, bucket, difference.upserts, deletes)


def write_small_deltas(
    storage: Storage, path: str, differences: Mapping[int, TableDifference], key: Sequence[str]
) -> dict[int, DerivedFile]:
    """Write what differs in several buckets into one file, where that is small; else nothing is written."""
    if sum(each.upserts.nbytes + each.deletes.nbytes for each in differences.values()) > _SMALL_BYTES:
        return {}
    parts = pa.BufferOutputStream()
    files, rows_of = {}, {}
    for bucket, each in differences.items():
        deletes = each.deletes.select([HASH, *key])
        rows_of[bucket] = _overlay_rows(each.upserts, deletes)
        data = encode(rows_of[bucket], mapped=not storage.remote)
        files[bucket] = _file(path, bucket, data, each.upserts.num_rows, deletes.num_rows, parts.tell())
        parts.write(data)
    storage.write(path, parts.getvalue())
    for bucket, file in files.items():
        _keep_small(storage, file, rows_of[bucket])
    return files


def _write_overlay(
    storage: Storage, path: str, bucket: int, upserts: pa.Table, deletes: pa.Table
) -> DerivedFile:
    rows = _overlay_rows(upserts, deletes)
    file = _write(storage, path, bucket, rows, upserts.num_rows, deletes.num_rows)
    if file.bytes <= _SMALL_BYTES:
        _keep_small(storage, file, rows)
    return file


def _overlay_rows(upserts: pa.Table, deletes: pa.Table) -> pa.Table:
    return pa.concat_tables([_with_op(upserts, UPSERT), _with_op(_widen(deletes, upserts.schema), DELETE)])


def _with_op(table: pa.Table, op: str) -> pa.Table:
    return table.add_column(1, OP, pa.array([op] * table.num_rows, pa.string()))


def _widen(keys_only: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows of ``_hash`` and key columns with all columns; the others are NULL."""
    columns = [
        keys_only[field.name].cast(field.type)
        if field.name in keys_only.column_names
        else pa.nulls(keys_only.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _write(
    storage: Storage, path: str, bucket: int, table: pa.Table, upserts: int, deletes: int
) -> DerivedFile:
    data = encode(table, mapped=not storage.remote)
    storage.write(path, data)
    return _file(path, bucket, data, upserts, deletes)


def _file(path: str, bucket: int, data: pa.Buffer, upserts: int, deletes: int, start: int = 0) -> DerivedFile:
    rows = upserts + deletes
    return DerivedFile(bucket, path, rows, data.size, file_reader.checksum(data), upserts, deletes, start)


def read_result(storage: Storage, files: BucketFiles, schema: pa.Schema, key: Sequence[str]) -> pa.Table:
    """A bucket's result: ``_hash`` and the columns of ``schema``, ordered by (hash, key)."""
    return read_results(storage, [files], schema, key)


def read_results(
    storage: Storage,
    buckets: Sequence[BucketFiles],
    schema: pa.Schema,
    key: Sequence[str],
    some: KeySubset | None = None,
) -> pa.Table:
    """The result of several buckets, or the rows of some keys there, ordered by (hash, key)."""
    files = [
        file
        for bucket in buckets
        for file in (bucket.run, *bucket.overlays)
        if file is not None and file.rows
    ]
    return _as_overlay(_latest_rows(storage, files, schema, key, some), key)[0]


Overlay = tuple[pa.Table, pa.Table]
"""Upserts (``_hash`` and all columns) and deletes (``_hash`` and key columns), each key in one of them once."""


def read_overlay(
    storage: Storage, files: Sequence[DerivedFile], schema: pa.Schema, key: Sequence[str]
) -> Overlay:
    """Several deltas as one: the last word on each key, ordered by (hash, key)."""
    return _as_overlay(_latest_rows(storage, files, schema, key), key)


def _latest_rows(
    storage: Storage,
    files: Sequence[DerivedFile],
    schema: pa.Schema,
    key: Sequence[str],
    some: KeySubset | None = None,
) -> pa.Table:
    """What a run and deltas, oldest first, say last of each key, or of each of ``some``: ``_hash``, the columns of
    ``schema`` and whether the row is gone. Ordered by (hash, key)."""
    kinds = _schema_with_deleted(schema)
    parts = [_rows_of(storage, file, kinds, some) for file in files]
    table = pa.concat_tables(parts or [kinds.empty_table()]).combine_chunks()
    if some is not None:
        table = some.filter(table)
    table = sort_rows(table, key)  # the later word stays behind the earlier one
    if len(parts) < 2:
        return table
    last = np.ones(table.num_rows, np.bool_)
    last[repeated_keys(table, key) - 1] = False
    return table.filter(pa.array(last))


def _rows_of(
    storage: Storage, file: DerivedFile, kinds: pa.Schema, some: KeySubset | None = None
) -> pa.Table:
    """The rows of a run or a delta in its order; with ``some`` at least those of these keys."""
    if file.bytes > _SMALL_BYTES:  # it is no part of another
        rows = _with_deleted(decode(_CHECKED.open(storage, file), some))
        if some is not None and some.hashes is None:
            rows = some.filter(rows)  # all of them are not to be copied
    else:
        rows = _SMALL.get(
            _small_name(storage, file), lambda: _with_deleted(decode(_copy(_CHECKED.open(storage, file))))
        )
    return rows if rows.schema.equals(kinds) else rows.cast(kinds)


def _small_name(storage: Storage, file: DerivedFile) -> tuple[str, str, int]:
    return storage.place(file.path), file.checksum, file.start


def _keep_small(storage: Storage, file: DerivedFile, rows: pa.Table) -> None:
    """The rows of a small file that was written here, as ``_rows_of`` gives them."""
    _SMALL.get(_small_name(storage, file), lambda: _with_deleted(rows))


def _copy(data: pa.Buffer) -> pa.Buffer:
    """What is kept is no part of a file, which somebody might change, or cut short: that ends a process."""
    return pa.py_buffer(bytes(data))


def _with_deleted(table: pa.Table) -> pa.Table:
    if OP not in table.column_names:
        return table.append_column(_DELETED, pa.array(np.zeros(table.num_rows, np.bool_)))
    return table.drop_columns([OP]).append_column(_DELETED, pc.equal(table[OP], DELETE))


def _schema_with_deleted(schema: pa.Schema) -> pa.Schema:
    return run_schema(schema).append(pa.field(_DELETED, pa.bool_()))


def _as_overlay(rows: pa.Table, key: Sequence[str]) -> Overlay:
    upserts = rows.filter(pc.invert(rows[_DELETED])).drop_columns([_DELETED])
    return upserts, rows.filter(rows[_DELETED]).select([HASH, *key])


def fold_overlays(
    storage: Storage,
    files: BucketFiles,
    stem: str,
    schema: pa.Schema,
    key: Sequence[str],
    result: pa.Table | None = None,
) -> BucketFiles:
    """A bucket's files after a step that added an overlay: unchanged, with the latest overlays merged, or with all of
    them in a new run. Names of new files begin with ``stem``; ``result`` is the bucket's, where it is known."""
    if files.outgrown:
        whole = read_result(storage, files, schema, key) if result is None else result
        return BucketFiles(write_run(storage, f"{stem}.run.arrow", files.bucket, whole))
    overlays = files.overlays_to_fold
    if not overlays:
        return files
    upserts, deletes = read_overlay(storage, overlays, schema, key)
    # A delete stays: the row that it deletes may be in the run.
    merged = _write_overlay(storage, f"{stem}.delta.arrow", files.bucket, upserts, deletes)
    return BucketFiles(files.run, (*files.overlays[: -len(overlays)], merged))


def read_delta(storage: Storage, file: DerivedFile, schema: pa.Schema, key: Sequence[str]) -> Overlay:
    """The upserts and the deletes of a delta. A run is read as a delta of upserts alone, so that a first build writes
    its rows once."""
    return _as_overlay(_rows_of(storage, file, _schema_with_deleted(schema)), key)


def run_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(HASH, pa.int64()), *schema])


def schema_bytes(schema: pa.Schema) -> bytes:
    """An Arrow schema as the catalog keeps it."""
    data: bytes = schema.serialize().to_pybytes()
    return data


def schema_from_bytes(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(io.BytesIO(data))
