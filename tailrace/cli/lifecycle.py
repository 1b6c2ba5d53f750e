"""What the projection commands share: the context they run in, the choice of names, and how outcomes are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.errors import TailraceError, UsageError
from tailrace.cli.invocation import Invocation, unknown
from tailrace.cli.output import count
from tailrace.cli.pace import Reporter

if TYPE_CHECKING:
    from eventstore.settings import Settings
    from projections.context import ProjectionContext
    from projections.lifecycle import Rebuilt
    from projections.model import Projection
    from projections.refresh import Outcome

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        show_default=False,
        help="Where Spark's tasks run. Default: spark.master of the configuration.",
    ),
]

StaleOption = Annotated[
    bool, typer.Option("--stale-ok", help="Also when readers then see older data than now.")
]


@contextmanager
def projecting(
    invocation: Invocation, activity: str, *, lenient: bool = False, master: str | None = None
) -> Iterator[ProjectionContext]:
    """The context of projection work. Spark starts with the first computation, never before.

    ``lenient`` goes on without definitions that do not load: what is live can be changed while the code is broken.
    ``master`` stands for that of the configuration.
    """
    from projections.context import ProjectionContext

    settings = with_master(invocation.settings, master)
    projections = _definitions(invocation, lenient=lenient)
    with invocation.store() as store, invocation.output.progress(activity) as progress:
        report = Reporter(progress)
        with ProjectionContext(store, settings, projections, report=report) as context:
            yield context


def with_master(settings: Settings, master: str | None) -> Settings:
    """The settings with another master. Raises UsageError when spark-submit has chosen one already, and what
    ``check_master`` raises."""
    from projections.session import check_master, is_submitted

    if master is None:
        return settings
    if is_submitted():
        raise UsageError(
            "--master is spark-submit's here: it has started Spark already",
            hint="give it before the main file: spark-submit --master URL …",
        )
    chosen = settings.model_copy(update={"spark": settings.spark.model_copy(update={"master": master})})
    check_master(chosen)
    return chosen


def _definitions(invocation: Invocation, *, lenient: bool) -> dict[str, Projection]:
    from projections.definition import load_configured

    settings = invocation.settings
    if not (settings.projections.modules or settings.projections.sql or lenient):
        raise UsageError(
            f"{invocation.configuration.path} names no projections",
            hint='add [projections] modules = ["shop.projections"], or sql = ["shop/sql"]',
        )
    try:
        return load_configured(settings.projections, invocation.configuration.folder)
    except TailraceError as error:
        if not lenient:
            raise
        invocation.output.note(f"going on without the definitions: {error.message}", style="yellow")
        return {}


def chosen(context: ProjectionContext, names: Sequence[str] | None) -> list[str]:
    """The named projections, or all. Raises UsageError with the nearest name."""
    for name in names or ():
        if name not in context.projections:
            raise unknown(
                "projection", name, context.projections, "does [projections] name its module or file?"
            )
    return list(dict.fromkeys(names)) if names else list(context.projections)


def tell_outcome(invocation: Invocation, outcome: Outcome) -> None:
    """One refresh of one generation."""
    if invocation.output.json:
        error = outcome.error
        document = {
            "projection": outcome.projection,
            "generation": outcome.generation,
            "status": outcome.status,
            "reason": outcome.reason,
            "epoch": outcome.epoch,
            "upserts": outcome.upserts,
            "deletes": outcome.deletes,
            "seconds": round(outcome.seconds, 3),
            "error": None if error is None else {"message": error.message, "hint": error.hint},
        }
        invocation.output.document(document)
        return
    invocation.output.line(outcome_line(outcome), style=_STYLES.get(outcome.status, ""))
    if outcome.error is not None and outcome.error.hint:
        invocation.output.line(f"  hint: {outcome.error.hint}")


_STYLES = {"failed": "bold red", "waiting": "yellow", "frozen": "yellow"}


def outcome_line(outcome: Outcome) -> str:
    """``customer_totals g1: 12 upserts, 3 deletes to epoch 42 in 1.3 s``."""
    name = outcome.projection if outcome.generation is None else f"{outcome.projection} g{outcome.generation}"
    if outcome.status != "done":
        words = {"nothing": "up to date", "frozen": "frozen", "waiting": "waits", "failed": "failed"}
        return f"{name}: {words[outcome.status]}: {outcome.reason}"
    rows = f"{count(outcome.upserts, 'upsert')}, {count(outcome.deletes, 'delete')}"
    return f"{name}: {rows}, now at epoch {outcome.epoch:,}, {outcome.seconds:,.1f} s ({outcome.reason})"


def tell_rebuilt(invocation: Invocation, built: Rebuilt) -> None:
    """A new generation."""
    if invocation.output.json:
        document = {
            "projection": built.projection,
            "generation": built.generation,
            "epoch": built.epoch,
            "rows": built.rows,
            "resumed": built.resumed,
            "promoted": built.promoted is not None,
            "previous": built.promoted.previous if built.promoted else None,
            "preview": built.preview,
        }
        invocation.output.document(document)
        return
    resumed = ", finishing a build that was cut off" if built.resumed else ""
    name = f"{built.projection} g{built.generation}"
    invocation.output.line(f"{name}: {count(built.rows, 'row')} as of epoch {built.epoch:,}{resumed}")
    if built.preview is not None:
        invocation.output.line(f"  preview {built.preview!r}: never promoted, not refreshed")
    elif built.promoted is None:
        promote = f"tailrace projection promote {built.projection} --generation {built.generation}"
        invocation.output.line(f"  not live; to make it so: {promote}")
    elif built.promoted.previous is not None:
        behind = built.promoted.behind
        stale = f", {count(behind, 'epoch')} behind what readers saw" if behind else ""
        invocation.output.line(f"  live now, instead of g{built.promoted.previous}{stale}")
    else:
        invocation.output.line("  live now")
