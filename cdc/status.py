"""The status of a running capture: counters that its threads write, read as one frozen value."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

log = logging.getLogger("tailrace.capture")
_MESSAGES_MAX = 50
_TEXT_MAX = 2000  # characters of one
# Sessions that commit together take their times in another order than their commits. More is a clock that was set.
_CLOCK_STEP = timedelta(minutes=1)
_REPORTED_MAX = 10_000  # that are said once; then they are said again


class CapturePhase(StrEnum):
    STARTING = "starting"
    LOADING = "first load"
    STREAMING = "streaming"
    RECONNECTING = "reconnecting"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """One moment of a capture. LSNs are 0 before they are known; ``lag_bytes`` is WAL the server has and the log has
    not; ``pending_tables`` match the patterns but are not captured; ``loading`` are topics whose first load runs or
    waits. ``refused`` counts logical messages with a prefix of
    Tailrace's that were not its own, by kind. ``messages`` are the latest reports, oldest first."""

    source: str
    phase: CapturePhase
    epochs: int
    transactions: int
    changes: int
    received_lsn: int
    durable_lsn: int
    confirmed_lsn: int
    server_lsn: int
    commit_ts: datetime | None
    queued_bytes: int
    loading: tuple[str, ...]
    loaded_rows: int
    load_rows_expected: int
    load_rows_per_second: float
    pending_tables: tuple[str, ...]
    ignored: tuple[tuple[str, int], ...]
    refused: tuple[tuple[str, int], ...]
    messages: tuple[str, ...]
    # Of a source that is no database: records that it has and the log has not; rows that the log had when they came.
    lag_records: int | None = None
    repeated_rows: int | None = None

    @property
    def lag_bytes(self) -> int:
        return max(0, self.server_lsn - self.durable_lsn)


class CaptureProgress:
    """The counters behind ``CaptureStatus``. Every method may be called from any thread."""

    def __init__(self, source: str) -> None:
        self._lock = threading.Lock()
        self._source = source
        self._phase = CapturePhase.STARTING
        self._epochs = self._transactions = self._changes = 0
        self._received = self._durable = self._confirmed = self._server = self._queued = 0
        self._commit_ts: datetime | None = None
        self._clock_ahead = False
        self._loading: tuple[str, ...] = ()
        self._loaded_rows = self._expected_rows = 0
        self._rate = 0.0
        self._pending: tuple[str, ...] = ()
        self._ignored: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._messages: list[str] = []
        self._lag_records: int | None = None
        self._repeated_rows: int | None = None
        self._reported: set[str] = set()

    def set_phase(self, phase: CapturePhase) -> None:
        with self._lock:
            self._phase = phase

    def add_epochs(self, *, epochs: int, transactions: int, changes: int, commit_ts: datetime | None) -> None:
        """``commit_ts``: of the last transaction; None where there was none."""
        with self._lock:
            self._epochs += epochs
            self._transactions += transactions
            self._changes += changes
            before, self._commit_ts = self._commit_ts, commit_ts or self._commit_ts
        if commit_ts is not None:
            self._report_clock(before, commit_ts)

    def _report_clock(self, before: datetime | None, commit_ts: datetime) -> None:
        """What reads commit times believes the source's clock. One that is ahead is reported once, and again after it
        was right."""
        now = datetime.now(UTC)
        if before is not None and before - commit_ts > _CLOCK_STEP:
            self.report(
                f"commit times went back from {before:%Y-%m-%dT%H:%M:%SZ} to {commit_ts:%Y-%m-%dT%H:%M:%SZ}: the"
                " source's clock was set. `as of` a time between the two means the position before the first later"
                " commit, so name an epoch or an LSN instead; policies by age count from commit times",
                again=True,
            )
        ahead = commit_ts - now > _CLOCK_STEP
        if ahead and not self._clock_ahead:
            self.report(
                f"the source's clock is ahead of this host's: a commit says {commit_ts:%Y-%m-%dT%H:%M:%SZ} at"
                f" {now:%Y-%m-%dT%H:%M:%SZ}. Lags in seconds are too small, and `as of` a later time is refused",
                again=True,
            )
        self._clock_ahead = ahead

    def set_position(
        self,
        *,
        received: int = 0,
        durable: int = 0,
        confirmed: int = 0,
        server: int = 0,
        queued: int | None = None,
    ) -> None:
        """Move what is known of positions; they never go back within a capture."""
        with self._lock:
            self._received = max(self._received, received)
            self._durable = max(self._durable, durable)
            self._confirmed = max(self._confirmed, confirmed)
            self._server = max(self._server, server, received)
            self._queued = self._queued if queued is None else queued

    def set_load(self, topics: Iterable[str], rows: int = 0, expected: int = 0, rate: float = 0.0) -> None:
        with self._lock:
            self._loading = tuple(topics)
            self._loaded_rows, self._expected_rows, self._rate = rows, expected, rate

    def set_lag(self, records: int) -> None:
        with self._lock:
            self._lag_records = records

    def add_repeated(self, rows: int) -> None:
        with self._lock:
            self._repeated_rows = (self._repeated_rows or 0) + rows

    def set_pending(self, tables: Iterable[str]) -> None:
        with self._lock:
            self._pending = tuple(tables)

    def add_ignored(self, counts: Counter[str]) -> None:
        if not counts:
            return
        with self._lock:
            new = [reason for reason in counts if reason not in self._ignored]
            self._ignored.update(counts)
        for reason in new:
            self.report(f"not captured: {reason}")

    def add_refused(self, counts: Counter[str], *, quiet: str) -> None:
        """Count messages that were not believed. The first of each kind but ``quiet`` is reported."""
        if not counts:
            return
        with self._lock:
            self._refused.update(counts)
        for kind in counts:
            if kind != quiet:
                self.report(
                    f"not believed: {kind}; some role of the source emits them, and they have no effect"
                )

    def report(self, text: str, *, again: bool = False) -> None:
        """Report something once (``again``: each time) in the log and in the status. No values of rows, no secrets."""
        text = _shortened(text)
        with self._lock:
            if text in self._reported and not again:
                return
            if len(self._reported) >= _REPORTED_MAX:
                self._reported.clear()
            self._reported.add(text)
            self._messages = [*self._messages, text][-_MESSAGES_MAX:]
        log.warning("source %s: %s", self._source, text)

    def note(self, text: str) -> None:
        """Log what goes as planned."""
        log.info("source %s: %s", self._source, _shortened(text))

    def status(self) -> CaptureStatus:
        with self._lock:
            return CaptureStatus(
                source=self._source,
                phase=self._phase,
                epochs=self._epochs,
                transactions=self._transactions,
                changes=self._changes,
                received_lsn=self._received,
                durable_lsn=self._durable,
                confirmed_lsn=self._confirmed,
                server_lsn=self._server,
                commit_ts=self._commit_ts,
                queued_bytes=self._queued,
                loading=self._loading,
                loaded_rows=self._loaded_rows,
                load_rows_expected=self._expected_rows,
                load_rows_per_second=self._rate,
                pending_tables=self._pending,
                ignored=tuple(sorted(self._ignored.items())),
                refused=tuple(sorted(self._refused.items())),
                messages=tuple(self._messages),
                lag_records=self._lag_records,
                repeated_rows=self._repeated_rows,
            )


def _shortened(text: str) -> str:
    """Others choose names and errors in it, and how many there are."""
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"
