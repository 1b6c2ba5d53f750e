"""``tailrace source snapshot``: tables are read again by the capture that runs, beside the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.cli.log.redact import redact_command
from tailrace.cli.progress import Reporter
from tailrace.cli.source.request import TableWork, request
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.eventstore.catalog.requests import Request
    from tailrace.eventstore.store import Store

_SHOWN = 5


def snapshot(
    context: typer.Context,
    tables: Annotated[list[str], typer.Argument(help="Topics: SOURCE.SCHEMA.TABLE.", show_default=False)],
    rows_per_second: Annotated[
        int | None, typer.Option("--rows-per-second", min=1, help="Read no faster than this.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the tables are read.")] = True,
) -> int:
    """Read tables again, in chunks beside the stream, while the source goes on writing.

    The running capture does it, or the next one that is started; after a crash it goes on where it was. Until a table
    is read, its state cannot be read.
    """
    invocation = invocation_of(context)
    with invocation.store() as store:
        topics = tables_of(invocation, store, tables)
        _warn_of_redactions(invocation, store, topics)
        for topic in topics:
            invocation.output.note(f"{topic.text} will be read again")
        request(invocation, store, READING, topics, wait=wait, rows_per_second=rows_per_second)
    return 0


def _warn_of_redactions(invocation: Invocation, store: Store, topics: Sequence[TopicId]) -> None:
    """Values that were erased from the log and are still in the table come back with the other rows."""
    from tailrace.eventstore.maintenance.redaction.receipts import receipts

    found = [each for each in receipts(store, topics) if not each.forgotten]
    if not found:
        return
    note = invocation.output.note
    for topic in topics:
        mine = [each for each in found if each.topic == topic.text]
        if mine:
            note(
                f"rows of {topic.text} were erased ({count(len(mine), 'redaction')}); what its table still holds of"
            )
            note(
                "them comes into the log again. Change it in the source first, or erase it again afterwards:"
            )
        for each in mine[-_SHOWN:]:
            note(
                f"  {redact_command(each)}"
                if not each.about
                else "  tailrace forget SUBJECT, of somebody forgotten"
            )
        if len(mine) > _SHOWN:
            note(f"  and {len(mine) - _SHOWN:,} before: tailrace log redactions {topic.text}")
    invocation.confirm("read tables again although rows of them were erased")


def tables_of(invocation: Invocation, store: Store, names: Sequence[str]) -> list[TopicId]:
    """The tables' topics. Raises UsageError for a name that is none."""
    topics = list(dict.fromkeys(TopicId.parse(name) for name in names))
    for topic in topics:
        if store.topic(topic).kind is not TopicKind.TABLE:
            raise UsageError(
                f"{topic.text} is not the topic of a table", hint="only tables can be read from the source"
            )
        invocation.postgres_source(topic.source, "reading tables")
    return topics


def report_rows_read(store: Store, reporter: Reporter, each: Request) -> None:
    """Rows of a topic that were read, their rate and the time that is left."""
    from tailrace.eventstore.metadata import load_progress

    topic, load = each.topic.text, load_progress.read(store.catalog, each.topic)
    if load is None:
        reporter(f"{topic} waits to be read", 0, None, "", topic=topic)
        return
    expected = max(load.expected_rows, load.rows)
    text = f"{topic}: {load.rows:,} of about {expected:,} rows"
    reporter.say(text, f"reading {topic}", load.rows, expected, "rows", "{:,.0f}".format, topic=topic)


READING = TableWork(
    "snapshot", "reads", "read", report_rows_read, lambda _: "tailrace status shows the topics"
)
