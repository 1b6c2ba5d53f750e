"""The loop that keeps projections up to date: one warm Spark session, one computation at a time, woken by the log.

A round of the loop: ask the log for its end, take the projection that is due and most overdue, take its step, have that
brought to the sink beside the next one's computation, report the outcomes of those that are there. When none is due,
wait for the log to grow or for the next one to be due. The loop ends when ``stop`` is set, after the refreshes under
way. A bad projection or a sink out of reach never stops the others.

Projections that are due together are brought to one position, so that they share what is read of it. One that has
declared a freshness gets a position that is at most a quarter of it old; one that is refreshed by key, at most half a
second.

How a projection is scheduled (``Schedule``):

  - *behind*: the log has epochs that it may lack. It is due when half of its freshness has passed since the first of
    these; the other half is for the refresh. Without a declared freshness it is due at once.
  - *level*: it lacks nothing. It is refreshed now and then all the same, because others promote, roll back and repair.
  - *failed*: it is tried again after pauses that double, up to ``LONGEST_WAIT``.

The one that is furthest behind in proportion to its freshness goes first; one that declares none counts as one of half
a minute, so under load it yields to those that ask for something. What waits gains on all others, so none starves, and
under overload all are late by the same factor. One that reads the results of others goes after those of them that are
behind, due or not: before them it would come no further than they are.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.store import Store
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.edited import DefinitionFiles
from tailrace.projections.lifecycle.catch_up import begin_under_lease, plan_first_builds, undefined_outcomes
from tailrace.projections.refresh.beside import Beside, Refreshed
from tailrace.projections.refresh.lock import refresh_lease
from tailrace.projections.refresh.refresh import RefreshOutcome
from tailrace.projections.sinks.kept import kept_connections
from tailrace.projections.spark.session import require_submitter

UNDECLARED_SECONDS = 30.0
"""The freshness that a projection without a declared one is measured by, where others are due too. Alone it is
refreshed as soon as the log has grown."""

BY_KEY_SECONDS = 0.5
"""How old a position may be that projections share which are refreshed by key, while none is far behind."""

_LOOK_SECONDS = 0.25
"""Between two looks at the log's end, while projections are due."""

_REMEMBERED = 1000
"""Epochs whose times of commit are remembered."""

_UNFINISHED = ("failed", "waiting")

LONGEST_WAIT = 30.0
"""Seconds between tries of what keeps failing: long enough to be cheap, short enough to notice a repaired server."""


@dataclass(slots=True)
class _Entry:
    """One projection. It holds everything up to epoch ``through``; the first that it lacks came at ``behind_since``
    (None: it lacks none). ``refreshed_at``: its last try; ``pause``: seconds to wait after one that failed. ``by_key``:
    its last refresh followed the keys of what changed. ``busy``: a refresh of it is under way."""

    freshness: float
    patience: float
    interval: float
    through: int = 0
    behind_since: float | None = None
    refreshed_at: float = -math.inf
    pause: float = 0.0
    by_key: bool = False
    busy: bool = False

    def due_at(self) -> float:
        if self.busy:
            return math.inf
        if self.pause:
            return self.refreshed_at + self.pause
        if self.behind_since is None:
            return self.refreshed_at + self.interval
        return self.behind_since + self.patience

    def urgency(self, now: float) -> tuple[float, float]:
        """How many times its freshness it is behind, which is not known before the first try; then the time since the
        last try."""
        if self.refreshed_at == -math.inf:
            return math.inf, math.inf
        behind = 0.0 if self.behind_since is None else max(now - self.behind_since, 0.0) / self.freshness
        return behind, now - self.refreshed_at


class Schedule:
    """Which projection is refreshed next, and when. Pure: times come in, in seconds of one clock. ``freshness``:
    seconds by projection, None where none is declared. ``interval``: seconds between refreshes of one that lacks
    nothing. ``reads``: by projection those whose results it reads. At first every projection is due."""

    def __init__(
        self,
        freshness: Mapping[str, float | None],
        interval: float,
        reads: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._interval = interval
        self._reads = reads or {}
        self._entries: dict[str, _Entry] = {}
        for name, declared in freshness.items():
            patience = declared / 2 if declared else 0.0
            entry = _Entry(declared or UNDECLARED_SECONDS, patience, max(interval, patience))
            self._entries[name] = entry

    def note_growth(self, head: int, age: Callable[[int], float], now: float) -> None:
        """The log's last epoch is ``head``. ``age``: seconds since the epoch after a given one was committed."""
        for entry in self._entries.values():
            if entry.through < head and entry.behind_since is None and entry.refreshed_at > -math.inf:
                entry.behind_since = now - age(entry.through)

    def next(self, now: float) -> str | None:
        """The projection to refresh now; None when none is due."""
        due = [name for name, entry in self._entries.items() if entry.due_at() <= now]
        chosen = max(due, key=lambda name: self._entries[name].urgency(now), default=None)
        passed = {chosen}
        while chosen is not None:
            first = [
                name
                for name in self._reads.get(chosen, ())
                if self._goes_before(name, now) and name not in passed
            ]
            if not first:
                break
            chosen = max(first, key=lambda name: self._entries[name].urgency(now))
            passed.add(chosen)
        return chosen

    def _goes_before(self, name: str, now: float) -> bool:
        """Whether a projection is refreshed before one that reads its result: it lacks something, and has not just
        failed."""
        entry = self._entries.get(name)
        if entry is None or entry.busy:  # its step is committed, which is all that is read of it
            return False
        return entry.due_at() <= now or (entry.behind_since is not None and not entry.pause)

    def wait(self, now: float) -> float:
        """Seconds until one is due, as far as is known now."""
        return max(0.0, min((entry.due_at() for entry in self._entries.values()), default=math.inf) - now)

    def note_begun(self, name: str) -> None:
        """Its refresh is under way until one of the next two is called."""
        self._entries[name].busy = True

    def note_refreshed(self, name: str, through: int, now: float, by_key: bool | None = None) -> None:
        """It holds everything up to epoch ``through``. ``by_key``: how it was refreshed; None: there was nothing to
        do."""
        entry = self._entries[name]
        entry.by_key = entry.by_key if by_key is None else by_key
        entry.through, entry.behind_since, entry.refreshed_at, entry.pause = through, None, now, 0.0
        entry.busy = False

    def has(self, name: str, epoch: int) -> bool:
        """Whether it holds everything up to an epoch."""
        return self._entries[name].through >= epoch

    def follows(self, name: str) -> bool:
        """Whether it takes little time to bring to another position than the others: it is refreshed by key. One that
        reads the results of others goes where they are."""
        return self._entries[name].by_key or bool(self._reads.get(name))

    def allowed_age(self, name: str, now: float) -> float:
        """Seconds that the position which it is brought to may be old. One that is far behind may go to an older one:
        that costs it little, and what others have looked up there saves more."""
        entry = self._entries[name]
        if not entry.by_key:
            return entry.freshness / 4
        behind = 0.0 if entry.behind_since is None else now - entry.behind_since
        return max(min(entry.freshness / 4, BY_KEY_SECONDS), behind / 4)

    def note_outcomes(self, done: Refreshed, now: float) -> None:
        """What became of a refresh."""
        if any(outcome.status in _UNFINISHED for outcome in done.outcomes):
            self.note_failed(done.name, now)
            return
        kinds = {outcome.kind for outcome in done.outcomes if outcome.kind is not None}
        built = [outcome.epoch for outcome in done.outcomes if outcome.cause == "first" and outcome.epoch]
        through = min([done.cut.epoch, *built])  # a build goes on where it was begun
        self.note_refreshed(done.name, through, now, kinds == {"incremental"} if kinds else None)

    def note_failed(self, name: str, now: float) -> None:
        """It could not be refreshed. It is tried again after its own, ever longer pause, so that it does not slow the
        others."""
        entry = self._entries[name]
        entry.refreshed_at, entry.pause = now, min((entry.pause or self._interval) * 2, LONGEST_WAIT)
        entry.busy = False


Report = Callable[[RefreshOutcome], None]


def run(
    ctx: ProjectionContext,
    names: Sequence[str] | None,
    stop: threading.Event,
    report: Report = lambda outcome: None,
    count: Report = lambda outcome: None,
    clock: Callable[[], float] = time.monotonic,
    note: Callable[[str], None] = lambda text: None,
) -> None:
    """Refresh what is due until ``stop`` is set; refreshes under way are finished first.

    ``count`` gets every outcome, ``report`` those that are news: work that was done, and the first of a row of equal
    messages (a frozen generation, a topic still loading, a sink out of reach). ``clock`` gives seconds.
    ``note`` is told of a definition's file that was edited, once for each edit: the loop goes on with the text that it
    has.

    Raises AlreadyRunning when another process refreshes one of the projections already, Fenced when it took over all
    the same, TransientError when spark-submit went away, and UsageError for unknown names.
    """
    selected = [ctx.projection(name) for name in names or ctx.projections]
    poll = ctx.settings.projections.poll_seconds
    schedule = Schedule(
        {each.name: each.freshness_seconds for each in selected},
        poll,
        {each.name: each.reads for each in selected},
    )
    news, files = _News(report), DefinitionFiles(selected)
    shared = SharedCut(ctx.store, schedule, clock)
    growth = Growth(ctx.store, schedule, clock)

    def settle(done: Refreshed) -> None:
        for outcome in done.outcomes:
            count(outcome)
            if not (stop.is_set() and isinstance(outcome.error, TransientError)):
                news.note(outcome)  # what the stop itself cut off is no news
        schedule.note_outcomes(done, clock())

    with (
        refresh_lease(ctx, [each.name for each in selected]),
        kept_connections(),
        ctx.kept_rows.at_work(),
        ctx.kept_sums.at_work(),
        Beside(ctx) as beside,
    ):
        plan_first_builds(ctx, [each.name for each in selected])
        while True:
            for done in beside.take():
                settle(done)
            if stop.is_set():
                if not beside.is_busy:
                    break
                beside.wait()
                continue
            require_submitter()
            for edited in files.edited():
                note(
                    f"{edited.file} was edited; {', '.join(edited.projections)} goes on as it was read at the start,"
                    " until run is started again"
                )
            name = growth.due()
            if name is not None:
                cut = shared.of(name)
                schedule.note_begun(name)
                beside.begin(name, cut, begin_under_lease(ctx, name, cut))
                continue
            if beside.is_busy:
                beside.wait(min(poll, schedule.wait(clock())))
                continue
            for outcome in undefined_outcomes(ctx) if not names else ():
                news.note(outcome)
            timeout = min(poll, schedule.wait(clock()))
            with closing(ctx.store.follow(after_epoch=growth.seen, timeout=timeout)) as epochs:
                next(epochs, None)


@dataclass(slots=True)
class Growth:
    """What the log has up to epoch ``seen``, which a schedule is told."""

    store: Store
    schedule: Schedule
    clock: Callable[[], float]
    seen: int = 0
    _looked_at: float = -math.inf
    _committed: dict[int, datetime] = field(default_factory=dict)

    def due(self) -> str | None:
        """The projection to refresh now; None when none is due. Before that is said, or when the last look is some time
        ago, the log is looked at: for each of many projections that would cost a tenth of their refreshes."""
        if self.clock() - self._looked_at < _LOOK_SECONDS:
            name = self.schedule.next(self.clock())
            if name is not None:
                return name
        self._looked_at = self.clock()
        head = self.store.head()
        self.seen = head.epoch if head else 0
        self.schedule.note_growth(self.seen, self._age, self.clock())
        return self.schedule.next(self.clock())

    def _age(self, epoch: int) -> float:
        """Seconds since the commit of the epoch after ``epoch``, by the source's clock. Projections that were brought
        to one position together lack the same."""
        committed = self._committed.get(epoch)
        if committed is None:
            found = self.store.epochs(after=epoch, limit=1)
            committed = found[0].commit_ts if found else None
            if committed is None:
                return 0.0
            if len(self._committed) >= _REMEMBERED:
                self._committed.clear()
            self._committed[epoch] = committed
        return max((datetime.now(UTC) - committed).total_seconds(), 0.0)


@dataclass(frozen=True, slots=True)
class _Taken:
    cut: Cut
    at: float


class SharedCut:
    """The position that projections which are due together are brought to. Those that read all rows of their inputs
    share one for longer than those that are refreshed by key."""

    def __init__(self, store: Store, schedule: Schedule, clock: Callable[[], float]) -> None:
        self._store, self._schedule, self._clock = store, schedule, clock
        self._latest: _Taken | None = None
        self._of_whole: _Taken | None = None
        self._given: dict[str, int] = {}

    def of(self, name: str) -> Cut:
        """The last one; a new one for a projection that is there already, could not get there, or asks for a later
        one."""
        now, follows = self._clock(), self._schedule.follows(name)
        shared = self._latest if follows else self._of_whole
        if (
            shared is None
            or self._given.get(name) == shared.cut.epoch
            or self._schedule.has(name, shared.cut.epoch)
            or now - shared.at > self._schedule.allowed_age(name, now)
        ):
            shared = self._latest = _Taken(self._store.cut(), now)
            if not follows:
                self._of_whole = shared
        self._given[name] = shared.cut.epoch
        return shared.cut


class _News:
    """Reports outcomes that differ from the last one of their generation. That something is out of reach is reported
    once, whatever words each try has for it, and so is that it is back."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last: dict[tuple[str, int | None], str] = {}
        self._away: set[str] = set()

    def note(self, outcome: RefreshOutcome) -> None:
        if isinstance(outcome.error, TransientError):
            if outcome.projection not in self._away:
                self._report(replace(outcome, reason=f"{outcome.reason}; it is tried again until it works"))
            self._away.add(outcome.projection)
            return
        is_back = outcome.projection in self._away
        self._away.discard(outcome.projection)
        place = (outcome.projection, outcome.generation)
        is_news = outcome.status != "nothing" and self._last.get(place) != outcome.reason
        if outcome.status == "done" or is_back or is_news:
            self._report(outcome)
        self._last[place] = "" if outcome.status in ("done", "nothing") else outcome.reason
