"""Is what a sink holds under this store's name this store's? Asked before it is dropped, or replaced for readers.

A copy of the project has the store's name, too, and its generations the same numbers. Whose a generation is says its
fence: the log, and an epoch of that log with its hash. A copy of the catalog has the same log; it is told apart as soon
as one of the two has gone on. ``ProjectionContext.take_over`` is the user's word that it may be taken all the same.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from tailrace.eventstore.errors import IntegrityError, NotOwner, manual_page
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.model.position import Fence
from tailrace.projections.context import ProjectionContext
from tailrace.projections.sinks.contract import Sink, Target


def require_own(ctx: ProjectionContext, sink: Sink, target: Target) -> None:
    """Raises NotOwner for a generation that another log filled, or another copy of this one. One without a fence is
    nobody's. A damaged one is this store's if its catalog has steps of it; else IntegrityError is raised."""
    refusal = _refusal(ctx, sink, target)
    if refusal is not None:
        _refuse(ctx, target, refusal)


def require_own_pointer(ctx: ProjectionContext, name: str, sink: Sink) -> None:
    """Raises NotOwner when the generation that readers see is another store's."""
    shown = sink.live(ctx.settings.store.name, name)
    if shown is None:
        return
    target = Target(ctx.settings.store.name, name, shown, (), pa.schema([]), 1)
    refusal = _refusal(ctx, sink, target)
    known = any(
        each.number == shown and each.state is not GenerationState.FAILED for each in ctx.generations(name)
    )
    if refusal is None and not known:
        refusal = _refusal_of(
            ctx, f"{target}, which its sink shows and this catalog does not know,", _fence(sink, target)
        )
    if refusal is not None:
        _refuse(ctx, target, refusal)


def _refuse(ctx: ProjectionContext, target: Target, refusal: NotOwner) -> None:
    """Raise it, or record that it was taken over all the same."""
    if not ctx.take_over:
        raise refusal
    record = RunRecord.of_moment(target.projection, target.generation, "take-over", refusal.message)
    ctx.store.run_records.add(record)


def _refusal(ctx: ProjectionContext, sink: Sink, target: Target) -> NotOwner | None:
    try:
        fence = _fence(sink, target)
    except IntegrityError:
        if ctx.store.steps.last(target.projection, target.generation) is None and not ctx.take_over:
            raise
        return None
    if fence is None:
        return None
    if fence.log_id != ctx.store.log_id:
        return _refusal_of(ctx, f"{target} in its sink", fence)
    head, found = ctx.store.head(), ctx.store.epochs(after=fence.epoch - 1, limit=1)
    ahead = head is None or fence.epoch > head.epoch
    forked = bool(found) and found[0].epoch == fence.epoch and found[0].hash != fence.epoch_hash
    if ahead or forked:
        what = f"{target} in its sink is at epoch {fence.epoch:,} of another copy of this log: it"
        return _refusal_of(ctx, what, fence)
    return None


def _fence(sink: Sink, target: Target) -> Fence | None:
    """The fence, however many buckets its store gave the generation."""
    return sink.fence(replace(target, partitions=1, split=1))


def _refusal_of(ctx: ProjectionContext, what: str, fence: Fence | None) -> NotOwner:
    return NotOwner(
        what,
        fence.log_id if fence else None,
        ctx.store.log_id,
        hint="give one of the two stores another [store] name, or a sink of its own; if the other one is given up, add "
        "--take-over to the command; see " + manual_page("operations/running.md", "Two stores of one name"),
    )
