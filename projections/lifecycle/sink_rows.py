"""The rows of a sink at one fence, in files by bucket that the tasks of a comparison read. How they are read:

- *Snapshot* (``SnapshotSink``): an atomic sink shows one position, whatever is applied meanwhile.
- *At rest*: the fence is the same before and after. A sink of a user's own is read again until it is.
- *In motion* (``MovingSink``): a monotonic sink that is never at rest is read in two parts. Rows of keys that no step
  since a fence has touched are as they were at the fence, whenever they are read. The other keys, which the steps
  name, are few; they are read again at a later fence, fast enough to be done before the next step.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.metadata.attempts import Attempt
from tailrace.eventstore.model.position import Fence
from tailrace.projections.compute.bucket import Placement, placement_of
from tailrace.projections.compute.sampling import KeySelection, ListedKeys
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.generations.step_files import read_delta, run_schema
from tailrace.projections.lifecycle.row_files import RowFiles, narrow, row_folder, within_reach, write_rows
from tailrace.projections.sinks.contract import InMotion, MovingSink, SnapshotSink

_TRIES = 5
_PAUSE_SECONDS = 1.0
_TRIES_OF_SOME = 50
_PAUSE_OF_SOME_SECONDS = 0.1
_TOUCHED_MAX = 1_000_000
"""Keys that steps touch while a sink is read. Their hashes are part of every task."""


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Rows as they are at ``fence``."""

    fence: Fence
    rows: RowFiles


def read_sink(
    ctx: ProjectionContext, generation: Generation, choice: KeySelection | None, attempt: Attempt
) -> Generator[SinkRows, None, None]:
    """Read the sink of a generation (rows of the choice): in one part, or in several of different keys. The files of a
    part are removed when the next part is taken.

    Raises OperatorError when the sink is not of this log, InMotion when it changes too fast to be read.
    """
    placement = replace(placement_of(generation), choice=choice)
    sink = ctx.sink(generation)
    with row_folder(ctx) as folder:
        if isinstance(sink, MovingSink):
            try:
                readings = [_read_snapshot(ctx, generation, placement, folder, tries=1)]
            except InMotion:
                readings = _read_moving(ctx, generation, placement, sink, folder)
        else:
            readings = [_read_snapshot(ctx, generation, placement, folder, tries=_TRIES)]
        for reading in readings:
            with within_reach(ctx, generation, attempt, reading.rows) as there:
                yield replace(reading, rows=there)


def _read_snapshot(
    ctx: ProjectionContext, generation: Generation, placement: Placement, folder: Path, *, tries: int
) -> SinkRows:
    """All rows at one position, after several tries."""
    moved: InMotion | None = None
    for _ in range(tries):
        if moved is not None:
            time.sleep(_PAUSE_SECONDS)
        try:
            return _read_once(ctx, generation, placement, folder)
        except InMotion as error:
            moved = error
    assert moved is not None
    raise moved


def _read_once(
    ctx: ProjectionContext, generation: Generation, placement: Placement, folder: Path
) -> SinkRows:
    """All rows at one position. Raises InMotion when a step came and the sink has no snapshots."""
    sink, target = ctx.sink(generation), ctx.target(generation)
    if isinstance(sink, SnapshotSink):
        with sink.snapshot(target) as found:
            fence = _require_this_log(ctx, generation, found.fence)
            return _write_rows(ctx, generation, placement, fence, folder, found.rows)
    fence = _fence(ctx, generation)
    reading = _write_rows(ctx, generation, placement, fence, folder, sink.scan(target))
    if _fence(ctx, generation) == fence:
        return reading
    raise InMotion(
        f"{generation} was refreshed each time that it was read",
        hint="verify it while no runner refreshes it",
    )


def _read_moving(
    ctx: ProjectionContext, generation: Generation, placement: Placement, sink: MovingSink, folder: Path
) -> list[SinkRows]:
    """The rows of keys that no step touches while all are read, at the fence before; those of the other keys at a later
    fence. (Two keys of one hash, one of them touched, would count as a difference: 64 bits make that unlikely.)"""
    target = ctx.target(generation)
    since = _fence(ctx, generation)
    rest = _write_rows(ctx, generation, placement, since, folder, sink.scan_in_motion(target))
    touched = _touched_keys(ctx, generation, since)
    hashes = touched[HASH].to_numpy()
    others = replace(rest.rows, placement=narrow(placement, ListedKeys(hashes, others=True)))
    rest = replace(rest, rows=others)
    if not len(hashes):
        return [rest]
    chosen = narrow(placement, ListedKeys(hashes))
    moved: InMotion | None = None
    for _ in range(_TRIES_OF_SOME):
        fence = _fence(ctx, generation)
        try:
            again = _write_rows(ctx, generation, chosen, fence, folder, sink.read(target, touched))
            if _fence(ctx, generation) == fence:
                return [rest, again]
        except InMotion as error:
            moved = error
        time.sleep(_PAUSE_OF_SOME_SECONDS)
    raise moved or _too_busy_error(generation)


def _touched_keys(ctx: ProjectionContext, generation: Generation, since: Fence) -> pa.Table:
    """The keys that the generation's steps after a fence touch, also steps that are not applied yet: ``_hash`` and the
    key columns."""
    columns = [HASH, *generation.key]
    tables = [run_schema(generation.schema).empty_table().select(columns)]
    steps = ctx.store.steps.list(generation.projection, generation.number, after=since.epoch)
    if steps and steps[0].from_epoch != since.epoch:
        raise _too_busy_error(generation)  # steps in between are forgotten already
    for step in steps:
        for file in files_of(step).deltas:
            for rows in read_delta(ctx.store.storage, file, generation.schema, generation.key):
                tables.append(rows.select(columns).cast(tables[0].schema))
    touched = pa.concat_tables(tables).group_by(columns).aggregate([])
    if touched.num_rows > _TOUCHED_MAX:
        raise _too_busy_error(generation)
    return touched


def _too_busy_error(generation: Generation) -> InMotion:
    return InMotion(
        f"{generation} is refreshed too often and by too much to be read meanwhile",
        hint="verify it while no runner refreshes it",
    )


def _fence(ctx: ProjectionContext, generation: Generation) -> Fence:
    return _require_this_log(ctx, generation, ctx.fence(generation))


def _require_this_log(ctx: ProjectionContext, generation: Generation, fence: Fence | None) -> Fence:
    if fence is None:
        raise OperatorError(
            f"the sink holds nothing of {generation}", hint=f"tailrace rebuild {generation.projection}"
        )
    ctx.check_fence(generation, fence)
    return fence


def _write_rows(
    ctx: ProjectionContext,
    generation: Generation,
    placement: Placement,
    fence: Fence,
    below: Path,
    batches: Iterable[pa.RecordBatch],
) -> SinkRows:
    def report(seen: int) -> None:
        ctx.report(f"reading the sink of {generation.projection}", seen, None, "rows")

    return SinkRows(fence, write_rows(placement, below, batches, report))
