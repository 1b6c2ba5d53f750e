"""``tailrace verify``: sinks against the log, or the log against its source."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.errors import report, worst_code
from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.cli.progress import Reporter
from tailrace.cli.projection.context import MasterOption, projection_context, select_projections
from tailrace.cli.values import print_hidden_note, shown_part
from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import DifferenceFound, IncompleteTopic, TailraceError, UsageError
from tailrace.eventstore.model.position import format_lsn
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.cdc.repair.verify import TopicComparison
    from tailrace.eventstore.model.topic import TopicId
    from tailrace.projections.lifecycle.verify import Comparison, DifferentRow

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
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, metavar="N", help="Compare about N random keys of each projection."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Take the same sample as the run that printed this seed."),
    ] = None,
    master: MasterOption = None,
) -> int:
    """Prove that sinks equal the log; with --source, that the log equals its source. 4 when they differ."""
    invocation = invocation_of(context)
    if source and (sample or seed is not None):
        raise UsageError("--sample and --seed are for projections", hint="leave them out, or --source")
    if seed is not None and not sample:
        raise UsageError("--seed says which sample, not how large", hint="add --sample N")
    if source:
        return verify_sources(invocation, names)
    return verify_projections(invocation, names, sample, seed, master)


def verify_projections(
    invocation: Invocation,
    names: list[str] | None,
    sample: int | None = None,
    seed: int | None = None,
    master: str | None = None,
) -> int:
    """Recompute each projection in full and compare both ways; the exit code. One that cannot be compared does not stop
    the others, and a difference decides the exit code before an error."""
    from tailrace.projections.lifecycle import verify

    codes = {0}
    with projection_context(invocation, "verify", master=master) as projections:
        wanted = select_projections(invocation, projections, names)
        codes.add(wanted.report(invocation))
        for name in wanted.names:
            try:
                comparison = verify.verify(projections, name, sample=sample, seed=seed)
            except TailraceError as error:
                codes.add(report(error, invocation.output, verbose=invocation.verbose))
                continue
            print_comparison(invocation, comparison)
            if not comparison.equal:
                codes.add(DifferenceFound.exit_code)
    return DifferenceFound.exit_code if DifferenceFound.exit_code in codes else worst_code(codes)


def print_comparison(invocation: Invocation, comparison: Comparison) -> None:
    """One sink beside the log."""
    output = invocation.output
    if output.json:
        document = {
            "projection": comparison.projection, "generation": comparison.generation, "epoch": comparison.epoch,
            "rows": comparison.rows, "equal": comparison.equal, "only_in_log": comparison.only_in_log,
            "only_in_sink": comparison.only_in_sink, "different": comparison.different,
            "seed": comparison.seed, "expired": comparison.expired,
            "samples": [_document(row) for row in comparison.samples],
        }  # fmt: skip
        output.document(document)
        return
    name = f"{comparison.projection} g{comparison.generation}"
    sample = "" if comparison.seed is None else f" in a sample (--seed {comparison.seed})"
    if comparison.equal:
        rows = count(comparison.rows, "row") + (
            f", {comparison.expired:,} of them expired" if comparison.expired else ""
        )
        output.line(f"{name}: equals the log at epoch {comparison.epoch:,}{sample}, {rows}", style="green")
        return
    output.line(
        f"{name}: DIFFERS from the log at epoch {comparison.epoch:,}{sample}: {count(comparison.different, 'row')} with"
        f" other values, {comparison.only_in_log:,} missing in the sink, {comparison.only_in_sink:,} only in the sink",
        style="bold red",
    )
    for row in comparison.samples if disclosure.values_are_shown() else ():
        output.line(f"  {row.kind}: {row.key}")
        output.line(f"    expected: {_values(row.expected)}")
        output.line(f"    actual:   {_values(row.actual)}")
    print_hidden_note(invocation, "rows")
    output.line(
        f"  hint: find out who else writes to the sink; tailrace rebuild {comparison.projection} makes it right"
    )


def _values(version: str | None) -> str:
    """A version of a row as a line."""
    if version is None:
        return "no row"
    values = json.loads(version)
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
    }
    return ", ".join(f"{name}={text}" for name, text in texts.items()) or "a row of its key alone"


def _document(row: DifferentRow) -> dict[str, str | None]:
    parts = {"key": row.key, "expected": row.expected, "actual": row.actual}
    return {"kind": row.kind} | {name: shown_part(part) for name, part in parts.items()}


def verify_sources(invocation: Invocation, names: list[str] | None) -> int:
    """Compare the topics' state with the tables at one exact position; the exit code."""
    from tailrace.cdc.repair.verify import verify_source
    from tailrace.eventstore.model.topic import TopicId

    wanted = [TopicId.parse(name) for name in names or ()]
    compared: list[TopicComparison] = []
    with invocation.store() as store, invocation.output.progress("verify --source") as progress:
        for topic in wanted:
            store.topic(topic)  # a wrong name is an error before the work
        for name, settings in invocation.sources(list(dict.fromkeys(topic.source for topic in wanted))):
            mine = [topic for topic in wanted if topic.source == name]
            progress.say(f"comparing {name}", source=name)
            how_far = partial(_report_topic, Reporter(progress))
            compared += verify_source(store, name, settings, mine or None, report=how_far)
    for comparison in compared:
        print_topic_comparison(invocation, comparison)
    if any(not each.equal and not each.skipped for each in compared):
        return DifferenceFound.exit_code
    return IncompleteTopic.exit_code if any(each.skipped for each in compared) else 0


def _report_topic(reporter: Reporter, topic: TopicId, done: int, total: int) -> None:
    text = f"comparing {topic.text}, {done:,} of {total:,} topics"
    step = f"comparing {topic.source}"
    reporter.say(text, step, done, total, "topics", "{:,.1f}".format, source=topic.source, topic=topic.text)


def print_topic_comparison(invocation: Invocation, comparison: TopicComparison) -> None:
    """One topic beside its table."""
    output = invocation.output
    lsn = format_lsn(comparison.lsn)
    if output.json:
        keys = {
            name: [[shown_part(part) for part in key] for key in getattr(comparison, name)]
            for name in _SAMPLES
        }
        document = (
            asdict(comparison)
            | {"topic": comparison.topic.text, "lsn": lsn, "equal": comparison.equal}
            | keys
        )
        output.document(document)
        return
    if comparison.skipped:
        output.line(f"{comparison.topic.text}: not compared: {comparison.skipped}", style="yellow")
    elif comparison.equal:
        text = f"{comparison.topic.text}: equals its source at {lsn}, {count(comparison.source_rows, 'row')}"
        output.line(text, style="green")
    else:
        differs = (
            f"{comparison.topic.text}: DIFFERS from its source at {lsn}: {count(comparison.different, 'row')} with"
            f" other values, {comparison.only_in_source:,} only in the source,"
            f" {comparison.only_in_log:,} only in the log"
        )
        output.line(differs, style="bold red")
        for kind, samples in (
            ("different", comparison.different_samples),
            ("only in source", comparison.source_samples),
            ("only in log", comparison.log_samples),
        ):
            for key in samples if disclosure.values_are_shown() else ():
                output.line(f"  {kind}: {', '.join(str(part) for part in key)}")
        print_hidden_note(invocation)
    if comparison.erased:
        held = (
            f"; the source still has a value in {comparison.erased_held:,} of them"
            if comparison.erased_held
            else ""
        )
        output.line(f"  not compared: erased cells of {count(comparison.erased, 'row')}{held}")
    if comparison.only_in_source_columns:
        columns = ", ".join(comparison.only_in_source_columns)
        output.line(f"  not compared, as no change of the table has shown them yet: {columns}")
