"""``tailrace plan``: what a refresh would do, and why. Starts no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import invocation_of
from tailrace.cli.projection.check import describe_reason
from tailrace.cli.projection.context import projection_context, select_projections
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.projections.refresh.costs import Estimate, Number
    from tailrace.projections.refresh.plan_all import PlannedRefresh


def plan(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Default: all.", show_default=False)] = None,
) -> int:
    """Show what a refresh would do now and why: nothing, the affected keys, or everything, and about how much.

    Some causes show only in the rows: a truncated table, too many changed keys. `tailrace run` reports those, and
    `projection runs` keeps them.
    """
    from tailrace.projections.refresh.plan_all import plans

    invocation = invocation_of(context)
    with projection_context(invocation, "plan") as projections:
        wanted = select_projections(invocation, projections, names)
        planned = plans(projections, wanted.names)
        sinks = {name: getattr(each.sink, "sink", "own") for name, each in projections.projections.items()}
    for each in planned:
        if invocation.output.json:
            invocation.output.document(_document(each, sinks[each.projection]))
        else:
            invocation.output.line(_line(each, sinks[each.projection]))
            if each.estimate is not None:
                invocation.output.line(f"  {_describe_estimate(each.estimate)}")
            if each.waiting:
                steps = count(each.waiting, "computed step")
                sink = sinks[each.projection]
                invocation.output.line(f"  {steps} not in {sink} yet: applied first")
            if each.problem:
                invocation.output.line(f"  the position of its sink is unknown: {each.problem}")
    return wanted.report(invocation)


def _line(planned: PlannedRefresh, sink: str) -> str:
    """``totals g1: incremental, epoch 41 to 42 into mart: shop.public.orders changed``."""
    name = planned.projection if planned.generation is None else f"{planned.projection} g{planned.generation}"
    step = _step(planned)
    where = "" if step is None else f", epoch {step[0]:,} to {step[1]:,} into {sink}"
    return f"{name}: {planned.plan.kind}{where}: {describe_reason(planned.plan)}"


def _describe_estimate(estimate: Estimate) -> str:
    """``3 changed rows; about 2 keys (by its last 4 refreshes); rows to write unknown (…)``."""
    changes = estimate.changes
    known = (
        []
        if changes is None
        else [f"{'' if changes.exact else 'at most '}{count(changes.at_most, 'changed row')}"]
    )
    return "; ".join([*known, _number(estimate.keys, "key", ""), _number(estimate.rows, "row", " to write")])


def _number(number: Number, noun: str, what: str) -> str:
    if number.about is None:
        return f"{noun}s{what} unknown ({number.basis})"
    return f"about {count(number.about, noun)}{what} ({number.basis})"


def _step(planned: PlannedRefresh) -> tuple[int, int] | None:
    from tailrace.projections.refresh.plan import Nothing

    return None if isinstance(planned.plan, Nothing) else (planned.plan.from_epoch, planned.plan.to_epoch)


def _document(planned: PlannedRefresh, sink: str) -> dict[str, object]:
    step = _step(planned)
    return {
        "projection": planned.projection,
        "generation": planned.generation,
        "kind": planned.plan.kind,
        "reason": describe_reason(planned.plan),
        "from_epoch": step[0] if step else None,
        "to_epoch": step[1] if step else None,
        "sink": sink,
        "steps_not_in_sink": None if planned.problem else planned.waiting,
        "estimate": None if planned.estimate is None else _estimate_document(planned.estimate),
    }


def _estimate_document(estimate: Estimate) -> dict[str, object]:
    changes = estimate.changes
    return {
        "changed_rows": None
        if changes is None
        else {"at_least": changes.at_least, "at_most": changes.at_most},
        "keys": {"about": estimate.keys.about, "basis": estimate.keys.basis},
        "rows_to_write": {"about": estimate.rows.about, "basis": estimate.rows.basis},
    }
