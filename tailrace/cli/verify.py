"""``tailrace verify``: sinks against the log, or the log against its source."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore import disclosure
from eventstore.errors import DifferenceFound, IncompleteTopic, TailraceError
from eventstore.position import format_lsn
from tailrace.cli.failure import report
from tailrace.cli.invocation import Invocation, of
from tailrace.cli.lifecycle import chosen, projecting
from tailrace.cli.output import count

if TYPE_CHECKING:
    from cdc.verify import TopicComparison
    from projections.verify import Comparison

_SAMPLES = ("source_samples", "log_samples", "different_samples")


def verify(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Projections, or topics with --source. Default: all.", show_default=False),
    ] = None,
    source: Annotated[
        bool, typer.Option("--source", help="Compare topics with the source's tables.")
    ] = False,
) -> int:
    """Prove that sinks equal the log; with --source, that the log equals its source. 4 when they differ."""
    invocation = of(context)
    return verify_sources(invocation, names) if source else verify_projections(invocation, names)


def verify_projections(invocation: Invocation, names: list[str] | None) -> int:
    """Recompute each projection, unrestricted, and compare both ways; the exit code. One that cannot be compared does
    not hide the others: a difference found counts before what hindered."""
    from projections import lifecycle

    codes = {0}
    with projecting(invocation, "verify") as projections:
        for name in chosen(projections, names):
            try:
                comparison = lifecycle.verify(projections, name)
            except TailraceError as error:
                codes.add(report(error, invocation.output, verbose=invocation.verbose))
                continue
            tell_comparison(invocation, comparison)
            if not comparison.equal:
                codes.add(DifferenceFound.exit_code)
    return DifferenceFound.exit_code if DifferenceFound.exit_code in codes else max(codes)


def tell_comparison(invocation: Invocation, found: Comparison) -> None:
    """One sink beside the log."""
    output = invocation.output
    if output.json:
        document = {
            "projection": found.projection, "generation": found.generation, "epoch": found.epoch,
            "rows": found.rows, "equal": found.equal, "only_in_log": found.only_in_log,
            "only_in_sink": found.only_in_sink, "different": found.different,
            "samples": [(kind, disclosed(key)) for kind, key in found.samples],
        }  # fmt: skip
        output.document(document)
        return
    name = f"{found.projection} g{found.generation}"
    if found.equal:
        output.line(
            f"{name}: equals the log at epoch {found.epoch:,}, {count(found.rows, 'row')}", style="green"
        )
        return
    output.line(
        f"{name}: DIFFERS from the log at epoch {found.epoch:,}: {count(found.different, 'row')} with other values,"
        f" {found.only_in_log:,} missing in the sink, {found.only_in_sink:,} only in the sink",
        style="bold red",
    )
    for kind, key in found.samples if disclosure.allowed() else ():
        output.line(f"  {kind}: {key}")
    tell_hidden(invocation)
    output.line(
        f"  hint: find out who else writes to the sink; tailrace rebuild {found.projection} makes it right"
    )


def disclosed(part: str | None) -> str | None:
    """A part of a key as it may be told."""
    return disclosure.said(part) if part is not None else None


def tell_hidden(invocation: Invocation) -> None:
    if not disclosure.allowed():
        invocation.output.line("  the keys of some of these rows: run it again with --show-values")


def verify_sources(invocation: Invocation, names: list[str] | None) -> int:
    """Compare the topics' state with the tables at one exact position; the exit code."""
    from cdc.verify import verify_source
    from eventstore.model import TopicId

    asked = [TopicId.parse(name) for name in names or ()]
    compared: list[TopicComparison] = []
    with invocation.store() as store, invocation.output.progress("verify --source") as progress:
        for topic in asked:
            store.topic(topic)  # a wrong name is said before the work
        for name, settings in invocation.sources(list(dict.fromkeys(topic.source for topic in asked))):
            progress.say(f"comparing {name}", source=name)
            mine = [topic for topic in asked if topic.source == name]
            compared += verify_source(store, name, settings, mine or None)
    for comparison in compared:
        tell_topic(invocation, comparison)
    if any(not each.equal and not each.skipped for each in compared):
        return DifferenceFound.exit_code
    return IncompleteTopic.exit_code if any(each.skipped for each in compared) else 0


def tell_topic(invocation: Invocation, found: TopicComparison) -> None:
    """One topic beside its table."""
    output = invocation.output
    lsn = format_lsn(found.lsn)
    if output.json:
        keys = {
            name: [[disclosed(part) for part in key] for key in getattr(found, name)] for name in _SAMPLES
        }
        document = asdict(found) | {"topic": found.topic.text, "lsn": lsn, "equal": found.equal} | keys
        output.document(document)
        return
    if found.skipped:
        output.line(f"{found.topic.text}: not compared: {found.skipped}", style="yellow")
    elif found.equal:
        text = f"{found.topic.text}: equals its source at {lsn}, {count(found.source_rows, 'row')}"
        output.line(text, style="green")
    else:
        differs = (
            f"{found.topic.text}: DIFFERS from its source at {lsn}: {count(found.different, 'row')} with other"
            f" values, {found.only_in_source:,} only in the source, {found.only_in_log:,} only in the log"
        )
        output.line(differs, style="bold red")
        for kind, samples in (
            ("different", found.different_samples),
            ("only in source", found.source_samples),
            ("only in log", found.log_samples),
        ):
            for key in samples if disclosure.allowed() else ():
                output.line(f"  {kind}: {', '.join(str(part) for part in key)}")
        tell_hidden(invocation)
    if found.erased:
        held = f"; the source still has a value in {found.erased_held:,} of them" if found.erased_held else ""
        output.line(f"  not compared: erased cells of {count(found.erased, 'row')}{held}")
    if found.only_in_source_columns:
        columns = ", ".join(found.only_in_source_columns)
        output.line(f"  not compared, as no change of the table has shown them yet: {columns}")
