"""How fast a step goes and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.terminal import Progress, duration


class Pace:
    """Measures a step from the numbers that it reports; ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step = ""
        self._began = 0.0
        self._first = self._last = 0

    def measure(self, step: str, done: int, total: int | None) -> tuple[float | None, float | None]:
        """Units a second since the step's first number, and seconds left; None as long as they cannot be known."""
        now = self._clock()
        if step != self._step or done < self._last:
            self._step, self._began, self._first = step, now, done
        self._last = done
        if done == self._first or now <= self._began:
            return None, None
        rate = (done - self._first) / (now - self._began)
        return rate, None if total is None else (total - done) / rate


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far a step is, as every command shows it; rate and time left are None as long as they cannot be known."""

    step: str
    done: int
    total: int | None
    unit: str
    per_second: float | None
    seconds_left: float | None

    def pace(self, shown: Callable[[float], str] = "{:,.1f}".format) -> str:
        """Rate and time left behind a text; ``shown`` formats the rate."""
        rate = "" if self.per_second is None else f", {shown(self.per_second)}/s"
        return rate + ("" if self.seconds_left is None else f", {duration(self.seconds_left)} left")

    def facts(self) -> dict[str, object]:
        """The fields of a JSON line."""
        rounded = {"per_second": _round(self.per_second), "seconds_left": _round(self.seconds_left)}
        return {"step": self.step, "done": self.done, "total": self.total, "unit": self.unit, **rounded}


@dataclass(frozen=True, slots=True)
class Reporter:
    """Writes to a command's progress how much of a step is done, its rate, and the time left."""

    progress: Progress
    pace: Pace = field(default_factory=Pace)

    def __call__(self, step: str, done: int, total: int | None, unit: str, **facts: object) -> None:
        """As ``tailrace.projections.context.Report``; ``facts`` are for programs alone."""
        share = f" {done:,} of {total:,} {unit}" if total is not None else f" {done:,} {unit}" if unit else ""
        self.say(f"{step}{share}", step, done, total, unit, "{:,.1f}".format, **facts)

    def say(
        self,
        text: str,
        step: str,
        done: int,
        total: int | None,
        unit: str,
        shown: Callable[[float], str],
        **facts: object,
    ) -> None:
        """As ``__call__`` with another text for people; ``shown`` formats the rate."""
        reached = StepProgress(step, done, total, unit, *self.pace.measure(step, done, total))
        self.progress.say(f"{text}{reached.pace(shown)}", **reached.facts(), **facts)


def _round(number: float | None) -> float | None:
    return None if number is None else round(number, 3)
