"""Waiting for other sessions of the source: ends when the work is stopped, and says after a while who is in the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from psycopg import Connection

from tailrace.cdc.context import Task
from tailrace.cdc.postgres.slot import longest_transaction

Row = tuple[object, ...]
_TELL_AFTER_SECONDS = 5.0


def for_transactions(task: Task, control: Connection[Row], what: str = "the new slot") -> Callable[[], None]:
    """Called while ``what`` waits for running transactions to end. Raises Stopped."""

    def told() -> str:
        who = longest_transaction(control, task.address)
        return f"{what} waits until running transactions have ended; {who}" if who else ""

    return partial(_Waiting(task), told)


def for_locks(task: Task) -> Callable[[str], None]:
    """Called with what the server said while locks of tables are not to be had. Raises Stopped."""
    waiting = _Waiting(task)
    return lambda said: waiting(lambda: f"reading waits for another session to end: {said}")


class _Waiting:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._tell_at = time.monotonic() + _TELL_AFTER_SECONDS

    def __call__(self, told: Callable[[], str]) -> None:
        self._task.require_going()
        if time.monotonic() >= self._tell_at:
            self._tell_at = float("inf")
            if text := told():
                self._task.progress.tell(text, again=True)
