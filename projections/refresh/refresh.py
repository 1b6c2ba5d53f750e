"""Bring generations to the end of the log (steps 7 to 9). The life of a refresh:

  1. *Applied*: steps that earlier runs committed are brought to the sink first.
  2. *Planned*: nothing, incremental or full, with the reason. Results that are read may end earlier than the log.
  3. *Taken*: the step is computed and committed by compare-and-set. Another driver's commit ends it with Fenced.
  4. *Applied*: the step is brought to the sink, the fence last.
  5. *Pruned*: steps that have long been in the sink are forgotten.

A process may die after each of these; the next refresh begins with what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, TypeVar

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog.leases import AlreadyRunning
from tailrace.eventstore.errors import Fenced, IncompleteTopic, TailraceError
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.model.position import Cut, Fence
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import Generation
from tailrace.projections.refresh.apply import ApplyResult, StepRefused, apply
from tailrace.projections.refresh.by_stage import by_stage
from tailrace.projections.refresh.plan import Cause, Nothing
from tailrace.projections.refresh.plan_step import plan_reachable
from tailrace.projections.refresh.prune import prune
from tailrace.projections.refresh.record import record_applied, record_failures, record_settled
from tailrace.projections.refresh.step import take_step
from tailrace.projections.refresh.step_input import Asked, StepInput
from tailrace.projections.spark.errors import unforeseen_error

Status = Literal["done", "nothing", "frozen", "waiting", "failed"]
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class RefreshOutcome:
    """What a refresh of one generation did. ``epoch`` is where its result is (None: it has none), ``reason`` says
    why something was done or not, ``error`` what stopped it. ``seconds`` is wall time. A computed step has a ``kind``,
    a full one a ``cause``, an incremental one the number of affected ``keys``."""

    projection: str
    generation: int | None
    status: Status
    reason: str
    epoch: int | None = None
    upserts: int = 0
    deletes: int = 0
    seconds: float = 0.0
    kind: Literal["full", "incremental"] | None = None
    cause: Cause | None = None
    keys: int | None = None
    error: TailraceError | None = field(default=None, compare=False)

    @property
    def changed(self) -> bool:
        """Whether anything was brought to the sink."""
        return self.status == "done"


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of a refresh when its step is taken: to bring it to the sink, without Spark. Any thread may do it,
    one at a time for each generation. ``is_build``: the step is the first one, all rows of a result."""

    finish: Callable[[], RefreshOutcome]
    is_build: bool = False


def refresh_generation(
    ctx: ProjectionContext, projection: Projection, generation: Generation, cut: Cut
) -> RefreshOutcome:
    """Apply what is pending, then bring the generation to ``cut``, or as far as the results that it reads go.

    Raises Fenced when another driver went on meanwhile, IncompleteTopic when an input's state is not known at the
    cut, ProjectionFailed when the projection's code or output is at fault, and what the sink raises.
    """
    (outcome,) = finished([_begin(StepInput(ctx, projection, generation, cut))])
    return outcome


def _begin(step: StepInput) -> RefreshOutcome | Rest:
    """A refresh up to its step's commit."""
    ctx, projection, generation = step.ctx, step.definition, step.generation
    started = datetime.now(UTC)
    on_record = generation.number in ctx.on_record.get(generation.projection, ())
    believed = _believed(step)
    pending = _noted(step, apply(ctx, generation)) if believed is None else ApplyResult(0, 0, 0, believed)
    record_applied(ctx, projection, generation, started, pending)
    decided, reached = plan_reachable(step)
    if isinstance(decided, Nothing):
        prune(ctx, generation, projection)
        if not on_record:
            record_settled(ctx, generation, started, decided.reason)
        status: Status = "done" if pending.steps else "nothing"
        epoch = pending.fence.epoch if pending.fence else None
        return RefreshOutcome(
            generation.projection, generation.number, status, decided.reason, epoch,
            pending.upserts, pending.deletes, _seconds_since(started),
        )  # fmt: skip
    failpoints.hit("refresh_planned")
    begun = datetime.now(UTC) if pending.steps else started
    taken = take_step(by_stage(replace(step, cut=reached), decided), decided)

    def finish() -> RefreshOutcome:
        try:
            applied = _noted(step, apply(ctx, generation, pending, taken.run))
        except (Fenced, StepRefused):
            ctx.fences.forget(generation)
            if believed is None:
                raise
            applied = _noted(step, apply(ctx, generation))  # the sink does not hold what it was believed to
        record_applied(ctx, projection, generation, begun, applied, taken)
        prune(ctx, generation, projection)
        return RefreshOutcome(
            generation.projection, generation.number, "done", f"{taken.kind}: {taken.reason}", taken.run.to_epoch,
            pending.upserts + applied.upserts, pending.deletes + applied.deletes, _seconds_since(started),
            taken.kind, taken.cause, taken.keys,
        )  # fmt: skip

    return Rest(finish)


def _believed(step: StepInput) -> Fence | None:
    """The fence that the sink has, where this process has just applied the last step: the next step compares it."""
    fence, last = step.ctx.fences.get(step.generation), step.last
    return fence if fence is not None and last is not None and last.to_epoch == fence.epoch else None


def _noted(step: StepInput, applied: ApplyResult) -> ApplyResult:
    """What was applied; the sink is believed to hold that for a while."""
    if applied.fence is not None:
        step.ctx.fences.note(step.generation, applied.fence)
    return applied


def _seconds_since(started: datetime) -> float:
    return (datetime.now(UTC) - started).total_seconds()


def followers(generations: Sequence[Generation], live: Generation) -> list[Generation]:
    """Those of a projection's generations that a runner brings to the end of the log: the live one, and newer ones that
    wait for promotion. Never a pinned one or a preview."""
    return [
        generation
        for generation in generations
        if generation.pin is None
        and generation.preview is None
        and (
            generation.number == live.number
            or (generation.state is GenerationState.READY and generation.number > live.number)
        )
    ]


def begin_refresh(
    ctx: ProjectionContext, generations: Sequence[Generation], cut: Cut
) -> list[RefreshOutcome | Rest]:
    """Refresh generations of a projection (``followers``), up to the commits of their steps. One that no loaded
    definition matches is frozen and left alone. An error is in the outcome, also in that of the rest, except Fenced,
    which ends this process."""
    return [_begin_or_stop(ctx, generation, cut) for generation in generations]


def refresh_visible(
    ctx: ProjectionContext, live: Generation, shown: int | None, cut: Cut
) -> list[RefreshOutcome]:
    """Refresh the generation that readers still see in place of the live one, which is at ``cut`` already. Never beyond
    ``cut``: readers would go back in time when the live one is shown."""
    return [
        outcome
        for generation in ctx.generations(live.projection)
        if generation.number == shown and generation.pin is None and not ctx.is_frozen(generation)
        for outcome in finished([_begin_or_stop(ctx, generation, cut)])
    ]


def finished(begun: Sequence[RefreshOutcome | Rest]) -> list[RefreshOutcome]:
    """The outcomes, with what was left done."""
    return [each if isinstance(each, RefreshOutcome) else each.finish() for each in begun]


def _begin_or_stop(ctx: ProjectionContext, generation: Generation, cut: Cut) -> RefreshOutcome | Rest:
    """The generation is as the catalog has it now."""
    name = generation.projection
    frozen = mark_frozen(ctx, generation)
    if frozen is not None:
        return frozen
    step = StepInput(ctx, ctx.projections[name], generation, cut, asked=Asked(held=generation))
    begun = _or_stopped(ctx, generation, lambda: _begin(step))
    if isinstance(begun, RefreshOutcome):
        return begun
    return Rest(lambda: _or_stopped(ctx, generation, begun.finish))


def _or_stopped(
    ctx: ProjectionContext, generation: Generation, work: Callable[[], _Done]
) -> _Done | RefreshOutcome:
    name, number = generation.projection, generation.number
    try:
        with record_failures(ctx, name, "refresh", number):
            return work()
    except Exception as error:  # noqa: BLE001 one projection's must not end the others
        return stopped_outcome(ctx, name, number, error)


def stopped_outcome(
    ctx: ProjectionContext, name: str, number: int | None, error: Exception
) -> RefreshOutcome:
    """The outcome of a refresh that an error stopped. Raises the error when it does not concern this projection alone:
    Fenced, which ends this process, and what ``unforeseen`` raises."""
    if isinstance(error, AlreadyRunning | IncompleteTopic):
        return RefreshOutcome(name, number, "waiting", error.message, error=error)
    if isinstance(error, Fenced):
        raise error
    reported = (
        error
        if isinstance(error, TailraceError)
        else unforeseen_error(ctx.projections[name], "being refreshed", error)
    )
    return RefreshOutcome(name, number, "failed", reported.message, error=reported)


def mark_frozen(ctx: ProjectionContext, generation: Generation) -> RefreshOutcome | None:
    """The outcome of a frozen generation, None for one that is not. The catalog records since when it is."""
    derived = ctx.store.derived
    name, number = generation.projection, generation.number
    if not ctx.is_frozen(generation):
        if generation.frozen_at is not None:
            derived.set_frozen(name, number, None)
        return None
    last = ctx.store.steps.last(name, number)
    epoch = last.to_epoch if last else 0
    if generation.frozen_at is None:
        derived.set_frozen(name, number, epoch)
    reason = f"{generation} is frozen at epoch {epoch}: {ctx.frozen_reason(generation)}"
    return RefreshOutcome(name, number, "frozen", reason, epoch)
