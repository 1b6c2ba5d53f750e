"""What becomes of a list on its way through an expression: is the order of its elements of account at the end? Pure."""

from __future__ import annotations

from enum import Enum

from tailrace.projections.analysis.plan_tree import Node

_ORDER_FREE = frozenset({
    "ArrayContains", "ArrayExists", "ArrayForAll", "ArrayMax", "ArrayMin", "ArraySort", "ArraysOverlap", "Explode",
    "Inline", "SortArray",
})  # fmt: skip
"""What is the same of the same elements in any order."""
_COUNTS = frozenset({"ArraySize", "IsNotNull", "IsNull", "Size"})
"""The same whatever the elements are."""
_KEEPS = frozenset({
    "AggregateExpression", "Alias", "AnyValue", "ArrayCompact", "ArrayDistinct", "ArrayExcept", "ArrayFilter",
    "ArrayIntersect", "ArrayRemove", "ArraySort", "ArrayTransform", "ArrayUnion", "CaseWhen", "Cast", "Coalesce",
    "Concat", "First", "Flatten", "If", "IfNull", "KnownNotNull", "KnownNullable", "Last", "Nvl", "Reverse",
    "WindowExpression",
})  # fmt: skip
"""What gives the same elements for the same elements, in some order."""
_OF_ANY_ARGUMENT = frozenset({
    "ArrayExcept", "ArrayIntersect", "ArraysOverlap", "ArrayUnion", "CaseWhen", "Coalesce", "Concat", "If", "IfNull",
    "Nvl",
})  # fmt: skip
_COMPARES = (
    "If And IsNull NamedLambdaVariable IsNull NamedLambdaVariable Literal If IsNull NamedLambdaVariable Literal If"
    " IsNull NamedLambdaVariable Literal If LessThan NamedLambdaVariable NamedLambdaVariable Literal If GreaterThan"
    " NamedLambdaVariable NamedLambdaVariable Literal Literal"
)
"""How Spark spells the order that array_sort takes unless it is given one."""


class Fate(Enum):
    SETTLED = "the order of its elements is of no account"
    LISTED = "it is a list of these elements still"
    OTHER = "it became something that depends on their order"


def fate(inner: Node, above: tuple[Node, ...]) -> Fate:
    """Of the list that ``inner`` is, in the expressions ``above`` it, the nearest first."""
    inside = 0  # so many lists are around it
    for outer in above:
        if outer.kind in _COUNTS:
            return Fate.SETTLED
        if outer.kind == "CollectList":
            inside += 1
        elif inside:
            if outer.kind == "Flatten":
                inside -= 1
            elif outer.kind not in ("AggregateExpression", "Alias", "WindowExpression"):
                return Fate.OTHER
        elif not _looks_at_elements(outer, inner):
            return Fate.OTHER
        elif outer.kind in _ORDER_FREE and not _has_own_order(outer):
            return Fate.SETTLED
        elif outer.kind not in _KEEPS:
            return Fate.OTHER
        inner = outer
    return Fate.OTHER if inside else Fate.LISTED


def _looks_at_elements(outer: Node, inner: Node) -> bool:
    """Is the list what an expression is of, and does it go by no element's place?"""
    if outer.kind not in _OF_ANY_ARGUMENT and outer.children[0] is not inner:
        return False
    lambdas = [each for each in outer.children if each.kind == "LambdaFunction"]
    return outer.kind == "ArraySort" or all(len(each.children) == 2 for each in lambdas)


def _has_own_order(outer: Node) -> bool:
    """Elements that an order of one's own holds to be equal stay in the order in which they came."""
    if outer.kind != "ArraySort":
        return False
    return " ".join(each.kind for each in outer.children[1].children[0].walk()) != _COMPARES
