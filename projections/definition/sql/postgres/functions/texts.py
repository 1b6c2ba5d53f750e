"""Functions of texts."""

from __future__ import annotations

from tailrace.projections.definition.sql.postgres.table import Row
from tailrace.projections.definition.sql.postgres.types import INT4, TEXT

ROWS = (
    Row("length", ("text",), INT4, "char_length({0})"),
    Row("char_length", ("text",), INT4, "char_length({0})"),
    Row("lower", ("text",), TEXT, "lower({0})"),
    Row("upper", ("text",), TEXT, "upper({0})"),
)
