"""Prove that a sink equals the log: recompute the projection, unrestricted, at the sink's fence and compare both ways.

The sink's rows are laid down by bucket in files, for the time being, and compared by the same tasks that compare a
refresh with the result before it.
"""

from __future__ import annotations

import secrets
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
from projections.compute import BucketOutcome, BucketTask, Placement, RowSample, placement_of
from projections.context import ProjectionContext
from projections.derived import BucketFiles, DerivedFile, folder_of, run_schema
from projections.difference import HASH
from projections.generation import Generation, files_of
from projections.history import runs_here
from projections.promotion import reconcile
from projections.sampling import Sampling, sampling_of
from projections.sinks.base import InMotion
from projections.specs import expires
from projections.steps import compute_at

_TRIES = 5
_PAUSE_SECONDS = 1.0
_SAMPLES = 10
_SEED_BITS = 32  # few enough digits to be typed again


@dataclass(frozen=True, slots=True)
class DifferentRow:
    """A row that differs: ``kind`` is "only in log", "only in sink" or "different", ``expected`` are the values that
    the log gives it, ``actual`` those that the sink has, None for no row; of a different one only those that differ.
    Both and ``key`` as JSON."""

    kind: str
    key: str
    expected: str | None
    actual: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a sink and the log differ at ``epoch``. ``rows`` of the log were compared: all, or those whose keys ``seed``
    chose. ``only_in_log`` rows are missing in the sink, ``only_in_sink`` are there without reason, ``different`` have
    another value; of these the first are ``samples``. ``expired`` rows have gone from a sink where they go by
    themselves."""

    projection: str
    generation: int
    epoch: int
    rows: int
    only_in_log: int
    only_in_sink: int
    different: int
    samples: tuple[DifferentRow, ...]
    seed: int | None = None
    expired: int = 0

    @property
    def equal(self) -> bool:
        return not (self.only_in_log or self.only_in_sink or self.different)


def verify(
    ctx: ProjectionContext,
    name: str,
    number: int | None = None,
    *,
    sample: int | None = None,
    seed: int | None = None,
) -> Comparison:
    """Compare the live generation (or generation ``number``) with the log.

    With ``sample`` about so many keys alone are compared, both ways, which ``seed`` chooses (a random one unless
    given); the projection is computed from all rows of its inputs even so.

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
    sampling = _sampling(ctx, generation, sample, seed)
    placement = replace(placement_of(generation), sampling=sampling)
    with (
        attempts.attempt(ctx.store.catalog, name, generation.number, "verify") as attempt,
        _sink_rows(ctx, generation, placement, attempt) as (fence, storage, found),
    ):
        cut = generation.pin.cut if generation.pin else ctx.store.cut(fence.epoch)
        task = BucketTask(
            storage=storage,
            placement=placement,
            previous={bucket: BucketFiles(file) for bucket, file in found.items()},
            tolerance=projection.tolerance,
            folder=None,
            attempt="",
        )
        outcomes = compute_at(ctx, projection, generation, cut, task)
    return _compared(generation, fence, outcomes, sampling)


def _sampling(
    ctx: ProjectionContext, generation: Generation, sample: int | None, seed: int | None
) -> Sampling | None:
    if sample is None:
        return None
    if sample < 1:
        raise UsageError(f"a sample of {sample} keys", hint="give 1 or more")
    if seed is not None and not 0 <= seed < 1 << 64:
        raise UsageError(f"{seed} is no seed", hint="give the one that an earlier sample was told with")
    last = ctx.store.derived.last_derived(generation.projection, generation.number)
    rows = files_of(last).rows if last else 0
    return sampling_of(sample, rows, secrets.randbits(_SEED_BITS) if seed is None else seed)


def _compared(
    generation: Generation, fence: Fence, outcomes: list[BucketOutcome], sampling: Sampling | None
) -> Comparison:
    missing = sum(outcome.only_new for outcome in outcomes)
    expiring = expires(generation.sink)
    samples = [
        _different(found)
        for outcome in outcomes
        for found in outcome.samples
        if not (expiring and found.kind == "only_new")
    ]
    return Comparison(
        projection=generation.projection,
        generation=generation.number,
        epoch=fence.epoch,
        rows=sum(outcome.rows for outcome in outcomes),
        only_in_log=0 if expiring else missing,
        only_in_sink=sum(outcome.only_old for outcome in outcomes),
        different=sum(outcome.different for outcome in outcomes),
        samples=tuple(samples[:_SAMPLES]),
        seed=sampling.seed if sampling else None,
        expired=missing if expiring else 0,
    )


def _different(found: RowSample) -> DifferentRow:
    words = {"only_new": "only in log", "only_old": "only in sink", "different": "different"}
    return DifferentRow(words[found.kind], found.key, expected=found.new, actual=found.old)


@contextmanager
def _sink_rows(
    ctx: ProjectionContext, generation: Generation, placement: Placement, attempt: Attempt
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
                files = _scan(ctx, generation, placement, into)
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


def _scan(
    ctx: ProjectionContext, generation: Generation, placement: Placement, folder: Path
) -> dict[int, DerivedFile]:
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
    batch, hashes = placement.sampled(batch)
    buckets = pa.array(keys.buckets_of(hashes, placement.partitions, placement.split))
    table = pa.Table.from_batches([batch]).add_column(0, HASH, hashes)
    for bucket in buckets.unique().to_pylist():
        yield bucket, table.filter(pa.compute.equal(buckets, bucket))
