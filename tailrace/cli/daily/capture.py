"""``tailrace capture``: tail sources into the log until stopped, or until caught up."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.daily.capture_memory import keep_small
from tailrace.cli.daily.kafka import KafkaGoal
from tailrace.cli.errors import INTERRUPTED
from tailrace.cli.invocation import invocation_of, stop_on_signals
from tailrace.cli.progress import StepProgress
from tailrace.eventstore.errors import TransientError, UsageError
from tailrace.terminal import Output, Progress, count, size
from tailrace.upkeep import upkeep_rounds

if TYPE_CHECKING:
    from tailrace.cdc.capture import Capture
    from tailrace.cdc.kafka.capture import KafkaCapture
    from tailrace.cdc.status import CaptureStatus
    from tailrace.eventstore.model.topic import TopicId
    from tailrace.eventstore.settings import PostgresSourceSettings, SourceSettings
    from tailrace.eventstore.store import Store

POLL_SECONDS = 0.2
GOAL_SECONDS = 1.0  # between questions to the server whether tables can be loaded
REPORT_SECONDS = 1.0  # JSON lines and the watched line
NAMES_SHOWN = 20  # of a source's tables, of which there may be thousands


def metrics_port_option(setting: str) -> Any:
    """``--metrics-port``, in place of a setting."""
    return typer.Option(
        "--metrics-port",
        metavar="PORT",
        min=0,
        max=65535,
        show_default=False,
        help=f"Serve Prometheus metrics there. Default: {setting} of the configuration.",
    )


MetricsAddressOption = Annotated[
    str | None,
    typer.Option(
        "--metrics-address",
        metavar="IP",
        show_default=False,
        help="Address that metrics are served on. Default: metrics.address of the configuration, else 127.0.0.1.",
    ),
]


def capture(
    context: typer.Context,
    sources: Annotated[list[str] | None, typer.Argument(help="Default: all.", show_default=False)] = None,
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle", "--once", help="Stop when the log holds all that the server has committed by now."
        ),
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", min=0, help="Stop after this time.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FILE",
            help="Also record the stream in a new file (`tailrace source replay` decodes it).",
            show_default=False,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        metrics_port_option("metrics.port"),
    ] = None,
    metrics_address: MetricsAddressOption = None,
) -> int:
    """Take the first load, then tail the write-ahead log until stopped (SIGTERM or Ctrl-C)."""
    from tailrace.metrics.capture import Collector, metrics_server

    keep_small()
    invocation = invocation_of(context)
    if not invocation.output.json:
        _ = invocation.output.err  # imported here: captures log from threads of their own
    selected = invocation.sources(sources)
    if record is not None and len(selected) > 1:
        raise UsageError(
            "a recording is of one source", hint="name one: tailrace capture SOURCE --record FILE"
        )
    if record is not None and record.exists():
        raise UsageError(f"{record} exists already; recordings are not overwritten", hint="name another file")
    metrics = invocation.settings.metrics
    if metrics_port is None and not until_idle and seconds is None:
        metrics_port = metrics.port  # a capture that ends soon runs beside one that stays
    with invocation.store() as store:
        running = RunningCaptures(store, selected, record)
        collector = Collector(store, selected, running.statuses)
        goals = [_goal(store, name, settings) for name, settings in selected] if until_idle else None
        with (
            metrics_server(
                collector, metrics_port, metrics_address or metrics.address, invocation.output.note
            ),
            upkeep_rounds(store, invocation.configuration, invocation.output.note),
            stop_on_signals(running.stop) as interrupted,
            invocation.output.progress("capture") as progress,
        ):
            running.start()
            watch(running, invocation.output, progress, goals=goals, seconds=seconds)
        running.finish()
        final = running.statuses()
    if invocation.output.json:
        for status in final:
            invocation.output.document(as_document(status))
    else:
        for status in final:
            invocation.output.note(f"stopped: {summary(status)}")
    return INTERRUPTED if interrupted.is_set() else 0


class RunningCaptures:
    """One capture per source, each on a thread of its own; the first that fails stops the others."""

    def __init__(
        self, store: Store, sources: Sequence[tuple[str, SourceSettings]], record: Path | None = None
    ) -> None:
        self.stop = threading.Event()
        self.store = store
        self._latest: dict[str, CaptureStatus] = {}
        self._captures = {name: self._capture(store, name, settings, record) for name, settings in sources}
        self._pool = ThreadPoolExecutor(len(self._captures), thread_name_prefix="capture")
        self._futures: list[Future[None]] = []

    def _capture(
        self, store: Store, name: str, settings: SourceSettings, record: Path | None
    ) -> Capture | KafkaCapture:
        if settings.kind == "postgres":
            from tailrace.cdc.capture import Capture

            return Capture(store, name, settings, stop=self.stop, report=self._note_status, record=record)
        from tailrace.cdc.kafka.capture import KafkaCapture

        if record is not None:
            raise UsageError(
                f"{name} is of the kind kafka, whose records stay in Kafka", hint="leave --record out"
            )
        return KafkaCapture(store, name, settings, stop=self.stop, report=self._note_status)

    def start(self) -> None:
        for each in self._captures.values():
            future = self._pool.submit(each.run)
            future.add_done_callback(lambda _: self.stop.set())
            self._futures.append(future)

    def finish(self) -> None:
        """Wait for the captures to end. Raises what the first failed one raised."""
        self.stop.set()
        self._pool.shutdown()
        for future in self._futures:
            future.result()

    def statuses(self) -> list[CaptureStatus]:
        return [self._latest[name] for name in self._captures if name in self._latest]

    def _note_status(self, status: CaptureStatus) -> None:
        self._latest[status.source] = status


def _goal(store: Store, name: str, settings: SourceSettings) -> Goal | KafkaGoal:
    if settings.kind == "kafka":
        return KafkaGoal.at_end(store, name, settings)
    return Goal.at_server_end(store, name, settings)


@dataclass(slots=True)
class Goal:
    """All commits of a source below ``lsn``, and all its topics loaded whose tables can be read."""

    store: Store
    source: str
    settings: PostgresSourceSettings
    lsn: int
    unloadable: Sequence[str] = ()
    """Notes on the topics that are not loaded, once the goal is reached."""
    _looked_at: float = field(default=float("-inf"), init=False)

    @classmethod
    def at_server_end(cls, store: Store, source: str, settings: PostgresSourceSettings) -> Goal:
        """Where the server's WAL ends now. Raises TransientError when it is out of reach."""
        from tailrace.status import server_flush_lsn

        lsn = server_flush_lsn(settings.dsn.get_secret_value())
        if lsn is None:
            raise TransientError(
                f"the server of source {source} is out of reach",
                hint="tailrace doctor says why; then try again",
            )
        return cls(store, source, settings, lsn)

    def is_reached(self) -> bool:
        """Quarantined topics count only while a retry is requested; topics without a table never."""
        state = self.store.source(self.source)
        if state is None or not state.loaded or state.through_lsn < self.lsn:
            return False
        waiting = self._incomplete()
        if waiting and time.monotonic() - self._looked_at < GOAL_SECONDS:
            return False
        self._looked_at = time.monotonic()
        self.unloadable = self._unloadable_notes(waiting, state.publication) if waiting else ()
        return len(self.unloadable) == len(waiting)

    def _incomplete(self) -> list[TopicId]:
        from tailrace.eventstore.metadata.quarantine import quarantined_topics

        in_quarantine = {each.topic for each in quarantined_topics(self.store.catalog, self.source)}
        in_quarantine -= {request.topic for request in self.store.requests.list_open(self.source, "retry")}
        topics = self.store.topics(self.source)
        return [
            topic.id
            for topic in topics
            if topic.complete_since is None and not topic.is_retired and topic.id not in in_quarantine
        ]

    def _unloadable_notes(self, topics: Sequence[TopicId], name: str) -> list[str]:
        """Notes on topics that no session would load, by the server's tables and its publication."""
        from tailrace.cdc.postgres.connect import Address, connect
        from tailrace.cdc.postgres.publication import read_publication
        from tailrace.cdc.postgres.tables import read_tables
        from tailrace.cdc.setup.table_changes import loadable_tables
        from tailrace.cdc.topics import Topics

        address = Address.of(self.settings)
        try:
            with connect(address, "tailrace capture") as connection:
                publication = read_publication(connection, name, address)
                tables = read_tables(connection, address)
        except TransientError:  # the capture tries again, too
            return []
        loadable = set(loadable_tables(Topics.read(self.store, self.source), publication, tables).values())
        return [
            f"{topic.text} cannot be loaded: its table is not there, or not published (tailrace init)"
            for topic in topics
            if topic not in loadable
        ]


def watch(
    running: RunningCaptures,
    output: Output,
    progress: Progress,
    *,
    goals: Sequence[Goal | KafkaGoal] | None,
    seconds: float | None,
) -> None:
    """Report until the captures are to stop."""
    started = time.monotonic()
    said_at = started
    while not running.stop.wait(POLL_SECONDS):
        now = time.monotonic()
        if seconds is not None and now - started >= seconds:
            return
        if goals is not None and all(goal.is_reached() for goal in goals):
            for text in (text for goal in goals for text in goal.unloadable):
                output.note(text)
            return
        if now - said_at >= REPORT_SECONDS:
            said_at = now
            for status in running.statuses():
                load = load_progress(status)
                progress.say(summary(status), **as_document(status), **(load.facts() if load else {}))


def summary(status: CaptureStatus) -> str:
    """A status on one line."""
    parts = [f"{status.source} {status.phase}"]
    load = load_progress(status)
    if load is not None:
        share = "" if load.total is None else f" of about {load.total:,}"
        tables = count(len(status.loading), "table")
        parts.append(f"{load.done:,}{share} rows of {tables}{load.pace('{:,.0f}'.format)}")
    done = f"{count(status.transactions, 'transaction')}, {count(status.changes, 'change')}"
    parts.append(f"{done} in {count(status.epochs, 'epoch')}")
    if status.lag_records is None:
        parts.append(f"{size(status.lag_bytes)} behind")
    else:
        parts.append(f"{count(status.lag_records, 'record')} behind")
    if status.pending_tables:
        shown = ", ".join(status.pending_tables[:NAMES_SHOWN])
        more = len(status.pending_tables) - NAMES_SHOWN
        rest = f" and {more:,} more" if more > 0 else ""
        parts.append(f"not captured yet: {shown}{rest} (tailrace init)")
    return "; ".join(parts)


def load_progress(status: CaptureStatus) -> StepProgress | None:
    """The load under way. No time is left when the server's estimate was too low."""
    if not status.loading:
        return None
    rate = status.load_rows_per_second or None
    left = max(status.load_rows_expected - status.loaded_rows, 0) / rate if rate else None
    return StepProgress("loading", status.loaded_rows, status.load_rows_expected or None, "rows", rate, left)


def as_document(status: CaptureStatus) -> dict[str, object]:
    """A status for JSON: LSNs as text. Of names as many as a record that comes every few seconds should have."""
    from dataclasses import asdict

    from tailrace.eventstore.model.position import format_lsn

    document = asdict(status)
    for name in ("received_lsn", "durable_lsn", "confirmed_lsn", "server_lsn"):
        document[name] = format_lsn(document[name])
    for name in ("loading", "pending_tables"):
        document[f"{name}_count"] = len(document[name])
        document[name] = document[name][:NAMES_SHOWN]
    document["ignored"] = dict(status.ignored)
    document["refused"] = dict(status.refused)
    document["lag_bytes"] = status.lag_bytes
    return document
