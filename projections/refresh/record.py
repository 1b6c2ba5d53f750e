"""The record of what refreshes did, in the catalog: for people, for metrics, and for the next plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import DifferenceFound, Fenced, IncompleteTopic, TailraceError
from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.metadata.run_records import REFRESHES, STEPS, RunRecord
from tailrace.projections.analysis.renamed import say_renames
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.errors import NotLevel
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.refresh.apply import ApplyResult, StepRefused
from tailrace.projections.refresh.costs import changes_between
from tailrace.projections.refresh.step import CommittedStep

_LATEST_RECORDS = 20
"""Records among which the latest of a generation is looked for: few generations of a projection are refreshed."""


@contextmanager
def record_failures(
    ctx: ProjectionContext, name: str, kind: str, generation: int | None = None
) -> Iterator[None]:
    """Inside, what stops a refresh or a build is put on record. That another process is at work, or that a topic is
    still being loaded, is no failure. A comparison that cannot be made of all rows counts as a difference found."""
    started = datetime.now(UTC)
    try:
        yield
    except (Fenced, IncompleteTopic):
        raise
    except Exception as error:
        if name in ctx.projections:
            say_renames(ctx.store, ctx.projections[name], error)
        ctx.on_record.pop(name, None)  # a step may be in its sink whose answer was lost
        if isinstance(error, NotLevel | StepRefused):
            generation = error.generation  # by which the next build knows what to go on with, or not
        with suppress(TailraceError):  # a catalog out of reach has no room for it
            last = None if generation is None else ctx.store.steps.last(name, generation)
            head = ctx.store.head()
            record = RunRecord(
                projection=name,
                generation=generation,
                started=started,
                finished=datetime.now(UTC),
                from_epoch=last.to_epoch if last else None,
                to_epoch=head.epoch if head else None,
                kind=kind,
                reason=_error_text(error),
                status="failed",
            )
            if kind == "verify" and isinstance(error, DifferenceFound):
                ctx.store.run_records.add(
                    replace(record, from_epoch=None, to_epoch=record.from_epoch, status="different")
                )
            else:
                ctx.store.run_records.add_failure(record)
        raise


def _error_text(error: Exception) -> str:
    """One line without values of rows, even where this process may show them: the catalog is read by others."""
    if disclosure.values_are_shown():
        return f"{type(error).__name__}; its text may show values of rows (--show-values) and is not kept"
    text = error.message if isinstance(error, TailraceError) else disclosure.describe_error(error)
    return " ".join(text.split())


def record_applied(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    started: datetime,
    applied: ApplyResult,
    taken: CommittedStep | None = None,
) -> None:
    """Record the steps that are in the sink now and not on record yet: one that this run has ``taken``, and those that
    earlier runs committed or even applied before they ended. The catalog is asked once about these, so that a runner
    with nothing to do does not ask it at each poll."""
    name, number = generation.projection, generation.number
    if taken is None and not applied.steps and number in ctx.on_record.get(name, ()):
        return
    now = datetime.now(UTC)
    for step, is_new in _unrecorded_steps(ctx, generation, applied, taken):
        if taken is not None and taken.run.to_epoch == step.to_epoch:
            record = _record_of_own(ctx, projection, started, now, taken)
        else:
            record = _record_of_earlier(
                started if is_new else now, now, step, "applied now" if is_new else "applied"
            )
        ctx.store.run_records.add(record)
    ctx.on_record.setdefault(name, set()).add(number)


def record_settled(ctx: ProjectionContext, generation: Generation, started: datetime, reason: str) -> None:
    """A refresh that found nothing to do ends a row of failures. It has no step to say so, hence a record of its
    own."""
    name, number = generation.projection, generation.number
    records = ctx.store.run_records.latest(name, limit=_LATEST_RECORDS, kinds=REFRESHES)
    latest = next((record for record in records if record.generation == number), None)
    if latest is None or latest.status != "failed":
        return
    last = ctx.store.steps.last(name, number)
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


def _unrecorded_steps(
    ctx: ProjectionContext, generation: Generation, applied: ApplyResult, taken: CommittedStep | None
) -> list[tuple[DerivedRun, bool]]:
    """The steps in the sink that are not on record, oldest first, and whether they were applied by this run."""
    name, number, fence = generation.projection, generation.number, applied.fence
    if fence is None:
        return []
    if taken is not None and applied.steps == 1 and number in ctx.on_record.get(name, ()):
        return [(taken.run, True)]  # all before it are on record
    latest = ctx.store.run_records.latest(name, limit=_LATEST_RECORDS, kinds=STEPS, but=["failed"])
    known = next((record.to_epoch or 0 for record in latest if record.generation == number), None)
    if known is None and not applied.steps:
        return []  # its records are not among the latest, or gone
    steps = [step for step in ctx.store.steps.list(name, number, known or 0) if step.to_epoch <= fence.epoch]
    before = len(steps) - applied.steps
    found = [(step, at >= before) for at, step in enumerate(steps)]
    return found if known is not None else [(step, is_new) for step, is_new in found if is_new]


def _record_of_own(
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
        engine=None if taken.on == "spark" else taken.on,
        asked=projection.freshness_seconds,
        behind=seconds_behind(ctx, projection, step.from_epoch, finished) if step.from_epoch else None,
        changes=changes.at_most if changes and changes.exact else None,
    )


def seconds_behind(ctx: ProjectionContext, projection: Projection, epoch: int, now: datetime) -> float | None:
    """Seconds since the commit of the first rows behind an epoch that the projection reads; None: there are none."""
    topics, look = ctx.topics(projection), ctx.store.look
    found = look.answer(
        ("first_commit", epoch, *(topic.text for topic in topics)),
        lambda: ctx.store.epochs(after=epoch, limit=1, topics=topics),
    )
    committed = found[0].commit_ts if found else None
    return max((now - committed).total_seconds(), 0.0) if committed else None


def _record_of_earlier(started: datetime, finished: datetime, step: DerivedRun, what: str) -> RunRecord:
    """The record of a step that an earlier run computed and did not record."""
    record = _record(started, finished, step)
    origin = f"computed by an earlier run that was cut off, {what}"
    return replace(record, reason=f"{record.reason}; {origin}" if record.reason else origin)


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
