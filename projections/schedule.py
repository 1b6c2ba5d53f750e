"""Which of several projections is refreshed next, and when. Pure: times come in, in seconds of one clock.

A projection that declares how fresh it is to be is refreshed when half of that time has passed since the first change
it lacks; the other half is for the refresh. One that declares nothing is due at once. Of those that are due the one
that is the furthest behind in proportion to its freshness goes first: what waits gains on all others, so nobody
starves, and when there is too much to do each is late by the same factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

UNDECLARED_SECONDS = 3.0
"""What a projection without a declared freshness is measured by: what one on a warm session can be held to."""

LONGEST_WAIT = 30.0
"""Seconds between tries of what keeps failing: long enough to be cheap, short enough to notice a mended server."""


@dataclass(slots=True)
class _Entry:
    """``through``: the epoch up to which it is known to hold all; ``since``: when the first epoch it lacks came (None:
    it lacks none). ``looked``: when it was last taken up, ``pause``: how long to leave alone what failed then."""

    freshness: float
    patience: float
    looks: float
    through: int = 0
    since: float | None = None
    looked: float = -math.inf
    pause: float = 0.0

    def due_at(self) -> float:
        if self.pause:
            return self.looked + self.pause
        return self.looked + self.looks if self.since is None else self.since + self.patience

    def overdue(self, now: float) -> tuple[float, float]:
        """The larger, the more urgent: how many times its freshness it is behind (nobody knows before the first look),
        and then how long ago it was looked at."""
        if self.looked == -math.inf:
            return math.inf, math.inf
        behind = 0.0 if self.since is None else max(now - self.since, 0.0) / self.freshness
        return behind, now - self.looked


class Schedule:
    """``freshness``: seconds by projection, None where none is declared. ``looks``: seconds after which one that lacks
    nothing is looked at all the same, because others promote, roll back and mend; at first everything is."""

    def __init__(self, freshness: Mapping[str, float | None], looks: float) -> None:
        self._looks = looks
        self._entries: dict[str, _Entry] = {}
        for name, declared in freshness.items():
            patience = declared / 2 if declared else 0.0
            entry = _Entry(declared or UNDECLARED_SECONDS, patience, max(looks, patience))
            self._entries[name] = entry

    def grew(self, head: int, age: Callable[[int], float], now: float) -> None:
        """The log's last epoch is ``head``; ``age`` says how many seconds ago the one after an epoch was committed."""
        for entry in self._entries.values():
            if entry.through < head and entry.since is None and entry.looked > -math.inf:
                entry.since = now - age(entry.through)

    def next(self, now: float) -> str | None:
        """The projection to refresh now; None when none is due."""
        due = [name for name, entry in self._entries.items() if entry.due_at() <= now]
        return max(due, key=lambda name: self._entries[name].overdue(now), default=None)

    def wait(self, now: float) -> float:
        """Seconds until one is due, as far as is known now."""
        return max(0.0, min((entry.due_at() for entry in self._entries.values()), default=math.inf) - now)

    def refreshed(self, name: str, through: int, now: float) -> None:
        """It holds all up to epoch ``through``."""
        entry = self._entries[name]
        entry.through, entry.since, entry.looked, entry.pause = through, None, now, 0.0

    def failed(self, name: str, now: float) -> None:
        """It could not be refreshed: it is tried again after a time of its own, ever longer, so that it does not slow
        the others."""
        entry = self._entries[name]
        entry.looked, entry.pause = now, min((entry.pause or self._looks) * 2, LONGEST_WAIT)
