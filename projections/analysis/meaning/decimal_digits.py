"""Where Spark keeps fewer digits behind the point than Postgres, and says nothing. Pure.

Spark's decimals have 38 digits. A product with more of them behind the point is rounded, and so is a value that is
brought to one type with others that have more before it. Quotients and averages have as many digits as their type says,
where Postgres has sixteen significant ones or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from tailrace.projections.analysis.expressions import values_of
from tailrace.projections.analysis.plan_tree import Node

MOST = 38
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_INTEGERS = {"byte": 3, "short": 5, "integer": 10, "long": 20}
_SAME = frozenset({
    "Abs", "AggregateExpression", "Alias", "CaseWhen", "Coalesce", "First", "Greatest", "If", "KnownNotNull", "Last",
    "Least", "Max", "MaxBy", "Min", "MinBy", "Nvl", "UnaryMinus", "UnaryPositive", "WindowExpression",
})  # fmt: skip
"""What has the type of (the first of) its values."""
_ROUNDING = frozenset({
    "BRound", "Ceil", "EqualNullSafe", "EqualTo", "Floor", "FormatNumber", "GreaterThan", "GreaterThanOrEqual",
    "LessThan", "LessThanOrEqual", "Round", "RoundCeil", "RoundFloor",
})  # fmt: skip
"""Below these further digits count no more, or hardly ever."""
_PERCENT = 100
_ORDERS = frozenset({"GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"})
"""Of these a digit that is dropped decides only where both sides are as good as equal."""

Digits = tuple[int, int]
"""Precision and scale."""


@dataclass(frozen=True, slots=True)
class LostDigits:
    """``cut``: digits are rounded away; otherwise there are only fewer of a fraction that may have no end."""

    what: str
    hint: str
    call: str
    cut: bool


def lost_digits(expression: Node, *, rounded: bool = False, ordered: bool = False) -> Iterator[LostDigits]:
    """Those of an expression and of all in it. ``rounded``, ``ordered``: what it stands in."""
    kind = expression.kind
    if kind == "Multiply" and (scale := sum(each[1] for each in _decimals(expression))) > MOST:
        yield LostDigits(
            f"a product has {scale} digits behind the point, of which Spark keeps {MOST}",
            "give its factors fewer: cast(… AS decimal(18,6))", "*", cut=True,
        )  # fmt: skip
    elif kind == "Cast" and (given := digits(expression.children[0])) is not None:
        found = _DECIMAL.fullmatch(expression.type)
        if found and int(found[1]) == MOST and int(found[2]) < given[1]:
            dropped = given[1] - int(found[2])
            yield LostDigits(
                f"a decimal becomes {expression.type} beside another one: that drops {dropped} digits behind the point",
                f"cast both to a type that holds them; where that is meant, to decimal({MOST - 1},{found[2]})", "cast",
                cut=not ordered,
            )  # fmt: skip
    elif kind in ("Divide", "Average") and not rounded and any(map(_is_decimal, expression.children[:2])):
        name = "avg" if kind == "Average" else "/"
        found_scale = (digits(expression) or (MOST, 6))[1]
        yield LostDigits(
            f"{name} of decimals has {found_scale} digits behind the point, in Postgres 16 significant ones or more",
            "say how many are meant: round(…, 2); multiply before you divide", name, cut=False,
        )  # fmt: skip
    inside = rounded or kind in _ROUNDING or (kind == "Cast" and expression.type != "string")
    for child in expression.children:
        grows = kind == "Multiply" and not all(map(_is_percent, set(expression.children) - {child}))
        yield from lost_digits(child, rounded=inside and not grows, ordered=kind in _ORDERS)


def _is_percent(factor: Node) -> bool:
    """Whether it is a constant of 100 or less, which brings few digits of a quotient before the point."""
    while factor.kind in ("Cast", "Alias"):
        (factor,) = factor.children
    try:
        return factor.kind == "Literal" and abs(Decimal(str(factor.fields.get("value")))) <= _PERCENT
    except InvalidOperation:
        return False


def digits(expression: Node) -> Digits | None:
    """Of a decimal or an integer; None for other types, and where they are not known."""
    kind = expression.kind
    if (known := _of_type(expression.type)) is not None:
        return known
    if kind in _SAME:
        return next(filter(None, map(digits, values_of(kind, expression.children))), None)
    if kind == "ScalarSubquery":
        return next(filter(None, map(digits, _value_of(expression))), None)
    children = [digits(each) for each in expression.children]
    if kind == "Sum" and children[0]:
        return min(MOST, children[0][0] + 10), children[0][1]
    if kind == "Average" and children[0]:
        return min(MOST, children[0][0] + 4), min(MOST, children[0][1] + 4)
    if kind not in ("Add", "Subtract", "Multiply", "Divide") or len(children) != 2 or None in children:
        return None
    (p1, s1), (p2, s2) = (each for each in children if each is not None)
    if kind == "Multiply":
        return min(MOST, p1 + p2 + 1), min(MOST, s1 + s2)
    if kind == "Divide":
        before, behind = min(MOST, p1 - s1 + s2), min(MOST, max(6, s1 + p2 + 1))
        more = before + behind - MOST
        behind -= more // 2 + 1 if more > 0 else 0
        return (MOST if more > 0 else before + behind), behind
    return min(MOST, max(p1 - s1, p2 - s2) + max(s1, s2) + 1), max(s1, s2)


def _of_type(name: str) -> Digits | None:
    if name in _INTEGERS:
        return _INTEGERS[name], 0
    found = _DECIMAL.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def _decimals(expression: Node) -> list[Digits]:
    """The operands, if one of them is a decimal and all are known."""
    found = [digits(each) for each in expression.children[:2]]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) and any(map(_is_decimal, expression.children[:2])) else []


def _is_decimal(expression: Node) -> bool:
    """Spark brings both operands to decimals where one is one, so that integers alone are no decimals."""
    if expression.type:
        return expression.type.startswith("decimal")
    if expression.kind == "ScalarSubquery":
        return any(map(_is_decimal, _value_of(expression)))
    return any(map(_is_decimal, values_of(expression.kind, expression.children)))


def _value_of(subquery: Node) -> tuple[Node, ...]:
    """The one expression that a subquery gives; none where its plan does not show it."""
    plan = subquery.expression("plan")
    for node in plan.walk() if plan is not None else ():
        found = node.expressions("aggregateExpressions") or node.expressions("projectList")
        if found:
            return found[:1]
    return ()
