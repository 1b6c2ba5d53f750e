"""Functions of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.projections.definition.sql.postgres.table import Row
from tailrace.projections.definition.sql.postgres.types import FLOAT8, NUMERIC, PgType, numeric
from tailrace.projections.definition.sql.postgres.values import Value


def _rounded(arguments: Sequence[Value]) -> PgType:
    """Of a numeric whose scale is not smaller: Spark adds no zeros."""
    scale, wanted = arguments[0].type.scale, int(arguments[1].constant or 0)
    return numeric(None, wanted if scale is not None and 0 <= wanted <= scale else None)


ROWS = (
    *(Row("abs", (name,), "same", "abs({0})") for name in ("int2", "int4", "int8", "numeric", "float4", "float8")),
    Row("round", ("numeric",), numeric(None, 0), "round({0}, 0)"),
    Row("round", ("float8",), FLOAT8, "rint({0})"),
    Row("round", ("numeric", "int4 constant"), _rounded, "round({0}, {1})"),
    Row("floor", ("numeric",), numeric(None, 0), "floor({0})"),
    Row("ceil", ("numeric",), numeric(None, 0), "ceil({0})"),
    Row("ceiling", ("numeric",), numeric(None, 0), "ceil({0})"),
    Row("mod", ("int4", "int4"), "same", "({0} % {1})"),
    Row("mod", ("int8", "int8"), "same", "({0} % {1})"),
    Row("mod", ("numeric", "numeric"), NUMERIC, "({0} % {1})"),
)  # fmt: skip
