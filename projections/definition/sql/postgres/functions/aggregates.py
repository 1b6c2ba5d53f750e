"""Aggregates. DISTINCT, FILTER and an ORDER BY inside are added around a row's text."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.projections.definition.sql.postgres.functions.table import Absent, NotInTable, Row
from tailrace.projections.definition.sql.postgres.types.types import (
    BOOL,
    FLOAT4,
    FLOAT8,
    INT8,
    NUMERIC,
    PgType,
    numeric,
)
from tailrace.projections.definition.sql.postgres.types.values import Value

_ORDERED = ("int2", "int4", "int8", "numeric", "float4", "float8", "text", "date", "time", "timestamp", "timestamptz",
            "bytea")  # fmt: skip
_OF_FLOATS = {
    "stddev": "stddev_samp", "stddev_samp": "stddev_samp", "stddev_pop": "stddev_pop", "variance": "var_samp",
    "var_samp": "var_samp", "var_pop": "var_pop",
}  # fmt: skip
_OF_PAIRS = (
    "corr",
    "covar_pop",
    "covar_samp",
    "regr_slope",
    "regr_intercept",
    "regr_r2",
    "regr_avgx",
    "regr_avgy",
)


def _sum(arguments: Sequence[Value]) -> PgType:
    return numeric(None, arguments[0].type.scale)


def _counted(arguments: Sequence[Value]) -> str:
    if arguments[0].type.name == "record":
        raise NotInTable("count of a composite", "count one of its columns")
    return f"count({arguments[0].sql})"


ROWS = (
    Row("count", ("any",), INT8, _counted, "aggregate"),
    *(Row("min", (name,), "same", "min({0})", "aggregate") for name in _ORDERED),
    *(Row("max", (name,), "same", "max({0})", "aggregate") for name in _ORDERED),
    Row("sum", ("int2",), INT8, "sum({0})", "aggregate"),
    Row("sum", ("int4",), INT8, "sum({0})", "aggregate"),
    Row("sum", ("int8",), numeric(None, 0), "sum(CAST({0} AS DECIMAL(19,0)))", "aggregate"),
    Row("sum", ("numeric",), _sum, "sum({0})", "aggregate"),
    Row("sum", ("float4",), FLOAT4, Absent("cast it to double precision: Postgres rounds each step"), "aggregate"),
    Row("sum", ("float8",), FLOAT8, "sum({0})", "aggregate", exact=False),
    Row("avg", ("int2",), numeric(None, None), "avg(CAST({0} AS DECIMAL(21,16)))", "aggregate", exact=False),
    Row("avg", ("int4",), numeric(None, None), "avg(CAST({0} AS DECIMAL(26,16)))", "aggregate", exact=False),
    Row("avg", ("int8",), numeric(None, None), "avg(CAST({0} AS DECIMAL(28,9)))", "aggregate", exact=False),
    Row("avg", ("numeric",), numeric(None, None), "avg({0})", "aggregate", exact=False),
    Row("avg", ("float8",), FLOAT8, "avg({0})", "aggregate", exact=False),
    Row("bool_and", ("bool",), BOOL, "bool_and({0})", "aggregate"),
    Row("bool_or", ("bool",), BOOL, "bool_or({0})", "aggregate"),
    Row("every", ("bool",), BOOL, "bool_and({0})", "aggregate"),
    *(Row(name, (kind,), "same", f"{name}({{0}})", "aggregate")
      for name in ("bit_and", "bit_or", "bit_xor") for kind in ("int2", "int4", "int8")),
    *(Row(name, ("float8",), FLOAT8, f"{spark}({{0}})", "aggregate", exact=False)
      for name, spark in _OF_FLOATS.items()),
    *(Row(name, (kind,), NUMERIC, Absent("cast it to double precision: Spark has none of numerics"), "aggregate")
      for name in _OF_FLOATS for kind in ("int2", "int4", "int8", "numeric")),
    *(Row(name, ("float8", "float8"), FLOAT8, f"{name}({{0}}, {{1}})", "aggregate", exact=False)
      for name in _OF_PAIRS),
    Row("regr_count", ("float8", "float8"), INT8, "regr_count({0}, {1})", "aggregate"),
)  # fmt: skip
