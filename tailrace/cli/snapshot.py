"""``tailrace source snapshot``: tables are read again by the capture that runs, beside the stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.errors import OperatorError, TransientError, UsageError
from eventstore.model import TopicId, TopicKind
from tailrace.cli.invocation import Invocation, of
from tailrace.cli.output import Progress, duration

if TYPE_CHECKING:
    from eventstore.log import Store
    from eventstore.requests import Request

POLL_SECONDS = 0.5
UNHEARD_SECONDS = 30.0  # a capture looks twice a second, and takes a moment to start


def snapshot(
    context: typer.Context,
    tables: Annotated[list[str], typer.Argument(help="Topics: SOURCE.SCHEMA.TABLE.", show_default=False)],
    rows_per_second: Annotated[
        int | None, typer.Option("--rows-per-second", min=1, help="Read no faster than this.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the tables are read.")] = True,
) -> int:
    """Read tables again, in chunks beside the stream, while the source goes on writing.

    The capture that runs does it, or the next one that is started; it goes on where it was after a crash. Until a table
    is read, its state is refused to readers.
    """
    from eventstore.requests import RequestState

    invocation = of(context)
    with invocation.store() as store:
        topics = tables_of(invocation, store, tables)
        requests = store.requests.ask("snapshot", topics, rows_per_second=rows_per_second)
        for topic in topics:
            invocation.output.note(f"{topic.text} will be read again")
        if not wait:
            _tell(invocation, requests)
            return 0
        with invocation.output.progress("snapshot") as progress:
            requests = follow(store, requests, progress)
        _tell(invocation, requests)
    failed = [request for request in requests if request.state is RequestState.FAILED]
    if failed:
        raise OperatorError(
            f"{failed[0].topic.text} was not read: {failed[0].detail}",
            hint="tailrace status shows the topics",
        )
    return 0


def tables_of(invocation: Invocation, store: Store, names: Sequence[str]) -> list[TopicId]:
    """The tables' topics. Raises UsageError for a name that is none."""
    topics = list(dict.fromkeys(TopicId.parse(name) for name in names))
    for topic in topics:
        if store.topic(topic).kind is not TopicKind.TABLE:
            raise UsageError(
                f"{topic.text} is not the topic of a table", hint="only tables can be read from the source"
            )
        invocation.source(topic.source)
    return topics


def follow(store: Store, requests: Sequence[Request], progress: Progress) -> list[Request]:
    """Wait until the requests are answered, and say how far the reading is."""
    from eventstore.requests import RequestState

    began = time.monotonic()
    seen: dict[TopicId, tuple[float, int]] = {}
    while True:
        now = store.requests.get([request.id for request in requests])
        waiting = [request for request in now if request.ended_at is None]
        if not waiting:
            return now
        unheard = all(request.state is RequestState.ASKED for request in waiting)
        if unheard and time.monotonic() - began > UNHEARD_SECONDS:
            raise TransientError(
                f"no capture of {waiting[0].source} takes the request up",
                hint="it is kept: start `tailrace capture`, which reads the tables again",
            )
        for request in waiting[:1]:
            progress.say(how_far(store, request, seen), topic=request.topic.text)
        time.sleep(POLL_SECONDS)


def how_far(store: Store, request: Request, seen: dict[TopicId, tuple[float, int]]) -> str:
    """Rows, rate and the time that is left, of a topic being read."""
    load = store.load(request.topic)
    if load is None:
        return f"{request.topic.text} waits to be read"
    started, before = seen.setdefault(request.topic, (time.monotonic(), load.rows))
    rate = (load.rows - before) / max(time.monotonic() - started, 1e-3)
    text = f"{request.topic.text}: {load.rows:,} of about {max(load.expected_rows, load.rows):,} rows"
    if rate <= 0:
        return text
    return f"{text}, {rate:,.0f}/s, {duration((load.expected_rows - load.rows) / rate)} left"


def _tell(invocation: Invocation, requests: Sequence[Request]) -> None:
    from eventstore.requests import RequestState

    for request in requests:
        if invocation.output.json:
            invocation.output.document(
                {"topic": request.topic.text, "state": request.state, "detail": request.detail}
            )
        elif request.state is RequestState.DONE:
            invocation.output.line(f"{request.topic.text}: read, {request.detail}", style="green")
        else:
            invocation.output.line(f"{request.topic.text}: {request.state} {request.detail}".rstrip())
