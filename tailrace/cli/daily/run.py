"""``tailrace run`` and ``tailrace rebuild``: keep projections up to date, build new generations."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.daily.capture import MetricsAddressOption, metrics_port_option
from tailrace.cli.errors import INTERRUPTED, report, worst_code
from tailrace.cli.invocation import NOTHING_TO_DO, Invocation, invocation_of, stop_on_signals
from tailrace.cli.position import fixed
from tailrace.cli.projection.context import (
    MasterOption,
    StaleOption,
    TakeOverOption,
    print_outcome,
    print_rebuilt,
    projection_context,
    select_projections,
)
from tailrace.eventstore.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.projections.context import ProjectionContext
    from tailrace.projections.refresh.refresh import RefreshOutcome


def run(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Default: all.", show_default=False)] = None,
    once: Annotated[bool, typer.Option("--once", help="Refresh up to the log's head, then stop.")] = False,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="With --once: 3 when all were up to date.")
    ] = False,
    master: MasterOption = None,
    metrics_port: Annotated[
        int | None,
        metrics_port_option("metrics.projections_port"),
    ] = None,
    metrics_address: MetricsAddressOption = None,
) -> int:
    """Refresh projections as the log grows, until stopped (SIGTERM or Ctrl-C); a refresh under way is finished.

    A projection that was never built is built. Only differences are written. A failure does not stop the others; with
    --once the exit code reports it. The projection that is furthest behind its freshness goes first.
    """
    from tailrace.metrics.capture import metrics_server
    from tailrace.metrics.projections import ProjectionCollector
    from tailrace.projections import runner
    from tailrace.projections.refresh.refresh import RefreshOutcome

    invocation = invocation_of(context)
    with projection_context(invocation, "run", master=master) as projections:
        projections.store.catalog.require_writable()
        found = select_projections(invocation, projections, names)
        broken = [
            RefreshOutcome(name, None, "failed", error.message, error=error)
            for name, error in found.errors.items()
        ]
        for outcome in broken:
            print_outcome(invocation, outcome)
        wanted = found.names if names else None
        if once:
            return _refresh_once(invocation, projections, wanted, broken, detailed=detailed_exitcode)
        stop, collector = threading.Event(), ProjectionCollector(projections)
        metrics = invocation.settings.metrics
        port = metrics.projections_port if metrics_port is None else metrics_port
        address = metrics_address or metrics.address
        with (
            stop_on_signals(stop) as interrupted,
            metrics_server(collector, port, address, invocation.output.note),
        ):
            runner.run(
                projections,
                wanted,
                stop,
                lambda outcome: print_outcome(invocation, outcome),
                collector.count,
                note=partial(_note, invocation),
            )
    return INTERRUPTED if interrupted.is_set() else 0


def _note(invocation: Invocation, text: str) -> None:
    """A line on standard error, with --json one in JSON."""
    if invocation.output.json:
        invocation.output.json_line({"activity": "run", "text": text})
    else:
        invocation.output.note(text)


def _refresh_once(
    invocation: Invocation,
    projections: ProjectionContext,
    names: Sequence[str] | None,
    broken: Sequence[RefreshOutcome],
    *,
    detailed: bool,
) -> int:
    """One refresh of each; the exit code."""
    from tailrace.projections.lifecycle.catch_up import refresh

    outcomes = refresh(projections, names)
    for outcome in outcomes:
        print_outcome(invocation, outcome)
    errors = [outcome.error for outcome in (*broken, *outcomes) if outcome.error is not None]
    if errors:
        return worst_code(error.exit_code for error in errors)
    return NOTHING_TO_DO if detailed and not any(outcome.changed for outcome in outcomes) else 0


def _or_frozen(context: typer.Context, names: list[str] | None) -> list[str] | None:
    """Which is refused when the command line is read: a scheduler's job is printed without running it."""
    if bool(names) == bool(context.params.get("frozen")):
        raise typer.BadParameter("name the projections to build, or all with --frozen")
    return names


def rebuild(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(help="The projections.", callback=_or_frozen, show_default=False)
    ] = None,
    frozen: Annotated[
        bool, typer.Option("--frozen", is_eager=True, help="All that a deploy has frozen.")
    ] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="EPOCH|LSN|TIME",
            show_default=False,
            help="Build what it was then, as a generation beside the live one that does not move on."
            " A time is UTC unless it names a zone; also yesterday, -1h.",
        ),
    ] = None,
    promote: Annotated[
        bool | None,
        typer.Option(
            "--promote/--no-promote", show_default=False, help="Default: promote, but not with --as-of."
        ),
    ] = None,
    preview: Annotated[
        str | None,
        typer.Option(
            "--preview",
            metavar="LABEL",
            show_default=False,
            help="Build it for inspection: never promoted nor refreshed. The next preview of that label replaces it.",
        ),
    ] = None,
    stale_ok: StaleOption = False,
    take_over: TakeOverOption = False,
    master: MasterOption = None,
) -> int:
    """Build a new generation of each projection from the log, and promote it.

    Of several, those that are read come before those that read them, and one that fails stops none of the others.
    """
    from tailrace.projections.lifecycle import build

    invocation = invocation_of(context)
    as_of = fixed(invocation, "--as-of", as_of)
    what = ", ".join(names or ["--frozen"])
    if promote or (promote is None and as_of is None and preview is None):
        invocation.confirm(f"replace the live generation of {what}")
    codes = []
    with projection_context(invocation, f"rebuild {what}", master=master, take_over=take_over) as projections:
        wanted = _to_rebuild(invocation, projections, names)
        projections.builds.plan(
            projections.projections[name] for name in wanted if name in projections.projections
        )
        for name in wanted:
            try:
                built = build.rebuild(
                    projections, name, as_of=as_of, promote=promote, preview=preview, stale_ok=stale_ok
                )
            except TailraceError as error:
                if len(wanted) == 1:
                    raise
                codes.append(report(error, invocation.output, verbose=invocation.verbose))
            else:
                print_rebuilt(invocation, built)
            finally:
                projections.end_build(name)
    return worst_code(codes)


def _to_rebuild(
    invocation: Invocation, projections: ProjectionContext, names: Sequence[str] | None
) -> list[str]:
    """The named ones, or those that are frozen, in the order to build them."""
    from tailrace.projections.lifecycle.list import frozen_projections, inputs_first

    if names:
        selected = select_projections(invocation, projections, names)
        return inputs_first(projections, selected.all())
    frozen = frozen_projections(projections)
    if not frozen:
        invocation.output.note("nothing is frozen: every live generation is of the definition that is loaded")
    return frozen
