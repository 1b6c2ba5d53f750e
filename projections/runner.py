"""The loop that keeps projections up to date: woken by the log, one warm Spark session, one bad projection or sink out
of reach never stopping the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from eventstore.errors import TransientError
from projections.context import ProjectionContext
from projections.lifecycle import refresh
from projections.refresh import Outcome

_LONGEST_WAIT = 30.0
"""Seconds between tries of what keeps failing: long enough to be cheap, short enough to notice a mended server."""

Tell = Callable[[Outcome], None]


def run(
    ctx: ProjectionContext,
    names: Sequence[str] | None,
    stop: threading.Event,
    tell: Tell = lambda outcome: None,
) -> None:
    """Refresh whenever the log has grown, until ``stop`` is set.

    ``tell`` gets each outcome that is news: work that was done, and the first of a row of equal messages (a frozen
    generation, a topic still loading, a sink out of reach). Raises Fenced when another process took over, and
    UsageError for unknown names.
    """
    chosen = [ctx.projection(name).name for name in names] if names else list(ctx.projections)
    rounds = _Rounds(ctx, chosen, everything=not names, tell=tell)
    poll = ctx.settings.projections.poll_seconds
    while not stop.is_set():
        head = ctx.store.head()
        seen = head.epoch if head else 0
        rounds.refresh_due(stop)
        if not stop.is_set():
            epochs: Any = ctx.store.follow(after_epoch=seen, timeout=poll)
            with closing(epochs):
                next(epochs, None)


class _Rounds:
    """Refreshes of those that are due. What failed or waits is tried again after a time of its own, ever longer, so
    that it neither stops nor slows the others."""

    def __init__(self, ctx: ProjectionContext, names: Sequence[str], *, everything: bool, tell: Tell) -> None:
        self._ctx, self._names, self._everything, self._tell = ctx, names, everything, tell
        self._told: dict[tuple[str, int | None], str] = {}
        self._waits: dict[str, float] = {}
        self._due_at: dict[str, float] = {}

    def refresh_due(self, stop: threading.Event) -> None:
        due = [name for name in self._names if self._due_at.get(name, 0.0) <= time.monotonic()]
        all_of_them = self._everything and len(due) == len(self._names)
        if not due and not all_of_them:
            return
        for name in due:
            self._due_at.pop(name, None)
        for outcome in refresh(self._ctx, None if all_of_them else due):
            if not (stop.is_set() and isinstance(outcome.error, TransientError)):
                self._note(outcome)  # what the stop itself cut off is no news
        for name in due:
            if name not in self._due_at:
                self._waits.pop(name, None)

    def _note(self, outcome: Outcome) -> None:
        place = (outcome.projection, outcome.generation)
        if outcome.status == "done" or (
            outcome.status != "nothing" and self._told.get(place) != outcome.reason
        ):
            self._tell(outcome)
        self._told[place] = "" if outcome.status in ("done", "nothing") else outcome.reason
        if outcome.status in ("failed", "waiting"):
            first = self._ctx.settings.projections.poll_seconds
            wait = min(self._waits.get(outcome.projection, first) * 2, _LONGEST_WAIT)
            self._waits[outcome.projection] = wait
            self._due_at[outcome.projection] = time.monotonic() + wait


def run_once(ctx: ProjectionContext, names: Sequence[str] | None = None) -> list[Outcome]:
    """Refresh up to the log's head once. Raises the error of what failed; of several, one that waiting cannot mend."""
    outcomes = refresh(ctx, names)
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    lasting = [error for error in errors if not isinstance(error, TransientError)]
    if errors:
        raise (lasting or errors)[0]
    return outcomes
