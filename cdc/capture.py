"""Capture: first load, then stream after stream, until it is stopped, fenced, or somebody has to act."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tailrace.cdc.backoff import FIRST_PAUSE, LONGEST_PAUSE, Backoff
from tailrace.cdc.context import Task
from tailrace.cdc.postgres.errors import RowTooLarge, SlotActive
from tailrace.cdc.postgres.publication import Publication
from tailrace.cdc.recording.recorder import Recorder
from tailrace.cdc.setup.continuity import check_start
from tailrace.cdc.snapshot.copy import TableChanged
from tailrace.cdc.snapshot.first_load import first_load
from tailrace.cdc.status import CapturePhase, CaptureStatus
from tailrace.cdc.stream.session import Session, TransferMode
from tailrace.cdc.topics import TopicsChanged
from tailrace.eventstore.catalog.leases import capture_lease
from tailrace.eventstore.compiled.compiler import load_compiler
from tailrace.eventstore.errors import Fenced, OperatorError, TransientError
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.settings import PostgresSourceSettings
from tailrace.eventstore.store import Store

_REPORT_SECONDS = 0.5
_ACTIVE_SECONDS = 5.0  # a killed capture's server process takes a moment to notice


class Capture:
    """Captures one source into a store. ``report`` is called about twice a second, from the thread of ``run``.
    ``record``: a new file that gets what the stream brings (``tailrace.cdc.recording.file``).

        starting      until the first session runs
        loading       the source's first load, when the log does not have it yet
        streaming     one session; ``_ENDS`` says what follows each way in which it can end
        reconnecting  a pause, then the next session
        stopped       ``stop`` was set
    """

    def __init__(
        self,
        store: Store,
        name: str,
        settings: PostgresSourceSettings,
        *,
        stop: threading.Event,
        report: Callable[[CaptureStatus], None] | None = None,
        record: Path | None = None,
    ) -> None:
        store.catalog.require_writable()  # before the server is asked for anything
        load_compiler()  # in the thread that makes the captures, before any of them runs
        self._task = Task.of(store, name, settings, stop=stop)
        self._store = store
        self._stop = stop
        self._report = report
        self._progress = self._task.progress
        self._reported_at = 0.0
        self._mode = TransferMode.CONFIGURED
        self._term = 0
        self._backoff = Backoff()
        self._reached = False  # a session has run
        self._slot_active_since: float | None = None
        self._record = record
        self._recorder: Recorder | None = None

    @property
    def status(self) -> CaptureStatus:
        return self._progress.status()

    def run(self) -> None:
        """Returns after a clean stop. Raises OperatorError (somebody must act), Fenced, UsageError; TransientError
        only before the first connection succeeded: later ones are tried again for ever, with pauses."""
        with capture_lease(self._store.catalog, self._task.name):
            self._run()

    def _run(self) -> None:
        try:
            self._store.collect_orphans()
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    self._once()
                    self._reached = True
                except (SlotActive, TransientError) as error:
                    if not self._go_on(error, began):
                        raise
            self._progress.set_phase(CapturePhase.STOPPED)
            self._tick(force=True)
        finally:
            if self._recorder is not None:
                self._recorder.close()

    def _go_on(self, error: SlotActive | TransientError, began: float) -> bool:
        """Say why a session ended and pause before the next one. False: the error ends the capture. Raises Fenced."""
        end = next(end for end in _ENDS if isinstance(error, end.error))
        if end.is_final(self, error, began):
            return False
        if end.note:
            self._progress.note(end.note.format(error.message))
        if end.message:
            self._progress.report(end.message.format(error.message), again=True)
        if not end.reconnects:
            self._stop.wait(FIRST_PAUSE)
            return True
        lasted = time.monotonic() - began
        if lasted > LONGEST_PAUSE:
            self._slot_active_since = None
        self._progress.set_phase(CapturePhase.RECONNECTING)
        self._tick(force=True)
        self._stop.wait(self._backoff.pause(lasted, random.random()))
        return True

    def _restart_for_topics(self, error: SlotActive | TransientError, began: float) -> bool:
        self._reached = True
        return False

    def _slot_is_taken(self, error: SlotActive | TransientError, began: float) -> bool:
        """Another process has the slot. Whether this capture ends: when it never had the slot, and the other has kept
        it for long. One that had it tries on: the other may be its own dead connection. Raises Fenced when another
        capture took the source over since our last session."""
        state = self._store.source(self._task.name)
        if self._term and state is not None and state.term != self._term:
            raise Fenced(
                f"source {self._task.name!r} has another writer now; term {self._term} is over",
                hint="two captures of one source run; stop one of them",
            ) from error
        self._slot_active_since = self._slot_active_since or began
        return not self._term and time.monotonic() - self._slot_active_since > _ACTIVE_SECONDS

    def _is_unreached(self, error: SlotActive | TransientError, began: float) -> bool:
        return not self._reached and self._progress.status().phase is CapturePhase.STARTING

    def _once(self) -> None:
        state, publication = check_start(self._store, self._task.name, self._task.address)
        if not state.loaded:
            if publication is None:
                raise OperatorError(
                    f"there is no publication {state.publication} in {self._task.address.text}",
                    hint="run `tailrace init` first",
                )
            self._term = first_load(self._task.with_history(), state, publication, self._tick)
            state, publication = check_start(self._store, self._task.name, self._task.address)
        mode = self._mode
        try:
            self._stream(state, publication)
        except RowTooLarge as error:
            self._mode = self._mode_after(mode, error)

    def _stream(self, state: SourceState, publication: Publication | None) -> None:
        if self._record is not None and self._recorder is None:
            self._recorder = Recorder(
                self._record, state, self._task.policies, self._progress, self._task.settings.events_schema
            )
        session = Session(self._task, self._tick, self._mode, self._recorder)
        try:
            session.run(state, publication)
        finally:
            if session.term:  # it did begin
                self._term, self._mode = session.term, TransferMode.CONFIGURED

    def _mode_after(self, mode: TransferMode, error: RowTooLarge) -> TransferMode:
        """The mode that gets past a row that could not be sent. Raises the error when there is none left."""
        other = mode.after_too_large(self._task.settings.protocol)
        if other is None:
            raise error
        if other is TransferMode.BINARY:
            self._progress.report(
                "a row is too large for the server to send it as text; its transaction is fetched in binary, which "
                "needs several times the row's size of memory",
                again=True,
            )
        return other

    def _tick(self, *, force: bool = False) -> None:
        if self._report is None:
            return
        now = time.monotonic()
        if force or now - self._reported_at >= _REPORT_SECONDS:
            self._reported_at = now
            self._report(self._progress.status())


@dataclass(frozen=True, slots=True)
class _End:
    """An error that ends a session, what is said of it (``note``: it goes as planned), and what follows: the next
    session after a short pause, or after reconnecting with a backoff. ``is_final``: whether it ends the capture."""

    error: type[SlotActive | TransientError]
    is_final: Callable[[Capture, SlotActive | TransientError, float], bool]
    note: str = ""
    message: str = ""
    reconnects: bool = False


# The first that fits counts. A session that returns is followed by the next one at once; all other errors end the
# capture.
_ENDS = (
    _End(TopicsChanged, Capture._restart_for_topics, note="a new session begins: {}"),
    _End(SlotActive, Capture._slot_is_taken, reconnects=True),
    _End(TableChanged, lambda *_: False, note="{}"),
    _End(TransientError, Capture._is_unreached, message="{}; trying again", reconnects=True),
)
