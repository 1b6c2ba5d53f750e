"""Prove that a sink equals the log: recompute the projection, unrestricted, at the sink's fence and compare both ways.

The sink's rows are laid down by bucket in files, for the time being, and compared by the same tasks that compare a
refresh with the result before it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from eventstore import attempts, keys, segment
from eventstore.attempts import Attempt
from eventstore.errors import OperatorError, TransientError, UsageError
from eventstore.move.files import copied
from eventstore.position import Fence
from eventstore.storage import LocalStorage, Storage
from projections.compute import BucketOutcome, BucketTask, Placement, placement_of
from projections.context import ProjectionContext
from projections.derived import BucketFiles, DerivedFile, folder_of, run_schema
from projections.difference import HASH
from projections.generation import Generation
from projections.history import runs_here
from projections.promotion import reconcile
from projections.sinks.base import InMotion
from projections.steps import compute_at

_TRIES = 5
_PAUSE_SECONDS = 1.0
_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a sink and the log differ at ``epoch``. ``only_in_log`` rows are missing in the sink, ``only_in_sink`` are
    there without reason, ``different`` have another value; the samples are keys as JSON with one of these words."""

    projection: str
    generation: int
    epoch: int
    rows: int
    only_in_log: int
    only_in_sink: int
    different: int
    samples: tuple[tuple[str, str], ...]

    @property
    def equal(self) -> bool:
        return not (self.only_in_log or self.only_in_sink or self.different)


def verify(ctx: ProjectionContext, name: str, number: int | None = None) -> Comparison:
    """Compare the live generation (or generation ``number``) with the log.

    Raises UsageError when nothing is live, OperatorError when the generation is frozen or its sink is not of this
    log, TransientError when refreshes kept moving the sink meanwhile, DifferenceFound when the sink has rows that
    cannot even be compared.
    """
    projection = ctx.projection(name)
    reconcile(ctx, name)
    generation = ctx.live(name) if number is None else ctx.generation(name, number)
    if generation is None:
        raise UsageError(f"projection {name!r} was never built", hint=f"tailrace rebuild {name}")
    if ctx.is_frozen(generation):
        raise OperatorError(
            f"{generation} was built by another definition than the loaded one, so there is nothing to compare with",
            hint=f"load the definition it was built by, or tailrace rebuild {name}",
        )
    with (
        attempts.attempt(ctx.store.catalog, name, generation.number, "verify") as attempt,
        _sink_rows(ctx, generation, attempt) as (fence, storage, found),
    ):
        cut = generation.pin.cut if generation.pin else ctx.store.cut(fence.epoch)
        task = BucketTask(
            storage=storage,
            placement=placement_of(generation),
            previous={bucket: BucketFiles(file) for bucket, file in found.items()},
            tolerance=projection.tolerance,
            folder=None,
            attempt="",
        )
        outcomes = compute_at(ctx, projection, generation, cut, task)
    return _compared(generation, fence, outcomes)


def _compared(generation: Generation, fence: Fence, outcomes: list[BucketOutcome]) -> Comparison:
    words = {"only_new": "only in log", "only_old": "only in sink", "different": "different"}
    samples = [(words[kind], key) for outcome in outcomes for kind, key in outcome.samples]
    return Comparison(
        projection=generation.projection,
        generation=generation.number,
        epoch=fence.epoch,
        rows=sum(outcome.rows for outcome in outcomes),
        only_in_log=sum(outcome.only_new for outcome in outcomes),
        only_in_sink=sum(outcome.only_old for outcome in outcomes),
        different=sum(outcome.different for outcome in outcomes),
        samples=tuple(samples[:_SAMPLES]),
    )


@contextmanager
def _sink_rows(
    ctx: ProjectionContext, generation: Generation, attempt: Attempt
) -> Iterator[tuple[Fence, Storage, Mapping[int, DerivedFile]]]:
    """The sink's rows at one fence, by bucket, in files that are removed afterwards."""
    kept = ctx.store.storage
    shared = kept.root if ctx.settings.store.shared_path and isinstance(kept, LocalStorage) else None
    folder = Path(tempfile.mkdtemp(prefix=".tailrace-verify-", dir=shared))
    try:
        moved: TransientError | None = None
        for number in range(_TRIES):
            if moved is not None:
                time.sleep(_PAUSE_SECONDS)
            fence = _fence(ctx, generation)
            into = folder / str(number)
            into.mkdir()
            try:
                files = _scan(ctx, generation, into)
            except InMotion as error:
                moved = error
                continue
            if _fence(ctx, generation) == fence:
                with _in_reach(ctx, generation, attempt, LocalStorage(into), files) as (storage, found):
                    yield fence, storage, found
                return
            moved = TransientError(
                f"{generation} was refreshed {_TRIES} times while it was read",
                hint="verify it while no runner refreshes it",
            )
        assert moved is not None
        raise moved
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _in_reach(
    ctx: ProjectionContext,
    generation: Generation,
    attempt: Attempt,
    here: LocalStorage,
    files: Mapping[int, DerivedFile],
) -> Iterator[tuple[Storage, Mapping[int, DerivedFile]]]:
    """The same files where tasks can read them: beside the generation's own in the object store, when tasks run on
    other machines. Those that a killed process leaves there go like all that nothing names (``collect.gc``)."""
    objects = ctx.store.storage
    if not objects.remote or runs_here(ctx.master):
        yield here, files
        return
    stem = folder_of(generation.projection, generation.number)
    there = {
        bucket: replace(file, path=f"{stem}/{bucket:04d}-{attempt.name}-sink.run.parquet")
        for bucket, file in files.items()
    }
    try:
        for bucket, file in files.items():
            copied(here, file.path, objects, there[bucket].path, file.checksum)
        yield objects, there
    finally:
        for file in there.values():
            objects.delete(file.path)


def _fence(ctx: ProjectionContext, generation: Generation) -> Fence:
    fence = ctx.fence(generation)
    if fence is None:
        raise OperatorError(
            f"the sink holds nothing of {generation}", hint=f"tailrace rebuild {generation.projection}"
        )
    ctx.check_fence(generation, fence)
    return fence


def _scan(ctx: ProjectionContext, generation: Generation, folder: Path) -> dict[int, DerivedFile]:
    placement = placement_of(generation)
    schema = run_schema(generation.schema)
    writers: dict[int, pq.ParquetWriter] = {}
    rows: dict[int, int] = {}
    seen = 0
    try:
        for batch in ctx.sink(generation).scan(ctx.target(generation)):
            for bucket, part in _by_bucket(placement, batch):
                if bucket not in writers:
                    writers[bucket] = pq.ParquetWriter(
                        folder / f"{bucket}.parquet", schema, compression="zstd"
                    )
                writers[bucket].write_table(part)
                rows[bucket] = rows.get(bucket, 0) + part.num_rows
            seen += batch.num_rows
            ctx.report(f"reading the sink of {generation.projection}", seen, None, "rows")
    finally:
        for writer in writers.values():
            writer.close()
    return {bucket: _file(folder, bucket, count) for bucket, count in rows.items()}


def _file(folder: Path, bucket: int, rows: int) -> DerivedFile:
    path = folder / f"{bucket}.parquet"
    return DerivedFile(bucket, path.name, rows, path.stat().st_size, segment.checksum(path.read_bytes()))


def _by_bucket(placement: Placement, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Table]]:
    hashes = placement.hashes(batch)
    buckets = pa.array(keys.buckets_of(hashes, placement.partitions, placement.split))
    table = pa.Table.from_batches([batch]).add_column(0, HASH, hashes)
    for bucket in buckets.unique().to_pylist():
        yield bucket, table.filter(pa.compute.equal(buckets, bucket))
