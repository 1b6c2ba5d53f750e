"""What the projection commands share: their context, the selection of projections, and how outcomes are printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.errors import report, worst_code
from tailrace.cli.invocation import Invocation, unknown_name
from tailrace.cli.progress import Reporter
from tailrace.eventstore.errors import UsageError
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.eventstore.settings import Settings
    from tailrace.projections.context import ProjectionContext
    from tailrace.projections.definition.load import BrokenProject
    from tailrace.projections.definition.model import Projection
    from tailrace.projections.lifecycle.build import Rebuilt
    from tailrace.projections.refresh.refresh import RefreshOutcome

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        show_default=False,
        help="Where Spark's tasks run. Default: spark.master of the configuration.",
    ),
]

TakeOverOption = Annotated[
    bool,
    typer.Option("--take-over", help="Replace or drop what another store of this name has in the sink."),
]

StaleOption = Annotated[
    bool, typer.Option("--stale-ok", help="Allow it although readers then see older data than now.")
]


@contextmanager
def projection_context(
    invocation: Invocation,
    activity: str,
    *,
    lenient: bool = False,
    master: str | None = None,
    take_over: bool = False,
) -> Iterator[ProjectionContext]:
    """The context of projection work. Spark starts with the first computation, never before.

    Definitions that do not load are left out; ``broken`` says what is wrong with them, and ``select_projections`` which
    of them concern a command. ``lenient`` works without any definition, so that what is live can be changed while the
    code is broken. ``master`` replaces that of the configuration; ``take_over`` is that of the context.
    """
    from tailrace.projections.context import ProjectionContext
    from tailrace.projections.spark.connect import functions_for

    settings = with_master(invocation.settings, master)
    with functions_for(settings.spark.master):
        projections, broken = _definitions(invocation, lenient=lenient)
    with invocation.store() as store, invocation.output.progress(activity) as progress:
        report = Reporter(progress)
        with ProjectionContext(
            store, settings, projections, broken=broken, report=report, take_over=take_over
        ) as context:
            yield context


def with_master(settings: Settings, master: str | None) -> Settings:
    """The settings with another master. Raises UsageError when spark-submit has chosen one already, and what
    ``check_master`` raises."""
    from tailrace.projections.spark.masters import check_master
    from tailrace.projections.spark.session import is_submitted

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


def _definitions(invocation: Invocation, *, lenient: bool) -> tuple[dict[str, Projection], BrokenProject]:
    from tailrace.projections.definition.load import BrokenProject, gather_mistakes, load_configured

    settings = invocation.settings
    if not (settings.projections.modules or settings.projections.sql or lenient):
        raise UsageError(
            f"{invocation.configuration.path} names no projections",
            hint='add [projections] modules = ["shop.projections"], or sql = ["shop/sql"]',
        )
    with gather_mistakes() as mistakes:
        found = load_configured(settings.projections, invocation.configuration.folder)
    broken = BrokenProject(tuple(mistakes))
    for error in (*broken.definitions.values(), *broken.modules.values()) if lenient else ():
        invocation.output.note(f"going on without it: {error.message}", style="yellow")
    return found, broken


@dataclass(frozen=True, slots=True)
class SelectedProjections:
    """The projections that a command works on. ``errors`` says what does not load: of the given names and their inputs,
    or of all projections when no name was given."""

    names: list[str]
    errors: Mapping[str, UsageError]

    def only(self) -> str:
        """The one name. Raises UsageError when that, or something that it reads, does not load."""
        (name,) = self.all()
        return name

    def all(self) -> list[str]:
        """The names. Raises UsageError when one of them, or something that they read, does not load."""
        for error in self.errors.values():
            raise error
        return self.names

    def report(self, invocation: Invocation) -> int:
        """Report the errors; the exit code."""
        return worst_code(
            report(each, invocation.output, verbose=invocation.verbose) for each in self.errors.values()
        )


def select_projections(
    invocation: Invocation, context: ProjectionContext, names: Sequence[str] | None
) -> SelectedProjections:
    """The named projections, or all, without those that do not load. A note names broken ones that were not named.
    Raises UsageError for unknown names, and when nothing is left to work on."""
    definitions, modules = context.broken.definitions, context.broken.modules
    errors: dict[str, UsageError] = {**definitions, **modules}
    if names:
        errors = {name: definitions[name] for name in include_inputs(context, names) if name in definitions}
    left = require_known(context, [name for name in names if name not in errors]) if names else []
    left = left if names else list(context.projections)
    if errors and not left:
        raise next(iter(errors.values()))
    note_broken(invocation, [name for name in (*definitions, *modules) if name not in errors])
    return SelectedProjections(left, errors)


def note_broken(invocation: Invocation, names: Sequence[str]) -> None:
    """A note on broken projections that the command was not given."""
    if names:
        invocation.output.note(f"also broken: {', '.join(names)} (tailrace projection check)", style="yellow")


def include_inputs(context: ProjectionContext, names: Sequence[str]) -> list[str]:
    """The names, and those of all projections that they read."""
    found = dict.fromkeys(names)
    todo = list(names)
    while todo:
        defined = context.projections.get(todo.pop())
        new = [name for name in (defined.reads if defined else ()) if name not in found]
        found |= dict.fromkeys(new)
        todo += new
    return list(found)


def require_known(context: ProjectionContext, names: Sequence[str]) -> list[str]:
    """The named projections, each once. Raises UsageError with the nearest name, or with the module that may define it
    and does not load."""
    for name in names:
        if name in context.projections:
            continue
        from tailrace.projections.definition.findings import did_you_mean

        for error in context.broken.modules.values() if not did_you_mean(name, context.projections) else ():
            raise UsageError(
                f"there is no projection {name!r} in what loads; {error.message}", hint=error.hint
            )
        raise unknown_name(
            "projection", name, context.projections, "does [projections] name its module or file?"
        )
    return list(dict.fromkeys(names))


def print_outcome(invocation: Invocation, outcome: RefreshOutcome) -> None:
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


def outcome_line(outcome: RefreshOutcome) -> str:
    """``customer_totals g1: 12 upserts, 3 deletes to epoch 42 in 1.3 s``."""
    name = outcome.projection if outcome.generation is None else f"{outcome.projection} g{outcome.generation}"
    if outcome.status != "done":
        words = {"nothing": "up to date", "frozen": "frozen", "waiting": "waits", "failed": "failed"}
        return f"{name}: {words[outcome.status]}: {outcome.reason}"
    rows = f"{count(outcome.upserts, 'upsert')}, {count(outcome.deletes, 'delete')}"
    return f"{name}: {rows}, now at epoch {outcome.epoch:,}, {outcome.seconds:,.1f} s ({outcome.reason})"


def print_rebuilt(invocation: Invocation, built: Rebuilt) -> None:
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
            "place": built.place or None,
        }
        invocation.output.document(document)
        return
    resumed = ", finishing a build that was cut off" if built.resumed else ""
    name = f"{built.projection} g{built.generation}"
    invocation.output.line(f"{name}: {count(built.rows, 'row')} as of epoch {built.epoch:,}{resumed}")
    if built.promoted is None and built.place:
        invocation.output.line(f"  read it in {built.place}")
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
