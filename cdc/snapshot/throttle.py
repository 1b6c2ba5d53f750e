"""A limit on rows per second, shared by the threads of a load."""

from __future__ import annotations

import threading
import time


class Throttle:
    """``wait`` until on average no more than ``per_second`` rows were ``taken``; None = no limit."""

    def __init__(self, per_second: int | None) -> None:
        self._per_second = per_second
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def wait(self, stop: threading.Event) -> None:
        """Returns early when ``stop`` is set."""
        if self._per_second is not None:
            stop.wait(max(0.0, self._free_at - time.monotonic()))

    def taken(self, rows: int) -> None:
        if self._per_second is not None:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + rows / self._per_second
