"""Prometheus metrics of running captures: the ladder of each source, what its slot keeps, and what was captured.

Each scrape asks the source's server for positions, over a short connection; a server out of reach is
``tailrace_source_up 0`` and shows no positions rather than old ones.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tailrace.eventstore.errors import OperatorError, optional_part
from tailrace.status import reachable_ladder, reachable_lag

if TYPE_CHECKING:
    from prometheus_client import Metric

    from tailrace.cdc.kafka.lag import PartitionLag
    from tailrace.cdc.postgres.progress import Ladder
    from tailrace.cdc.status import CaptureStatus
    from tailrace.eventstore.maintenance.rounds import UpkeepStatus
    from tailrace.eventstore.settings import SourceSettings
    from tailrace.eventstore.store import Store

Values = Callable[["Ladder"], Mapping[str, float | None]]

# By rung, from the head down. A value that is not known is left out.
_BY_RUNG: Sequence[tuple[str, str, Values]] = (
    (
        "tailrace_source_position_bytes", "Byte position in the server's WAL that each rung has reached.",
        lambda found: {
            "head": found.head, "sent": found.sent, "received": found.received, "durable": found.durable,
        },
    ),
    (
        "tailrace_source_lag_bytes", "WAL between the server's head and each rung.",
        lambda found: {
            "sent": found.lag(found.sent), "received": found.lag(found.received),
            "durable": found.lag(found.durable),
        },
    ),
    (
        "tailrace_source_lag_seconds", "Time from the server's head to each rung, as the server measures it.",
        lambda found: {"received": found.received_seconds, "durable": found.durable_seconds},
    ),
)  # fmt: skip
_GAUGES: Sequence[tuple[str, str, Callable[[Ladder], float | None]]] = (
    ("tailrace_slot_retained_bytes", "WAL that the server keeps for the slot.", lambda it: it.retained_bytes),
    ("tailrace_slot_remaining_bytes", "WAL until the slot is lost.", lambda it: it.remaining_bytes),
    (
        "tailrace_slot_remaining_seconds", "Time until the slot is lost, at the average rate of WAL.",
        lambda it: it.remaining_seconds,
    ),
)  # fmt: skip
_SPILLS: Sequence[tuple[str, str, Callable[[Ladder], float]]] = (
    (
        "tailrace_slot_spilled_transactions", "Transactions the server spilled to disk while decoding.",
        lambda it: it.spilled_transactions,
    ),
    (
        "tailrace_slot_spilled_bytes", "Bytes the server spilled to disk while decoding.",
        lambda it: it.spilled_bytes,
    ),
)  # fmt: skip
_CAPTURED: Sequence[tuple[str, str, Callable[[CaptureStatus], float]]] = (
    ("tailrace_capture_epochs", "Epochs committed to the log since this start.", lambda it: it.epochs),
    (
        "tailrace_capture_transactions", "Transactions committed to the log since this start.",
        lambda it: it.transactions,
    ),
    (
        "tailrace_capture_refused_messages", "Logical messages with a prefix of Tailrace's that were not its own.",
        lambda it: sum(number for _, number in it.refused),
    ),
    ("tailrace_capture_changes", "Changes committed to the log since this start.", lambda it: it.changes),
)  # fmt: skip


_UPKEEP: Sequence[tuple[str, str, Callable[[UpkeepStatus], float | None]]] = (
    ("tailrace_catalog_epoch_rows", "Rows of epochs in the catalog.", lambda it: it.epoch_rows),
    ("tailrace_epoch_files", "Files of older epochs.", lambda it: it.epoch_files),
    ("tailrace_unsealed_epochs", "Small epochs that are not sealed yet.", lambda it: it.unsealed_epochs),
    ("tailrace_unsealed_bytes", "Bytes of epochs that are not sealed yet.", lambda it: it.unsealed_bytes),
    ("tailrace_retired_files", "Replaced files that readers may still need.", lambda it: it.retired_files),
    ("tailrace_retired_bytes", "Bytes of replaced files that readers may still need.", lambda it: it.retired_bytes),
    (
        "tailrace_upkeep_finished_timestamp_seconds", "When the last round of upkeep ended.",
        lambda it: None if it.finished_at is None else it.finished_at.timestamp(),
    ),
    (
        "tailrace_upkeep_seconds", "How long the last round of upkeep took.",
        lambda it: None if it.last is None else it.last.seconds,
    ),
)  # fmt: skip


class Collector:
    """Metrics of captures. ``statuses`` gives the latest status of each capture of this process."""

    def __init__(
        self,
        store: Store,
        sources: Sequence[tuple[str, SourceSettings]],
        statuses: Callable[[], Sequence[CaptureStatus]],
    ) -> None:
        self._store = store
        self._sources = sources
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        ladders = dict(self._ladders())
        up = GaugeMetricFamily(
            "tailrace_source_up", "Whether the source's server can be reached.", labels=["source"]
        )
        for name, settings in self._sources:
            if settings.kind == "postgres":
                up.add_metric([name], float(name in ladders))
        lags = dict(self._lags())
        for name in lags:
            up.add_metric([name], 1.0)
        for name, settings in self._sources:
            if settings.kind == "kafka" and name not in lags:
                up.add_metric([name], 0.0)
        yield up
        yield from _records_behind(lags)
        yield self._parked()
        for metric, text, values in _BY_RUNG:
            by_rung = GaugeMetricFamily(metric, text, labels=["source", "rung"])
            for name, ladder in ladders.items():
                for rung, value in values(ladder).items():
                    if value is not None:
                        by_rung.add_metric([name, rung], value)
            yield by_rung
        for metric, text, gauge in _GAUGES:
            family = GaugeMetricFamily(metric, text, labels=["source"])
            for name, ladder in ladders.items():
                known = gauge(ladder)
                if known is not None:
                    family.add_metric([name], known)
            yield family
        for metric, text, spilled in _SPILLS:
            counter = CounterMetricFamily(metric, text, labels=["source"])
            for name, ladder in ladders.items():
                counter.add_metric([name], spilled(ladder))
            yield counter
        statuses = self._statuses()
        for metric, text, done in _CAPTURED:
            counter = CounterMetricFamily(metric, text, labels=["source"])
            for status in statuses:
                counter.add_metric([status.source], done(status))
            yield counter
        repeated = CounterMetricFamily(
            "tailrace_capture_repeated_rows",
            "Rows from Kafka that the log had when they came, and that were dropped since this start.",
            labels=["source"],
        )
        for status in statuses:
            if status.repeated_rows is not None:
                repeated.add_metric([status.source], status.repeated_rows)
        yield repeated
        queued = GaugeMetricFamily(
            "tailrace_capture_queued_bytes", "Frames received that wait to be decoded.", labels=["source"]
        )
        for status in statuses:
            queued.add_metric([status.source], status.queued_bytes)
        yield queued
        yield from self._upkeep()

    def _parked(self) -> Metric:
        from prometheus_client.core import GaugeMetricFamily

        from tailrace.eventstore.metadata.kafka_progress import parked_records

        family = GaugeMetricFamily(
            "tailrace_source_parked_records",
            "Records of Kafka that could not be read and wait to be tried again.",
            labels=["source"],
        )
        for name, settings in self._sources:
            if settings.kind == "kafka":
                family.add_metric([name], parked_records(self._store.catalog, name))
        return family

    def _upkeep(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        from tailrace.eventstore.maintenance.rounds import upkeep_status

        found = upkeep_status(self._store)
        for metric, text, value in _UPKEEP:
            yield GaugeMetricFamily(metric, text, value(found))  # without a sample while it is not known
        files = GaugeMetricFamily("tailrace_log_files", "Files of the log, by size.", labels=["size"])
        held = GaugeMetricFamily(
            "tailrace_log_file_bytes", "Bytes of the log's files, by size.", labels=["size"]
        )
        for name, (number, size) in found.tiers.items():
            files.add_metric([name], number)
            held.add_metric([name], size)
        yield files
        yield held

    def _ladders(self) -> Iterator[tuple[str, Ladder]]:
        for name, settings in self._sources:
            if settings.kind != "postgres":
                continue
            known = self._store.source(name)
            ladder = reachable_ladder(settings, known) if known is not None else None
            if ladder is not None:
                yield name, ladder

    def _lags(self) -> Iterator[tuple[str, list[PartitionLag]]]:
        for name, settings in self._sources:
            if settings.kind == "kafka":
                lag = reachable_lag(self._store, name, settings)
                if lag is not None:
                    yield name, lag


def _records_behind(lags: Mapping[str, Sequence[PartitionLag]]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ["source", "topic", "partition"]
    family = GaugeMetricFamily(
        "tailrace_source_lag_records", "Records of a topic of Kafka that are not in the log.", labels=labels
    )
    for name, lag in lags.items():
        for each in lag:
            family.add_metric([name, each.topic, str(each.partition)], each.records)
    yield family


class MetricsSource(Protocol):
    """What answers a scrape (``prometheus_client.registry.Collector``)."""

    def collect(self) -> Iterator[Metric]: ...


@contextmanager
def metrics_server(
    collector: MetricsSource, port: int | None, address: str, say: Callable[[str], None]
) -> Iterator[None]:
    """Answers scrapes while inside; without a port it does nothing. Raises OperatorError as ``serve`` does."""
    if port is None:
        yield
        return
    chosen, end = serve(collector, port, address)
    say(f"metrics at http://{address}:{chosen}/metrics")
    try:
        yield
    finally:
        end()


def serve(collector: MetricsSource, port: int, address: str) -> tuple[int, Callable[[], None]]:
    """Answer scrapes on a thread; gives the port (chosen by the system for 0) and what ends it.

    Raises OperatorError: the extra is not installed, or the port is taken.
    """
    with optional_part("the endpoint of metrics", "metrics"):
        from prometheus_client import CollectorRegistry, start_http_server
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise OperatorError(
            f"metrics cannot be served on {address}:{port}: {error.strerror}",
            hint="another process listens there: choose another --metrics-port"
            if taken
            else "choose an address of this machine with --metrics-address",
        ) from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, end
