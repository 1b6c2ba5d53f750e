"""Dates, times and intervals.

What lies beyond the range of Postgres is nothing that it sent: such numbers stay as they are, no column can hold them,
and they are kept as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.kafka.decoding.values.cells import STRINGS, Cells, Reader, Texts, each, mostly, other_kinds
from tailrace.cdc.kernels import json_text
from tailrace.eventstore.model.postgres_text import postgres_texts

_DAY = 86_400_000_000  # µs
_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905  # 4714-11-24 BC and 5874897-12-31
_FIRST_STAMP, _LAST_STAMP = _FIRST_DAY * _DAY, 9_224_318_016_000_000_000  # behind 294276-12-31
_EASY_DAYS = (-719_162, 2_932_896)  # 0001-01-01 and 9999-12-31: what Arrow prints as Postgres does
# What the connector makes of the infinities (its documentation, "TIMESTAMP type"; for dates, as it was seen to do).
_DAYS = {-2_147_472_692: "infinity", -2_147_472_691: "-infinity", -622_191_234: "infinity"}
_ISO_DATES = {
    "-5877611-06-21Z": "infinity",
    "-5877611-06-22Z": "-infinity",
    "+292278994-08-16Z": "infinity",
}
_INFINITE_MILLIS = {9_223_372_036_825_200: "infinity", -9_223_372_036_832_400: "-infinity"}
_INFINITE_NANOS = {(1 << 63) - 1: "infinity", -1 << 63: "-infinity"}
_ISO_STAMPS = {"+294247-01-10T04:00:25.2Z": "infinity", "-290308-12-21T19:59:27.6Z": "-infinity"}
_DATE = re.compile(r"([+-]?[0-9]{4,9})-([0-9]{2})-([0-9]{2})Z?")
_CLOCK = re.compile(r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?")
_EASY_ISO = r"^(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
_EASY_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z$"
_INTERVAL = re.compile(
    r"P(-?[0-9]+)Y(-?[0-9]+)M(-?[0-9]+)DT(-?[0-9]+)H(-?[0-9]+)M(-?[0-9]+)(?:\.([0-9]{1,6}))?S"
)


def day(cells: Cells) -> Texts:
    """Days since 1970."""
    return _numbers(cells, _EASY_DAYS, lambda days: days.cast(pa.int32()).cast(pa.date32()), _day)


def clock(micros: float) -> Reader:
    """A time of day as a number of units of so many µs."""

    def parse(number: int) -> str:
        if number * micros == _DAY:
            return "24:00:00"
        return str(number)

    def make(numbers: pa.Array) -> pa.Array:
        return _in_micros(numbers, micros).cast(pa.time64("us"))

    return lambda cells: _numbers(cells, (0, _units(_DAY - 1, micros)), make, parse)


def stamp(micros: float) -> Reader:
    """Units of so many µs since 1970, without a zone."""
    infinite = _INFINITE_NANOS
    if micros >= 1:
        infinite = {_units(number * 1000, micros): text for number, text in _INFINITE_MILLIS.items()}

    def parse(number: int) -> str:
        return infinite.get(number) or _stamp(number, micros)

    def make(numbers: pa.Array) -> pa.Array:
        return _in_micros(numbers, micros).cast(pa.timestamp("us"))

    first, last = (_units(days * _DAY, micros) for days in (_EASY_DAYS[0], _EASY_DAYS[1] + 1))
    easy = (
        max(first, 1 - (1 << 63)),
        min(last - 1, (1 << 63) - 2),
    )  # an infinity in ns is the last number of 64 bits
    return lambda cells: _numbers(cells, easy, make, parse)


def _units(number: int, micros: float) -> int:
    return number * 1000 if micros < 1 else number // int(micros)


def _in_micros(numbers: pa.Array, micros: float) -> pa.Array:
    if micros < 1:  # towards the past, as whole µs are nothing else
        return pa.array(np.floor_divide(numbers.to_numpy(zero_copy_only=False), 1000))
    return pc.multiply(numbers, int(micros))


def _numbers(
    cells: Cells, easy: tuple[int, int], make: Callable[[pa.Array], pa.Array], parse: Callable[[int], str]
) -> Texts:
    """Numbers between two, both included, become texts by ``make``; each of the others by ``parse``."""
    texts = cells.strings()
    wrong = other_kinds(cells, (json_text.NUMBER,))
    try:
        numbers = pc.if_else(
            pa.array(cells.kinds == json_text.NUMBER), texts, pa.scalar(None, pa.string())
        ).cast(pa.int64())
    except pa.ArrowInvalid:  # beyond 64 bits, or no whole number
        return each(cells, lambda text: _printed(make, parse, easy, int(text)), json_text.NUMBER)
    fits = pc.and_(pc.greater_equal(numbers, easy[0]), pc.less_equal(numbers, easy[1]))
    inside = pc.if_else(pc.fill_null(fits, False), numbers, pa.scalar(None, pa.int64()))
    filled = pc.fill_null(inside, 0)
    found = pc.if_else(inside.is_valid(), postgres_texts(make(filled)), pa.scalar(None, pa.string()))
    if pc.all(fits, min_count=0).as_py():
        return Texts(found, wrong)
    rows = pc.indices_nonzero(pc.invert(pc.fill_null(fits, True))).to_pylist()
    listed = found.to_pylist()
    for row in rows:
        listed[row] = parse(numbers[row].as_py())
    return Texts(pa.array(listed, pa.string()), wrong)


def _printed(
    make: Callable[[pa.Array], pa.Array], parse: Callable[[int], str], easy: tuple[int, int], number: int
) -> str:
    if easy[0] <= number <= easy[1]:
        text: str = postgres_texts(make(pa.array([number], pa.int64())))[0].as_py()
        return text
    return parse(number)


def _day(number: int) -> str:
    if number in _DAYS:
        return _DAYS[number]
    return _date_text(*_civil(number)) if _FIRST_DAY <= number <= _LAST_DAY else str(number)


def _stamp(number: int, micros: float) -> str:
    exact = number // 1000 if micros < 1 else number * int(micros)
    if not _FIRST_STAMP <= exact < _LAST_STAMP:
        return str(number)
    days, rest = divmod(exact, _DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + _fraction(f"{fraction:06}")
    return _with_time(_civil(days), time)


def _civil(days: int) -> tuple[int, int, int]:
    """Year (0: 1 BC), month and day in the Gregorian calendar, which Postgres extends to all times."""
    era, within = divmod(days + 719_468, 146_097)  # eras of 400 years that begin on the first of March
    year = (within - within // 1460 + within // 36_524 - within // 146_096) // 365
    of_year = within - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    return (
        era * 400 + year + (month >= 10),
        (month + 2) % 12 + 1,
        of_year - (153 * month + 2) // 5 + 1,
    )


def _date_text(year: int, month: int, of_month: int) -> str:
    if year > 0:
        return f"{year:04}-{month:02}-{of_month:02}"
    return f"{1 - year:04}-{month:02}-{of_month:02} BC"


def _with_time(date: tuple[int, int, int], time: str) -> str:
    text, bc, _ = _date_text(*date).partition(" BC")
    return f"{text} {time}{bc}"


def _fraction(digits: str | None) -> str:
    """Of a second, without zeros at its end."""
    kept = (digits or "")[:6].rstrip("0")
    return f".{kept}" if kept else ""


def iso_day(cells: Cells) -> Texts:
    def parse(text: str) -> str | None:
        return _ISO_DATES.get(text) or (_date_text(*found) if (found := _iso_date(text)) else None)

    return mostly(
        cells, _EASY_ISO + "Z$", lambda texts: pc.utf8_slice_codeunits(texts, 0, 10), parse, *STRINGS
    )


def iso_clock(zone: str = "") -> Reader:
    """A time of day in UTC; with a ``zone`` behind it that says so."""

    def parse(text: str) -> str | None:
        time = _iso_time(text)
        return None if time is None else time + zone

    return lambda cells: each(cells, parse, *STRINGS)


def iso_stamp(zone: str = "") -> Reader:
    """A timestamp in UTC; with a ``zone`` behind it that says so."""

    def parse(text: str) -> str | None:
        if text in ("infinity", "-infinity"):
            return text
        if text in _ISO_STAMPS and not zone:
            return _ISO_STAMPS[text]
        date, _, clock = text.partition("T")
        found, time = _iso_date(date), _iso_time(clock)
        return None if found is None or time is None else _with_time(found, time + zone)

    def make(texts: pa.Array) -> pa.Array:
        plain = pc.replace_substring(pc.utf8_slice_codeunits(texts, 0, -1), "T", " ")
        short = pc.ascii_rtrim(pc.ascii_rtrim(plain, "0"), ".")
        trimmed = pc.if_else(pc.match_substring(plain, "."), short, plain)
        return pc.binary_join_element_wise(trimmed, zone, "") if zone else trimmed

    return lambda cells: mostly(cells, _EASY_ISO + "T" + _EASY_CLOCK, make, parse, *STRINGS)


def _iso_date(text: str) -> tuple[int, int, int] | None:
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    year, month, of_month = (int(part) for part in match.groups())
    return (year, month, of_month) if 1 <= month <= 12 and 1 <= of_month <= 31 else None


def _iso_time(text: str) -> str | None:
    match = _CLOCK.fullmatch(text.removesuffix("Z")) if text.endswith("Z") else None
    if match is None:
        return None
    hour, minute, second, fraction = match.groups()
    return f"{hour}:{minute}:{second or '00'}{_fraction(fraction)}"


def interval(cells: Cells) -> Texts:
    """ISO 8601 with every part, which may have signs of their own, as ``IntervalStyle = postgres`` prints it."""

    def parse(text: str) -> str | None:
        match = _INTERVAL.fullmatch(text)
        if match is None:
            return None
        *whole, fraction = match.groups()
        years, months, days, hours, minutes, seconds = (int(part) for part in whole)
        minus = whole[5].startswith("-")
        micros = int((fraction or "").ljust(6, "0")) * (-1 if minus else 1)
        return _interval_text(
            years * 12 + months, days, ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros
        )

    return each(cells, parse, *STRINGS)


def _interval_text(months: int, days: int, micros: int) -> str:
    """EncodeInterval of datetime.c: a part is written with its sign when one before it is negative."""
    years, rest = abs(months) // 12, abs(months) % 12
    sign = -1 if months < 0 else 1
    parts: list[str] = []
    minus = False
    for number, unit in ((sign * years, "year"), (sign * rest, "mon"), (days, "day")):
        if number:
            parts.append(f"{'+' if minus and number > 0 else ''}{number} {unit}{'' if number == 1 else 's'}")
            minus = number < 0
    if micros or not parts:
        seconds, fraction = divmod(abs(micros), 1_000_000)
        mark = "-" if micros < 0 else "+" if minus else ""
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        parts.append(mark + clock + _fraction(f"{fraction:06}"))
    return " ".join(parts)
