"""The loop that keeps projections up to date: woken by the log, one warm Spark session, one projection at a time by
``schedule``. A bad projection or a sink out of reach never stops the others."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.store import Store
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh_under_lease, undefined_outcomes
from tailrace.projections.refresh.lock import refreshing
from tailrace.projections.refresh.refresh import Outcome
from tailrace.projections.spark.session import require_submitter

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


Tell = Callable[[Outcome], None]
_UNSETTLED = ("failed", "waiting")


def run(
    ctx: ProjectionContext,
    names: Sequence[str] | None,
    stop: threading.Event,
    tell: Tell = lambda outcome: None,
    count: Tell = lambda outcome: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Refresh what is due until ``stop`` is set; a refresh under way is finished first.

    ``tell`` gets each outcome that is news: work that was done, and the first of a row of equal messages (a frozen
    generation, a topic still loading, a sink out of reach), ``count`` every one. ``clock``, in seconds, says what is
    due. Raises AtWork when another process keeps one of them up to date already, Fenced when it took over all the same,
    TransientError when spark-submit went away, and UsageError for unknown names.
    """
    chosen = [ctx.projection(name) for name in names or ctx.projections]
    poll = ctx.settings.projections.poll_seconds
    schedule = Schedule({each.name: each.freshness_seconds for each in chosen}, poll)
    news = _News(tell)
    with refreshing(ctx, [each.name for each in chosen]):
        while not stop.is_set():
            require_submitter()
            head = ctx.store.head()
            seen = head.epoch if head else 0
            schedule.grew(seen, lambda epoch: _age(ctx.store, epoch), clock())
            name = schedule.next(clock())
            if name is not None:
                outcomes = refresh_under_lease(ctx, name, ctx.store.cut())
                for outcome in outcomes:
                    count(outcome)
                    if not (stop.is_set() and isinstance(outcome.error, TransientError)):
                        news.note(outcome)  # what the stop itself cut off is no news
                if any(outcome.status in _UNSETTLED for outcome in outcomes):
                    schedule.failed(name, clock())
                else:
                    schedule.refreshed(name, seen, clock())
                continue
            for outcome in undefined_outcomes(ctx) if not names else ():
                news.note(outcome)
            timeout = min(poll, schedule.wait(clock()))
            with closing(ctx.store.follow(after_epoch=seen, timeout=timeout)) as epochs:
                next(epochs, None)


def _age(store: Store, epoch: int) -> float:
    """Seconds since the commit of the epoch after ``epoch``, by the source's clock."""
    found = store.epochs(after=epoch, limit=1)
    committed = found[0].commit_ts if found else None
    return max((datetime.now(UTC) - committed).total_seconds(), 0.0) if committed else 0.0


class _News:
    """Tells outcomes that were not told just so before. That something is out of reach is told once, in whatever words
    each try says it, and so is that it is back."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._told: dict[tuple[str, int | None], str] = {}
        self._away: set[str] = set()

    def note(self, outcome: Outcome) -> None:
        if isinstance(outcome.error, TransientError):
            if outcome.projection not in self._away:
                self._tell(replace(outcome, reason=f"{outcome.reason}; it is tried again until it works"))
            self._away.add(outcome.projection)
            return
        is_back = outcome.projection in self._away
        self._away.discard(outcome.projection)
        place = (outcome.projection, outcome.generation)
        is_news = outcome.status != "nothing" and self._told.get(place) != outcome.reason
        if outcome.status == "done" or is_back or is_news:
            self._tell(outcome)
        self._told[place] = "" if outcome.status in ("done", "nothing") else outcome.reason
