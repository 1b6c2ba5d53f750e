"""Constant intervals, and times moved by them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from tailrace.projections.definition.sql.postgres.refusal import NotInTable

_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.I)
_CLOCK = re.compile(r"\s*([+-]?)(\d+):(\d{2})(?::(\d{2}(?:\.\d{1,6})?))?\s*")
_UNITS: dict[str, tuple[str, int]] = {
    "year": ("months", 12), "month": ("months", 1), "mon": ("months", 1), "week": ("days", 7), "day": ("days", 1),
    "hour": ("micros", 3_600_000_000), "minute": ("micros", 60_000_000), "min": ("micros", 60_000_000),
    "second": ("micros", 1_000_000), "sec": ("micros", 1_000_000),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """The three numbers of an interval, which Postgres keeps apart as well."""

    months: int = 0
    days: int = 0
    micros: int = 0

    def __neg__(self) -> Interval:
        return Interval(-self.months, -self.days, -self.micros)

    def plus(self, other: Interval) -> Interval:
        return Interval(self.months + other.months, self.days + other.days, self.micros + other.micros)

    def times(self, factor: int) -> Interval:
        return Interval(self.months * factor, self.days * factor, self.micros * factor)

    def added_to(self, clock: str) -> str:
        """A ``timestamp`` moved by it: first its months, then its days, then its time, as Postgres does."""
        for count, unit in ((self.months, "MONTH"), (self.days, "DAY")):
            if count:
                clock = f"({clock} + INTERVAL '{count}' {unit})"
        if self.micros:
            seconds = Decimal(self.micros) / 1_000_000
            clock = f"({clock} + INTERVAL '{seconds:f}' SECOND)"
        return clock


def interval(text: str, unit: str = "") -> Interval:
    """From ``1 day 02:00`` or, with a unit, ``1``. Raises NotInTable."""
    found = dict.fromkeys(("months", "days", "micros"), 0)
    words = f"{text} {unit}" if unit and re.fullmatch(r"\s*[+-]?\d+(\.\d+)?\s*", text) else text
    at = 0
    while at < len(words):
        if part := _PART.match(words, at):
            field, size = _unit(part[2], text)
            amount = Decimal(part[1]) * size
            if amount != int(amount):
                raise NotInTable(f"the interval {text!r}", "write it in whole units")
            found[field] += int(amount)
        elif part := _CLOCK.match(words, at):
            size = (int(part[2]) * 60 + int(part[3])) * 60_000_000 + int(Decimal(part[4] or 0) * 1_000_000)
            found["micros"] += -size if part[1] == "-" else size
        else:
            raise NotInTable(f"the interval {text!r}", "write numbers with units: '1 day 2 hours'")
        at = part.end()
    return Interval(**found)


def _unit(word: str, text: str) -> tuple[str, int]:
    name = word.lower().removesuffix("s")
    if name not in _UNITS:
        raise NotInTable(
            f"the interval {text!r}", "units are years, months, weeks, days, hours, minutes, seconds"
        )
    return _UNITS[name]
