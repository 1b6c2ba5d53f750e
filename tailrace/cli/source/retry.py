"""``tailrace source retry``: what was kept of tables that could not be decoded is decoded again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import Invocation, of
from tailrace.cli.source.request import follow, refuse, tell
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.metadata.quarantine import quarantined
from tailrace.eventstore.model.topic import TopicId
from tailrace.terminal import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.eventstore.catalog.requests import Request
    from tailrace.eventstore.store import Store
    from tailrace.terminal import Progress


def retry(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Sources or topics. Default: all that is set aside.", show_default=False),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until it is decoded.")] = True,
) -> int:
    """Decode again what was kept of tables that are set aside, in order, once the cause is mended.

    The capture that runs does it, or the next one that is started. A topic whose frames can all be decoded is complete
    again. `tailrace status` shows what is set aside, and why.
    """
    invocation = of(context)
    with invocation.store() as store:
        topics = aside_of(invocation, store, names or [])
        if not topics:
            invocation.output.line("nothing is set aside", style="green")
            return 0
        requests = store.requests.ask("retry", topics)
        if wait:
            with invocation.output.progress("retry") as progress:
                requests = follow(store, requests, partial(tell_left, store, progress), does="decodes")
        tell(invocation, requests, "decoded")
    refuse(
        requests,
        "decoded",
        lambda request: (
            f"mend the cause, or read it from the source: tailrace source snapshot {request.topic.text}"
        ),
    )
    return 0


def aside_of(invocation: Invocation, store: Store, names: Sequence[str]) -> list[TopicId]:
    """The topics set aside that are meant. Raises UsageError for a name that is no source's and no topic's, and for a
    topic that is not set aside."""
    aside = [each.topic for each in quarantined(store.catalog)]
    if not names:
        return aside
    found: list[TopicId] = []
    for name in names:
        if "." not in name:
            source, _ = invocation.source(name)
            found += [topic for topic in aside if topic.source == source]
            continue
        topic = TopicId.parse(name)
        store.topic(topic)
        if topic not in aside:
            raise UsageError(f"{topic.text} is not set aside", hint="tailrace status shows what is")
        found.append(topic)
    return list(dict.fromkeys(found))


def tell_left(store: Store, progress: Progress, request: Request) -> None:
    """Say what is left of a topic."""
    left = {each.topic: each.bytes for each in quarantined(store.catalog)}.get(request.topic, 0)
    progress.say(f"{request.topic.text}: {size(left)} left", topic=request.topic.text, bytes_left=left)
