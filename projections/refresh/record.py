"""The record of what refreshes did, in the catalog: for people, for metrics, and for the next plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import DifferenceFound, Fenced, IncompleteTopic, TailraceError
from tailrace.eventstore.metadata.generations import DerivedRun
from tailrace.eventstore.metadata.run_records import REFRESHES, STEPS, RunRecord
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.errors import NotLevel
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.refresh.apply import Applied, StepRefused
from tailrace.projections.refresh.costs import changes_between
from tailrace.projections.refresh.step import CommittedStep

_LOOKED_AT = 20
"""Records among which the newest of a generation is found: a projection has few generations that are refreshed."""


@contextmanager
def failures_recorded(
    ctx: ProjectionContext, name: str, kind: str, generation: int | None = None
) -> Iterator[None]:
    """Inside, what stops a refresh or a build is put on record. Not that another process is at work, nor that a topic
    is still being loaded: neither is a failure. A comparison that cannot be made of all rows has found a difference."""
    started = datetime.now(UTC)
    try:
        yield
    except (Fenced, IncompleteTopic):
        raise
    except Exception as error:
        ctx.on_record.pop(name, None)  # a step may be in its sink whose answer was lost
        if isinstance(error, NotLevel | StepRefused):
            generation = error.generation  # by which the next build knows what to go on with, or not
        with suppress(TailraceError):  # a catalog out of reach has no room for it
            last = None if generation is None else ctx.store.derived.last_derived(name, generation)
            head = ctx.store.head()
            record = RunRecord(
                projection=name,
                generation=generation,
                started=started,
                finished=datetime.now(UTC),
                from_epoch=last.to_epoch if last else None,
                to_epoch=head.epoch if head else None,
                kind=kind,
                reason=_told(error),
                status="failed",
            )
            if kind == "verify" and isinstance(error, DifferenceFound):
                ctx.store.run_records.add(
                    replace(record, from_epoch=None, to_epoch=record.from_epoch, status="different")
                )
            else:
                ctx.store.run_records.add_failure(record)
        raise


def _told(error: Exception) -> str:
    """One line without values of rows, also where they may be shown to whoever started this process."""
    if disclosure.allowed():
        return f"{type(error).__name__}; its text may show values of rows (--show-values) and is not kept"
    text = error.message if isinstance(error, TailraceError) else disclosure.in_words(error)
    return " ".join(text.split())


def record_applied(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    started: datetime,
    applied: Applied,
    taken: CommittedStep | None = None,
) -> None:
    """Keep what the steps did that are in the sink now and not on record yet: one that this run has ``taken``, those
    that earlier ones committed, and those that they even applied before they ended. Of these the catalog is asked
    once, so that a runner with nothing to do does not ask it at each poll."""
    name, number = generation.projection, generation.number
    if taken is None and not applied.steps and number in ctx.on_record.get(name, ()):
        return
    now = datetime.now(UTC)
    for step, anew in _not_on_record(ctx, generation, applied):
        if taken is not None and taken.run.to_epoch == step.to_epoch:
            record = _taken(ctx, projection, started, now, taken)
        else:
            record = _left(started if anew else now, now, step, "applied now" if anew else "applied")
        ctx.store.run_records.add(record)
    ctx.on_record.setdefault(name, set()).add(number)


def record_settled(ctx: ProjectionContext, generation: Generation, started: datetime, reason: str) -> None:
    """A refresh that found nothing to do ends a row of failures, and says so by a record: there is no step to."""
    name, number = generation.projection, generation.number
    records = ctx.store.run_records.latest(name, limit=_LOOKED_AT, kinds=REFRESHES)
    newest = next((record for record in records if record.generation == number), None)
    if newest is None or newest.status != "failed":
        return
    last = ctx.store.derived.last_derived(name, number)
    ctx.store.run_records.add(
        RunRecord(
            projection=name,
            generation=number,
            started=started,
            finished=datetime.now(UTC),
            from_epoch=None,
            to_epoch=last.to_epoch if last else None,
            kind="refresh",
            reason=f"nothing was left to do: {reason}",
        )
    )


def _not_on_record(
    ctx: ProjectionContext, generation: Generation, applied: Applied
) -> list[tuple[DerivedRun, bool]]:
    """The steps in the sink that are not on record, oldest first, and whether they were applied by this run."""
    name, number, fence = generation.projection, generation.number, applied.fence
    if fence is None:
        return []
    newest = ctx.store.run_records.latest(name, limit=_LOOKED_AT, kinds=STEPS, but=["failed"])
    known = next((record.to_epoch or 0 for record in newest if record.generation == number), None)
    if known is None and not applied.steps:
        return []  # its records are too old to be looked at, or gone
    steps = [
        step for step in ctx.store.derived.derived(name, number, known or 0) if step.to_epoch <= fence.epoch
    ]
    before = len(steps) - applied.steps
    found = [(step, at >= before) for at, step in enumerate(steps)]
    return found if known is not None else [(step, anew) for step, anew in found if anew]


def _taken(
    ctx: ProjectionContext,
    projection: Projection,
    started: datetime,
    finished: datetime,
    taken: CommittedStep,
) -> RunRecord:
    step = taken.run
    changes = None
    if step.from_epoch:
        results = files_of(step).results
        changes = changes_between(ctx.store, projection, step.from_epoch, step.to_epoch, results)
    return replace(
        _record(started, finished, step),
        kind=taken.kind,
        reason=taken.reason,
        keys=taken.keys,
        seconds=taken.seconds,
        changes=changes.at_most if changes and changes.exact else None,
    )


def _left(started: datetime, finished: datetime, step: DerivedRun, what: str) -> RunRecord:
    """Of a step that an earlier run computed and did not put on record."""
    record = _record(started, finished, step)
    told = f"computed by an earlier run that was cut off, {what}"
    return replace(record, reason=f"{record.reason}; {told}" if record.reason else told)


def _record(started: datetime, finished: datetime, step: DerivedRun) -> RunRecord:
    files = files_of(step)
    return RunRecord(
        projection=step.projection,
        generation=step.generation,
        started=started,
        finished=finished,
        from_epoch=step.from_epoch,
        to_epoch=step.to_epoch,
        kind=files.kind or "full",
        reason=files.reason,
        rows_upserted=files.upserts,
        rows_deleted=files.deletes,
        keys=files.keys,
        bytes=sum(file.bytes for file in files.deltas),
    )
