"""Rows, ``(a, b)``, compared column by column, and IN with rows or a SELECT as a value."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.projections.definition.sql.postgres.expressions.operators import comparison
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import BOOL
from tailrace.projections.definition.sql.postgres.types.values import Value


def row_comparison(name: str, left: Sequence[Value], right: Sequence[Value], zone: str) -> Value:
    """Raises NotInTable."""
    if len(left) != len(right):
        raise NotInTable(f"rows of {len(left)} and {len(right)} columns", "compare as many")
    pairs = list(zip(left, right, strict=True))
    if name in ("=", "<=>"):
        return Value("(" + " AND ".join(comparison(name, *pair, zone).sql for pair in pairs) + ")", BOOL)
    if name == "<>":
        return Value("(" + " OR ".join(comparison(name, *pair, zone).sql for pair in pairs) + ")", BOOL)
    last = comparison(name, *pairs[-1], zone).sql
    for pair in reversed(pairs[:-1]):
        strict, same = comparison(name[0], *pair, zone).sql, comparison("=", *pair, zone).sql
        last = f"({strict} OR ({same} AND {last}))"
    return Value(last, BOOL)


def in_as_value(one: str, query: str) -> Value:
    """``x IN (SELECT …)`` where NULL is not the same as false: in Spark it is never NULL. ``query`` has one column."""

    def exists(condition: str) -> str:
        return f"EXISTS (SELECT 1 FROM ({query}) AS `in` (`value`) WHERE {condition})"  # noqa: S608

    equal = exists(f"`in`.`value` = {one}")
    unknown = f"({one} IS NULL OR `in`.`value` IS NULL)"
    return Value(f"(CASE WHEN {equal} THEN TRUE WHEN {exists(unknown)} THEN NULL ELSE FALSE END)", BOOL)
