"""``tailrace source retry``: rows of quarantined tables are decoded again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.cli.source.request import TableWork, request
from tailrace.eventstore.errors import UsageError
from tailrace.terminal import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cli.progress import Reporter
    from tailrace.eventstore.catalog.requests import Request
    from tailrace.eventstore.model.topic import TopicId
    from tailrace.eventstore.store import Store


def retry(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Sources or topics. Default: all that are quarantined.", show_default=False),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until they are decoded.")] = True,
) -> int:
    """Decode quarantined tables again, in order, once the cause is fixed.

    The running capture does it, or the next one that is started. A topic whose messages can all be decoded is complete
    again. `tailrace status` shows what is quarantined, and why.
    """
    invocation = invocation_of(context)
    with invocation.store() as store:
        topics = quarantined_topics(invocation, store, names or [])
        if not topics:
            invocation.output.line("nothing is quarantined", style="green")
            return 0
        request(invocation, store, DECODING, topics, wait=wait)
    return 0


def quarantined_topics(invocation: Invocation, store: Store, names: Sequence[str]) -> list[TopicId]:
    """All quarantined topics, or those of the named sources and topics. Raises UsageError for a name that is neither,
    and for a topic that is not quarantined."""
    from tailrace.eventstore.metadata.quarantine import quarantined_topics

    every = [each.topic for each in quarantined_topics(store.catalog)]
    if not names:
        return every
    found: list[TopicId] = []
    for name in names:
        if "." not in name:
            source, _ = invocation.source(name)
            found += [topic for topic in every if topic.source == source]
            continue
        topic = store.topic(name).id
        if topic not in every:
            raise UsageError(f"{topic.text} is not quarantined", hint="tailrace status shows what is")
        found.append(topic)
    return list(dict.fromkeys(found))


def _report_bytes_left(store: Store, reporter: Reporter, each: Request) -> None:
    from tailrace.eventstore.metadata.quarantine import quarantined_topics

    left = {found.topic: found.bytes for found in quarantined_topics(store.catalog)}.get(each.topic, 0)
    reporter.progress.say(f"{each.topic.text}: {size(left)} left", topic=each.topic.text, bytes_left=left)


DECODING = TableWork(
    "retry",
    "decodes",
    "decoded",
    _report_bytes_left,
    lambda topic: f"fix the cause, or read it from the source: tailrace source snapshot {topic.text}",
)
