"""Functions that give rows: as an array of Spark's, of which ``explode`` makes rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tailrace.projections.definition.sql.postgres.expressions.operators import as_type
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import (
    INT4,
    INT8,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    PgType,
)
from tailrace.projections.definition.sql.postgres.types.values import Value, common_type, number
from tailrace.projections.definition.sql.postgres.types.zones import UTC

Rows = tuple[str, PgType]
"""The array, and the type of its elements."""


def _unnest(given: Sequence[Value], _: str) -> Rows:
    if len(given) != 1 or given[0].type.element is None:
        raise NotInTable("unnest() of what is not one array", "")
    return given[0].sql, given[0].type.element


def _series(given: Sequence[Value], zone: str) -> Rows:
    if len(given) == 3 and given[2].interval is not None:
        return _times(given, zone)
    values = [*given, number("1")] if len(given) == 2 else list(given)
    kind = common_type(values) if len(values) == 3 else None
    if kind is None or not kind.is_integer:
        raise NotInTable("generate_series() of these", "it takes integers, or times and a constant interval")
    kind = INT8 if kind == INT8 else INT4
    start, stop, step = (as_type(each, kind, zone) for each in values)
    by = values[2].constant
    if by is None or by.strip() in ("0", "-0"):
        raise NotInTable("generate_series() with this step", "write a number that is not 0")
    return _sequence(start.sql, stop.sql, step.sql, backwards=by.startswith("-")), kind


def _times(given: Sequence[Value], zone: str) -> Rows:
    kind = common_type(given[:2])
    by = given[2].interval
    assert by is not None
    if kind is not None and kind.name == "date":
        kind = TIMESTAMPTZ
    if kind not in (TIMESTAMP, TIMESTAMPTZ) or UNKNOWN in (given[0].type, given[1].type):
        raise NotInTable("generate_series() of these", "cast its bounds to timestamp")
    if by.months or (kind == TIMESTAMPTZ and by.days and zone != UTC):
        raise NotInTable(
            "generate_series() by months", "make days, or take generate_series(0, n) and add n * months"
        )
    micros = by.days * 86_400_000_000 + by.micros
    if not micros:
        raise NotInTable("generate_series() with a step of nothing", "write another")
    start, stop = (as_type(each, kind, zone) for each in given[:2])
    step = f"make_dt_interval(0, 0, 0, {micros} * 0.000001BD)"
    return _sequence(start.sql, stop.sql, step, backwards=micros < 0), kind


def _sequence(start: str, stop: str, step: str, *, backwards: bool) -> str:
    """No rows where the step leads away from the end."""
    reached = ">=" if backwards else "<="
    return f"(CASE WHEN {start} {reached} {stop} THEN sequence({start}, {stop}, {step}) END)"


SETS: Mapping[str, Callable[[Sequence[Value], str], Rows]] = {"generate_series": _series, "unnest": _unnest}
"""By name: from the arguments and the declared time zone. Raises NotInTable."""
