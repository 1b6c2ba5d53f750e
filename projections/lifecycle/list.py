"""List the generations of a projection: which is live, how far each is. Starts no Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.model.position import Fence
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.lifecycle.promote import PendingPromotion, pending_promotion


@dataclass(frozen=True, slots=True)
class GenerationView:
    """A generation and how far it is: ``epoch`` in the log, ``fence`` in the sink (None: the sink holds nothing of
    it, or is out of reach, as ``problem`` says). ``why_frozen``: why a generation that would follow the log is not
    refreshed; "" when a loaded definition matches it. ``unshown``: it is live in the catalog, and readers still see
    another one. ``partial``: the epoch and the rows of the partial results by which it is refreshed (None: by none)."""

    generation: Generation
    live: bool
    why_frozen: str
    epoch: int | None
    rows: int
    fence: Fence | None
    problem: str
    unshown: PendingPromotion | None = None
    partial: tuple[int, int] | None = None

    @property
    def frozen(self) -> bool:
        return bool(self.why_frozen)


def generations(ctx: ProjectionContext, name: str) -> list[GenerationView]:
    """All generations of a projection, oldest first. Raises UsageError when the name is unknown everywhere."""
    ctx.check_known(name)
    found = ctx.generations(name)
    live = ctx.store.derived.live(name)
    return [_view(ctx, generation, live) for generation in found]


def frozen_projections(ctx: ProjectionContext) -> list[str]:
    """Projections whose live generation no loaded definition matches: what a deploy changed. Those that are read come
    before those that read them."""
    frozen = []
    for name in inputs_first(ctx, ctx.projections):
        live = ctx.store.derived.live(name)
        mine = next((each for each in ctx.generations(name) if each.number == live), None)
        if mine is not None and mine.pin is None and ctx.is_frozen(mine):
            frozen.append(name)
    return frozen


def inputs_first(ctx: ProjectionContext, names: Iterable[str]) -> list[str]:
    """Names, each behind those of them whose results it reads."""
    wanted, found = list(dict.fromkeys(names)), dict[str, None]()

    def visit(name: str) -> None:
        for each in ctx.projections[name].reads if name in ctx.projections else ():
            if each in wanted and each not in found:
                visit(each)
        found[name] = None

    for name in wanted:
        if name not in found:
            visit(name)
    return list(found)


def _view(ctx: ProjectionContext, generation: Generation, live: int | None) -> GenerationView:
    last = ctx.store.steps.last(generation.projection, generation.number)
    fence, problem, pending = None, "", None
    try:
        fence = ctx.fence(generation)
        pending = pending_promotion(ctx, generation) if generation.number == live else None
    except TailraceError as error:
        problem = error.message
    follows = generation.number == live or generation.state is GenerationState.READY
    return GenerationView(
        generation=generation,
        live=generation.number == live,
        why_frozen=ctx.frozen_reason(generation) if follows and ctx.is_frozen(generation) else "",
        epoch=last.to_epoch if last else None,
        rows=files_of(last).rows if last else 0,
        fence=fence,
        problem=problem,
        unshown=pending,
        partial=_partial(ctx, generation),
    )


def _partial(ctx: ProjectionContext, generation: Generation) -> tuple[int, int] | None:
    for held in ctx.generations(generation.stage_name):
        last = ctx.store.steps.last(held.projection, held.number)
        if last is not None:
            return last.to_epoch, files_of(last).rows
    return None
