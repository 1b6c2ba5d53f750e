"""Rounds of upkeep beside a running capture: each is a process of its own, of low priority.

A merge decodes and encodes, which needs memory and the interpreter; in the capturing process it would take both from
the stream. A round that is due costs the start of a process; whether it is due costs one look at the catalog.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tailrace.eventstore.errors import Fenced, TransientError

if TYPE_CHECKING:
    from tailrace.config.load import Configuration
    from tailrace.eventstore.store import Store

_NICENESS = 10
_OVERTAKEN = (Fenced.exit_code, TransientError.exit_code)  # another process is at it
_STOP_SECONDS = 10.0


@contextmanager
def upkeep_rounds(store: Store, configuration: Configuration, say: Callable[[str], None]) -> Iterator[None]:
    """Runs a round of upkeep whenever one is due, until it is left; then a running round is stopped, which the next one
    finishes. A failure is reported once as long as it stays the same, and capture goes on."""
    if not store.settings.upkeep.every_seconds:
        yield
        return
    from tailrace.eventstore.maintenance.rounds import is_due  # not in the thread, beside what others import

    stop = threading.Event()
    schedule = _UpkeepSchedule(store, configuration, say, stop, is_due)
    thread = threading.Thread(target=schedule.run, name="upkeep", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        schedule.end()
        thread.join()


class _UpkeepSchedule:
    """Life: idle, until ``every_seconds`` pass and a round is due; then one child process; idle again when it ends.
    ``end`` stops both: no round begins any more, and the child is terminated, or killed after ``_STOP_SECONDS``."""

    def __init__(
        self,
        store: Store,
        configuration: Configuration,
        say: Callable[[str], None],
        stop: threading.Event,
        is_due: Callable[[Store], bool],
    ) -> None:
        self._store = store
        self._configuration = configuration
        self._say = say
        self._stop = stop
        self._is_due = is_due
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._said = ""

    def run(self) -> None:
        while not self._stop.wait(self._store.settings.upkeep.every_seconds):
            with suppress(TransientError):  # the catalog is out of reach: capture says so, and tries again
                if self._is_due(self._store):
                    self._round()

    def _round(self) -> None:
        with self._lock:
            if self._stop.is_set():
                return
            self._child = child = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, child.pid, _NICENESS)
        _, error = child.communicate()
        self._child = None
        message = "" if self._stop.is_set() else _failure(child.returncode, error)
        if message and message != self._said:
            self._say(f"upkeep failed, capture goes on: {message}")
        self._said = message

    def _command(self) -> list[str]:
        environment = ["--env", self._configuration.env] if self._configuration.env else []
        options = ["--config", str(self._configuration.path), *environment]
        return [sys.executable, "-m", "tailrace", *options, "store", "maintain"]

    def end(self) -> None:
        with self._lock:
            child = self._child
        if child is None:
            return
        with suppress(ProcessLookupError):
            child.terminate()
        try:
            child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()


def _failure(code: int, error: str) -> str:
    """Why a round that ended with ``code`` failed; "" when it did not."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return "" if code in (0, *_OVERTAKEN) else error[max(error.find("error: "), 0) :].strip()
