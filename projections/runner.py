"""The loop that keeps projections up to date: woken by the log, one warm Spark session, one projection at a time by
``schedule``. A bad projection or a sink out of reach never stops the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.store import Store
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.build import refresh_held, undefined
from tailrace.projections.refresh.lock import refreshing
from tailrace.projections.refresh.refresh import Outcome
from tailrace.projections.schedule import Schedule
from tailrace.projections.spark.session import require_submitter

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
                outcomes = refresh_held(ctx, name, ctx.store.cut())
                for outcome in outcomes:
                    count(outcome)
                    if not (stop.is_set() and isinstance(outcome.error, TransientError)):
                        news.note(outcome)  # what the stop itself cut off is no news
                if any(outcome.status in _UNSETTLED for outcome in outcomes):
                    schedule.failed(name, clock())
                else:
                    schedule.refreshed(name, seen, clock())
                continue
            for outcome in undefined(ctx) if not names else ():
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
