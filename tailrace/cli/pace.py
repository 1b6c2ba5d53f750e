"""How fast a step goes and how long it will still take, from what is told of it."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step = ""
        self._began = 0.0
        self._first = self._last = 0

    def told(self, step: str, done: int, total: int | None) -> tuple[float | None, float | None]:
        """Units a second since the step was first told of, and seconds left; None for what nobody can know yet."""
        now = self._clock()
        if step != self._step or done < self._last:
            self._step, self._began, self._first = step, now, done
        self._last = done
        if done == self._first or now <= self._began:
            return None, None
        rate = (done - self._first) / (now - self._began)
        return rate, None if total is None else (total - done) / rate
