"""One thread of a process that renews all leases which it holds.

A step of a projection holds a lease for some milliseconds: a thread for each would cost more than the lease.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_log = logging.getLogger("tailrace.catalog")
_IDLE_SECONDS: Final = 1.0
"""For so long the thread waits for more to renew before it ends."""


@dataclass(eq=False, slots=True)
class _Renewal:
    renew: Callable[[], None]
    seconds: float
    due: float


class Renewals:
    """Calls that are made every so many seconds, one at a time, each in turn when it is due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[_Renewal] = set()
        self._under_way: _Renewal | None = None
        self._thread: threading.Thread | None = None
        self._looks_at = 0.0

    @contextmanager
    def every(self, seconds: float, renew: Callable[[], None]) -> Iterator[None]:
        """Inside, ``renew`` is called every so many ``seconds``, for the first time after these. Afterwards no call is
        under way."""
        mine = _Renewal(renew, seconds, time.monotonic() + seconds)
        with self._changed:
            self._held.add(mine)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lease-renewals", daemon=True)
                self._thread.start()
            elif mine.due < self._looks_at:
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(mine)
                while self._under_way is mine:
                    self._changed.wait()

    def _run(self) -> None:
        with self._changed:
            while self._wait_for_due():
                mine = self._under_way = min(self._held, key=lambda each: each.due)
                mine.due = time.monotonic() + mine.seconds
                self._changed.release()
                try:
                    mine.renew()
                except Exception:  # noqa: BLE001 the others are still to be renewed
                    _log.exception("a lease could not be renewed")
                finally:
                    self._changed.acquire()
                    self._under_way = None
                    self._changed.notify_all()
            self._thread = None

    def _wait_for_due(self) -> bool:
        """Until a call is due; False when there has been none for a while."""
        idle_until = time.monotonic() + _IDLE_SECONDS
        while True:
            now = time.monotonic()
            self._looks_at = min((each.due for each in self._held), default=idle_until)
            if self._looks_at <= now:
                return bool(self._held)
            self._changed.wait(self._looks_at - now)
            if self._held:
                idle_until = time.monotonic() + _IDLE_SECONDS


RENEWALS: Final = Renewals()
"""Those of this process."""

os.register_at_fork(after_in_child=RENEWALS.__init__)  # type: ignore[misc]  # a fork has none of the threads
