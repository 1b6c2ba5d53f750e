"""Fields of dates and times."""

from __future__ import annotations

from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types import DATE, TIMESTAMP, TIMESTAMPTZ, numeric
from tailrace.projections.definition.sql.postgres.values import Value
from tailrace.projections.definition.sql.postgres.zones import wall_clock

_OF_DATES = {
    "year": "year({0})", "quarter": "quarter({0})", "month": "month({0})", "day": "day({0})", "doy": "dayofyear({0})",
    "dow": "dayofweek({0}) - 1", "isodow": "weekday({0}) + 1", "week": "weekofyear({0})",
    "isoyear": "extract(YEAROFWEEK FROM {0})",
}  # fmt: skip
_OF_TIMES = {"hour": "hour({0})", "minute": "minute({0})"}


def extract(field: str, value: Value, zone: str) -> Value:
    """``extract(field FROM value)``, a numeric. Raises NotInTable."""
    if value.type not in (DATE, TIMESTAMP, TIMESTAMPTZ):
        raise NotInTable(f"extract({field}) from {value.type}", "cast it to date, timestamp or timestamptz")
    clock = wall_clock(value.sql, zone) if value.type == TIMESTAMPTZ else value.sql
    if field == "epoch":
        at = value.sql if value.type == TIMESTAMPTZ else f"CAST({clock} AS TIMESTAMP)"
        micros = f"CAST(unix_micros({at}) AS DECIMAL(19,0))"
        return Value(f"CAST({micros} * 0.000001BD AS DECIMAL(19,6))", numeric(19, 6))
    if field == "second" and value.type != DATE:
        return Value(f"CAST(extract(SECOND FROM {clock}) AS DECIMAL(8,6))", numeric(8, 6))
    known = _OF_DATES if value.type == DATE else {**_OF_DATES, **_OF_TIMES}
    if field not in known:
        raise NotInTable(f"extract({field}) from {value.type}", f"there are {', '.join(known)}, epoch")
    return Value(f"CAST({known[field].format(clock)} AS DECIMAL(10,0))", numeric(10, 0))
