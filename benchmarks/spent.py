"""Time by the clock beside the processors' time of this process, of those it waited for, and of a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

TICK = 1 / os.sysconf("SC_CLK_TCK")
"""The least that is told of other processes, in seconds."""
# Of proc(5)'s stat, behind the name in parentheses: utime, stime, and those of ended children.
_OWN, _ENDED = slice(11, 13), slice(13, 15)


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds. ``processors``: what all cores together worked for it, which a busy machine bends less."""

    clock: float
    processors: float

    @classmethod
    def on(cls, work: Callable[[], object], server: int | None = None) -> Self:
        """What some work takes; ``server`` is a process that does part of it, with its children."""
        busy, began = _busy(server), time.perf_counter()
        work()
        return cls(time.perf_counter() - began, _busy(server) - busy)


def _busy(server: int | None) -> float:
    spent = os.times()
    own = time.process_time() + spent.children_user + spent.children_system
    return own + (0 if server is None else of_tree(server))


def of_tree(pid: int) -> float:
    """Seconds of a process and its children, those that ended included."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
        return 0
    own = sum(map(int, numbers[_OWN])) + sum(map(int, numbers[_ENDED]))
    return own * TICK + sum(of_tree(int(child)) for child in children)
