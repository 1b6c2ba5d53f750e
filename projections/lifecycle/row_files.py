"""Rows that a result is compared with, in files by bucket that the tasks of a comparison read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.eventstore.metadata.attempts import Attempt
from tailrace.eventstore.segment import file_reader
from tailrace.eventstore.segment.copy import copy_file
from tailrace.eventstore.storage import LocalStorage, Storage
from tailrace.projections.compute.bucket import Placement
from tailrace.projections.compute.sampling import CommonKeys, KeySelection
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.generation import Generation
from tailrace.projections.generations.step_files import DerivedFile, folder_of, run_schema
from tailrace.projections.spark.masters import runs_here


@dataclass(frozen=True, slots=True)
class RowFiles:
    """``files`` by bucket in ``storage``. With a choice in ``placement`` they are complete for these keys; rows of
    other keys among them are not compared."""

    placement: Placement
    storage: Storage
    files: Mapping[int, DerivedFile]


def narrow(placement: Placement, choice: KeySelection) -> Placement:
    return replace(placement, choice=CommonKeys(placement.choice, choice) if placement.choice else choice)


@contextmanager
def row_folder(ctx: ProjectionContext) -> Iterator[Path]:
    """A folder for such files. It is removed at the end."""
    kept = ctx.store.storage
    shared = kept.root if ctx.settings.store.shared_path and isinstance(kept, LocalStorage) else None
    folder = Path(tempfile.mkdtemp(prefix=".tailrace-verify-", dir=shared))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_rows(
    placement: Placement, below: Path, batches: Iterable[pa.RecordBatch], report: Callable[[int], None]
) -> RowFiles:
    """Write rows in a folder of their own. ``report`` gets how many were read."""
    folder = Path(tempfile.mkdtemp(dir=below))
    schema = run_schema(placement.schema)
    writers: dict[int, pq.ParquetWriter] = {}
    rows: dict[int, int] = {}
    seen = 0
    try:
        for batch in batches:
            for bucket, part in _split_by_bucket(placement, batch):
                if bucket not in writers:
                    writers[bucket] = pq.ParquetWriter(
                        folder / f"{bucket}.parquet", schema, compression="zstd"
                    )
                writers[bucket].write_table(part)
                rows[bucket] = rows.get(bucket, 0) + part.num_rows
            seen += batch.num_rows
            report(seen)
    finally:
        for writer in writers.values():
            writer.close()
    files = {bucket: _file(folder, bucket, count) for bucket, count in rows.items()}
    return RowFiles(placement, LocalStorage(folder), files)


@contextmanager
def within_reach(
    ctx: ProjectionContext, generation: Generation, attempt: Attempt, reading: RowFiles
) -> Iterator[RowFiles]:
    """The same files where tasks can read them: when tasks run on other machines, beside the generation's own in the
    object store. What a killed process leaves there is removed by ``collect.gc``, as all that nothing names."""
    objects = ctx.store.storage
    if not objects.remote or runs_here(ctx.master):
        yield reading
        return
    here = reading.storage
    assert isinstance(here, LocalStorage)
    stem = folder_of(generation.projection, generation.number)
    there = {
        bucket: replace(file, path=f"{stem}/{bucket:04d}-{attempt.name}-sink.run.parquet")
        for bucket, file in reading.files.items()
    }
    try:
        for bucket, file in reading.files.items():
            copy_file(here, file.path, objects, there[bucket].path, file.checksum)
        yield replace(reading, storage=objects, files=there)
    finally:
        for file in there.values():
            objects.delete(file.path)


def _file(folder: Path, bucket: int, rows: int) -> DerivedFile:
    path = folder / f"{bucket}.parquet"
    return DerivedFile(bucket, path.name, rows, path.stat().st_size, file_reader.checksum(path.read_bytes()))


def _split_by_bucket(placement: Placement, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Table]]:
    chosen, hashes = placement.select(batch)
    buckets = pa.array(placement.buckets_of(hashes))
    table = pa.Table.from_batches([chosen]).add_column(0, HASH, hashes)
    for bucket in buckets.unique().to_pylist():
        yield bucket, table.filter(pc.equal(buckets, bucket))
