"""What capture and repair work on: one source, its log and its server, and how others follow and stop the work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from psycopg import Connection

from tailrace.cdc.policy.history import History
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres.connect import Address, Lines
from tailrace.cdc.postgres.slot import longest_transaction
from tailrace.cdc.status import CaptureProgress
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.metadata.partitions import known_partitions
from tailrace.eventstore.metadata.topics import all_schemas
from tailrace.eventstore.settings import PostgresSourceSettings
from tailrace.eventstore.store import Store

Row = tuple[object, ...]
_REPORT_AFTER_SECONDS = 5.0


class Stopped(TransientError):
    """The load was given up because the capture stops; nothing of it is visible."""

    def __init__(self) -> None:
        super().__init__("the load was stopped", hint="the next capture begins it again")


@dataclass(frozen=True, slots=True)
class Task:
    """Work on the source ``name`` of a store, until it is done or ``stop`` is set."""

    store: Store
    name: str
    settings: PostgresSourceSettings
    address: Address
    progress: CaptureProgress
    stop: threading.Event = field(default_factory=threading.Event)
    history: History = field(default_factory=History, repr=False)

    @classmethod
    def of(
        cls,
        store: Store,
        name: str,
        settings: PostgresSourceSettings,
        *,
        progress: CaptureProgress | None = None,
        stop: threading.Event | None = None,
    ) -> Self:
        """Raises UsageError for a dsn that cannot be read."""
        address = Address.of(settings)
        return cls(
            store, name, settings, address, progress or CaptureProgress(name), stop or threading.Event()
        )

    @property
    def policies(self) -> Policies:
        return Policies.of(self.settings).remembering(self.history)

    def with_history(self) -> Self:
        """The same work, with what the log knows now of protected columns."""
        catalog, name = self.store.catalog, self.name
        return replace(self, history=History.of(all_schemas(catalog, name), known_partitions(catalog, name)))

    def with_lines(self, lines: Lines) -> Self:
        """The same work; its ordinary connections can be broken by ``lines``."""
        return replace(self, address=self.address.with_lines(lines))

    def require_going(self) -> None:
        """Raises Stopped."""
        if self.stop.is_set():
            raise Stopped


def transaction_wait(task: Task, control: Connection[Row], what: str = "the new slot") -> Callable[[], None]:
    """A function to call while ``what`` waits for running transactions to end. It raises Stopped, and says after a
    while who is in the way."""

    def describe() -> str:
        who = longest_transaction(control, task.address)
        return f"{what} waits until running transactions have ended; {who}" if who else ""

    return partial(_WaitReport(task), describe)


def lock_wait(task: Task) -> Callable[[str], None]:
    """A function to call with the server's words while locks of tables are not to be had. It raises Stopped."""
    waiting = _WaitReport(task)
    return lambda message: waiting(lambda: f"reading waits for another session to end: {message}")


class _WaitReport:
    """Reports a wait once, when it has lasted a while."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._report_at = time.monotonic() + _REPORT_AFTER_SECONDS

    def __call__(self, describe: Callable[[], str]) -> None:
        self._task.require_going()
        if time.monotonic() >= self._report_at:
            self._report_at = float("inf")
            if text := describe():
                self._task.progress.report(text, again=True)
