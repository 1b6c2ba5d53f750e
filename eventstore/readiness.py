"""Waiting for sockets, whatever their numbers: ``select`` takes none above 1023, and a service may have thousands."""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from typing import Protocol, TypeAlias


class HasFileno(Protocol):
    """What stands for a descriptor."""

    def fileno(self) -> int: ...


Descriptor: TypeAlias = "int | HasFileno"


def readable(sockets: Sequence[Descriptor], seconds: float) -> bool:
    """Wait until one of them can be read, or is broken; False after so many seconds. Raises ValueError for a closed
    one."""
    return _ready(sockets, select.POLLIN, seconds)


def writable(socket: Descriptor, seconds: float) -> bool:
    """Wait until it can be written, or is broken; False after so many seconds. Raises ValueError for a closed one."""
    return _ready([socket], select.POLLOUT, seconds)


def _ready(sockets: Sequence[Descriptor], event: int, seconds: float) -> bool:
    poll = select.poll()
    for each in sockets:
        poll.register(each, event)
    return bool(poll.poll(math.ceil(seconds * 1000)))
