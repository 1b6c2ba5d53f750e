"""What a refresh of each projection would do now, why, and about how much that is. Starts no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.eventstore.errors import HistoryGone, IncompleteTopic, TailraceError, TopicGone
from tailrace.eventstore.model.position import Cut
from tailrace.projections.analysis.followed import followed
from tailrace.projections.analysis.guards import declaration_refusal
from tailrace.projections.compute.read_plan import require_changes
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection, ProjectionFailed, Through
from tailrace.projections.definition.order import refresh_order
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.refresh.apply import missing_steps
from tailrace.projections.refresh.by_stage import planned_by_stage
from tailrace.projections.refresh.costs import Estimate, changes_between, estimate
from tailrace.projections.refresh.plan import Full, Incremental, Nothing, Plan
from tailrace.projections.refresh.plan_step import plan_reachable
from tailrace.projections.refresh.step_input import StepInput

_RECORDS = 50


@dataclass(frozen=True, slots=True)
class PlannedRefresh:
    """What ``refresh`` would do with a projection, and an estimate of how much (None: nothing). ``waiting`` counts
    committed steps that its sink lacks, which a refresh applies first; ``problem`` says why that is not known."""

    projection: str
    generation: int | None
    plan: Plan
    estimate: Estimate | None
    waiting: int = 0
    problem: str = ""


def plans(ctx: ProjectionContext, names: Sequence[str] | None = None) -> list[PlannedRefresh]:
    """What a refresh would do now. Starts no Spark and writes nothing; asks the sinks."""
    planned: list[PlannedRefresh] = []
    cut = ctx.store.cut()
    selected = [ctx.projection(name).name for name in names] if names else list(ctx.projections)
    for name in refresh_order(ctx.projections, selected):
        projection, live = followed(ctx.store, ctx.projection(name)), ctx.live(name)
        decided: Plan
        if live is None:
            decided = Full(0, cut.epoch, "it was never built")
        elif ctx.is_frozen(live):
            decided = Nothing(f"{live} is frozen: its definition changed; tailrace rebuild {name}")
        elif live.pin is not None:
            decided = Nothing(f"{live} is pinned at {live.pin.text}")
        else:
            decided = _plan_live(ctx, projection, live, cut, planned)
        number = live.number if live else None
        estimated = _estimate(ctx, projection, live, decided, planned)
        waiting, problem = _missing_steps(ctx, live)
        planned.append(PlannedRefresh(name, number, decided, estimated, waiting, problem))
    return planned


def _missing_steps(ctx: ProjectionContext, live: Generation | None) -> tuple[int, str]:
    """The steps that the sink of a live generation lacks, or why it cannot be asked. A frozen one gets none."""
    if live is None or ctx.is_frozen(live):
        return 0, ""
    try:
        return len(missing_steps(ctx, live, ctx.fence(live))), ""
    except TailraceError as error:
        return 0, error.message


def _plan_live(
    ctx: ProjectionContext,
    projection: Projection,
    live: Generation,
    cut: Cut,
    before: Sequence[PlannedRefresh],
) -> Plan:
    """What a refresh would do with the live generation after it has refreshed the projections ``before`` it."""
    waits = _reads_before(projection, before)
    try:
        decided = _plan_step(ctx, projection, live, cut, waits)
        if not isinstance(decided, Nothing):
            for topic in projection.topics:
                ctx.store.require_complete(topic, cut)
            require_changes(ctx.store, str(live), live.projection, live.inputs)
    except IncompleteTopic as error:
        return Nothing(error.message)
    except (HistoryGone, ProjectionFailed, TopicGone) as error:
        return Nothing(f"{error.message}; {error.hint}")
    return decided


def _plan_step(
    ctx: ProjectionContext, projection: Projection, live: Generation, cut: Cut, waits: Sequence[str]
) -> Plan:
    if not waits:
        step = StepInput(ctx, projection, live, cut)
        return planned_by_stage(step, plan_reachable(step)[0])
    last = ctx.store.steps.last(live.projection, live.number)
    refused = declaration_refusal(projection)
    what = f"after projection {', '.join(waits)}, refreshed before it"
    from_epoch = last.to_epoch if last else 0
    if refused is not None:
        return Full(from_epoch, cut.epoch, what, why=refused)
    return Incremental(from_epoch, cut.epoch, what)


def _estimate(
    ctx: ProjectionContext,
    projection: Projection,
    live: Generation | None,
    decided: Plan,
    before: Sequence[PlannedRefresh],
) -> Estimate | None:
    if isinstance(decided, Nothing):
        return None
    last = ctx.store.steps.last(live.projection, live.number) if live else None
    if live is None or last is None:
        known = not projection.reads  # the rows of other results are not known before they are computed
        changes = changes_between(ctx.store, projection, 0, decided.to_epoch, {}) if known else None
        return estimate(decided, changes, 0, ())
    files = files_of(last)
    changes = None
    if not _reads_before(projection, before):  # what others will change is not known
        changes = changes_between(ctx.store, projection, decided.from_epoch, decided.to_epoch, files.results)
    records = ctx.store.run_records.latest(live.projection, limit=_RECORDS)
    own = [record for record in records if record.generation == live.number]
    direct = not any(isinstance(each.affects, Through) for each in projection.inputs.values())
    return estimate(decided, changes, files.rows, own, direct=direct)


def _reads_before(projection: Projection, before: Sequence[PlannedRefresh]) -> list[str]:
    """The projections that this one reads and that are refreshed before it."""
    return [
        each.projection
        for each in before
        if each.projection in projection.reads and not isinstance(each.plan, Nothing)
    ]
