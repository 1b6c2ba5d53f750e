"""Drop what nobody needs: generations, files of drivers that died, and builds that a sink refused.

A step's bytes never change, so a build whose step the sink refused cannot be finished. The next build begins at the
end of the log as it is then; a runner does not begin one while no input has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from tailrace.eventstore.errors import NotOwner, TailraceError, UsageError
from tailrace.eventstore.maintenance.files.owner import require_own_segments
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.metadata.publications import needed_steps
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.model.position import Cut
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.generations.result_input import common_cut
from tailrace.projections.generations.step_files import folder_of, generation_of
from tailrace.projections.lifecycle.ownership import require_own
from tailrace.projections.lifecycle.promote import reconcile_if_possible
from tailrace.projections.refresh import resume
from tailrace.projections.refresh.apply import StepRefused
from tailrace.projections.refresh.by_stage import drop_stage
from tailrace.projections.refresh.plan import Nothing
from tailrace.projections.refresh.plan_step import plan_generation
from tailrace.projections.refresh.step_input import StepInput
from tailrace.projections.sinks.contract import NoSink

_RETAINED = timedelta(days=1)
"""How long after its begin a build that was cut off may still be finished."""


@dataclass(frozen=True, slots=True)
class DroppedGeneration:
    """A generation that was dropped, with its files. ``left``: why its rows are still in the sink; "" when they are
    not."""

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
    report: Callable[[DroppedGeneration], None] = lambda gone: None,
) -> list[DroppedGeneration]:
    """Drop generations of a projection that nobody needs, and files of drivers that died.

    Dropped are failed builds, builds that were cut off more than a day after they began, and retired generations except
    ``keep`` of them; the one to roll back to is kept first, and so is one that a publication goes on from. ``number``
    drops that generation instead (a pinned one, say), even if its sink does not exist any more: what that holds of it
    stays. ``report`` is called with each as it is dropped. One that cannot be dropped does not stop the others; its
    error is raised last.

    Raises UsageError for a live generation, one that is being built or published from, and an unknown name, and what
    the sink raises.
    """
    ctx.check_known(name)
    reconcile_if_possible(ctx, name)
    dropped: list[DroppedGeneration] = []
    hindered: TailraceError | None = None
    for generation in (
        _droppable_generations(ctx, name, keep)
        if number is None
        else [_requested_generation(ctx, name, number)]
    ):
        try:
            gone = drop(ctx, generation, by_name=number is not None)
        except TailraceError as error:
            hindered = hindered or error
            continue
        dropped += gone
        for each in gone:
            report(each)
    _collect_files(ctx, name)
    if hindered is not None:
        raise hindered
    return dropped


def drop(ctx: ProjectionContext, generation: Generation, *, by_name: bool) -> list[DroppedGeneration]:
    """Drop a generation with its files. Unless it is dropped ``by_name``, it stays while its sink shows it, and NoSink
    is raised when that does not exist any more. Raises NotOwner when the sink has another store's in its place."""
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
            # The projection moved to another sink; readers of the earlier one keep what it shows.
            ctx.report(f"{generation} stays: the sink it was built in still shows it", 0, None, "")
            return []
        try:
            target = require_own(ctx, sink, target)
        except NotOwner as error:
            if ctx.store.steps.last(name, number) is not None:
                raise
            left = error.message  # its number was taken in the sink: nothing there is ours
        else:
            sink.drop(target)
    require_own_segments(ctx.store)
    drop_stage(ctx, generation)
    paths = list(ctx.store.storage.list(folder_of(name, number)))
    ctx.store.derived.drop_generation(name, number)
    for path in paths:
        ctx.store.storage.delete(path)
    return [DroppedGeneration(name, number, len(paths), left)]


def _requested_generation(ctx: ProjectionContext, name: str, number: int) -> Generation:
    if ctx.store.derived.live(name) == number:
        raise UsageError(f"generation {number} of {name!r} is live", hint="promote another one first")
    generation = ctx.generation(name, number)
    if publication := _published_generations(ctx, name).get(number):
        raise UsageError(
            f"publication {publication} goes on from generation {number} of {name!r}",
            hint=f"let it come to the live one: tailrace publish --once {publication}; or tailrace publish --forget"
            f" {publication}",
        )
    if generation.state is GenerationState.BUILDING:
        builder = attempts.give_up(ctx.store.catalog, name, number, timedelta(0))
        if builder:
            raise UsageError(f"{generation} is being built: {builder}", hint="stop that first")
    return generation


def _droppable_generations(ctx: ProjectionContext, name: str, keep: int) -> list[Generation]:
    live, previous = ctx.store.derived.live(name), ctx.store.derived.previous(name)
    needed = (live, previous) if keep else (live,)
    published = _published_generations(ctx, name)
    found = [
        generation
        for generation in ctx.generations(name)
        if generation.number not in needed and generation.number not in published
    ]
    retired = [generation for generation in found if generation.state is GenerationState.RETIRED]
    spare = max(0, keep - (previous is not None))
    return [*(retired[:-spare] if spare else retired), *(each for each in found if _is_lost(ctx, each))]


def _published_generations(ctx: ProjectionContext, name: str) -> dict[int, str]:
    """Those from which publications go on, with the name of one."""
    return {
        step.generation: publication for publication, step in needed_steps(ctx.store.groups_database, name)
    }


def _is_lost(ctx: ProjectionContext, generation: Generation) -> bool:
    """Whether it is a build that failed, or that was not finished in time."""
    if generation.state is GenerationState.BUILDING:
        attempts.give_up(ctx.store.catalog, generation.projection, generation.number, _RETAINED)
        generation = ctx.generation(generation.projection, generation.number)
    return generation.state is GenerationState.FAILED


def _may_go_on(ctx: ProjectionContext, generation: Generation) -> bool:
    """Whether a build may still be finished: its definition is the loaded one, or could not be loaded."""
    changed = generation.projection in ctx.projections and ctx.is_frozen(generation)
    return generation.state is GenerationState.BUILDING and not changed


def _collect_files(ctx: ProjectionContext, name: str) -> None:
    """Remove files that no step names, no driver can still commit and no attempt at a build can take over; those of
    dropped generations too."""
    require_own_segments(ctx.store)
    storage = ctx.store.storage
    building = {each.number: each for each in ctx.generations(name) if _may_go_on(ctx, each)}
    by_number: dict[int, list[str]] = {}
    for path in storage.list(folder_of(name)):
        by_number.setdefault(generation_of(path), []).append(path)
    for number, paths in by_number.items():
        # The order matters: a listed file of no living attempt that is not named *afterwards* never will be.
        living = attempts.live_attempts(ctx.store.catalog, name, number)
        named = set().union(*(files_of(step).paths() for step in ctx.store.steps.list(name, number)))
        if number in building and not named:
            named = resume.resumable_files(ctx, building[number], paths)
        for path in paths:
            if path not in named and not any(attempts.is_by(path, attempt) for attempt in living):
                storage.delete(path)


@contextmanager
def fail_on_refusal(ctx: ProjectionContext, generation: Generation) -> Iterator[None]:
    """Inside, a build fails for good when its sink refuses a step. Readers have never seen it."""
    try:
        yield
    except StepRefused:
        ctx.store.derived.set_state(generation.projection, generation.number, GenerationState.FAILED)
        raise


def repeated_refusal(ctx: ProjectionContext, projection: Projection, cut: Cut) -> StepRefused | None:
    """The refusal that a first build at ``cut`` would meet again: the definition is the same, and no input has changed
    since."""
    found = _last_refused_build(ctx, projection.name)
    if found is None:
        return None
    generation, record = found
    if generation.pin is not None or generation.preview is not None or ctx.is_frozen(generation):
        return None
    decided = plan_generation(StepInput(ctx, projection, generation, common_cut(ctx.store, projection, cut)))
    if not isinstance(decided, Nothing):
        return None
    return StepRefused(generation, record.reason, "no input has changed since then")


def drop_refused_build(ctx: ProjectionContext, successor: Generation) -> None:
    """Drop the build that was refused last, once another one has begun: repeated for days, they would fill disks. What
    cannot be dropped now is left to ``gc``."""
    found = _last_refused_build(ctx, successor.projection)
    if found is not None:
        with suppress(TailraceError):
            drop(ctx, found[0], by_name=False)


def drop_failed_builds(ctx: ProjectionContext, name: str) -> None:
    """Drop the latest builds that failed before their first step: the next one takes their number. A build that fails
    whenever it is tried would take another each time."""
    for generation in reversed(ctx.generations(name)):
        if (
            generation.state is not GenerationState.FAILED
            or ctx.store.steps.last(name, generation.number) is not None
        ):
            return
        try:
            drop(ctx, generation, by_name=False)
        except TailraceError:
            return  # its sink is out of reach; ``gc`` drops it later


def _last_refused_build(ctx: ProjectionContext, name: str) -> tuple[Generation, RunRecord] | None:
    """The generation of the last failed build, if its sink refused it, and the record of that. No other failure names a
    generation in state FAILED."""
    records = ctx.store.run_records.latest(name, limit=1, kinds=["build"])
    for generation in ctx.generations(name) if records else ():
        if generation.number == records[0].generation and generation.state is GenerationState.FAILED:
            return generation, records[0]
    return None
