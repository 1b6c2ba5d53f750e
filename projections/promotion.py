"""Which generation readers see: promote, roll back, and mend what a crash left between (step 10).

The catalog decides, by compare-and-set; then the sink's own pointer moves, atomically. A crash in between leaves
readers on the old generation; ``reconcile``, which every later work on the projection begins with, moves the pointer.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from eventstore import failpoints
from eventstore.derived import GenerationState
from eventstore.errors import OperatorError, UsageError
from eventstore.position import Fence
from projections.context import ProjectionContext
from projections.generation import Generation


@dataclass(frozen=True, slots=True)
class Promoted:
    """The generation that is live now, the one before, and where the new one stands."""

    projection: str
    generation: int
    previous: int | None
    fence: Fence


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Back at ``generation`` from ``left``. ``fence`` is the position it returns to, ``commit_ts`` that position's
    time, ``behind`` how many epochs older it is than what readers saw before; ``frozen``: no loaded definition
    refreshes it."""

    projection: str
    generation: int
    left: int
    fence: Fence
    commit_ts: datetime | None
    behind: int
    frozen: bool


def promote(ctx: ProjectionContext, name: str, number: int | None = None) -> Promoted:
    """Show a generation to readers; by default the newest one that follows the log and is ready.

    Raises UsageError when there is none or it is not ready, Fenced when somebody else promoted meanwhile, and what
    the sink raises.
    """
    ctx.check_known(name)
    reconcile_if_possible(ctx, name)
    generation = _choose(ctx, name, number)
    fence = _standing(ctx, generation)
    expected = ctx.store.derived.live(name)
    if expected == generation.number:
        return Promoted(name, generation.number, ctx.store.derived.previous(name), fence)
    _switch(ctx, generation, expected)
    return Promoted(name, generation.number, expected, fence)


def rollback(ctx: ProjectionContext, name: str, *, stale_ok: bool = False) -> RolledBack:
    """Go back to the generation that was live before.

    Raises UsageError when there is none, or when it shows older data than readers see now and ``stale_ok`` is false:
    the message says how old. Needs neither Spark nor the projection's code.
    """
    ctx.check_known(name)
    reconcile_if_possible(ctx, name)
    live, previous = ctx.live(name), ctx.store.derived.previous(name)
    if live is None or previous is None:
        raise UsageError(
            f"projection {name!r} has no generation to go back to",
            hint="`tailrace projection list` shows the generations there are",
        )
    generation = ctx.generation(name, previous)
    fence, now = _standing(ctx, generation), ctx.fence(live)
    behind = max(0, now.epoch - fence.epoch) if now else 0
    found = ctx.store.epochs(after=fence.epoch - 1, limit=1)
    moment = found[0].commit_ts if found else None
    if behind and not stale_ok:
        at = f" ({moment:%Y-%m-%d %H:%M:%S} UTC)" if moment else ""
        raise UsageError(
            f"{generation} stands at epoch {fence.epoch}{at}, {behind} epochs behind the live generation"
            f" {live.number}; going back shows older data",
            hint="pass --stale-ok to accept that; a runner with the matching definition brings it up to date",
        )
    _switch(ctx, generation, live.number)
    return RolledBack(name, previous, live.number, fence, moment, behind, ctx.is_frozen(generation))


def reconcile(ctx: ProjectionContext, name: str) -> bool:
    """Finish a promotion that a crash cut off between catalog and sink; True when there was one.

    Raises OperatorError when the sink lost the generation that is live, holds it from another log, or shows one that
    this catalog does not know: then another log, or a later life of this one, has the readers.
    """
    generation = ctx.live(name)
    if generation is None:
        return False
    sink, target = ctx.sink(generation), ctx.target(generation)
    shown = sink.live(target.store, name)
    if shown == generation.number:
        return False
    if shown is not None and all(known.number != shown for known in ctx.generations(name)):
        raise OperatorError(
            f"the sink shows generation {shown} of projection {name!r}, which this catalog does not know",
            hint=f"the catalog was restored, or another store uses this name; take over with tailrace rebuild {name}",
        )
    _standing(ctx, generation)
    sink.promote(target, shown)
    return True


def reconcile_if_possible(ctx: ProjectionContext, name: str) -> None:
    """``reconcile``, for work that puts a new generation in the place of one that the sink may have lost."""
    with suppress(OperatorError):
        reconcile(ctx, name)


def _choose(ctx: ProjectionContext, name: str, number: int | None) -> Generation:
    if number is not None:
        generation = ctx.generation(name, number)
        if generation.preview is not None:
            raise UsageError(
                f"{generation} is the preview {generation.preview!r}, which is never promoted",
                hint=f"tailrace rebuild {name} builds one that is",
            )
        if generation.state in (GenerationState.BUILDING, GenerationState.FAILED):
            raise UsageError(
                f"{generation} is {generation.state.value}, not ready", hint=f"tailrace rebuild {name}"
            )
        return generation
    ready = [
        generation
        for generation in ctx.generations(name)
        if generation.pin is None and generation.preview is None and generation.state is GenerationState.READY
    ]
    if not ready:
        raise UsageError(
            f"projection {name!r} has no generation that waits to be promoted",
            hint=f"tailrace rebuild {name}, or name a generation",
        )
    return ready[-1]


def _standing(ctx: ProjectionContext, generation: Generation) -> Fence:
    fence = ctx.fence(generation)
    if fence is None:
        raise OperatorError(
            f"the sink holds nothing of {generation}",
            hint=f"it was dropped, or the sink restored without it: tailrace rebuild {generation.projection}",
        )
    ctx.check_fence(generation, fence)
    return fence


def _switch(ctx: ProjectionContext, generation: Generation, expected: int | None) -> None:
    """Catalog first, then the sink. What the sink shows is read before the catalog decides, so that a promoter who
    was overtaken cannot move the pointer back."""
    name = generation.projection
    sink, target = ctx.sink(generation), ctx.target(generation)
    shown = sink.live(target.store, name)
    ctx.store.derived.promote(name, generation.number, expected)
    failpoints.hit("generation_promoted")
    sink.promote(target, shown)
    failpoints.hit("generation_promoted")
