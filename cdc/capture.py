"""Capture: first load, then stream after stream, until it is stopped, fenced, or somebody has to act."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tailrace.cdc.context import Task
from tailrace.cdc.postgres.errors import RowTooLarge, SlotActive
from tailrace.cdc.postgres.publication import Publication
from tailrace.cdc.recording.recorder import Recorder
from tailrace.cdc.setup.continuity import check_start
from tailrace.cdc.snapshot.copy import TableChanged
from tailrace.cdc.snapshot.first_load import first_load
from tailrace.cdc.status import CaptureStatus, Phase
from tailrace.cdc.stream.session import Session, Way
from tailrace.cdc.topics import TopicsChanged
from tailrace.eventstore.errors import Fenced, OperatorError, TransientError
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.settings import SourceSettings
from tailrace.eventstore.store import Store

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
_REPORT_SECONDS = 0.5
_ACTIVE_SECONDS = 5.0  # a killed capture's server process takes a moment to notice


class Backoff:
    """Pauses that double from 0.2 s to 10 s, each shortened by up to half at random, so that many captures do not
    come back at one moment. An attempt that lasted longer than the longest pause was a success: the next pause is the
    first one again."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE

    def pause(self, lasted: float, chance: float) -> float:
        """Seconds to wait after an attempt that ended ``lasted`` seconds after it began; ``chance`` in [0, 1)."""
        if lasted > LONGEST_PAUSE:
            self._pause = FIRST_PAUSE
        chosen = self._pause * (0.5 + chance / 2)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return chosen


class Capture:
    """Captures one source into a store. ``report`` is called about twice a second, from the thread of ``run``.
    ``record``: a new file that gets what the stream brings (``tailrace.cdc.recording.file``)."""

    def __init__(
        self,
        store: Store,
        name: str,
        settings: SourceSettings,
        *,
        stop: threading.Event,
        report: Callable[[CaptureStatus], None] | None = None,
        record: Path | None = None,
    ) -> None:
        self._task = Task.of(store, name, settings, stop=stop)
        self._store = store
        self._stop = stop
        self._report = report
        self._progress = self._task.progress
        self._reported_at = 0.0
        self._way = Way.AS_SET
        self._term = 0
        self._record = record
        self._recorder: Recorder | None = None

    @property
    def status(self) -> CaptureStatus:
        return self._progress.status()

    def run(self) -> None:
        """Returns after a clean stop. Raises OperatorError (somebody must act), Fenced, UsageError; TransientError
        only before the first connection succeeded: later ones are tried again for ever, with pauses."""
        try:
            self._run()
        finally:
            if self._recorder is not None:
                self._recorder.close()

    def _run(self) -> None:
        self._store.collect_orphans()
        backoff, reached, active_since = Backoff(), False, None
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._once()
                reached = True
                continue
            except TopicsChanged as error:
                self._progress.note(f"a new session begins: {error.message}")
                reached = True
                self._stop.wait(FIRST_PAUSE)
                continue
            except SlotActive as error:
                self._require_term(error)
                active_since = active_since or began
                if not self._term and time.monotonic() - active_since > _ACTIVE_SECONDS:
                    raise
            except TableChanged as error:
                self._progress.note(error.message)
                self._stop.wait(FIRST_PAUSE)
                continue
            except TransientError as error:
                if not (reached or self._progress.status().phase is not Phase.STARTING):
                    raise
                self._progress.tell(f"{error.message}; trying again", again=True)
            lasted = time.monotonic() - began
            if lasted > LONGEST_PAUSE:
                active_since = None
            self._progress.phase(Phase.RECONNECTING)
            self._tick(force=True)
            self._stop.wait(backoff.pause(lasted, random.random()))
        self._progress.phase(Phase.STOPPED)
        self._tick(force=True)

    def _once(self) -> None:
        state, publication = check_start(self._store, self._task.name, self._task.address)
        if not state.loaded:
            if publication is None:
                raise OperatorError(
                    f"there is no publication {state.publication} in {self._task.address.text}",
                    hint="run `tailrace init` first",
                )
            self._term = first_load(self._task, state, publication, self._tick)
            state, publication = check_start(self._store, self._task.name, self._task.address)
        way = self._way
        try:
            self._stream(state, publication)
        except RowTooLarge as error:
            self._way = self._way_around(way, error)

    def _stream(self, state: SourceState, publication: Publication | None) -> None:
        if self._record is not None and self._recorder is None:
            self._recorder = Recorder(self._record, state, self._task.policies, self._progress)
        session = Session(self._task, self._tick, self._way, self._recorder)
        try:
            session.run(state, publication)
        finally:
            if session.term:  # it did begin
                self._term, self._way = session.term, Way.AS_SET

    def _way_around(self, way: Way, error: RowTooLarge) -> Way:
        """How to get past a row that could not be sent. Raises the error when there is no way left."""
        other = way.after_too_large(self._task.settings.protocol)
        if other is None:
            raise error
        if other is Way.BINARY:
            self._progress.tell(
                "a row is too large for the server to send it as text; its transaction is fetched in binary, which "
                "needs several times the row's size of memory",
                again=True,
            )
        return other

    def _require_term(self, error: SlotActive) -> None:
        """The slot is taken: by a capture that took over since our last session, or by our own dead connection."""
        state = self._store.source(self._task.name)
        if self._term and state is not None and state.term != self._term:
            raise Fenced(
                f"source {self._task.name!r} has another writer now; term {self._term} is over",
                hint="two captures of one source run; stop one of them",
            ) from error

    def _tick(self, *, force: bool = False) -> None:
        if self._report is None:
            return
        now = time.monotonic()
        if force or now - self._reported_at >= _REPORT_SECONDS:
            self._reported_at = now
            self._report(self._progress.status())
