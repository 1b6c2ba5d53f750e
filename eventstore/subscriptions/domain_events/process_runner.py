"""A process manager that follows the log: each event and each timer once, a failing instance by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tailrace.eventstore.streams.deciding.transactions import TransactionOwner
from tailrace.eventstore.streams.reacting.manager import ProcessManager
from tailrace.eventstore.streams.reacting.react import fire_timer, react
from tailrace.eventstore.streams.recorded import Recorded
from tailrace.eventstore.subscriptions.group import Group
from tailrace.eventstore.subscriptions.rows.changes import Change

_POLL_SECONDS = 0.25


class ProcessRunner:
    """Runs one process manager as a member of a consumer group. ``stop`` ends it, from any thread."""

    def __init__(
        self,
        group: Group,
        manager: ProcessManager[Any, Any],
        owner: TransactionOwner,
        *,
        member: str | None = None,
        attempts: int = 5,
    ) -> None:
        self._group = group
        self._manager = manager
        self._owner = owner
        self._member = member
        self._attempts = attempts
        self._stop = threading.Event()
        self._end: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """End after what is being done."""
        self._stop.set()
        self._end()

    def run(self, timeout: float | None = None) -> None:
        """Until ``stop``, or until no event came and no timer was due for ``timeout`` seconds. Raises errors of the
        database, of the log, and of timers' looks at the database."""
        with (
            self._group.join(self._member, events=list(self._manager.key)) as member,
            ThreadPoolExecutor(1, "timers") as pool,
        ):
            self._end = member.stop
            if self._stop.is_set():
                return
            timers = pool.submit(self._fire, member.stop)
            try:
                member.process(self._react, attempts=self._attempts, timeout=timeout)
            finally:
                self._stop.set()
            timers.result()

    def _react(self, value: Change | Recorded[Any]) -> None:
        assert isinstance(value, Recorded)  # its topics are those of events
        react(self._owner, self._manager, value)

    def _fire(self, end: Callable[[], None]) -> None:
        try:
            while True:
                last = self._stop.is_set()
                while fire_timer(self._owner, self._manager, self._attempts):
                    pass
                if last:
                    return
                self._stop.wait(_POLL_SECONDS)
        except BaseException:
            end()
            raise
