"""Is what a sink holds under this store's name this store's? Asked before it is dropped, or replaced for readers.

A copy of the project has the store's name, too, and its generations the same numbers. Whose a generation is, its sink
keeps from its creation on (``Sink.owner``); its fence names an epoch of that log with its hash. A copy of the catalog
has the same log; it is told apart as soon as one of the two has gone on. ``ProjectionContext.take_over`` is the user's
word that it may be taken all the same.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from tailrace.eventstore.errors import IntegrityError, NotOwner
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.model.position import Fence
from tailrace.projections.context import ProjectionContext
from tailrace.projections.sinks.contract import Sink, Target, not_owner


def require_own(ctx: ProjectionContext, sink: Sink, target: Target) -> Target:
    """The target by which the sink lets this store drop the generation. Raises NotOwner for one that another log
    created, or another copy of this one filled. One without an owner and a fence is nobody's. A damaged one is this
    store's if its catalog has steps of it; else IntegrityError is raised."""
    refusal = _refusal(ctx, sink, target)
    if refusal is None:
        return target
    _refuse(ctx, target, refusal)
    return replace(target, log_id=sink.owner(target) or target.log_id)


def require_own_pointer(ctx: ProjectionContext, name: str, sink: Sink) -> None:
    """Raises NotOwner when the generation that readers see is another store's."""
    shown = sink.live(ctx.settings.store.name, name)
    if shown is None:
        return
    target = Target(ctx.settings.store.name, ctx.store.log_id, name, shown, (), pa.schema([]), 1)
    refusal = _refusal(ctx, sink, target)
    known = any(
        each.number == shown and each.state is not GenerationState.FAILED for each in ctx.generations(name)
    )
    if refusal is None and not known:
        fence = _fence(sink, target)
        what = f"{target}, which its sink shows and this catalog does not know,"
        refusal = not_owner(what, fence.log_id if fence else None, ctx.store.log_id)
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
        fence, owner = _fence(sink, target), sink.owner(target)
    except IntegrityError:
        if ctx.store.steps.last(target.projection, target.generation) is None and not ctx.take_over:
            raise
        return None
    owner = fence.log_id if fence else owner
    if owner is not None and owner != ctx.store.log_id:
        return not_owner(f"{target} in its sink", owner, ctx.store.log_id)
    if fence is None:
        return None
    head, found = ctx.store.head(), ctx.store.epoch(fence.epoch)
    ahead = head is None or fence.epoch > head.epoch
    forked = found is not None and found.hash != fence.epoch_hash
    if ahead or forked:
        what = f"{target} in its sink is at epoch {fence.epoch:,} of another copy of this log: it"
        return not_owner(what, fence.log_id, ctx.store.log_id)
    return None


def _fence(sink: Sink, target: Target) -> Fence | None:
    """The fence, however many buckets its store gave the generation."""
    return sink.fence(replace(target, partitions=1, split=1))
