"""What nobody needs any more of a projection: generations, and files that drivers left who died."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from tailrace.eventstore.errors import TailraceError, UsageError
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.model.position import Cut
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.generations.result_input import common_cut
from tailrace.projections.generations.step_files import folder_of, generation_of
from tailrace.projections.lifecycle.promote import reconcile_if_possible
from tailrace.projections.refresh import resume
from tailrace.projections.refresh.apply import StepRefused
from tailrace.projections.refresh.plan import Nothing
from tailrace.projections.refresh.refresh import plan_generation
from tailrace.projections.refresh.step_input import StepInput
from tailrace.projections.sinks.contract import NoSink

_KEPT = timedelta(days=1)
"""From its begin on, a build that was cut off is kept to be finished."""


@dataclass(frozen=True, slots=True)
class Collected:
    """A generation that was dropped, with its files. ``left``: why its sink could not be asked to drop it, "" when it
    was."""

    projection: str
    generation: int
    files: int
    left: str = ""


def gc(
    ctx: ProjectionContext,
    name: str,
    *,
    keep: int = 1,
    number: int | None = None,
    tell: Callable[[Collected], None] = lambda gone: None,
) -> list[Collected]:
    """Drop generations of a projection that nobody can need: failed builds, builds begun more than a day ago and cut
    off, and retired ones except ``keep``, first the one to which one can roll back; and files of drivers that died.
    ``number`` drops that generation (a pinned one, say), also where its sink is not there any more: what that holds of
    it stays. ``tell`` is called with each as it is dropped; one that cannot be hinders no other, its error comes last.

    Raises UsageError for a live generation, one that is being built and a name that nobody knows, and what the sink
    raises.
    """
    ctx.check_known(name)
    reconcile_if_possible(ctx, name)
    dropped: list[Collected] = []
    hindered: TailraceError | None = None
    for generation in _droppable(ctx, name, keep) if number is None else [_not_live(ctx, name, number)]:
        try:
            gone = drop(ctx, generation, by_name=number is not None)
        except TailraceError as error:
            hindered = hindered or error
            continue
        dropped += gone
        for each in gone:
            tell(each)
    _collect_files(ctx, name)
    if hindered is not None:
        raise hindered
    return dropped


def drop(ctx: ProjectionContext, generation: Generation, *, by_name: bool) -> list[Collected]:
    """With its files, unless the sink shows it still, or is not there any more, and nobody asked for it by name."""
    name, number = generation.projection, generation.number
    target, left = ctx.target(generation), ""
    try:
        sink = ctx.sink(generation)
    except NoSink as error:
        if not by_name:
            raise
        left = error.message
    else:
        if not by_name and sink.live(target.store, name) == number:
            # The projection moved to another sink; whoever still reads the earlier one keeps what it shows.
            ctx.report(f"{generation} stays: the sink it was built in still shows it", 0, None, "")
            return []
        sink.drop(target)
    paths = list(ctx.store.storage.list(folder_of(name, number)))
    ctx.store.derived.drop_generation(name, number)
    for path in paths:
        ctx.store.storage.delete(path)
    return [Collected(name, number, len(paths), left)]


def _not_live(ctx: ProjectionContext, name: str, number: int) -> Generation:
    if ctx.store.derived.live(name) == number:
        raise UsageError(f"generation {number} of {name!r} is live", hint="promote another one first")
    generation = ctx.generation(name, number)
    if generation.state is GenerationState.BUILDING:
        builder = attempts.give_up(ctx.store.catalog, name, number, timedelta(0))
        if builder:
            raise UsageError(f"{generation} is being built: {builder}", hint="stop that first")
    return generation


def _droppable(ctx: ProjectionContext, name: str, keep: int) -> list[Generation]:
    live, previous = ctx.store.derived.live(name), ctx.store.derived.previous(name)
    needed = (live, previous) if keep else (live,)
    found = [generation for generation in ctx.generations(name) if generation.number not in needed]
    retired = [generation for generation in found if generation.state is GenerationState.RETIRED]
    spare = max(0, keep - (previous is not None))
    return [*(retired[:-spare] if spare else retired), *(each for each in found if _is_lost(ctx, each))]


def _is_lost(ctx: ProjectionContext, generation: Generation) -> bool:
    """Whether it is a build that failed, or that nobody finished in time."""
    if generation.state is GenerationState.BUILDING:
        attempts.give_up(ctx.store.catalog, generation.projection, generation.number, _KEPT)
        generation = ctx.generation(generation.projection, generation.number)
    return generation.state is GenerationState.FAILED


def _may_go_on(ctx: ProjectionContext, generation: Generation) -> bool:
    """Whether it is a build of the definition that is loaded, or of one that could not be."""
    changed = generation.projection in ctx.projections and ctx.is_frozen(generation)
    return generation.state is GenerationState.BUILDING and not changed


def _collect_files(ctx: ProjectionContext, name: str) -> None:
    """Remove files that no step names, that no driver can still commit and that are of no use to the next attempt at a
    build, also of generations that are gone."""
    storage, derived = ctx.store.storage, ctx.store.derived
    building = {each.number: each for each in ctx.generations(name) if _may_go_on(ctx, each)}
    by_number: dict[int, list[str]] = {}
    for path in storage.list(folder_of(name)):
        by_number.setdefault(generation_of(path), []).append(path)
    for number, paths in by_number.items():
        # The order matters: what was listed, is of no living attempt and not named *afterwards*, never will be.
        living = attempts.at_work(ctx.store.catalog, name, number)
        named = set().union(*(files_of(step).paths() for step in derived.derived(name, number)))
        if number in building and not named:
            named = resume.resumable(ctx, building[number], paths)
        for path in paths:
            if path not in named and not any(attempts.is_by(path, attempt) for attempt in living):
                storage.delete(path)


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
    decided = plan_generation(StepInput(ctx, projection, generation, common_cut(ctx.store, projection, cut)))
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
