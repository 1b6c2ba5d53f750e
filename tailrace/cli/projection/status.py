"""How ``tailrace status`` shows projections: from the log by the result there to the sink. Starts no JVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tailrace.terminal import Output, count, duration, when

if TYPE_CHECKING:
    from tailrace.eventstore.metadata.run_records import RunRecord
    from tailrace.eventstore.settings import Settings
    from tailrace.eventstore.store import Store
    from tailrace.projections.lifecycle.progress import Freshness, ProjectionProgress, Rung, Unbuilt
    from tailrace.projections.lifecycle.promote import PendingPromotion


@dataclass(frozen=True, slots=True)
class ProjectionStatus:
    """One projection: its live generation, where its result in the log and its sink stand, and what the log has of its
    inputs beyond each (0: nothing). Of a sink out of reach ``sink_problem`` says why. ``unshown``: readers see another
    generation still, and what is said of the sink is that one's."""

    name: str
    state: str
    generation: int | None = None
    epoch: int | None = None
    behind_epochs: int | None = None
    behind_seconds: float | None = None
    sink: str | None = None
    sink_epoch: int | None = None
    sink_behind_epochs: int | None = None
    sink_behind_seconds: float | None = None
    sink_problem: str = ""
    failing: Failure | None = None
    unshown: PendingPromotion | None = None
    freshness: FreshnessStatus | None = None


@dataclass(frozen=True, slots=True)
class FreshnessStatus:
    """How old readers had become when most of the last refreshes reached the sink (``got_seconds``) and what the
    definition asks for (None: nothing). ``missed``: in words, what took the time; "" where it was met."""

    asked_seconds: float | None
    got_seconds: float
    missed: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Refreshes or builds that failed the same way, and nothing that was done since."""

    since: datetime
    last: datetime | None
    tries: int
    reason: str


def projection_statuses(store: Store, settings: Settings) -> list[ProjectionStatus]:
    """Every projection that has a generation, and each whose first build failed not long ago."""
    if not store.derived.projections() and not store.run_records.projections():
        return []  # nor is what computes them looked for
    from tailrace.projections.context import ProjectionContext
    from tailrace.projections.lifecycle.progress import SinkInspector, measure_progress, unbuilt_projections

    context, now = ProjectionContext(store, settings, {}), datetime.now(UTC)
    found = [_status(each) for each in measure_progress(context, now, SinkInspector())]
    found += [
        ProjectionStatus(each.projection, _unbuilt(each), failing=_failure(each.failing))
        for each in unbuilt_projections(store, now)
    ]
    return sorted(found, key=lambda each: each.name)


def _status(progress: ProjectionProgress) -> ProjectionStatus:
    generation = progress.generation
    at: dict[str, Rung] = {rung.name: rung for rung in progress.rungs}
    sink = at.get("sink")
    return ProjectionStatus(
        name=progress.projection,
        state=generation.state.value if generation.frozen_at is None else _frozen(generation.frozen_at),
        generation=generation.number,
        epoch=at["derived"].epoch,
        behind_epochs=at["derived"].lag_epochs,
        behind_seconds=round(at["derived"].lag_seconds, 3),
        sink=generation.sink_name or "own",
        sink_epoch=sink.epoch if sink else None,
        sink_behind_epochs=sink.lag_epochs if sink else None,
        sink_behind_seconds=round(sink.lag_seconds, 3) if sink else None,
        sink_problem=progress.problem,
        failing=_failure(progress.failing),
        unshown=progress.unshown,
        freshness=_freshness(progress.freshness),
    )


def _freshness(found: Freshness | None) -> FreshnessStatus | None:
    if found is None:
        return None
    return FreshnessStatus(found.asked, round(found.got, 3), missed_words(found) if found.is_missed else "")


def missed_words(found: Freshness) -> str:
    """What took the time, of the refresh whose rows had waited longest."""
    record = found.slowest
    computed = record.seconds or 0.0
    finished = record.finished or record.started
    other = max((finished - record.started).total_seconds() - computed, 0.0)
    waited = max((record.behind or 0.0) - computed - other, 0.0)
    parts = {
        f"computing it ({record.kind}, {record.engine or 'spark'})": computed,
        "the sink and the log": other,
        "waiting for its turn": waited,
    }
    said = ", ".join(f"{words} {seconds:,.1f} s" for words, seconds in parts.items())
    return f"asked for {found.asked:g} s, its refreshes reach {found.got:,.1f} s: {said}"


def describe_unshown(name: str, unshown: PendingPromotion) -> str:
    """What readers see while a generation is live in the catalog only."""
    if unshown.lost:
        return f"is promoted, and the sink holds nothing of it: tailrace rebuild {name}"
    since = f" since {when(unshown.since)}" if unshown.since else ""
    sees = f"g{unshown.shown}" if unshown.shown is not None else "none"
    return (
        f"is promoted{since}, and readers still see {sees}: the next run or promote shows it once they let go"
    )


def _unbuilt(found: Unbuilt) -> str:
    """Where the last build failed, building again is no advice: what it says comes first."""
    if found.failing is None:
        return f"no live generation: tailrace rebuild {found.projection}"
    return "no live generation: its build fails"


def _frozen(epoch: int) -> str:
    return f"frozen at epoch {epoch:,}: no running definition matches it (why: tailrace projection list)"


def _failure(record: RunRecord | None) -> Failure | None:
    if record is None:
        return None
    return Failure(record.started, record.finished, record.tries, record.reason)


def print_projections(output: Output, projections: Sequence[ProjectionStatus]) -> None:
    output.table(
        (
            "projection", "state", "generation", "result at epoch", "behind", "sink", "sink at epoch", "behind",
            "freshness",
        ),
        [
            (
                each.name, each.state, each.generation, each.epoch, _behind(each.behind_epochs, each.behind_seconds),
                each.sink, "out of reach" if each.sink_problem else each.sink_epoch,
                _behind(each.sink_behind_epochs, each.sink_behind_seconds), _fresh(each.freshness),
            )
            for each in projections
        ],
    )  # fmt: skip
    for each in projections:
        if each.unshown is not None:
            words = describe_unshown(each.name, each.unshown)
            output.line(f"{each.name}: g{each.generation} {words}", style="yellow")
        if each.failing is not None:
            failing, tries = each.failing, count(each.failing.tries, "failure")
            output.line(f"{each.name}: {tries} since {when(failing.since)}: {failing.reason}", style="yellow")
        if each.freshness is not None and each.freshness.missed:
            output.line(f"{each.name}: {each.freshness.missed}", style="yellow")
        if each.sink_problem and (each.failing is None or each.failing.reason != each.sink_problem):
            output.line(f"{each.name}: {each.sink_problem}", style="yellow")


def _fresh(found: FreshnessStatus | None) -> str | None:
    if found is None:
        return None
    asked = "" if found.asked_seconds is None else f" of {found.asked_seconds:g} s"
    return f"{found.got_seconds:,.1f} s{asked}"


def _behind(epochs: int | None, seconds: float | None) -> str | int | None:
    if not epochs:
        return epochs
    return f"{count(epochs, 'epoch')}, {duration(seconds or 0.0)}"
