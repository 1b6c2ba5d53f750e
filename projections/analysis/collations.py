"""Texts that a collation holds to be equal though they differ: which of them a result shows is chance. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.projections.analysis.expressions import has_collation, names_in, roots
from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.spread import Relation

_BY_EXPRESSIONS = {"Aggregate": ("groupingExpressions", "groupBy"), "Deduplicate": ("keys", "dropDuplicates")}
_BY_ROW = ("Distinct", "Except", "Intersect")
_EXTREMES = ("Max", "Min")


def collated(expression: Node) -> bool:
    """Is the expression a text with a collation of its own?"""
    if expression.kind in ("Alias", "SortOrder"):
        return collated(expression.children[0])
    return expression.kind == "Collate" or has_collation(expression.type)


def shown_by_chance(node: Node, below: Sequence[Relation]) -> Iterator[tuple[str, str]]:
    """The columns by which an operator holds rows to be the same that are such texts, and what it does in words. Beside
    columns that tell all rows apart each is the only one."""
    if node.kind in _BY_EXPRESSIONS:
        field, words = _BY_EXPRESSIONS[node.kind]
        keys = node.expressions(field)
        if not below[0].is_unique(held for each in keys for held in roots(each)):
            yield from ((", ".join(names_in(each)) or "a text", words) for each in keys if collated(each))
    elif node.kind in _BY_ROW:
        columns = below[0].output
        loose = [column for column in columns if has_collation(column.type)]
        if not below[0].is_unique(column.id for column in columns if column not in loose):
            yield from ((column.name, node.kind.lower()) for column in loose)


def extreme_of_equals(inner: Node) -> bool:
    """Is it the highest or lowest of such texts?"""
    return inner.kind in _EXTREMES and collated(inner.children[0])
