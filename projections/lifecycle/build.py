"""Build a generation and show it to readers. Its life until then:

  1. *Created*: the result is defined, the sink checks its columns, and the generation takes a number.
  2. *Building*: the first step is computed and applied. After a crash the next rebuild of the same definition,
     position and label goes on. Errors that would come again make it *failed*.
  3. *Caught up*: refreshed until nothing is left to do, a few times at most. A pinned generation or a preview is not,
     nor one whose projection has shown nothing yet (``begin_first_build``): a runner does that.
  4. *Promoted*: shown, if it is not behind the live one; else refreshed further, and tried again. Where the live one is
     always faster, NotLevel says so, and it stays *ready*.

A rebuild begins with what a killed process may have left: a promotion that the sink does not show yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tailrace.eventstore.errors import (
    Fenced,
    IncompleteTopic,
    NotOwner,
    OperatorError,
    TransientError,
    UsageError,
)
from tailrace.eventstore.log.as_of import absolute
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.metadata.generations import Behind, GenerationState
from tailrace.eventstore.model.position import Cut
from tailrace.projections.analysis.check_names import check
from tailrace.projections.compute.compute import output_schema
from tailrace.projections.compute.engine import SparkEngine
from tailrace.projections.compute.read_plan import ResultSources, needs, plan_reads
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.errors import NotLevel
from tailrace.projections.generations.generation import Generation, Pin, files_of
from tailrace.projections.generations.result_input import common_cut, missing_results
from tailrace.projections.lifecycle.collect import (
    drop,
    drop_failed_builds,
    drop_refused_build,
    fail_on_refusal,
)
from tailrace.projections.lifecycle.ownership import require_own, require_own_pointer
from tailrace.projections.lifecycle.promote import (
    Promotion,
    reconcile_if_possible,
    refuse_behind,
    show,
)
from tailrace.projections.refresh import resume
from tailrace.projections.refresh.apply import ApplyResult, apply
from tailrace.projections.refresh.by_stage import by_stage
from tailrace.projections.refresh.lock import build_lease, refresh_lease
from tailrace.projections.refresh.plan import Full
from tailrace.projections.refresh.record import record_applied, record_failures
from tailrace.projections.refresh.refresh import (
    RefreshOutcome,
    refresh_generation,
)
from tailrace.projections.refresh.step import take_step
from tailrace.projections.refresh.step_input import StepInput
from tailrace.projections.sinks.open import open_sink, place_of
from tailrace.projections.sinks.record import spec_to_text
from tailrace.projections.spark.errors import FOR_GOOD

_CATCH_UP_ROUNDS = 3
"""Refreshes of a new generation before it is promoted. Each is shorter than the one before; a runner does the rest."""
_LEVEL_ROUNDS = 10
"""Further refreshes while the live generation is ahead. One is level that begins after the last refresh of the live one
and ends before its next. If that fails so often, the live generation is the faster of the two."""

_LABEL = re.compile(r"[\w.-]{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A new generation and how far it is. ``resumed``: an earlier build that was cut off was finished.
    ``place``: where the sink has it; "" when only the sink knows."""

    projection: str
    generation: int
    epoch: int
    rows: int
    upserts: int
    deletes: int
    resumed: bool
    promoted: Promotion | None
    preview: str | None = None
    place: str = ""


def rebuild(
    ctx: ProjectionContext,
    name: str,
    *,
    as_of: str | int | datetime | None = None,
    promote: bool | None = None,
    preview: str | None = None,
    stale_ok: bool = False,
) -> Rebuilt:
    """Build a new generation from the log and, by default, show it to readers.

    With ``as_of`` it is pinned at that position: it is never refreshed, and promoted only with ``promote``. Where
    readers would then see older data than now, that needs ``stale_ok`` too, else Behind is raised before anything is
    built. With ``preview``, a label, it is neither promoted nor refreshed, and replaces the earlier one of that label.

    Raises NotOwner before it builds what would replace another store's, ProjectionFailed, IncompleteTopic,
    UsageError, AlreadyRunning while another process does the same, and what the sink raises. Readers keep what they
    see, and the failure is recorded.
    """
    projection = ctx.projection(name)
    _check_preview(preview, promote)
    with record_failures(ctx, name, "build"):
        return _rebuild(ctx, projection, as_of, promote, preview, stale_ok=stale_ok)


def _rebuild(
    ctx: ProjectionContext,
    projection: Projection,
    as_of: str | int | datetime | None,
    promote: bool | None,
    preview: str | None,
    *,
    stale_ok: bool,
) -> Rebuilt:
    name = projection.name
    check(ctx.store, ctx.settings, projection)
    reconcile_if_possible(ctx, name)
    pin = None if as_of is None else _pin(ctx, projection, absolute(as_of))
    if pin and promote and not stale_ok:
        refuse_behind(ctx, name, ctx.topics(projection), pin.cut.epoch)
    wanted = pin is None and preview is None if promote is None else promote
    if wanted and not ctx.take_over:  # with it the promotion records what it takes
        require_own_pointer(ctx, name, open_sink(projection.sink, ctx.settings))
    with _generation_to_build(ctx, projection, pin, preview) as (generation, resumed):
        bring = _begin_first_step(ctx, projection, generation, resumed=resumed)
        done: list[ApplyResult | RefreshOutcome] = [bring()]
        if pin is None and preview is None:
            done += catch_up_build(ctx, projection, generation)
        promoted = (
            promote_when_level(ctx, projection, generation, done, stale_ok=stale_ok) if wanted else None
        )
        mark_ready(ctx, generation)
        if preview is not None:
            _drop_earlier(ctx, generation)
    return _rebuilt(ctx, projection, generation, done, promoted, resumed=resumed)


def begin_first_build(ctx: ProjectionContext, name: str) -> Callable[[], Rebuilt]:
    """Build a projection that shows nothing yet, up to the commit of its first step. The rest, which any thread may do,
    brings the step to the sink and shows it at once: readers see none that is newer. The caller has checked the
    definition, and that the sink shows nothing.

    Raises what ``rebuild`` does, and so does the rest; there, Behind says that somebody else has shown a newer one.
    """
    projection = ctx.projection(name)
    with ExitStack() as begun:
        begun.enter_context(record_failures(ctx, name, "build"))
        generation, resumed = begun.enter_context(_generation_to_build(ctx, projection, None, None))
        bring = _begin_first_step(ctx, projection, generation, resumed=resumed)
        held = begun.pop_all()

    def finish() -> Rebuilt:
        with held:
            applied = bring()
            try:
                promoted = show(ctx, generation, stale_ok=False)
            except (Behind, Fenced):
                mark_ready(ctx, generation)
                raise
        return _rebuilt(ctx, projection, generation, [applied], promoted, resumed=resumed)

    return finish


@contextmanager
def _generation_to_build(
    ctx: ProjectionContext, projection: Projection, pin: Pin | None, preview: str | None
) -> Iterator[tuple[Generation, bool]]:
    """A new generation, or one that was begun earlier (True). Inside, no other process builds the same."""
    name = projection.name
    with build_lease(ctx, name, pin, preview):
        generation = _find_unfinished(ctx, projection, pin, preview)
        resumed = generation is not None
        if generation is None:
            drop_failed_builds(ctx, name)
            cut = pin.cut if pin else common_cut(ctx.store, projection, ctx.store.cut())
            generation = _create(ctx, projection, pin, cut, preview)
            drop_refused_build(ctx, generation)
        with attempts.build(ctx.store.catalog, name, generation.number), fail_on_refusal(ctx, generation):
            yield generation, resumed


def _begin_first_step(
    ctx: ProjectionContext, projection: Projection, generation: Generation, *, resumed: bool
) -> Callable[[], ApplyResult]:
    """Compute and commit the generation's first step, where it has none. What is returned brings it to the sink."""
    name, pin = projection.name, generation.pin
    with _fails_for_good(ctx, generation):
        started, taken = datetime.now(UTC), None
        if ctx.store.steps.last(name, generation.number) is None:
            leftovers = resume.leftovers_of(ctx, generation) if resumed else None
            cut = pin.cut if pin else None
            if leftovers and not cut:
                cut = resume.position_of(ctx, projection, generation, leftovers)
            cut = cut or common_cut(ctx.store, projection, ctx.store.cut())
            decided = Full(0, cut.epoch, "it has no result yet")
            step = by_stage(StepInput(ctx, projection, generation, cut), decided)
            taken = take_step(step, decided, leftovers)

    def bring() -> ApplyResult:
        with _fails_for_good(ctx, generation):
            applied = apply(ctx, generation)
            record_applied(ctx, projection, generation, started, applied, taken)
            return applied

    return bring


def _rebuilt(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    done: Sequence[ApplyResult | RefreshOutcome],
    promoted: Promotion | None,
    *,
    resumed: bool,
) -> Rebuilt:
    last = ctx.store.steps.last(projection.name, generation.number)
    assert last is not None
    return Rebuilt(
        projection.name,
        generation.number,
        last.to_epoch,
        files_of(last).rows,
        sum(each.upserts for each in done),
        sum(each.deletes for each in done),
        resumed,
        promoted,
        generation.preview,
        place_of(projection.sink, ctx.settings, ctx.target(generation)),
    )


def promote_when_level(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    done: list[ApplyResult | RefreshOutcome],
    *,
    stale_ok: bool,
) -> Promotion:
    """Promote a build. While the live generation is ahead, refresh it again (``done`` gets the outcomes). Its state is
    not READY before: a runner refreshes what is ready, and two processes would fence each other."""
    for _ in range(_LEVEL_ROUNDS):
        try:
            return show(ctx, generation, stale_ok=stale_ok)
        except Behind as error:
            behind = error
        except Fenced:
            mark_ready(ctx, generation)
            raise
        if generation.pin is not None:
            mark_ready(ctx, generation)
            raise behind
        with _fails_for_good(ctx, generation):
            done.append(refresh_generation(ctx, projection, generation, ctx.store.cut()))
    mark_ready(ctx, generation)
    raise NotLevel(generation, _LEVEL_ROUNDS, behind)


def mark_ready(ctx: ProjectionContext, generation: Generation) -> None:
    """Mark a generation as ready, unless it is live by now."""
    if ctx.store.derived.live(generation.projection) != generation.number:
        ctx.store.derived.set_state(generation.projection, generation.number, GenerationState.READY)


def _pin(ctx: ProjectionContext, projection: Projection, text: str) -> Pin:
    """A past position, ``text`` at any later time. With it the projections among those that this one reads whose
    results are not kept there: they are computed with it."""
    computed_inputs, cut = {}, ctx.store.cut(text)
    for name in missing_results(ctx.store, projection, ctx.projections, text, cut):
        check(ctx.store, ctx.settings, ctx.projections[name])
        computed_inputs[name] = ctx.fingerprint(name) or ""
        ctx.report(f"computing {name} with it: its result as of {text} is not kept", 0, None, "")
    return Pin(text, cut, computed_inputs)


def _check_preview(label: str | None, promote: bool | None) -> None:
    if label is None:
        return
    if not _LABEL.fullmatch(label):
        raise UsageError(
            f"{label!r} is not a label for a preview", hint="use up to 40 letters, digits, '-', '_' and '.'"
        )
    if promote:
        raise UsageError("a preview is never promoted", hint="rebuild without a preview's label")


def _drop_earlier(ctx: ProjectionContext, preview: Generation) -> None:
    """Drop the earlier previews of a label. One whose sink cannot be reached stays; the new preview is usable even
    so."""
    for generation in ctx.generations(preview.projection):
        if generation.preview == preview.preview and generation.number < preview.number:
            try:
                drop(ctx, generation, by_name=True)
            except (OperatorError, TransientError) as error:
                ctx.report(f"{generation} stays: {error.message}", 0, None, "")


def _find_unfinished(
    ctx: ProjectionContext, projection: Projection, pin: Pin | None, preview: str | None
) -> Generation | None:
    """The latest build of the same definition, position and label that a crash cut off, or that was not level."""
    for generation in reversed(ctx.generations(projection.name)):
        same_pin = (generation.pin.cut if generation.pin else None) == (pin.cut if pin else None)
        same = same_pin and generation.preview == preview
        if not same or ctx.is_frozen(generation):
            continue
        if generation.state is GenerationState.BUILDING:
            return generation
        if generation.state is GenerationState.READY and _is_not_level(ctx, generation):
            with refresh_lease(ctx, [projection.name]):  # no runner is at work on it
                ctx.store.derived.set_state(projection.name, generation.number, GenerationState.BUILDING)
            return generation
    return None


def _is_not_level(ctx: ProjectionContext, generation: Generation) -> bool:
    """Whether the last failed build is this one: only NotLevel fails a build that is ready."""
    failed = ctx.store.run_records.latest(generation.projection, limit=1, kinds=["build"])
    return bool(failed) and failed[0].generation == generation.number


def _create(
    ctx: ProjectionContext, projection: Projection, pin: Pin | None, cut: Cut, preview: str | None
) -> Generation:
    """Define the result at ``cut``, have the sink check its columns, and only then take a generation number."""
    if cut.epoch == 0 and pin is not None and ctx.store.head() is not None:
        (first,) = ctx.store.epochs(after=0, limit=1)
        begins = f", at {first.commit_ts:%Y-%m-%dT%H:%M:%S}Z" if first.commit_ts else ""
        raise UsageError(
            f"{pin.text} is before the log begins{begins} with epoch {first.epoch}",
            hint="tailrace log tail --from earliest shows the first epochs with their times and LSNs",
        )
    if cut.epoch == 0:
        raise IncompleteTopic("the log is empty", hint="run `tailrace capture` first")
    computed_inputs = ctx.computed_inputs(pin)
    reads = plan_reads(
        ctx.store, projection, cut, ctx.parallelism, results=ResultSources(computed_inputs=computed_inputs)
    )
    engine = SparkEngine(ctx)
    with engine.active():
        schema = output_schema(projection, engine.result(projection, reads))
    existing = ctx.generations(projection.name)
    partitions = ctx.settings.store.partitions
    planned = Generation(
        projection=projection.name,
        number=existing[-1].number + 1 if existing else 1,
        fingerprint=ctx.fingerprint(projection.name) or "",
        sink_text=spec_to_text(projection.sink),
        key=projection.key,
        schema=schema,
        partitions=partitions,
        split=reads.split(partitions),
        pin=pin,
        state=GenerationState.BUILDING,
        frozen_at=None,
        created_at=datetime.now(UTC),
        inputs=needs(ctx.store, projection, computed_inputs),
        preview=preview,
    )
    for remark in ctx.sink(planned).check(ctx.target(planned)):
        ctx.report(f"{projection.name}: {remark}", 0, None, "")
    return _take_number(ctx, planned)


def _take_number(ctx: ProjectionContext, planned: Generation) -> Generation:
    """Take a number whose place in the sink is free. A sink may hold generations that this catalog does not know,
    because the catalog was restored or another store has the same name. The number of one that is another store's, or
    that readers see, is skipped; what else is there is dropped."""
    sink, store_name = ctx.sink(planned), ctx.settings.store.name
    while True:
        number = ctx.store.derived.create_generation(planned.begun())
        generation = replace(planned, number=number)
        if sink.live(store_name, planned.projection) != number:
            with suppress(NotOwner):
                sink.drop(require_own(ctx, sink, ctx.target(generation)))
                return generation
        ctx.store.derived.set_state(planned.projection, number, GenerationState.FAILED)


@contextmanager
def _fails_for_good(ctx: ProjectionContext, generation: Generation) -> Iterator[None]:
    """Errors that would come again make a build fail for good, and so does another store that took its place in the
    sink. After any other it may be finished later."""
    try:
        yield
    except (*FOR_GOOD, NotOwner):
        ctx.store.derived.set_state(generation.projection, generation.number, GenerationState.FAILED)
        raise


def catch_up_build(
    ctx: ProjectionContext, projection: Projection, generation: Generation
) -> Iterator[RefreshOutcome]:
    for _ in range(_CATCH_UP_ROUNDS):
        outcome = refresh_generation(ctx, projection, generation, ctx.store.cut())
        yield outcome
        if outcome.status == "nothing":
            return
