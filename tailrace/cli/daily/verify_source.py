"""``tailrace verify --source``: the log against its source."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from tailrace.cli.invocation import Invocation
from tailrace.cli.progress import Reporter
from tailrace.cli.values import print_hidden_note, shown_part
from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import DifferenceFound, IncompleteTopic
from tailrace.eventstore.model.position import format_lsn
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.cdc.repair.verify import TopicComparison
    from tailrace.eventstore.model.topic import TopicId

_SAMPLES = ("source_samples", "log_samples", "different_samples")


def verify_sources(invocation: Invocation, names: list[str] | None) -> int:
    """Compare the topics' state with the tables at one exact position; the exit code."""
    from tailrace.cdc.repair.position import Patience
    from tailrace.cdc.repair.verify import verify_source
    from tailrace.eventstore.model.topic import TopicId

    wanted = [TopicId.parse(name) for name in names or ()]
    compared: list[TopicComparison] = []
    with invocation.store() as store, invocation.output.progress("verify --source") as progress:
        for topic in wanted:
            store.topic(topic)  # a wrong name is an error before the work
        for name, settings in invocation.postgres_sources(
            [topic.source for topic in wanted], "verify --source"
        ):
            mine = [topic for topic in wanted if topic.source == name]
            progress.say(f"comparing {name}", source=name)
            how_far = partial(_report_topic, Reporter(progress))
            patience = Patience(say=partial(progress.say, source=name))
            compared += verify_source(store, name, settings, mine or None, patience=patience, report=how_far)
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
