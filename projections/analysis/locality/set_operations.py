"""Which rows unions, intersections and differences leave when their inputs are restricted to some keys."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.projections.analysis.spread import (
    AllRows,
    PlanRelation,
    Refusal,
    Rows,
    Spread,
    UnknownRows,
    unite,
)


def rows_of_union(parts: Sequence[PlanRelation]) -> Rows | Refusal:
    """Of UNION ALL; columns of one place belong together."""
    rows = [part.rows for part in parts]
    if any(isinstance(each, UnknownRows) for each in rows):
        return UnknownRows()
    if all(isinstance(each, AllRows) for each in rows):
        return AllRows()
    spreads = [each for each in rows if isinstance(each, Spread)]
    if len(spreads) < len(rows):
        return (
            "it unites rows of an input without affects with others; those are never left out",
            "say what that input affects, too",
        )
    if len({each.domain for each in spreads}) > 1:
        return (
            "it unites rows that lead to the key in different ways",
            "join each part with what holds the key first",
        )
    return unite(parts, spreads)


def rows_of_comparison(kind: str, left: PlanRelation, right: PlanRelation) -> Rows | Refusal:
    """Of INTERSECT and EXCEPT, which compare whole rows: the key is in one place on both sides."""
    if isinstance(left.rows, UnknownRows) or isinstance(right.rows, UnknownRows):
        return UnknownRows()
    if isinstance(right.rows, AllRows):
        return left.rows
    if isinstance(left.rows, Spread) and left.rows.domain == right.rows.domain:
        both = unite([left, right], [left.rows, right.rows])
        if both.restrict_to(column.id for column in left.output) is not None:
            return both
    return f"{kind.lower()} compares rows of different keys", "have the key in the same column on both sides"
