"""Fields of dates and times."""

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


def extract(field: str, value: Value, zone: str) -> Value:
    """``extract(field FROM value)``, a numeric. Raises NotInTable."""
    if value.type not in (DATE, TIME, TIMESTAMP, TIMESTAMPTZ):
        raise NotInTable(f"extract({field}) from {value.type}", "cast it to date, timestamp or timestamptz")
    clock = wall_clock(value.sql, zone) if value.type == TIMESTAMPTZ else value.sql
    if field == "epoch" and value.type == DATE:
        days = f"CAST(datediff({clock}, DATE'1970-01-01') AS DECIMAL(10,0))"
        return Value(f"CAST({days} * 86400 AS DECIMAL(15,0))", numeric(15, 0))
    if field == "epoch" and value.type != TIME:
        at = value.sql if value.type == TIMESTAMPTZ else f"CAST({clock} AS TIMESTAMP)"
        micros = f"CAST(unix_micros({at}) AS DECIMAL(19,0))"
        return Value(f"CAST({micros} * 0.000001BD AS DECIMAL(19,6))", numeric(19, 6))
    if field in _OF_SECONDS and value.type != DATE:
        text, precision, scale = _OF_SECONDS[field]
        return Value(f"CAST({text.format(clock)} AS DECIMAL({precision},{scale}))", numeric(precision, scale))
    known = {**(_OF_DATES if value.type != TIME else {}), **(_OF_TIMES if value.type != DATE else {})}
    if field not in known:
        raise NotInTable(f"extract({field}) from {value.type}", f"there are {', '.join(known)}")
    return Value(f"CAST({known[field].format(clock)} AS DECIMAL(10,0))", numeric(10, 0))
