"""Requests to the capture that runs: waiting for its answers, and showing them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tailrace.cli.invocation import Invocation
from tailrace.eventstore.errors import OperatorError, TransientError

if TYPE_CHECKING:
    from tailrace.eventstore.catalog.requests import Request
    from tailrace.eventstore.store import Store

POLL_SECONDS = 0.5
UNHEARD_SECONDS = 30.0  # a capture looks twice a second, and takes a moment to start


def follow(
    store: Store,
    requests: Sequence[Request],
    how_far: Callable[[Request], None],
    does: str,
) -> list[Request]:
    """Wait until the requests are answered; ``how_far`` says of the first of them how far it is. Raises TransientError
    when no capture takes them up; ``does`` says what one would do."""
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
                f"no capture of {waiting[0].source} takes the request up",
                hint=f"it is kept: start `tailrace capture`, which {does} the tables again",
            )
        how_far(waiting[0])
        time.sleep(POLL_SECONDS)


def tell(invocation: Invocation, requests: Sequence[Request], done: str) -> None:
    """Show the answers; ``done`` is what was done to a table."""
    from tailrace.eventstore.catalog.requests import RequestState

    for request in requests:
        if invocation.output.json:
            invocation.output.document(
                {"topic": request.topic.text, "state": request.state, "detail": request.detail}
            )
        elif request.state is RequestState.DONE:
            invocation.output.line(f"{request.topic.text}: {done}, {request.detail}", style="green")
        else:
            invocation.output.line(f"{request.topic.text}: {request.state} {request.detail}".rstrip())


def refuse(requests: Sequence[Request], done: str, hint: Callable[[Request], str]) -> None:
    """Raises OperatorError when one failed."""
    from tailrace.eventstore.catalog.requests import RequestState

    failed = [request for request in requests if request.state is RequestState.FAILED]
    if failed:
        raise OperatorError(
            f"{failed[0].topic.text} was not {done}: {failed[0].detail}", hint=hint(failed[0])
        )
