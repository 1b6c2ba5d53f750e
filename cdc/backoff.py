"""Pauses between attempts to reach a source."""

from __future__ import annotations

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0


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
