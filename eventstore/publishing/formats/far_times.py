"""Dates and times that no Arrow type holds, as Debezium writes them: infinities, years far away, 24:00:00.

Source: the connector's documentation, "Temporal types"; what it makes of infinite dates was seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

import numpy as np

from tailrace.eventstore.model.schema import Column

_DATE, _TIME, _STAMP, _ZONED = 1082, 1083, 1114, 1184
_DAYS = {"infinity": -2_147_472_692, "-infinity": -2_147_472_691}
_MILLIS = {"infinity": 9_223_372_036_825_200, "-infinity": -9_223_372_036_832_400}
_TEXT = re.compile(r"(?:(\d{4,})-(\d\d)-(\d\d))? ?(?:(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:\+00)?( BC)?")
_DAY_MICROS = 86_400_000_000
_LARGEST = 1 << 63


def far_time(column: Column, text: str) -> str | None:
    """The JSON text for one that stands beside its column; None when there is none."""
    form = _FORMS.get(column.meant_oid)
    return None if form is None else form(column, text)


def _date(column: Column, text: str) -> str | None:
    if text in _DAYS:
        return str(_DAYS[text])
    found = _TEXT.fullmatch(text)
    return None if found is None or found[1] is None else str(_days(found))


def _micros(column: Column, text: str) -> str | None:
    """Since midnight or 1970; milliseconds where the column has no more digits."""
    in_millis = 0 <= column.meant_typmod <= 3
    if text in _MILLIS:
        return str(_MILLIS[text] * (1 if in_millis else 1000))
    found = _TEXT.fullmatch(text)
    if found is None or found[4] is None:
        return None
    hours, minutes, seconds = (int(found[part]) for part in (4, 5, 6))
    micros = (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + int((found[7] or "").ljust(6, "0"))
    if found[1] is not None:
        micros += _days(found) * _DAY_MICROS
    counted = micros // 1000 if in_millis else micros
    return str(counted) if -_LARGEST <= counted < _LARGEST else None


def _zoned(column: Column, text: str) -> str | None:
    found = _TEXT.fullmatch(text)
    if found is None or found[1] is None or found[4] is None:
        return None
    fraction = f".{found[7]}" if found[7] else ""
    return json.dumps(f"{_year(found)}-{found[2]}-{found[3]}T{found[4]}:{found[5]}:{found[6]}{fraction}Z")


def _days(found: re.Match[str]) -> int:
    day = np.datetime64(f"{_year(found).removeprefix('+')}-{found[2]}-{found[3]}", "D")
    return int(day.astype(np.int64))


def _year(found: re.Match[str]) -> str:
    """As ISO 8601 counts, which has a year 0, with a sign where there are more than four digits."""
    if found[8]:
        before = int(found[1]) - 1
        return f"-{before:04}" if before else "0000"
    return found[1] if len(found[1]) == 4 else f"+{found[1]}"


_FORMS: Mapping[int, Callable[[Column, str], str | None]] = {
    _DATE: _date,
    _TIME: _micros,
    _STAMP: _micros,
    _ZONED: _zoned,
}
