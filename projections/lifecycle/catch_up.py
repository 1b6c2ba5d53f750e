"""Bring projections to the end of the log: all that are defined, or one under the lease that its caller holds.

For each projection, in the order in which they read each other:

  - a promotion that was cut off is finished (``reconcile``); where readers or the sink hinder that, the generation that
    readers still see is refreshed too, and the outcome says what hinders;
  - one that was never built is built and promoted, unless the sink refused the same rows before;
  - one with a live generation has all generations refreshed that follow the log.

Outcomes are in this order, whatever was in its sink first. An error is an outcome of its projection and does not stop
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime

from tailrace.eventstore.catalog.leases import AlreadyRunning
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.position import Cut
from tailrace.projections.analysis.check_names import check
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.order import refresh_order
from tailrace.projections.generations.errors import NotShowable, NotShown
from tailrace.projections.generations.generation import Generation
from tailrace.projections.lifecycle.build import begin_first_build
from tailrace.projections.lifecycle.collect import repeated_refusal
from tailrace.projections.lifecycle.promote import reconcile_live
from tailrace.projections.refresh.beside import Beside
from tailrace.projections.refresh.lock import refresh_lease
from tailrace.projections.refresh.record import record_failures
from tailrace.projections.refresh.refresh import (
    RefreshOutcome,
    Rest,
    Status,
    begin_refresh,
    finished,
    followers,
    mark_frozen,
    refresh_visible,
    stopped_outcome,
)
from tailrace.projections.sinks.kept import kept_connections
from tailrace.projections.sinks.open import open_sink


def refresh(ctx: ProjectionContext, names: Sequence[str] | None = None) -> list[RefreshOutcome]:
    """Bring projections (default: all) to the end of the log as it is now, each as far as its inputs go.

    Errors are in the outcomes; a projection that another process refreshes is ``waiting``. Raises Fenced when another
    process went on with the same generation all the same, UsageError for unknown names.
    """
    selected = [ctx.projection(name).name for name in names] if names else list(ctx.projections)
    cut = ctx.store.cut()
    plan_first_builds(ctx, selected)
    order = refresh_order(ctx.projections, selected)
    outcomes = _refresh_all(ctx, order, cut)
    resumed = {
        each.projection for each in outcomes if each.cause == "first" and (each.epoch or 0) < cut.epoch
    }
    if resumed:  # builds that were begun at an earlier position
        outcomes += _refresh_all(ctx, [name for name in order if name in resumed], cut)
    if not names:
        outcomes += undefined_outcomes(ctx)
    return outcomes


def _refresh_all(ctx: ProjectionContext, order: Sequence[str], cut: Cut) -> list[RefreshOutcome]:
    outcomes: list[RefreshOutcome] = []
    with ctx.store.look.taken(cut), kept_connections(), Beside(ctx) as beside:
        for done, name in enumerate(order):
            ctx.report("refreshing", done, len(order), "projections")
            with ExitStack() as held:
                try:
                    held.enter_context(refresh_lease(ctx, [name]))
                except AlreadyRunning as error:
                    outcomes.append(RefreshOutcome(name, None, "waiting", error.message, error=error))
                    continue
                begun = begin_under_lease(ctx, name, cut)
                beside.begin(name, cut, begun, held.pop_all())
    outcomes += [outcome for done in beside.take() for outcome in done.outcomes]
    return sorted(outcomes, key=lambda outcome: order.index(outcome.projection))


def begin_under_lease(ctx: ProjectionContext, name: str, cut: Cut) -> list[RefreshOutcome | Rest]:
    """Refresh one projection to a cut, up to the commits of steps. The caller holds its lease (``lock.refresh_lease``),
    has the rest done, and asks for no other refresh of this projection before."""
    with ctx.store.look.taken(cut):
        return _begin(ctx, name, cut)


def plan_first_builds(ctx: ProjectionContext, names: Sequence[str]) -> None:
    """What is refreshed next: those among it that were never built read the tables that they share once."""
    ctx.builds.plan(ctx.projections[name] for name in names if ctx.store.derived.live(name) is None)


def _begin(ctx: ProjectionContext, name: str, cut: Cut) -> list[RefreshOutcome | Rest]:
    try:
        return _begin_or_build(ctx, name, cut)
    finally:
        ctx.end_build(name)


def _begin_or_build(ctx: ProjectionContext, name: str, cut: Cut) -> list[RefreshOutcome | Rest]:
    started = datetime.now(UTC)
    try:
        with record_failures(ctx, name, "refresh", None):
            generations, live = ctx.generations_and_live(name)
        with record_failures(ctx, name, "refresh", None if live is None else live.number):
            check(ctx.store, ctx.settings, ctx.projections[name])
            held = None if live is None else _promotion_hindrance(ctx, live)
            if live is None:
                _refuse_foreign(ctx, name)
        if live is None:
            refused = repeated_refusal(ctx, ctx.projections[name], cut)
            if refused is not None:
                return [stopped_outcome(ctx, name, None, refused)]
            return [_begin_first_build(ctx, name, started)]
    except Exception as error:  # noqa: BLE001 one projection's must not end the others
        return [stopped_outcome(ctx, name, None, error)]
    begun = begin_refresh(ctx, followers(generations, live), cut)
    if held is None and live.pin is None:
        return begun
    outcomes = finished(begun)
    if held is not None:
        level = any(
            each.generation == live.number and each.status in ("done", "nothing") for each in outcomes
        )
        outcomes += refresh_visible(ctx, live, held.shown, cut) if level else []
        status: Status = "waiting" if isinstance(held, NotShown) else "failed"
        outcomes.append(RefreshOutcome(name, live.number, status, held.message, error=held))
    if live.pin is not None:
        reason = f"{live} is pinned at {live.pin.text}; tailrace rebuild {name} lets it follow the log again"
        outcomes.append(RefreshOutcome(name, live.number, "frozen", reason, live.pin.cut.epoch))
    return [*outcomes]


def _begin_first_build(ctx: ProjectionContext, name: str, started: datetime) -> RefreshOutcome | Rest:
    """Others that read its result find it when it is live: there it is waited for."""
    finish = begin_first_build(ctx, name)

    def rest() -> RefreshOutcome:
        try:
            built = finish()
        except Exception as error:  # noqa: BLE001 one projection's must not end the others
            return stopped_outcome(ctx, name, None, error)
        seconds = (datetime.now(UTC) - started).total_seconds()
        return RefreshOutcome(
            name, built.generation, "done", "first build", built.epoch, built.upserts, built.deletes, seconds,
            "full", "first",
        )  # fmt: skip

    is_read = any(name in each.reads for each in ctx.projections.values())
    return rest() if is_read else Rest(rest, is_build=True)


def _promotion_hindrance(ctx: ProjectionContext, live: Generation) -> NotShown | NotShowable | None:
    """What keeps readers from seeing the live generation. That is no reason not to refresh it."""
    if ctx.shown.get(live):
        return None
    try:
        reconcile_live(ctx, live)
    except (NotShown, NotShowable) as error:
        return error
    ctx.shown.note(live, True)
    return None


def _refuse_foreign(ctx: ProjectionContext, name: str) -> None:
    """A first build that nobody ordered must not replace what readers of another log's generation see."""
    shown = open_sink(ctx.projections[name].sink, ctx.settings).live(ctx.settings.store.name, name)
    if shown is not None:
        raise OperatorError(
            f"the sink shows generation {shown} of projection {name!r}, which this log did not build",
            hint=f"give this store another name; or take over with tailrace rebuild {name} --take-over",
        )


def undefined_outcomes(ctx: ProjectionContext) -> list[RefreshOutcome]:
    """An outcome for each live generation of a projection that no loaded module defines."""
    outcomes = []
    for name in ctx.store.derived.projections():
        live = None if name in ctx.projections else ctx.live(name)
        frozen = mark_frozen(ctx, live) if live else None
        if frozen:
            outcomes.append(frozen)
    return outcomes
