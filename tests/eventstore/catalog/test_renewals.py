"""Leases of a process are renewed by one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tailrace.eventstore.catalog.renewals import Renewals

_PATIENCE = 20.0


class Calls:
    """Counts calls, each of which may last."""

    def __init__(self, lasts: float = 0.0) -> None:
        self.count, self.threads = 0, set[str]()
        self.under_way = threading.Event()
        self._lasts = lasts

    def __call__(self) -> None:
        self.under_way.set()
        self.threads.add(threading.current_thread().name)
        time.sleep(self._lasts)
        self.count += 1


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_each_is_renewed_again_and_again_by_one_thread_until_its_end() -> None:
    renewals, many = Renewals(), [Calls() for _ in range(5)]
    late, first = Calls(), Calls()
    with renewals.every(3600, late), ExitStack() as held:
        for calls in many:
            held.enter_context(renewals.every(0.02, calls))
        _until(lambda: all(calls.count >= 3 for calls in many))
        with renewals.every(0.001, first):
            _until(lambda: first.count >= 3)
        ended = first.count
        _until(lambda: all(calls.count >= 6 for calls in many))
        assert first.count == ended and late.count == 0
    assert set().union(*(calls.threads for calls in (*many, first))) == {"lease-renewals"}


def test_no_call_is_under_way_at_the_end() -> None:
    renewals, slow = Renewals(), Calls(lasts=0.3)
    with renewals.every(0.001, slow):
        assert slow.under_way.wait(_PATIENCE)
    assert slow.count >= 1
    count = slow.count
    time.sleep(0.4)
    assert slow.count == count


def test_one_that_fails_leaves_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    renewals, calls = Renewals(), Calls()

    def fail() -> None:
        raise ValueError("no such lease")

    with renewals.every(0.001, fail), renewals.every(0.01, calls):
        _until(lambda: calls.count >= 3)
    assert "a lease could not be renewed" in caplog.text


def test_the_thread_ends_when_nothing_is_held_and_another_begins() -> None:
    renewals, threads = Renewals(), set[threading.Thread]()

    def renew() -> None:
        threads.add(threading.current_thread())

    for count in (1, 2):
        with renewals.every(0.01, renew):
            _until(lambda count=count: len(threads) == count)  # type: ignore[misc]
        _until(lambda: not any(thread.is_alive() for thread in threads))
