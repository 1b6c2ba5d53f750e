"""The generations of a projection as a list shows them: which is live, where each stands. Starts no Spark."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.model.position import Fence
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.lifecycle.promote import Unshown
from tailrace.projections.lifecycle.promote import unshown as unshown_of


@dataclass(frozen=True, slots=True)
class GenerationView:
    """A generation as a list shows it. ``why_frozen``: "" when a loaded definition matches it. ``fence`` is the sink's
    (None: nothing in it, or the sink is out of reach, which ``problem`` says); ``epoch`` is where its result in the log
    stands. ``unshown``: it is live in the catalog, and readers see another one still."""

    generation: Generation
    live: bool
    why_frozen: str
    epoch: int | None
    rows: int
    fence: Fence | None
    problem: str
    unshown: Unshown | None = None

    @property
    def frozen(self) -> bool:
        return bool(self.why_frozen)


def generations(ctx: ProjectionContext, name: str) -> list[GenerationView]:
    """All generations of a projection, oldest first. Raises UsageError when the name is unknown everywhere."""
    ctx.check_known(name)
    found = ctx.generations(name)
    live = ctx.store.derived.live(name)
    return [_view(ctx, generation, live) for generation in found]


def _view(ctx: ProjectionContext, generation: Generation, live: int | None) -> GenerationView:
    last = ctx.store.derived.last_derived(generation.projection, generation.number)
    fence, problem, unshown = None, "", None
    try:
        fence = ctx.fence(generation)
        unshown = unshown_of(ctx, generation) if generation.number == live else None
    except TailraceError as error:
        problem = error.message
    return GenerationView(
        generation=generation,
        live=generation.number == live,
        why_frozen=ctx.why_frozen(generation) if ctx.is_frozen(generation) else "",
        epoch=last.to_epoch if last else None,
        rows=files_of(last).rows if last else 0,
        fence=fence,
        problem=problem,
        unshown=unshown,
    )
