"""Builds that a sink refused: the bytes of a committed step are what they are, so that none of these can be finished.
Another one begins anew, at the head of the log by then; nobody asks for that while nothing has changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.model.position import Cut
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import Generation
from tailrace.projections.generations.result_input import common_cut
from tailrace.projections.lifecycle.collect import drop
from tailrace.projections.refresh.apply import StepRefused
from tailrace.projections.refresh.plan import Nothing
from tailrace.projections.refresh.refresh import plan_generation


@contextmanager
def given_up(ctx: ProjectionContext, generation: Generation) -> Iterator[None]:
    """Inside, a build fails for good once its sink refuses a step. Readers have never seen it."""
    try:
        yield
    except StepRefused:
        ctx.store.derived.set_state(generation.projection, generation.number, GenerationState.FAILED)
        raise


def refused_again(ctx: ProjectionContext, projection: Projection, cut: Cut) -> StepRefused | None:
    """The refusal that a first build at ``cut`` would end with again: it is of the same definition, and no input has
    changed since."""
    found = _last_refused(ctx, projection.name)
    if found is None:
        return None
    generation, record = found
    if generation.pin is not None or generation.preview is not None or ctx.is_frozen(generation):
        return None
    decided = plan_generation(ctx, projection, generation, common_cut(ctx.store, projection, cut))
    if not isinstance(decided, Nothing):
        return None
    return StepRefused(generation, record.reason, "no input has changed since then")


def drop_refused(ctx: ProjectionContext, successor: Generation) -> None:
    """Drop the build that was refused last, now that another one has begun: tried for days they would fill disks. What
    hinders that is left to ``gc``."""
    found = _last_refused(ctx, successor.projection)
    if found is not None:
        with suppress(TailraceError):
            drop(ctx, found[0], by_name=False)


def _last_refused(ctx: ProjectionContext, name: str) -> tuple[Generation, RunRecord] | None:
    """What the last build that failed left, if its sink refused it: the only failure that names a generation that
    failed."""
    records = ctx.store.run_records.latest(name, limit=1, kinds=["build"])
    for generation in ctx.generations(name) if records else ():
        if generation.number == records[0].generation and generation.state is GenerationState.FAILED:
            return generation, records[0]
    return None
