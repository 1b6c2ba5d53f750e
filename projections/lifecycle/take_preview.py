"""Show a preview that was looked at, in place of building the same again.

It becomes a build like any other, and is finished as one: keys are proved on its result, it is brought to the log's
end, by key where it can be, and promoted. A process that dies meanwhile leaves a build that the next rebuild goes on
with.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from tailrace.eventstore.errors import TailraceError, UsageError
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.projections.analysis.check_names import check
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import Generation
from tailrace.projections.lifecycle.build import catch_up_build, mark_ready, promote_when_level
from tailrace.projections.lifecycle.collect import fail_on_refusal
from tailrace.projections.lifecycle.ownership import require_own_pointer
from tailrace.projections.lifecycle.promote import Promotion, reconcile_if_possible
from tailrace.projections.refresh.apply import ApplyResult
from tailrace.projections.refresh.lock import build_lease
from tailrace.projections.refresh.record import record_failures
from tailrace.projections.refresh.refresh import RefreshOutcome
from tailrace.projections.refresh.step import prove
from tailrace.projections.refresh.step_input import StepInput
from tailrace.projections.sinks.open import open_sink


def promote_preview(ctx: ProjectionContext, name: str, label: str, *, stale_ok: bool = False) -> Promotion:
    """Bring the preview of this label to the end of the log and show it to readers.

    Raises UsageError when there is none, when it is not ready, or when it was built by another definition than the
    loaded one or as of a moment; and what ``rebuild`` raises.
    """
    projection = ctx.projection(name)
    generation = _preview(ctx, name, label)
    with record_failures(ctx, name, "build"):
        check(ctx.store, ctx.settings, projection)
        reconcile_if_possible(ctx, name)
        if not ctx.take_over:
            require_own_pointer(ctx, name, open_sink(projection.sink, ctx.settings))
        # A preview may be one that readers' view or table cannot show; a build may not.
        ctx.sink(generation).check(ctx.target(replace(generation, preview=None)))
        with build_lease(ctx, name, None, None):
            ctx.store.derived.take_preview(name, generation.number)
            generation = ctx.generation(name, generation.number)
            with attempts.build(ctx.store.catalog, name, generation.number), fail_on_refusal(ctx, generation):
                _prove(ctx, generation)
                done: list[ApplyResult | RefreshOutcome] = [*catch_up_build(ctx, projection, generation)]
                promoted = promote_when_level(ctx, projection, generation, done, stale_ok=stale_ok)
                mark_ready(ctx, generation)
    return promoted


def _preview(ctx: ProjectionContext, name: str, label: str) -> Generation:
    found = [each for each in ctx.generations(name) if each.preview is not None]
    generation = next((each for each in reversed(found) if each.preview == label), None)
    if generation is None:
        known = ", ".join(sorted({each.preview for each in found if each.preview})) or "none"
        raise UsageError(f"projection {name!r} has no preview {label!r}", hint=f"there are: {known}")
    build = f"tailrace rebuild {name} --preview {label}"
    if generation.state is not GenerationState.READY:
        raise UsageError(f"{generation} is {generation.state.value}, not ready", hint=build)
    if generation.pin is not None:
        raise UsageError(
            f"{generation} shows what was at {generation.pin.text}, and does not follow the log",
            hint=f"{build}, without --as-of",
        )
    if ctx.is_frozen(generation):
        raise UsageError(
            f"{generation} was built by another definition than the loaded one",
            hint=f"load the definition that was looked at, or {build}",
        )
    return generation


def _prove(ctx: ProjectionContext, generation: Generation) -> None:
    """Whether keys may be followed from the preview's result on. Where that cannot be told, all is computed."""
    last = ctx.store.steps.last(generation.projection, generation.number)
    if last is None:
        return
    definition = ctx.projection(generation.projection)
    with suppress(TailraceError):
        prove(StepInput(ctx, definition, generation, ctx.store.cut(last.to_epoch)), last)
