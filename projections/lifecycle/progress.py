"""How far a projection is, from the log by its result there to its sink: for metrics and for who looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.metadata.run_records import REFRESHES
from tailrace.eventstore.model.topic import TopicId
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.lifecycle.promote import Unshown, unshown

if TYPE_CHECKING:
    from tailrace.eventstore.metadata.run_records import RunRecord
    from tailrace.eventstore.model.info import EpochInfo
    from tailrace.eventstore.store import Store
    from tailrace.projections.context import ProjectionContext

_RECENT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Rung:
    """How far the live generation is at one place: ``epoch`` of its result there, and what the log has of its inputs
    beyond. Both lags are 0 when nothing is missing, whatever other topics did."""

    name: Literal["derived", "sink"]
    epoch: int
    lag_epochs: int
    lag_seconds: float


@dataclass(frozen=True, slots=True)
class Standing:
    """A projection's live generation. ``rungs`` lead from the log to the sink; that of a sink out of reach lacks, and
    ``problem`` says why. ``failing``: its last refresh or build failed. ``unshown``: readers see another generation
    still, and the sink's rung is that one's."""

    projection: str
    generation: Generation
    rows: int
    frozen: bool
    rungs: Sequence[Rung]
    problem: str
    verified: RunRecord | None
    failing: RunRecord | None
    unshown: Unshown | None = None


@dataclass(frozen=True, slots=True)
class SinkLook:
    """What a sink said: the ``epoch`` of what readers see, None with a ``problem``."""

    epoch: int | None
    problem: str = ""
    unshown: Unshown | None = None


Looks = Callable[["ProjectionContext", Sequence[Generation]], Mapping[str, SinkLook]]
"""Ask the sinks of live generations, by projection."""


def sink_look(ctx: ProjectionContext, live: Generation) -> SinkLook:
    pending: Unshown | None = None
    try:
        pending = unshown(ctx, live)
        fence = ctx.fence(_seen(ctx, live, pending))
    except TailraceError as error:
        return SinkLook(None, error.message, pending)
    return SinkLook(fence.epoch if fence else 0, unshown=pending)


def standings(ctx: ProjectionContext, now: datetime, looks: Looks) -> Iterator[Standing]:
    """Of every projection that is live."""
    head = ctx.store.head()
    if head is None:
        return
    found = [live for name in ctx.store.derived.projections() if (live := ctx.live(name)) is not None]
    seen = looks(ctx, found)
    for live in found:
        yield _standing(ctx, live, head, now, seen[live.projection])


def _standing(
    ctx: ProjectionContext, live: Generation, head: EpochInfo, now: datetime, look: SinkLook
) -> Standing:
    name = live.projection
    last = ctx.store.derived.last_derived(name, live.number)
    rungs = [_rung(ctx.store, "derived", live, last.to_epoch if last else 0, head, now)]
    if look.epoch is not None:
        rungs.append(_rung(ctx.store, "sink", live, look.epoch, head, now))
    verified = ctx.store.run_records.latest(name, limit=1, kinds=["verify"], but=["failed"])
    return Standing(
        projection=name,
        generation=live,
        rows=files_of(last).rows if last else 0,
        frozen=live.frozen_at is not None,
        rungs=rungs,
        problem=look.problem,
        verified=verified[0] if verified and verified[0].generation == live.number else None,
        failing=failing(ctx.store, name),
        unshown=look.unshown,
    )


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A projection without a live generation. ``failing``: its last build failed."""

    projection: str
    failing: RunRecord | None


def unbuilts(store: Store, now: datetime) -> Iterator[Unbuilt]:
    """Every projection that is not live, unless all its generations were dropped, or nobody tries to build it any
    more."""
    for name in sorted({*store.derived.projections(), *store.run_records.projections()}):
        if store.derived.live(name) is not None:
            continue
        failed = failing(store, name)
        tried = failed is not None and now - (failed.finished or failed.started) < _RECENT
        if tried or store.derived.generations(name):
            yield Unbuilt(name, failed)


def _seen(ctx: ProjectionContext, live: Generation, pending: Unshown | None) -> Generation:
    """The generation that readers see, as far as the catalog knows it."""
    if pending is None:
        return live
    return next((each for each in ctx.generations(live.projection) if each.number == pending.shown), live)


def failing(store: Store, name: str) -> RunRecord | None:
    """The record of a refresh or a build that failed, when none was done since."""
    newest = next(iter(store.run_records.latest(name, limit=1, kinds=REFRESHES)), None)
    return newest if newest is not None and newest.status == "failed" else None


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
