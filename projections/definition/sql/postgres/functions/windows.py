"""Functions of windows. The window is added around a row's text."""

from __future__ import annotations

from tailrace.projections.definition.sql.postgres.functions.table import Row
from tailrace.projections.definition.sql.postgres.types.types import FLOAT8, INT4, INT8

ROWS = (
    Row("row_number", (), INT8, "row_number()", "window"),
    Row("rank", (), INT8, "rank()", "window"),
    Row("dense_rank", (), INT8, "dense_rank()", "window"),
    Row("percent_rank", (), FLOAT8, "percent_rank()", "window"),
    Row("cume_dist", (), FLOAT8, "cume_dist()", "window"),
    Row("lag", ("any",), "same", "lag({0})", "window"),
    Row("lag", ("any", "int4 constant"), "same", "lag({0}, {1})", "window"),
    Row("lead", ("any",), "same", "lead({0})", "window"),
    Row("lead", ("any", "int4 constant"), "same", "lead({0}, {1})", "window"),
    Row("ntile", ("int4 constant",), INT4, "ntile({0})", "window"),
    Row("nth_value", ("any", "int4 constant"), "same", "nth_value({0}, {1})", "window"),
    Row("first_value", ("any",), "same", "first_value({0})", "window"),
    Row("last_value", ("any",), "same", "last_value({0})", "window"),
)
