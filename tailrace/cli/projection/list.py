"""``tailrace projection``: projections and their generations. Only ``check`` starts Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.errors import report, worst_code
from tailrace.cli.invocation import NOTHING_TO_DO, Invocation, invocation_of
from tailrace.cli.projection.check import print_report
from tailrace.cli.projection.context import (
    StaleOption,
    TakeOverOption,
    include_inputs,
    note_broken,
    projection_context,
    require_known,
)
from tailrace.cli.projection.diff import diff, runs
from tailrace.cli.projection.job import job
from tailrace.cli.projection.status import describe_unshown
from tailrace.eventstore.errors import TailraceError, UsageError
from tailrace.terminal import count, when

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.projections.generations.generation import Parity
    from tailrace.projections.lifecycle.collect import DroppedGeneration
    from tailrace.projections.lifecycle.list import GenerationView

projection_commands = typer.Typer(help="Projections and their generations.")
projection_commands.command("diff")(diff)
projection_commands.command("runs")(runs)
projection_commands.command("job")(job)
NameArgument = Annotated[str, typer.Argument(help="The projection.", show_default=False)]


@projection_commands.command("list")
def list_generations(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Default: all.", show_default=False)] = None,
) -> None:
    """List generations: which is live, the epoch of each, which are frozen."""
    from tailrace.projections.lifecycle.list import generations

    invocation = invocation_of(context)
    with projection_context(invocation, "list", lenient=True) as projections:
        views = [
            view
            for name in names or projections.store.derived.projections()
            for view in generations(projections, name)
        ]
        never = sorted(set(projections.projections) - {view.generation.projection for view in views})
    if invocation.output.json:
        for view in views:
            invocation.output.document(_document(view))
        return
    rows = [row for view in views for row in _rows(view)]
    invocation.output.table(
        ("projection", "", "state", "epoch", "rows", "sink", "engine", "built (UTC)"), rows
    )
    for line in filter(None, map(_remark, views)):
        invocation.output.note(line)
    for name in never if not names else ():
        invocation.output.note(f"{name} was never built: tailrace rebuild {name}")


def _rows(view: GenerationView) -> Iterator[tuple[object, ...]]:
    """A generation, with its partial results beneath."""
    yield (
        view.generation.projection,
        f"g{view.generation.number}",
        _state(view),
        view.epoch,
        view.rows,
        view.generation.sink_name or "own",
        _engine(view.generation.parity),
        when(view.generation.created_at)[:16],
    )
    if view.partial is not None:
        epoch, rows = view.partial
        yield ("", "", "partial results", epoch, rows, "", "", "")


def _state(view: GenerationView) -> str:
    words = ["live" if view.live else view.generation.state.value]
    if view.unshown is not None:
        words.append("not shown yet")
    if view.generation.pin is not None:
        words.append("pinned")
    if view.generation.preview is not None:
        words = ["preview" if words[0] == "ready" else f"preview, {words[0]}"]
    if view.frozen:
        words.append("frozen")
    return ", ".join(words)


def _engine(parity: Parity | None) -> str:
    """What may compute it. Why Sail may not, ``check`` says."""
    return "spark" if parity is None or parity.failed is not None else "spark, sail"


def _remark(view: GenerationView) -> str:
    """What the state of a generation means."""
    from tailrace.eventstore.metadata.generations import GenerationState

    name = f"{view.generation.projection} g{view.generation.number}"
    if view.generation.state is GenerationState.FAILED:
        projection = view.generation.projection
        return (
            f"{name} failed: tailrace projection runs {projection} says why; tailrace projection gc drops it"
        )
    if view.problem:
        return f"{name}: {view.problem}"
    if view.unshown is not None:
        return f"{name} {describe_unshown(view.generation.projection, view.unshown)}"
    if view.generation.preview is not None:
        return f"{name} is the preview {view.generation.preview!r}: never promoted, it stays as it was built"
    if view.generation.pin is not None:
        return f"{name} is pinned at {view.generation.pin.text}: it stays as it was then"
    return f"{name} is frozen: {view.why_frozen}" if view.frozen else ""


def _document(view: GenerationView) -> dict[str, object]:
    generation = view.generation
    return {
        "projection": generation.projection,
        "generation": generation.number,
        "live": view.live,
        "state": generation.state,
        "frozen": view.frozen,
        "why_frozen": view.why_frozen,
        "as_of": generation.pin.text if generation.pin else None,
        "preview": generation.preview,
        "epoch": view.epoch,
        "rows": view.rows,
        "partial_epoch": view.partial[0] if view.partial else None,
        "partial_rows": view.partial[1] if view.partial else None,
        "sink": generation.sink_name,
        "parity": generation.parity,
        "fence_epoch": view.fence.epoch if view.fence else None,
        "problem": view.problem,
        "readers_see": view.unshown.shown if view.unshown else generation.number if view.live else None,
        "unshown_since": view.unshown.since if view.unshown else None,
        "created_at": generation.created_at,
    }


@projection_commands.command("check")
def check_definitions(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Default: all.", show_default=False)] = None,
) -> int:
    """Report everything that is wrong with definitions, and how each can be refreshed. Reads no rows."""
    from tailrace.projections.analysis.check import examine, mistake_reports
    from tailrace.projections.refresh.plan_all import plans

    invocation = invocation_of(context)
    code = 0
    with projection_context(invocation, "check") as projections:
        broken = {each.projection: each for each in mistake_reports(projections.broken.mistakes)}
        wanted = include_inputs(projections, names) if names else list(broken)
        note_broken(invocation, [name for name in broken if name not in wanted])
        for examined in [broken[name] for name in wanted if name in broken]:
            print_report(invocation, examined, None)
            code = code or examined.exit_code
        left = [name for name in names or projections.projections if name not in broken]
        for name in require_known(projections, left):
            examined = examine(projections, projections.projections[name])
            planned = plans(projections, [name])[0].plan if examined.ok else None
            live = projections.live(name)
            print_report(invocation, examined, planned, live.parity if live else None)
            code = code or examined.exit_code
    return code


@projection_commands.command()
def promote(
    context: typer.Context,
    name: NameArgument,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation", help="Default: the latest ready one after the live one.", show_default=False
        ),
    ] = None,
    preview: Annotated[
        str | None,
        typer.Option(
            "--preview",
            metavar="LABEL",
            help="The preview of this label, brought to the log's end first.",
            show_default=False,
        ),
    ] = None,
    stale_ok: StaleOption = False,
    take_over: TakeOverOption = False,
) -> None:
    """Show a generation to readers, atomically."""
    from tailrace.projections.lifecycle.promote import promote
    from tailrace.projections.lifecycle.take_preview import promote_preview

    invocation = invocation_of(context)
    if preview is not None and generation is not None:
        raise UsageError("--preview names a generation by its label", hint="leave out --generation")
    invocation.confirm(f"change the live generation of {name}")
    with projection_context(
        invocation, f"promote {name}", lenient=preview is None, take_over=take_over
    ) as projections:
        done = (
            promote(projections, name, generation, stale_ok=stale_ok)
            if preview is None
            else promote_preview(projections, name, preview, stale_ok=stale_ok)
        )
    if invocation.output.json:
        invocation.output.document(done)
        return
    before = f", instead of g{done.previous}" if done.previous is not None else ""
    before += f", {count(done.behind, 'epoch')} behind what readers saw" if done.behind else ""
    invocation.output.line(f"{name}: g{done.generation} is live at epoch {done.fence.epoch:,}{before}")


@projection_commands.command()
def rollback(
    context: typer.Context,
    name: NameArgument,
    stale_ok: StaleOption = False,
) -> None:
    """Undo the last promotion: go back to the generation that was live before, atomically. Once, never forward."""
    from tailrace.projections.lifecycle.promote import rollback

    invocation = invocation_of(context)
    invocation.confirm(f"roll {name} back")
    with projection_context(invocation, f"rollback {name}", lenient=True) as projections:
        done = rollback(projections, name, stale_ok=stale_ok)
    if invocation.output.json:
        invocation.output.document(done)
        return
    at = f"epoch {done.fence.epoch:,} ({when(done.commit_ts)})"
    stale = f", {count(done.behind, 'epoch')} behind what readers saw" if done.behind else ""
    invocation.output.line(f"{name}: back at g{done.generation}, {at}{stale}; g{done.left} is kept")
    if done.frozen:
        invocation.output.line(
            f"  g{done.generation} is frozen: deploy the definition it was built by, or it goes stale",
            style="yellow",
        )


@projection_commands.command()
def gc(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Default: all.", show_default=False)] = None,
    keep: Annotated[int, typer.Option("--keep", min=0, help="Retired generations to keep.")] = 1,
    generation: Annotated[
        int | None, typer.Option("--generation", help="Drop this one, of one projection.", show_default=False)
    ] = None,
    take_over: TakeOverOption = False,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="3 when there was nothing to drop.")
    ] = False,
) -> int:
    """Drop generations that nobody needs: failed or abandoned builds, retired ones beyond --keep."""
    from tailrace.projections.lifecycle import collect

    invocation = invocation_of(context)
    if generation is not None and len(names or ()) != 1:
        raise UsageError("--generation drops one generation of one projection", hint="name the projection")
    what = f"generation {generation}" if generation is not None else f"retired generations (keeping {keep})"
    invocation.confirm(f"drop {what} of {', '.join(names) if names else 'all projections'}")
    dropped: list[DroppedGeneration] = []
    errors: list[TailraceError] = []

    def tell(gone: DroppedGeneration) -> None:
        dropped.append(gone)
        _print_collected(invocation, gone)

    with projection_context(invocation, "gc", lenient=True, take_over=take_over) as projections:
        for name in names or ():
            projections.check_known(name)
        for name in names or projections.store.derived.projections():
            try:
                collect.gc(projections, name, keep=keep, number=generation, report=tell)
            except TailraceError as error:
                invocation.output.note(f"{name}: not all was dropped", style="yellow")
                errors.append(error)
                report(error, invocation.output, verbose=invocation.verbose)
    if errors:
        return worst_code(each.exit_code for each in errors)
    if not dropped:
        invocation.output.line("nothing to drop")
    return NOTHING_TO_DO if detailed_exitcode and not dropped else 0


def _print_collected(invocation: Invocation, gone: DroppedGeneration) -> None:
    if invocation.output.json:
        invocation.output.document(gone)
    line = f"{gone.projection}: dropped g{gone.generation} and {count(gone.files, 'file')}"
    invocation.output.line(line)
    if gone.left:
        invocation.output.line(f"  what its sink holds of it stays there: {gone.left}", style="yellow")
