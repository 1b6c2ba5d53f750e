"""Aggregates of partial aggregates: what stands for sum, count and avg of a group in a query over its parts. No user
writes them.

``avg`` of numerics is, in Spark, their sum by their number, rounded to four digits more than they have. Spark's ``/``
rounds to nine digits more before, at least, which makes no difference for fewer than ``MOST_ROWS`` rows. Means of
integers are refused: of these Spark is asked for more digits than a quotient has."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.projections.definition.sql.postgres.functions.table import NotInTable, Row
from tailrace.projections.definition.sql.postgres.types.types import (
    INT8,
    MAX_DIGITS,
    PgType,
    numeric,
    spark_ddl,
)
from tailrace.projections.definition.sql.postgres.types.values import Value

TOTAL, MEAN = "tailrace_total", "tailrace_mean"
MOST_ROWS = 10**9
_COUNT_DIGITS, _SUM_DIGITS, _MEAN_DIGITS, _FEWEST_DIGITS, _ROWS_DIGITS = 20, 10, 4, 6, 9


def _same(arguments: Sequence[Value]) -> PgType:
    return numeric(None, arguments[0].type.scale)


def _total(arguments: Sequence[Value]) -> str:
    (part,) = arguments
    return f"CAST(sum({part.sql}) AS {spark_ddl(part.type)})"


def _mean(arguments: Sequence[Value]) -> str:
    total, count = arguments
    precision, scale = total.type.precision, total.type.scale
    if not precision or not scale or precision >= MAX_DIGITS:
        raise NotInTable("a mean of integers, or of values of so many digits,", "")
    digits = min(MAX_DIGITS, precision - _SUM_DIGITS + _MEAN_DIGITS)
    # How many digits Spark gives a quotient: DecimalType.adjustPrecisionScale.
    wanted = max(_FEWEST_DIGITS, scale + _COUNT_DIGITS + 1)
    excess = max(0, precision - scale + wanted - MAX_DIGITS)
    given = wanted if not excess else max(MAX_DIGITS - (precision - scale), min(wanted, _FEWEST_DIGITS))
    if given - (scale + _MEAN_DIGITS) < _ROWS_DIGITS:
        raise NotInTable("a mean of values of so many digits,", "")
    whole = f"CAST(sum({total.sql}) AS {spark_ddl(total.type)})"
    rows = f"CAST(sum({count.sql}) AS DECIMAL({_COUNT_DIGITS},0))"
    return f"CAST({whole} / nullif({rows}, 0) AS DECIMAL({digits},{scale + _MEAN_DIGITS}))"


ROWS = (
    Row(TOTAL, ("int8",), INT8, "sum({0})", "aggregate"),
    Row(TOTAL, ("numeric",), _same, _total, "aggregate"),
    Row(MEAN, ("element", "int8"), numeric(None, None), _mean, "aggregate", exact=False),
)
