"""What tells the grouping sets of a query apart."""

from __future__ import annotations

from tailrace.projections.definition.sql.postgres.functions.table import Row
from tailrace.projections.definition.sql.postgres.types.types import INT4

ROWS = (
    Row("grouping", ("any",), INT4, "CAST(grouping({0}) AS INT)"),
    Row("grouping", ("any", "any*"), INT4, "CAST(grouping_id({*}) AS INT)"),
)
