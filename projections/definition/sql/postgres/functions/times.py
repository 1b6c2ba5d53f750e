"""Functions of dates and times. What is taken of a ``timestamptz`` is read on the clock of the declared time zone."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.projections.definition.sql.postgres.functions.extract import date_part
from tailrace.projections.definition.sql.postgres.functions.table import Absent, InZone, Row
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import (
    DATE,
    FLOAT8,
    INTERVAL,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
)
from tailrace.projections.definition.sql.postgres.types.values import Value, quoted
from tailrace.projections.definition.sql.postgres.types.zones import (
    UTC,
    instant,
    named_zone,
    printed,
    wall_clock,
)

_FIELDS = {
    "years": "year", "months": "month", "mon": "month", "days": "day", "hours": "hour", "minutes": "minute",
    "min": "minute", "seconds": "second", "sec": "second", "weeks": "week", "millisecond": "milliseconds",
    "microsecond": "microseconds", "quarters": "quarter", "decades": "decade", "centuries": "century",
}  # fmt: skip
"""Other names of fields."""


def _field(value: Value) -> str:
    name = (value.constant or "").lower()
    return _FIELDS.get(name, name)


def _part(arguments: Sequence[Value], zone: str) -> str:
    return date_part(_field(arguments[0]), arguments[1], zone)


_TRUNCATED = (
    "microseconds",
    "milliseconds",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "quarter",
    "year",
)
_WITHIN_A_DAY = _TRUNCATED[:5]


def _truncated_clock(field: str, clock: str) -> str:
    field = _FIELDS.get(field, field)
    if field not in _TRUNCATED:
        raise NotInTable(f"date_trunc to {field}", f"it truncates to {', '.join(_TRUNCATED)}")
    return f"cast(date_trunc('{field.removesuffix('s')}', {clock}) as timestamp_ntz)"


def _truncated(arguments: Sequence[Value]) -> str:
    return _truncated_clock(_field(arguments[0]), arguments[1].sql)


def _truncated_instant(arguments: Sequence[Value], zone: str) -> str:
    """In a zone in which an hour comes twice, what is within a day stays in its own hour."""
    field, at = _field(arguments[0]), arguments[1]
    if len(arguments) > 2:
        zone = named_zone(arguments[2])
    if at.type == DATE:
        return instant(_truncated_clock(field, f"cast({at.sql} as timestamp_ntz)"), zone)
    clock = wall_clock(at.sql, zone)
    if field in _WITHIN_A_DAY and zone != UTC:
        return f"({at.sql} - ({clock} - {_truncated_clock(field, clock)}))"
    return instant(_truncated_clock(field, clock), zone)


_PATTERNS = {
    "YYYY": "yyyy", "YY": "yy", "MM": "MM", "DD": "dd", "DDD": "DDD", "HH24": "HH", "HH12": "hh", "HH": "hh",
    "MI": "mm", "SS": "ss", "MS": "SSS", "US": "SSSSSS", "Mon": "MMM", "Dy": "EEE", "AM": "a", "PM": "a", "Q": "Q",
    "FMMonth": "MMMM", "FMDay": "EEEE", "FMMM": "M", "FMDD": "d",
}  # fmt: skip
"""Of to_char, those that Spark's date_format prints alike. Months and days without FM are padded in Postgres."""


def spark_pattern(pattern: str) -> str:
    """A pattern of to_char for date_format. Raises NotInTable."""
    found, at = [], 0
    names = sorted(_PATTERNS, key=len, reverse=True)
    while at < len(pattern):
        name = next((each for each in names if pattern.startswith(each, at)), None)
        if name is None and (pattern[at].isalnum() or pattern[at] in "\"\\'"):
            raise NotInTable(
                f"the pattern {pattern!r} of to_char", f"it may have {', '.join(sorted(_PATTERNS))}"
            )
        found.append(_PATTERNS[name] if name else f"'{pattern[at]}'")
        at += len(name) if name else 1
    return "".join(found).replace("''", "")


def _printed(arguments: Sequence[Value]) -> str:
    clock = arguments[0].sql
    return printed(clock, f"date_format({clock}, {quoted(spark_pattern(arguments[1].constant or ''))})")


def _printed_instant(arguments: Sequence[Value], zone: str) -> str:
    clock = wall_clock(arguments[0].sql, zone)
    return printed(clock, f"date_format({clock}, {quoted(spark_pattern(arguments[1].constant or ''))})")


def _day(arguments: Sequence[Value], zone: str) -> str:
    return f"CAST({wall_clock(arguments[0].sql, zone)} AS DATE)"


_NOW = "write :now, the time of the position"
ROWS = (
    *(Row("date", (kind,), DATE, "CAST({0} AS DATE)") for kind in ("date", "timestamp")),
    Row("date", ("timestamptz",), DATE, InZone(_day)),
    *(Row("date_part", ("text constant", kind), FLOAT8, InZone(_part))
      for kind in ("date", "timestamp", "timestamptz", "time")),
    Row("date_trunc", ("text constant", "timestamp"), TIMESTAMP, _truncated),
    Row("date_trunc", ("text constant", "timestamptz"), TIMESTAMPTZ, InZone(_truncated_instant)),
    Row("date_trunc", ("text constant", "date"), TIMESTAMPTZ, InZone(_truncated_instant)),
    Row("date_trunc", ("text constant", "timestamptz", "text constant"), TIMESTAMPTZ, InZone(_truncated_instant)),
    Row("make_date", ("int4", "int4", "int4"), DATE,
        "if({0} = 0, raise_error('date field value out of range'), make_date(if({0} < 0, {0} + 1, {0}), {1}, {2}))"),
    Row("to_char", ("timestamp", "text constant"), TEXT, _printed),
    Row("to_char", ("timestamptz", "text constant"), TEXT, InZone(_printed_instant)),
    *(Row(name, (), TIMESTAMPTZ, Absent(_NOW)) for name in ("now", "transaction_timestamp", "statement_timestamp",
      "clock_timestamp", "timeofday")),
    *(Row("age", takes, INTERVAL, Absent("subtract dates, which gives days")) for takes in
      (("timestamp",), ("timestamptz",), ("timestamp", "timestamp"), ("timestamptz", "timestamptz"))),
    *(Row(name, ("text", "text"), TIMESTAMPTZ, Absent("cast a text that is written as Postgres prints it"))
      for name in ("to_date", "to_timestamp", "to_number")),
    *(Row("to_char", (kind, "text"), TEXT, Absent("cast it to text")) for kind in
      ("int4", "int8", "numeric", "float4", "float8")),
    Row("make_timestamp", ("int4", "int4", "int4", "int4", "int4", "float8"), TIMESTAMP,
        Absent("cast a text: '2026-01-01 12:00'::timestamp")),
    Row("to_timestamp", ("float8",), TIMESTAMPTZ, "timestamp_micros(cast(rint({0} * 1000000) as bigint))"),
)  # fmt: skip
