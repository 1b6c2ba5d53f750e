"""Which generation readers see: promote, roll back, and finish what a crash cut off (step 10).

The life of a promotion:

  1. *Chosen*: it is ready, the sink holds it from this log, and it is not behind the live one (or ``stale_ok``).
  2. *Decided*: the catalog makes it live, by compare-and-set. Fenced: somebody else promoted meanwhile.
  3. *Shown*: the sink's own pointer moves, atomically. Until then readers keep the old generation.
     NotShown: readers hold the pointer. NotShowable: the sink refuses. Both are recorded.

A crash between 2 and 3 is mended by ``reconcile``, with which all later work on the projection begins.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import Fenced, OperatorError, TailraceError, UsageError
from tailrace.eventstore.metadata.generations import Behind, GenerationState
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.model.position import Fence
from tailrace.eventstore.model.topic import TopicId
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.errors import NotShowable, NotShown
from tailrace.projections.generations.generation import Generation
from tailrace.projections.lifecycle.ownership import require_own_pointer
from tailrace.projections.sinks.contract import HeldByReaders

ATTEMPTS = 10
"""Tries to move a pointer that readers hold, before the next refresh or promotion has to."""
PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Promotion:
    """The generation that is live now, the one before, and the ``fence`` of the new one: ``behind`` epochs
    before what readers saw."""

    projection: str
    generation: int
    previous: int | None
    fence: Fence
    behind: int = 0


@dataclass(frozen=True, slots=True)
class PendingPromotion:
    """The sink does not show the live generation yet: readers see ``shown`` (None: none). ``since`` is when it was
    promoted, None when the promoter died. ``lost``: the sink holds nothing of the live one."""

    shown: int | None
    since: datetime | None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Readers see ``generation`` again instead of ``left``. It is at ``fence``, whose time is ``commit_ts``,
    ``behind`` epochs before what readers saw. ``frozen``: no loaded definition refreshes it."""

    projection: str
    generation: int
    left: int
    fence: Fence
    commit_ts: datetime | None
    behind: int
    frozen: bool


def promote(
    ctx: ProjectionContext, name: str, number: int | None = None, *, stale_ok: bool = False
) -> Promotion:
    """Show a generation to readers. Default: the live one if the sink does not show it yet, else the latest one that
    follows the log, is ready, and is newer than the live one.

    Raises UsageError when there is none or it is not ready, Behind when readers would see older data than now and
    ``stale_ok`` is false, NotOwner when readers see another store's, Fenced when somebody else promoted meanwhile, and
    what the sink raises.
    """
    ctx.check_known(name)
    live = ctx.store.derived.live(name)
    hindrance: TailraceError | None = None
    if live is not None and number in (None, live):
        try:
            if reconcile(ctx, name, ATTEMPTS):
                number = live  # it is shown now, and nothing else was ordered
        except (Fenced, NotShown):
            raise
        except TailraceError as error:
            hindrance = error
    if hindrance is not None and (number is not None or not _promotion_candidates(ctx, name)):
        raise hindrance
    return show(ctx, _choose(ctx, name, number), stale_ok=stale_ok)


def show(ctx: ProjectionContext, generation: Generation, *, stale_ok: bool) -> Promotion:
    """Promote this generation."""
    name, number = generation.projection, generation.number
    fence = _fence_in_sink(ctx, generation)
    live = ctx.store.derived.live(name)
    if live == number:
        sink, target = ctx.sink(generation), ctx.target(generation)
        shown = sink.live(target.store, name)
        if shown != number:
            require_own_pointer(ctx, name, sink)
            _show_in_sink(ctx, generation, shown, ATTEMPTS)
        return Promotion(name, number, ctx.store.derived.previous(name), fence)
    behind = _epochs_behind(ctx, generation, fence, live)
    if behind and not stale_ok:
        raise _rollback_target(ctx, generation, fence, live, behind)
    _switch(ctx, generation, live, None if stale_ok else _level_of(ctx, generation, fence))
    return Promotion(name, number, live, fence, behind)


def rollback(ctx: ProjectionContext, name: str, *, stale_ok: bool = False) -> RolledBack:
    """Undo the last promotion: show the generation that was live before. After a rollback there is nothing to undo, so
    that a repeated rollback neither goes back twice nor forward again.

    Raises UsageError when there is none, Behind when it shows older data than readers see now and ``stale_ok`` is
    false: the message says how old. Needs neither Spark nor the projection's code.
    """
    ctx.check_known(name)
    live, previous = ctx.store.derived.live(name), ctx.store.derived.previous(name)
    existing = [generation.number for generation in ctx.generations(name)]
    if live is None or previous is None or previous not in existing:
        raise UsageError(
            f"projection {name!r} has no generation to go back to",
            hint="`tailrace projection list` shows the generations there are",
        )
    if previous > live:
        raise UsageError(
            f"projection {name!r} went back already, from generation {previous} to generation {live}",
            hint=f"tailrace projection promote {name} --generation N shows any other one;"
            f" {previous} is the one that was left",
        )
    generation = ctx.generation(name, previous)
    fence = _fence_in_sink(ctx, generation)
    # A promotion that readers hold up is taken back without their noticing.
    stale_ok = stale_ok or ctx.sink(generation).live(ctx.settings.store.name, name) == previous
    behind = _epochs_behind(ctx, generation, fence, live)
    if behind and not stale_ok:
        raise _rollback_target(ctx, generation, fence, live, behind)
    _switch(ctx, generation, live, None if stale_ok else _level_of(ctx, generation, fence))
    moment = _moment(ctx, fence)
    return RolledBack(name, previous, live, fence, moment, behind, ctx.is_frozen(generation))


def refuse_behind(ctx: ProjectionContext, name: str, topics: Sequence[TopicId], epoch: int) -> None:
    """Raises Behind when a result at ``epoch``, which is not built yet, would be older than the live one."""
    live = ctx.store.derived.live(name)
    at = _live_epoch(ctx, name, live)
    if at > _last_valid_epoch(ctx, topics, epoch):
        raise Behind(
            f"epoch {epoch} is {at - epoch} epochs behind the live generation {live} of projection {name!r}",
            hint="pass --stale-ok to show readers older data, or leave out --promote",
        )


def reconcile(ctx: ProjectionContext, name: str, attempts: int = 1) -> bool:
    """Finish a promotion that a crash or readers cut off between catalog and sink. Returns whether there was one.

    Raises NotShown while readers are in the way, NotShowable when the sink refuses, OperatorError when the sink lost
    the live generation, holds it from another log, or shows one that this catalog does not know: then its readers
    belong to another log, or to a later state of this one.
    """
    live = ctx.live(name)
    return live is not None and reconcile_live(ctx, live, attempts)


def reconcile_live(ctx: ProjectionContext, generation: Generation, attempts: int = 1) -> bool:
    """``reconcile`` for the live generation of a projection."""
    name = generation.projection
    sink, target = ctx.sink(generation), ctx.target(generation)
    shown = sink.live(target.store, name)
    if shown == generation.number:
        return False
    if shown is not None and all(known.number != shown for known in ctx.generations(name)):
        raise OperatorError(
            f"the sink shows generation {shown} of projection {name!r}, which this catalog does not know",
            hint="the catalog was restored, or another store uses this name; "
            f"take over with tailrace rebuild {name} --take-over",
        )
    _fence_in_sink(ctx, generation)
    require_own_pointer(ctx, name, sink)
    _show_in_sink(ctx, generation, shown, attempts)
    return True


def reconcile_if_possible(ctx: ProjectionContext, name: str) -> None:
    """``reconcile``, for work that replaces the live generation anyway: its sink may have lost it, be out of reach or
    be gone. Raises Fenced alone."""
    try:
        reconcile(ctx, name)
    except Fenced:
        raise
    except TailraceError:
        pass


def pending_promotion(ctx: ProjectionContext, live: Generation) -> PendingPromotion | None:
    """What readers see in place of the live generation; None when they see it. Asks the sink."""
    shown = ctx.sink(live).live(ctx.settings.store.name, live.projection)
    if shown == live.number:
        return None
    records = ctx.store.run_records.latest(live.projection, limit=1, kinds=["promote"])
    known = bool(records) and records[0].generation == live.number
    lost = shown is None and ctx.fence(live) is None
    return PendingPromotion(shown, records[0].started if known else None, lost)


def _choose(ctx: ProjectionContext, name: str, number: int | None) -> Generation:
    if number is not None:
        generation = ctx.generation(name, number)
        if generation.preview is not None:
            raise UsageError(
                f"{generation} is the preview {generation.preview!r}, which is never promoted as it is",
                hint=f"tailrace projection promote {name} --preview {generation.preview} brings it to the log's end"
                " and shows it",
            )
        if generation.state in (GenerationState.BUILDING, GenerationState.FAILED):
            raise UsageError(
                f"{generation} is {generation.state.value}, not ready", hint=f"tailrace rebuild {name}"
            )
        return generation
    live = ctx.store.derived.live(name)
    newer = _promotion_candidates(ctx, name)
    if newer:
        return newer[-1]
    older = ", ".join(str(generation.number) for generation in _promotable_generations(ctx, name))
    raise UsageError(
        f"projection {name!r} has no generation that waits to be promoted"
        + (f": {older} is ready and older than the live one, {live}" if older else ""),
        hint=f"tailrace rebuild {name}" + (", or name an older one: --generation N" if older else ""),
    )


def _promotable_generations(ctx: ProjectionContext, name: str) -> list[Generation]:
    """The generations that follow the log, are ready and were never shown."""
    return [
        generation
        for generation in ctx.generations(name)
        if generation.pin is None and generation.preview is None and generation.state is GenerationState.READY
    ]


def _promotion_candidates(ctx: ProjectionContext, name: str) -> list[Generation]:
    """Those of ``_promotable_generations`` that are newer than the live one."""
    live = ctx.store.derived.live(name) or 0
    return [generation for generation in _promotable_generations(ctx, name) if generation.number > live]


def _epochs_behind(ctx: ProjectionContext, generation: Generation, fence: Fence, live: int | None) -> int:
    """How many epochs readers would go back: 0 while none of them has rows of its inputs."""
    at = _live_epoch(ctx, generation.projection, live)
    return at - fence.epoch if at > _level_of(ctx, generation, fence) else 0


def _level_of(ctx: ProjectionContext, generation: Generation, fence: Fence) -> int:
    """The last epoch at which the result of a generation at ``fence`` still holds."""
    return _last_valid_epoch(ctx, [TopicId.parse(need.topic) for need in generation.inputs], fence.epoch)


def _live_epoch(ctx: ProjectionContext, name: str, live: int | None) -> int:
    """How far the live generation is by its steps in the log. Its sink is never ahead of these, so that a step on its
    way counts, and a sink that is lost or out of reach does not keep the generation from being replaced."""
    last = None if live is None else ctx.store.steps.last(name, live)
    return last.to_epoch if last else 0


def _last_valid_epoch(ctx: ProjectionContext, topics: Sequence[TopicId], epoch: int) -> int:
    """The last epoch at which a result of ``epoch`` still holds: the one after it has rows of these topics."""
    head = ctx.store.head()
    if head is None or not topics:
        return epoch
    found = ctx.store.epochs(after=epoch, limit=1, topics=topics)
    return found[0].epoch - 1 if found else max(head.epoch, epoch)


def _rollback_target(
    ctx: ProjectionContext, generation: Generation, fence: Fence, live: int | None, behind: int
) -> Behind:
    moment = _moment(ctx, fence)
    at = f" ({moment:%Y-%m-%d %H:%M:%S} UTC)" if moment else ""
    return Behind(
        f"{generation} is at epoch {fence.epoch}{at}, {behind} epochs behind the live generation"
        f" {live}; going back shows older data",
        hint="pass --stale-ok to accept that; a runner with the matching definition brings it up to date",
    )


def _moment(ctx: ProjectionContext, fence: Fence) -> datetime | None:
    """The commit time of a fence's epoch."""
    found = ctx.store.epochs(after=fence.epoch - 1, limit=1)
    return found[0].commit_ts if found else None


def _fence_in_sink(ctx: ProjectionContext, generation: Generation) -> Fence:
    fence = ctx.fence(generation)
    if fence is None:
        raise OperatorError(
            f"the sink holds nothing of {generation}",
            hint=f"it was dropped, or the sink restored without it: tailrace rebuild {generation.projection}",
        )
    ctx.check_fence(generation, fence)
    return fence


def _switch(ctx: ProjectionContext, generation: Generation, expected: int | None, level: int | None) -> None:
    """Change the catalog first, then the sink. What the sink shows is read before the catalog decides, so that a
    promoter that was overtaken cannot move the pointer back. The catalog checks in its transaction that the live
    generation has not passed epoch ``level``."""
    name = generation.projection
    sink, target = ctx.sink(generation), ctx.target(generation)
    require_own_pointer(ctx, name, sink)
    shown = sink.live(target.store, name)
    ctx.store.derived.promote(name, generation.number, expected, level)
    failpoints.hit("generation_promoted")
    try:
        _show_in_sink(ctx, generation, shown, ATTEMPTS)
    except (NotShown, NotShowable) as error:
        _record(ctx, generation, error)
        raise
    failpoints.hit("generation_promoted")


def _show_in_sink(ctx: ProjectionContext, generation: Generation, shown: int | None, attempts: int) -> None:
    sink, target = ctx.sink(generation), ctx.target(generation)
    for attempt in range(1, attempts + 1):
        try:
            sink.promote(target, shown)
            return
        except HeldByReaders as error:
            if attempt == attempts:
                raise NotShown(generation, shown, error) from error
        except OperatorError as error:
            raise NotShowable(generation, shown, error) from error
        time.sleep(PAUSE_SECONDS)


def _record(ctx: ProjectionContext, generation: Generation, error: TailraceError) -> None:
    """Record a promotion that readers do not see, with its time."""
    record = RunRecord.of_moment(
        generation.projection, generation.number, "promote", error.message, status="failed"
    )
    with suppress(TailraceError):
        ctx.store.run_records.add(record)
