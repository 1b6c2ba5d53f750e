"""Bring committed steps into the sink: their bytes, bucket by bucket, the fence last (step 9). Needs no Spark.

A step that was cut off is applied again; the sink's contract makes that a no-op for rows that are there already. Of a
first load only the buckets are written that the sink does not have whole. Which steps and buckets are missing is read
from the sink, never remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.model.position import Fence
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.generations.step_files import read_delta
from tailrace.projections.sinks.contract import ResumableLoad, SinkLoad


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What was brought to the sink, and the ``fence`` that it has now."""

    steps: int
    upserts: int
    deletes: int
    fence: Fence | None


class StepRefused(UsageError):
    """A committed step has rows that the sink cannot hold. Applying it again does not help."""

    def __init__(self, generation: Generation, message: str, hint: str) -> None:
        name = generation.projection
        way_out = (
            f"once such rows are corrected and captured, tailrace rebuild {name} builds the result again"
        )
        super().__init__(message, hint=f"{hint}; {way_out}" if hint else way_out)
        self.generation = generation.number


def apply(
    ctx: ProjectionContext,
    generation: Generation,
    since: ApplyResult | None = None,
    taken: DerivedRun | None = None,
) -> ApplyResult:
    """Apply all committed steps that the sink does not have yet. ``since``: what this process applied a moment ago, so
    that the sink need not be asked again, nor the catalog, if ``taken`` is the step that this process took from there;
    each step compares the fence under a lock.

    Raises StepRefused when the sink cannot hold a step's rows, OperatorError when its content is not of this log or
    generation, Fenced when another process moved the fence meanwhile, TransientError when the sink is out of reach: the
    next call goes on from there.
    """
    sink, target = ctx.sink(generation), ctx.target(generation)
    fence = since.fence if since else sink.fence(target)
    if fence is None:
        sink.create(target)
    if taken is not None and fence is not None and fence.epoch == taken.from_epoch:
        steps = [taken]
    else:
        steps = missing_steps(ctx, generation, fence)
    upserts = deletes = 0
    for step in steps:
        to = generation.fence(ctx.store.log_id, step)
        with _raise_step_refused(generation), sink.load(target, fence, to) as load:
            _write(ctx, generation, step, load)
            load.commit()
        failpoints.hit("sink_fenced")
        fence = to
        upserts += files_of(step).upserts
        deletes += files_of(step).deletes
    return ApplyResult(len(steps), upserts, deletes, fence)


@contextmanager
def _raise_step_refused(generation: Generation) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise StepRefused(generation, error.message, error.hint) from error


def missing_steps(ctx: ProjectionContext, generation: Generation, fence: Fence | None) -> list[DerivedRun]:
    """The steps between the sink's fence and the end of the generation's chain, oldest first.

    Raises OperatorError when no step of this generation leads to the fence.
    """
    name, number = generation.projection, generation.number
    if fence is None:
        steps = ctx.store.steps.list(name, number)
        if steps and steps[0].from_epoch != 0:
            raise _foreign_content(generation, "nothing, although its first steps were applied")
        return steps
    if (fence.projection, fence.generation) != (name, number):
        raise _foreign_content(
            generation, f"generation {fence.generation} of projection {fence.projection!r} instead"
        )
    ctx.check_fence(generation, fence)
    last = ctx.store.steps.last(name, number)
    if last is not None and last.to_epoch == fence.epoch:
        return []
    steps = ctx.store.steps.list(name, number, after=fence.epoch)
    stands_at = steps[0].from_epoch if steps else (last.to_epoch if last else 0)
    if stands_at != fence.epoch:
        raise _foreign_content(generation, f"epoch {fence.epoch}, where none of its steps ends")
    return steps


def _foreign_content(generation: Generation, holds: str) -> OperatorError:
    return OperatorError(
        f"the sink of {generation} holds {holds}",
        hint=f"catalog and sink do not belong together any more: tailrace rebuild {generation.projection}",
    )


def _write(ctx: ProjectionContext, generation: Generation, step: DerivedRun, load: SinkLoad) -> None:
    deltas = files_of(step).deltas
    resumable = load if isinstance(load, ResumableLoad) else None
    there = frozenset(resumable.done) if resumable else frozenset()
    missing = [file for file in deltas if file.bucket not in there]
    for done, file in enumerate(missing, len(deltas) - len(missing)):
        ctx.report(f"applying {generation.projection}", done, len(deltas), "buckets")
        upserts, deletes = read_delta(ctx.store.storage, file, generation.schema, generation.key)
        load.write(file.bucket, upserts, deletes)
        if resumable:
            resumable.bucket_done(file.bucket)
        failpoints.hit("bucket_applied")
    ctx.report(f"applying {generation.projection}", len(deltas), len(deltas), "buckets")
