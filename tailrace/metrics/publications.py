"""Prometheus metrics of publishers: how far each is, what it sent, what waits, and what went wrong.

Positions are those that its destination has committed, as the publisher of this process knows them; lags are read from
the catalog at each scrape. Counters are of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tailrace.status import WAITING_MAX

if TYPE_CHECKING:
    from prometheus_client import Metric

    from tailrace.eventstore.publishing.progress import PublicationProgress
    from tailrace.eventstore.settings import PublicationSettings
    from tailrace.eventstore.store import Store

_LABELS = ("publication",)
_GAUGES: Sequence[tuple[str, str, Callable[[PublicationProgress], float | None]]] = (
    (
        "tailrace_publication_position_epoch", "Epoch up to which everything is published.",
        lambda it: it.epoch,
    ),
    (
        "tailrace_publication_parked_keys", "Keys that wait, as the destination does not take a record of theirs.",
        lambda it: None if it.epoch is None else it.parked,
    ),
    (
        "tailrace_publication_failing", "Tries in a row that failed; 0: the last did not.",
        lambda it: it.failing,
    ),
    (
        "tailrace_publication_failed_timestamp_seconds", "When a try failed last.",
        lambda it: it.failed_at,
    ),
)  # fmt: skip
_COUNTERS: Sequence[tuple[str, str, Callable[[PublicationProgress], float]]] = (
    ("tailrace_publication_records", "Records published since this start.", lambda it: it.records),
    ("tailrace_publication_bytes", "Bytes of their keys and values, not compressed.", lambda it: it.bytes),
    (
        "tailrace_publication_transactions", "Transactions with records that were committed since this start.",
        lambda it: it.transactions,
    ),
    (
        "tailrace_publication_dead_letters", "Records that wait, sent to the topic of dead letters since this start.",
        lambda it: it.dead_letters,
    ),
)  # fmt: skip


class PublicationCollector:
    """Metrics of the publishers of this process, by name."""

    def __init__(
        self,
        store: Store,
        settings: Mapping[str, PublicationSettings],
        progress: Mapping[str, PublicationProgress],
    ) -> None:
        self._store = store
        self._settings = settings
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        head = self._store.head()
        yield GaugeMetricFamily("tailrace_log_epoch", "The last epoch of the log.", head.epoch if head else 0)
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            for publication, progress in self._progress.items():
                known = value(progress)
                if known is not None:
                    gauge.add_metric([publication], known)
            yield gauge
        yield from self._lags()
        for name, text, counted in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            for publication, progress in self._progress.items():
                counter.add_metric([publication], counted(progress))
            yield counter
        failures = CounterMetricFamily(
            "tailrace_publication_failures", "Tries that failed since this start.", labels=(*_LABELS, "error")
        )
        for publication, progress in self._progress.items():
            for error, number in dict(progress.failures).items():
                failures.add_metric([publication, error], number)
        yield failures

    def _lags(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        epochs = GaugeMetricFamily(
            "tailrace_publication_lag_epochs",
            f"Epochs with rows that are not published yet (of a projection: steps), at most {WAITING_MAX}.",
            labels=_LABELS,
        )
        seconds = GaugeMetricFamily(
            "tailrace_publication_lag_seconds",
            "Time since the commit of the first rows that are not published yet.",
            labels=_LABELS,
        )
        for name, progress in self._progress.items():
            if progress.epoch is not None:
                waiting = self._waiting(name, progress.epoch)
                epochs.add_metric([name], len(waiting))
                seconds.add_metric([name], _age(waiting))
        yield epochs
        yield seconds

    def _waiting(self, name: str, after: int) -> Sequence[datetime | None]:
        """When they committed."""
        from tailrace.eventstore.subscriptions.filter import matching_topics

        wanted = self._settings[name]
        if wanted.projection is not None:
            from tailrace.projections.publishing.result_feed import steps_behind

            steps = steps_behind(self._store, wanted.projection, None, after)
            return [each.commit_ts for each in steps[:WAITING_MAX]]
        topics = [info.id for info in matching_topics(self._store, wanted.topics)]
        return [each.commit_ts for each in self._store.epochs(after, WAITING_MAX, topics)]


def _age(waiting: Sequence[datetime | None]) -> float:
    """Of the first one, by its commit; 0 when none waits."""
    committed = next((each for each in waiting if each is not None), None)
    return 0.0 if committed is None else max((datetime.now(UTC) - committed).total_seconds(), 0.0)
