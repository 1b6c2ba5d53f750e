"""Fields of dates and times: ``extract`` gives numeric, ``date_part`` double precision."""

from __future__ import annotations

from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import (
    DATE,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    numeric,
)
from tailrace.projections.definition.sql.postgres.types.values import Value
from tailrace.projections.definition.sql.postgres.types.zones import wall_clock

_OF_DATES = {
    "year": "year({0})", "quarter": "quarter({0})", "month": "month({0})", "day": "day({0})", "doy": "dayofyear({0})",
    "dow": "dayofweek({0}) - 1", "isodow": "weekday({0}) + 1", "week": "weekofyear({0})",
    "isoyear": "extract(YEAROFWEEK FROM {0})", "decade": "year({0}) DIV 10",
    "century": "CAST(ceil(year({0}) / 100BD) AS INT)", "millennium": "CAST(ceil(year({0}) / 1000BD) AS INT)",
}  # fmt: skip
_OF_TIMES = {"hour": "hour({0})", "minute": "minute({0})"}
_OF_SECONDS = {
    "second": ("extract(SECOND FROM {0})", 8, 6),
    "milliseconds": ("extract(SECOND FROM {0}) * 1000", 8, 3),
    "microseconds": ("extract(SECOND FROM {0}) * 1000000", 8, 0),
}
_SECONDS = "extract(SECOND FROM {0})"
_WHOLE = f"CAST(floor({_SECONDS}) AS DOUBLE)"
_MICROS = f"CAST(({_SECONDS} - floor({_SECONDS})) * 1000000 AS DOUBLE)"
_IN_DOUBLE = {
    "second": f"({_WHOLE} + {_MICROS} / 1000000D)",
    "milliseconds": f"({_WHOLE} * 1000D + {_MICROS} / 1000D)",
}
"""The additions of timestamp.c: 6 s and 879,877 µs are 6.8798770000000005 there."""


def date_part(field: str, value: Value, zone: str) -> str:
    """``date_part('field', value)``, double precision, rounded where Postgres rounds. Raises NotInTable."""
    found = extract(field, value, zone)
    clock = wall_clock(value.sql, zone) if value.type == TIMESTAMPTZ else value.sql
    if field == "epoch" and value.type != DATE:
        return f"(CAST({_micros_since_epoch(value, clock)} AS DOUBLE) / 1000000D)"
    if field in _IN_DOUBLE:
        return _IN_DOUBLE[field].format(clock)
    return f"CAST({found.sql} AS DOUBLE)"


def extract(field: str, value: Value, zone: str) -> Value:
    """``extract(field FROM value)``, a numeric. Raises NotInTable."""
    if value.type not in (DATE, TIME, TIMESTAMP, TIMESTAMPTZ):
        raise NotInTable(f"extract({field}) from {value.type}", "cast it to date, timestamp or timestamptz")
    clock = wall_clock(value.sql, zone) if value.type == TIMESTAMPTZ else value.sql
    if field == "epoch" and value.type == DATE:
        days = f"CAST(datediff({clock}, DATE'1970-01-01') AS DECIMAL(10,0))"
        return Value(f"CAST({days} * 86400 AS DECIMAL(15,0))", numeric(15, 0))
    if field == "epoch" and value.type != TIME:
        micros = f"CAST({_micros_since_epoch(value, clock)} AS DECIMAL(19,0))"
        return Value(f"CAST({micros} * 0.000001BD AS DECIMAL(19,6))", numeric(19, 6))
    if field in _OF_SECONDS and value.type != DATE:
        text, precision, scale = _OF_SECONDS[field]
        return Value(f"CAST({text.format(clock)} AS DECIMAL({precision},{scale}))", numeric(precision, scale))
    known = {**(_OF_DATES if value.type != TIME else {}), **(_OF_TIMES if value.type != DATE else {})}
    if field not in known:
        raise NotInTable(f"extract({field}) from {value.type}", f"there are {', '.join(known)}")
    return Value(f"CAST({known[field].format(clock)} AS DECIMAL(10,0))", numeric(10, 0))


def _micros_since_epoch(value: Value, clock: str) -> str:
    return f"unix_micros({value.sql if value.type == TIMESTAMPTZ else f'CAST({clock} AS TIMESTAMP)'})"
