"""Forget steps of a generation that nobody needs any more, and remove the files that only they named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailrace.eventstore.maintenance.files.owner import require_own_segments
from tailrace.eventstore.maintenance.redaction.receipts import erasures
from tailrace.eventstore.metadata.projection_steps import DerivedRun, StepsExtent
from tailrace.eventstore.metadata.publications import needed_steps
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.sinks.contract import PurgingSink

_STEPS_RETAINED = 20
"""Steps that stay after they are in the sink: another driver may still be reading their runs."""


def _purge(ctx: ProjectionContext, generation: Generation) -> None:
    if generation.is_stage:
        return
    sink: object = ctx.sink(generation)
    if isinstance(sink, PurgingSink):
        sink.purge(ctx.target(generation))


def prune(ctx: ProjectionContext, generation: Generation, projection: Projection) -> None:
    """Forget steps that have long been in the sink, and at once those from before a redaction of an input. Files that
    only they named are removed."""
    name, number = generation.projection, generation.number
    erased = max(erasures(ctx.store, ctx.topics(projection)).values(), default=0)
    held = _held_steps(ctx, generation)
    if held.steps < 2 * _STEPS_RETAINED and held.first >= erased:
        return
    del ctx.held_steps[name, number]
    steps = ctx.store.steps.list(name, number)
    if not steps or steps[-1].to_epoch < erased:
        erased = 0  # the result without the erased values is still to come
    count = sum(step.to_epoch < erased for step in steps)
    if count:  # before the steps are forgotten, which says that it was done
        _purge(ctx, generation)
    if len(steps) >= 2 * _STEPS_RETAINED:
        count = max(count, _spare_steps(ctx, generation, steps))
    if not count:
        return
    gone, kept = steps[:count], steps[count:]
    needed = set().union(*(files_of(step).paths() for step in kept))
    require_own_segments(ctx.store)
    ctx.store.steps.forget(name, number, gone[-1].to_epoch)
    for path in set().union(*(files_of(step).paths() for step in gone)) - needed:
        ctx.store.storage.delete(path)


def _held_steps(ctx: ProjectionContext, generation: Generation) -> StepsExtent:
    """How many steps there may be, one more at each call: they are counted when there may be many."""
    name = generation.projection, generation.number
    known = ctx.held_steps.get(name)
    held = ctx.store.steps.extent(*name) if known is None else replace(known, steps=known.steps + 1)
    ctx.held_steps[name] = held
    return held


def _spare_steps(ctx: ProjectionContext, generation: Generation, steps: Sequence[DerivedRun]) -> int:
    """How many of the first ones nobody needs any more: publications go on from a step of theirs."""
    needed = [
        step.epoch
        for _, step in needed_steps(ctx.store.groups_database, generation.projection)
        if step.generation == generation.number
    ]
    published = sum(step.to_epoch < min(needed) for step in steps) if needed else len(steps)
    return min(len(steps) - _STEPS_RETAINED, published)
