"""One implementation for connections that block and for those that are awaited: coroutines, which wait for nothing on
the first kind."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar, cast

Result = TypeVar("Result")


def finish(work: Awaitable[Result]) -> Result:
    """The result of what waits for nothing, as on a connection that blocks."""
    running = cast("Coroutine[Any, Any, Result]", work)
    try:
        running.send(None)
    except StopIteration as done:
        return cast("Result", done.value)
    raise AssertionError("it waits for something")
