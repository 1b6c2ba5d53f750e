"""Connections to sinks that outlive their use, for who comes back soon: a round refreshes many projections, and each
asks its sink several times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Closable(Protocol):
    def close(self) -> None: ...


Idle = dict[str, Closable]
"""By place, one connection that nobody uses."""

_IDLE: ContextVar[Idle | None] = ContextVar("idle_connections", default=None)


@contextmanager
def kept_connections() -> Iterator[None]:
    """Inside, on the same thread, a connection that is given back may be taken again by who asks for its place. They
    are closed at the end of the outermost one."""
    if _IDLE.get() is not None:
        yield
        return
    idle: Idle = {}
    token = _IDLE.set(idle)
    try:
        yield
    finally:
        _IDLE.reset(token)
        for connection in idle.values():
            connection.close()


def idle_connections() -> Idle | None:
    """To take a connection from, and to give it back to. None outside of ``kept_connections``."""
    return _IDLE.get()
