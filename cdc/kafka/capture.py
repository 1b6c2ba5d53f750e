"""Capture of a Kafka source: session after session, until it is stopped, fenced, or somebody has to act."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from tailrace.cdc.backoff import FIRST_PAUSE, LONGEST_PAUSE, Backoff
from tailrace.cdc.kafka.decoder import TableDecoder, policies_of
from tailrace.cdc.kafka.epochs.epoch import Decode
from tailrace.cdc.kafka.session import KafkaSession, KafkaTask, TopicsGrew
from tailrace.cdc.policy.history import History
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.status import CapturePhase, CaptureProgress, CaptureStatus
from tailrace.eventstore.catalog.leases import capture_lease, work_lease
from tailrace.eventstore.compiled.compiler import load_compiler
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.metadata.topics import all_schemas
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store

_REPORT_SECONDS = 0.5


class KafkaCapture:
    """Captures one source of the kind kafka into a store. ``report`` is called about twice a second, from the thread of
    ``run``; ``decoder`` is made anew for each session.

        starting      until the first session reads
        streaming     one session; a new one follows at once when topics or partitions came
        reconnecting  a pause, then the next session
        stopped       ``stop`` was set
    """

    def __init__(
        self,
        store: Store,
        name: str,
        settings: KafkaSourceSettings,
        *,
        stop: threading.Event,
        report: Callable[[CaptureStatus], None] | None = None,
        decoder: Callable[[KafkaSourceSettings, Policies], Decode] = TableDecoder.of,
    ) -> None:
        store.catalog.require_writable()  # before a broker is asked for anything
        load_compiler()  # in the thread that makes the captures, before any of them runs
        self._task = KafkaTask(store, name, settings, CaptureProgress(name), stop)
        self._report = report
        self._decoder = decoder
        self._reported_at = 0.0
        self._backoff = Backoff()

    @property
    def status(self) -> CaptureStatus:
        return self._task.progress.status()

    def run(self) -> None:
        """Returns after a clean stop. Raises OperatorError (somebody must act), Fenced (another process captures the
        source), UsageError; TransientError only before the first session reads: later ones are tried again for ever,
        with pauses."""
        task = self._task
        catalog, what = task.store.catalog, f"source {task.name} is captured"
        with work_lease(catalog, {f"kafka:{task.name}": what}, "capture"), capture_lease(catalog, task.name):
            task.store.collect_orphans()
            while not task.stop.is_set():
                self._once()
        task.progress.set_phase(CapturePhase.STOPPED)
        self._tick(force=True)

    def _once(self) -> None:
        """One session, and the pause behind one that failed."""
        task, began = self._task, time.monotonic()
        try:
            known = History.of(all_schemas(task.store.catalog, task.name))
            policies = policies_of(task.settings).remembering(known)
            KafkaSession(task, policies, self._decoder(task.settings, policies), self._tick).run()
        except TopicsGrew as error:
            task.progress.note(f"a new session begins: {error.message}")
            task.stop.wait(FIRST_PAUSE)
        except TransientError as error:
            if task.progress.status().phase is CapturePhase.STARTING:
                raise
            lasted = time.monotonic() - began
            task.progress.report(f"{error.message}; trying again", again=lasted > LONGEST_PAUSE)
            task.progress.set_phase(CapturePhase.RECONNECTING)
            self._tick(force=True)
            task.stop.wait(self._backoff.pause(lasted, random.random()))

    def _tick(self, *, force: bool = False) -> None:
        if self._report is None:
            return
        now = time.monotonic()
        if force or now - self._reported_at >= _REPORT_SECONDS:
            self._reported_at = now
            self._report(self._task.progress.status())
