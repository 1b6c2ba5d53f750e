"""How far projections are: from the log, by their results there, to their sinks. For metrics and ``status``.

A sink that hangs must not hold up the others, or a scrape, so all are asked at once and for a limited time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.metadata.run_records import REFRESHES, STEPS
from tailrace.eventstore.model.topic import TopicId
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.lifecycle.promote import PendingPromotion, pending_promotion

if TYPE_CHECKING:
    from tailrace.eventstore.metadata.run_records import RunRecord
    from tailrace.eventstore.model.info import EpochInfo
    from tailrace.eventstore.store import Store
    from tailrace.projections.context import ProjectionContext


_RECENT = timedelta(days=1)
_REFRESHES = 20
"""That say how fresh a projection is."""


@dataclass(frozen=True, slots=True)
class Rung:
    """How far the live generation is at one place: the ``epoch`` of its result there, and its lag behind the changes of
    its inputs. Both lags are 0 when nothing is missing, whatever other topics did."""

    name: Literal["derived", "sink"]
    epoch: int
    lag_epochs: int
    lag_seconds: float


@dataclass(frozen=True, slots=True)
class ProjectionProgress:
    """The live generation of a projection. ``rungs`` lead from the log to the sink; without the sink's, ``problem``
    says why. ``failing``: the last refresh or build failed. ``unshown``: readers still see another generation, and
    the sink's rung is that one's."""

    projection: str
    generation: Generation
    rows: int
    frozen: bool
    rungs: Sequence[Rung]
    problem: str
    verified: RunRecord | None
    failing: RunRecord | None
    unshown: PendingPromotion | None = None
    freshness: Freshness | None = None


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old readers of a projection had become when its last refreshes reached the sink, in seconds: ``got`` by most
    of them (19 of 20), ``asked`` by the definition then (None: nothing). ``slowest`` is the one of the longest."""

    asked: float | None
    got: float
    slowest: RunRecord

    @property
    def is_missed(self) -> bool:
        return self.asked is not None and self.got > self.asked


@dataclass(frozen=True, slots=True)
class SinkAnswer:
    """A sink's answer: the ``epoch`` of what readers see, or None and a ``problem``."""

    epoch: int | None
    problem: str = ""
    unshown: PendingPromotion | None = None


SinkInspection = Callable[["ProjectionContext", Sequence[Generation]], Mapping[str, SinkAnswer]]
"""Ask the sinks of live generations, by projection."""


def ask_sink(ctx: ProjectionContext, live: Generation) -> SinkAnswer:
    pending: PendingPromotion | None = None
    try:
        pending = pending_promotion(ctx, live)
        fence = ctx.fence(_visible_generation(ctx, live, pending))
    except TailraceError as error:
        return SinkAnswer(None, error.message, pending)
    return SinkAnswer(fence.epoch if fence else 0, unshown=pending)


def measure_progress(
    ctx: ProjectionContext, now: datetime, inspect: SinkInspection
) -> Iterator[ProjectionProgress]:
    """The progress of every projection with a live generation."""
    head = ctx.store.head()
    if head is None:
        return
    found = [live for name in ctx.store.derived.projections() if (live := ctx.live(name)) is not None]
    seen = inspect(ctx, found)
    for live in found:
        yield _progress_of(ctx, live, head, now, seen[live.projection])


def _progress_of(
    ctx: ProjectionContext, live: Generation, head: EpochInfo, now: datetime, answer: SinkAnswer
) -> ProjectionProgress:
    name = live.projection
    last = ctx.store.steps.last(name, live.number)
    rungs = [_rung(ctx.store, "derived", live, last.to_epoch if last else 0, head, now)]
    if answer.epoch is not None:
        rungs.append(_rung(ctx.store, "sink", live, answer.epoch, head, now))
    verified = ctx.store.run_records.latest(name, limit=1, kinds=["verify"], but=["failed"])
    return ProjectionProgress(
        projection=name,
        generation=live,
        rows=files_of(last).rows if last else 0,
        frozen=live.frozen_at is not None,
        rungs=rungs,
        problem=answer.problem,
        verified=verified[0] if verified and verified[0].generation == live.number else None,
        failing=last_failure(ctx.store, name),
        unshown=answer.unshown,
        freshness=freshness_of(ctx.store, live),
    )


def freshness_of(store: Store, generation: Generation) -> Freshness | None:
    """Of the last refreshes of a generation; None: no refresh has followed its build."""
    records = store.run_records.latest(generation.projection, limit=_REFRESHES, kinds=STEPS)
    mine = [each for each in records if each.generation == generation.number and each.behind is not None]
    if not mine:
        return None
    ordered = sorted(mine, key=lambda record: record.behind or 0.0)
    most = ordered[min(len(ordered) - 1, len(ordered) * 19 // 20)]
    return Freshness(mine[0].asked, most.behind or 0.0, ordered[-1])


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A projection without a live generation. ``failing``: the last build failed."""

    projection: str
    failing: RunRecord | None


def unbuilt_projections(store: Store, now: datetime) -> Iterator[Unbuilt]:
    """Every projection without a live generation that still has generations, or whose last build failed within a
    day."""
    for name in sorted({*store.derived.projections(), *store.run_records.projections()}):
        if store.derived.live(name) is not None:
            continue
        failed = last_failure(store, name)
        tried = failed is not None and now - (failed.finished or failed.started) < _RECENT
        if tried or store.derived.generations(name):
            yield Unbuilt(name, failed)


def _visible_generation(
    ctx: ProjectionContext, live: Generation, pending: PendingPromotion | None
) -> Generation:
    """The generation that readers see, if the catalog knows it; else the live one."""
    if pending is None:
        return live
    return next((each for each in ctx.generations(live.projection) if each.number == pending.shown), live)


def last_failure(store: Store, name: str) -> RunRecord | None:
    """The record of the last refresh or build, if it failed."""
    latest = next(iter(store.run_records.latest(name, limit=1, kinds=REFRESHES)), None)
    return latest if latest is not None and latest.status == "failed" else None


def _rung(
    store: Store,
    name: Literal["derived", "sink"],
    generation: Generation,
    epoch: int,
    head: EpochInfo,
    now: datetime,
) -> Rung:
    topics = [TopicId.parse(need.topic) for need in generation.inputs]
    found = store.epochs(after=epoch, limit=1, topics=topics)
    if not found:
        return Rung(name, epoch, 0, 0.0)
    first = found[0]
    age = (now - first.commit_ts).total_seconds() if first.commit_ts else 0.0
    return Rung(name, epoch, max(head.epoch, first.epoch) - first.epoch + 1, max(age, 0.0))


SECONDS = 3.0
"""For all sinks of a scrape. Prometheus gives up after ten seconds, and then has no metric at all."""

_THREADS_MAX = 4
"""Threads for each sink. A healthy sink answers many questions in the time, a sick one holds no more threads."""


class SinkInspector:
    """Asks sinks at the same time. One that has not answered in time gets a ``problem`` that says so, and is not asked
    again before it answers. Threads of sinks that never answer end with the process."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._under_way: dict[str, list[threading.Thread]] = {}
        self._lock = threading.Lock()

    def __call__(self, ctx: ProjectionContext, generations: Sequence[Generation]) -> Mapping[str, SinkAnswer]:
        """The answers by projection. Calls at the same time come one after another."""
        with self._lock:
            end = time.monotonic() + self._seconds
            found: dict[str, SinkAnswer] = {}
            by_sink: dict[str, deque[Generation]] = {}
            for generation in generations:
                by_sink.setdefault(_place(generation), deque()).append(generation)
            for place, todo in by_sink.items():
                self._begin(ctx, place, todo, found, end)
            for place in by_sink:
                for thread in self._under_way[place]:
                    thread.join(max(end - time.monotonic(), 0.0))
            late = SinkAnswer(None, f"the sink has not answered within {self._seconds:g} s")
            return {each.projection: found.get(each.projection, late) for each in generations}

    def _begin(
        self,
        ctx: ProjectionContext,
        place: str,
        todo: deque[Generation],
        found: dict[str, SinkAnswer],
        end: float,
    ) -> None:
        if any(thread.is_alive() for thread in self._under_way.get(place, ())):
            return

        def ask() -> None:
            while time.monotonic() < end:
                try:
                    generation = todo.popleft()
                except IndexError:
                    return
                found[generation.projection] = _ask_or_problem(ctx, generation)

        count = min(_THREADS_MAX, len(todo))
        self._under_way[place] = [
            threading.Thread(target=ask, name=f"look-{place}", daemon=True) for _ in range(count)
        ]
        for thread in self._under_way[place]:
            thread.start()


def _ask_or_problem(ctx: ProjectionContext, generation: Generation) -> SinkAnswer:
    try:
        return ask_sink(ctx, generation)
    except Exception as error:  # noqa: BLE001 a sink of one's own may raise anything
        return SinkAnswer(None, disclosure.describe_error(error))


def _place(generation: Generation) -> str:
    """The sink's name. A user's own sink has none: each projection's counts as another one."""
    name = generation.sink_name
    return f"sink {name}" if name else f"projection {generation.projection}"
