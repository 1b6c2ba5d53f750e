"""``tailrace source retry``: what was kept of tables that could not be decoded is decoded again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.errors import OperatorError, TransientError, UsageError
from eventstore.model import TopicId
from tailrace.cli.invocation import Invocation, of
from tailrace.cli.output import Progress, size
from tailrace.cli.snapshot import POLL_SECONDS, UNHEARD_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.log import Store
    from eventstore.requests import Request


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
    from eventstore.requests import RequestState

    invocation = of(context)
    with invocation.store() as store:
        topics = aside_of(invocation, store, names or [])
        if not topics:
            invocation.output.line("nothing is set aside", style="green")
            return 0
        requests = store.requests.ask("retry", topics)
        if wait:
            with invocation.output.progress("retry") as progress:
                requests = _follow(store, requests, progress)
        for request in requests:
            _tell(invocation, request)
    failed = [request for request in requests if request.state is RequestState.FAILED]
    if failed:
        raise OperatorError(
            f"{failed[0].topic.text} was not decoded: {failed[0].detail}",
            hint=f"mend the cause, or read it from the source: tailrace source snapshot {failed[0].topic.text}",
        )
    return 0


def aside_of(invocation: Invocation, store: Store, names: Sequence[str]) -> list[TopicId]:
    """The topics set aside that are meant. Raises UsageError for a name that is no source's and no topic's, and for a
    topic that is not set aside."""
    aside = [each.topic for each in store.set_aside()]
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


def _follow(store: Store, requests: Sequence[Request], progress: Progress) -> list[Request]:
    from eventstore.requests import RequestState

    began = time.monotonic()
    while True:
        now = store.requests.get([request.id for request in requests])
        waiting = [request for request in now if request.ended_at is None]
        if not waiting:
            return now
        unheard = all(request.state is RequestState.ASKED for request in waiting)
        if unheard and time.monotonic() - began > UNHEARD_SECONDS:
            raise TransientError(
                f"no capture of {waiting[0].source} takes the request up",
                hint="it is kept: start `tailrace capture`, which decodes the tables again",
            )
        left = {each.topic: each.bytes for each in store.set_aside()}
        topic = waiting[0].topic
        progress.say(f"{topic.text}: {size(left.get(topic, 0))} left", topic=topic.text)
        time.sleep(POLL_SECONDS)


def _tell(invocation: Invocation, request: Request) -> None:
    from eventstore.requests import RequestState

    if invocation.output.json:
        invocation.output.document(
            {"topic": request.topic.text, "state": request.state, "detail": request.detail}
        )
    elif request.state is RequestState.DONE:
        invocation.output.line(f"{request.topic.text}: decoded, {request.detail}", style="green")
    elif request.state is not RequestState.FAILED:
        invocation.output.line(f"{request.topic.text}: {request.state} {request.detail}".rstrip())
