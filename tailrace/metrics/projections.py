"""Prometheus metrics of a runner of projections: how far each is from the log to its sink, what was done and why.

Positions are read from the catalog and asked of the sinks at each scrape; a sink out of reach, or one that does not
answer in time, is ``tailrace_projection_sink_up 0`` and shows no position rather than an old one. Counters are of this
process.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tailrace.projections.lifecycle.progress import (
    ProjectionProgress,
    Rung,
    SinkInspector,
    Unbuilt,
    measure_progress,
    unbuilt_projections,
)

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.core import GaugeMetricFamily

    from tailrace.eventstore.metadata.run_records import RunRecord
    from tailrace.projections.context import ProjectionContext
    from tailrace.projections.refresh.refresh import RefreshOutcome


@dataclass
class _Counts:
    """What the runner of this process did, by projection; of steps also by kind and cause."""

    refreshes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    keys: Counter[tuple[str]] = field(default_factory=Counter)
    upserts: Counter[tuple[str]] = field(default_factory=Counter)
    deletes: Counter[tuple[str]] = field(default_factory=Counter)
    seconds: dict[tuple[str], float] = field(default_factory=dict)

    def add(self, outcome: RefreshOutcome) -> None:
        mine = (outcome.projection,)
        if outcome.status in ("failed", "waiting"):
            self.failures[outcome.projection, outcome.status] += 1
        if outcome.kind is not None:
            self.refreshes[outcome.projection, outcome.kind, outcome.cause or ""] += 1
            self.seconds[mine] = self.seconds.get(mine, 0.0) + outcome.seconds
        self.keys[mine] += outcome.keys or 0
        self.upserts[mine] += outcome.upserts
        self.deletes[mine] += outcome.deletes


_OF_COUNTS: Sequence[tuple[str, str, tuple[str, ...], Callable[[_Counts], Any]]] = (
    (
        "tailrace_projection_refreshes", "Computed refreshes; cause: why a full one was full.",
        ("projection", "kind", "cause"), lambda it: it.refreshes,
    ),
    (
        "tailrace_projection_failures", "Refreshes that failed, or wait for a topic to be loaded.",
        ("projection", "status"), lambda it: it.failures,
    ),
    (
        "tailrace_projection_affected_keys", "Keys that incremental refreshes followed.",
        ("projection",), lambda it: it.keys,
    ),
    ("tailrace_projection_upserts", "Rows written to the sink.", ("projection",), lambda it: it.upserts),
    ("tailrace_projection_deletes", "Rows deleted in the sink.", ("projection",), lambda it: it.deletes),
    (
        "tailrace_projection_refresh_seconds", "Time that refreshes took, with their sink's.",
        ("projection",), lambda it: it.seconds,
    ),
)  # fmt: skip
_OF_RUNGS: Sequence[tuple[str, str, Callable[[Rung], float]]] = (
    ("tailrace_projection_position_epoch", "Epoch of the live result.", lambda it: it.epoch),
    (
        "tailrace_projection_lag_epochs", "Epochs of the log from the first one with rows that it lacks.",
        lambda it: it.lag_epochs,
    ),
    (
        "tailrace_projection_lag_seconds", "Time since the commit of the first rows that it lacks.",
        lambda it: it.lag_seconds,
    ),
)  # fmt: skip


def _shown_generation(progress: ProjectionProgress) -> float | None:
    if progress.problem:
        return None
    return progress.unshown.shown or 0 if progress.unshown else progress.generation.number


def _differing_rows(verified: RunRecord) -> int:
    """At least 1 when rows could not be compared, which are not counted."""
    return max(verified.rows_upserted + verified.rows_deleted, int(verified.status == "different"))


_OF_PROGRESS: Sequence[tuple[str, str, Callable[[ProjectionProgress], float | None]]] = (
    ("tailrace_projection_sink_up", "Whether the sink can be reached.", lambda it: float(not it.problem)),
    ("tailrace_projection_rows", "Rows of the live result.", lambda it: it.rows),
    ("tailrace_projection_generation", "Number of the live generation.", lambda it: it.generation.number),
    (
        "tailrace_projection_shown_generation", "Number of the generation that readers see.",
        _shown_generation,
    ),
    (
        "tailrace_projection_generation_created_timestamp_seconds", "When the build of the live generation began.",
        lambda it: it.generation.created_at.timestamp(),
    ),
    (
        "tailrace_projection_frozen", "Whether no running definition matches the live generation.",
        lambda it: float(it.frozen),
    ),
    (
        "tailrace_projection_freshness_seconds",
        "Time from a commit to the sink in most (19 of 20) of the last refreshes.",
        lambda it: it.freshness.got if it.freshness else None,
    ),
    (
        "tailrace_projection_freshness_asked_seconds", "The declared freshness.",
        lambda it: it.freshness.asked if it.freshness else None,
    ),
    (
        "tailrace_projection_verified_timestamp_seconds", "When the sink was last compared with the log.",
        lambda it: it.verified.finished.timestamp() if it.verified and it.verified.finished else None,
    ),
    (
        "tailrace_projection_verified_epoch", "Epoch at which it was compared.",
        lambda it: it.verified.to_epoch if it.verified else None,
    ),
    (
        "tailrace_projection_verified_different_rows", "Rows by which it differed from the log.",
        lambda it: _differing_rows(it.verified) if it.verified else None,
    ),
)  # fmt: skip


def _failing_metric(of: Sequence[ProjectionProgress | Unbuilt]) -> GaugeMetricFamily:
    """Failures of live projections, and of those whose first build has not succeeded yet."""
    from prometheus_client.core import GaugeMetricFamily

    gauge = GaugeMetricFamily(
        "tailrace_projection_failing",
        "Tries in a row that failed the same way, by any process; 0: the last did not.",
        labels=["projection"],
    )
    for each in of:
        gauge.add_metric([each.projection], each.failing.tries if each.failing else 0)
    return gauge


class ProjectionCollector:
    """Metrics of a runner: positions of each projection, and what this process did."""

    def __init__(self, ctx: ProjectionContext) -> None:
        self._ctx = ctx
        self._counts = _Counts()
        self._inspector = SinkInspector()
        self._lock = threading.Lock()

    def count(self, outcome: RefreshOutcome) -> None:
        """Each outcome of the runner, on its thread."""
        with self._lock:
            self._counts.add(outcome)

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        head = self._ctx.store.head()
        yield GaugeMetricFamily("tailrace_log_epoch", "The last epoch of the log.", head.epoch if head else 0)
        now = datetime.now(UTC)
        progress = list(measure_progress(self._ctx, now, self._inspector))
        yield _failing_metric([*progress, *unbuilt_projections(self._ctx.store, now)])
        for name, text, of_rung in _OF_RUNGS:
            by_rung = GaugeMetricFamily(name, text, labels=["projection", "rung"])
            for each in progress:
                for rung in each.rungs:
                    by_rung.add_metric([each.projection, rung.name], of_rung(rung))
            yield by_rung
        for name, text, value in _OF_PROGRESS:
            gauge = GaugeMetricFamily(name, text, labels=["projection"])
            for each in progress:
                known = value(each)
                if known is not None:
                    gauge.add_metric([each.projection], known)
            yield gauge
        with self._lock:
            counts = copy.deepcopy(self._counts)
        for name, text, labels, counted in _OF_COUNTS:
            counter = CounterMetricFamily(name, text, labels=labels)
            for of, number in counted(counts).items():
                counter.add_metric(of, number)
            yield counter
