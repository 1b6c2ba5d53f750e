"""Commands that ask the capture which runs to work on tables again: what they share is here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace.cli.invocation import Invocation
from tailrace.cli.progress import Reporter
from tailrace.eventstore.errors import OperatorError, TransientError

if TYPE_CHECKING:
    from tailrace.eventstore.catalog.requests import Request
    from tailrace.eventstore.model.topic import TopicId
    from tailrace.eventstore.store import Store

POLL_SECONDS = 0.5
UNHEARD_SECONDS = 30.0  # a capture looks twice a second, and takes a moment to start


@dataclass(frozen=True, slots=True)
class TableWork:
    """A kind of request in words: a capture ``verb`` (decodes) the tables, which are ``done`` (decoded) then."""

    kind: str
    verb: str
    done: str
    report_progress: Callable[[Store, Reporter, Request], None]
    hint_when_failed: Callable[[TopicId], str]


def request(
    invocation: Invocation,
    store: Store,
    work: TableWork,
    topics: Sequence[TopicId],
    *,
    wait: bool,
    **options: Any,
) -> None:
    """Leave a request for each topic, wait for the answers if ``wait``, and print them.

    Raises TransientError when no capture takes the requests up, OperatorError when one failed.
    """
    requests = store.requests.ask(work.kind, topics, **options)
    if wait:
        with invocation.output.progress(work.kind) as progress:
            requests = _answers(store, requests, work, Reporter(progress))
    _print_answers(invocation, requests, work)


def _answers(store: Store, requests: Sequence[Request], work: TableWork, reporter: Reporter) -> list[Request]:
    from tailrace.eventstore.catalog.requests import RequestState

    began = time.monotonic()
    while True:
        now = store.requests.get([request.id for request in requests])
        waiting = [request for request in now if request.ended_at is None]
        if not waiting:
            return now
        unheard = all(request.state is RequestState.ASKED for request in waiting)
        if unheard and time.monotonic() - began > UNHEARD_SECONDS:
            raise TransientError(
                f"no capture of {waiting[0].source} has taken the request",
                hint=f"the request remains: start `tailrace capture`, which {work.verb} the tables again",
            )
        work.report_progress(store, reporter, waiting[0])
        time.sleep(POLL_SECONDS)


def _print_answers(invocation: Invocation, requests: Sequence[Request], work: TableWork) -> None:
    from tailrace.eventstore.catalog.requests import RequestState

    for each in requests:
        topic = each.topic.text
        if invocation.output.json:
            invocation.output.document({"topic": topic, "state": each.state, "detail": each.detail})
        elif each.state is RequestState.DONE:
            invocation.output.line(f"{topic}: {work.done}, {each.detail}", style="green")
        else:
            invocation.output.line(f"{topic}: {each.state} {each.detail}".rstrip())
    for each in requests:
        if each.state is RequestState.FAILED:
            raise OperatorError(
                f"{each.topic.text} was not {work.done}: {each.detail}",
                hint=work.hint_when_failed(each.topic),
            )
