"""Expressions that carry a value on as it is, and the equalities that a condition demands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.spread import Attribute

_Part = TypeVar("_Part")
_INTEGERS = ("byte", "short", "integer", "long")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_FLOAT = re.compile(r"'(float|double)'")
_NEED_VALUES = frozenset({
    "EqualTo", "GreaterThan", "GreaterThanOrEqual", "IsNotNull", "LessThan", "LessThanOrEqual",
})  # fmt: skip
"""Conditions that hold only where none of their operands is NULL."""
_SUBQUERIES = frozenset({"ScalarSubquery", "ListQuery", "Exists", "LateralSubquery", "InSubquery"})


def root(expression: Node) -> Attribute | None:
    """The attribute whose value the expression has, with the same text; None when it computes another one.

    Casts count that keep the text of every value (to a wider integer, a decimal of the same scale). Values that are
    equal without having one text do not: floats (-0 = 0), and text with a collation.
    """
    match expression.kind:
        case "AttributeReference":
            return None if _is_loose(expression.type) else expression.id
        case "Alias" | "KnownNotNull" | "KnownNullable":
            return root(expression.children[0])
        case "GetStructField":
            held = root(expression.children[0])
            name = expression.fields.get("name")
            return (held, str(name)) if isinstance(held, int) and name else None
        case "Cast":
            (child,) = expression.children
            return root(child) if _keeps_text(_type_of(child), expression.type) else None
        case _:
            return None


def roots(expression: Node) -> list[Attribute]:
    """Attributes that an expression is made of so that it tells as much as they do: structs, orders, names."""
    held = root(expression)
    if held is not None:
        return [held]
    if expression.kind in ("Alias", "CreateNamedStruct", "SortOrder"):
        return [held for child in expression.children for held in roots(child)]
    return []


def column_holding(value: Node, columns: Iterable[Node]) -> int | None:
    """The id of the first of some columns that has the value of an expression; None when none has."""
    held = root(value)
    for each in columns:
        if each.kind not in ("Alias", "AttributeReference"):
            continue
        made = each.children[0] if each.children else each
        if root(each) == held if held is not None else _is_same(value, made):
            return each.id
    return None


def _is_same(one: Node, other: Node) -> bool:
    """Two expressions that are spelled alike, of the same columns."""
    return (
        (one.kind, one.fields, len(one.children)) == (other.kind, other.fields, len(other.children))
        and all(map(_is_same, one.children, other.children))
    )  # fmt: skip


def coalesced_attributes(expression: Node) -> list[Attribute] | None:
    """The attributes of which the expression is the first that is not NULL."""
    match expression.kind:
        case "Alias":
            return coalesced_attributes(expression.children[0])
        case "Nvl" | "IfNull":  # the plan has what they are replaced by beside them
            return coalesced_attributes(expression.children[0])
        case "Coalesce":
            roots = [root(child) for child in expression.children]
            return [held for held in roots if held is not None] if None not in roots else None
        case _:
            return None


def _is_loose(kind: str) -> bool:
    return kind in ("float", "double") or has_collation(kind)


def is_float(expression: Node) -> bool:
    """Does it compute with floating-point numbers? By its type where Spark gives one, else by what it is made of."""
    if expression.kind == "Cast" and expression.children[0].type == "void":
        return False  # NULL, and nothing else
    kind = _json_type(expression)
    if kind is None:
        return any(map(is_float, values_of(expression.kind, expression.children)))
    return kind in ("float", "double") or (not isinstance(kind, str) and bool(_FLOAT.search(str(kind))))


def _json_type(expression: Node) -> object:
    """The data type as Spark's JSON has it, a word or an object; None where it has none."""
    if expression.kind != "GetStructField":
        return expression.fields.get("dataType")
    struct, place = _json_type(expression.children[0]), expression.fields.get("ordinal")
    fields = struct.get("fields", ()) if isinstance(struct, dict) else ()
    return fields[place].get("type") if isinstance(place, int) and place < len(fields) else None


def has_collation(kind: str) -> bool:
    """Is it a type of texts that may be equal though they differ?"""
    return " collate " in kind


def _type_of(expression: Node) -> str:
    """A column's type; Spark gives none of other expressions than casts."""
    return _type_of(expression.children[0]) if expression.kind == "Alias" else expression.type


def _keeps_text(old: str, new: str) -> bool:
    if old == new:
        return True
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) <= _INTEGERS.index(new)
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    return bool(before and after and before[2] == after[2] and int(before[1]) <= int(after[1]))


def conjuncts(condition: Node | None) -> Iterator[Node]:
    """The parts of a condition that all have to hold."""
    if condition is None:
        return
    if condition.kind == "And":
        for child in condition.children:
            yield from conjuncts(child)
    else:
        yield condition


@dataclass(frozen=True, slots=True)
class Equality:
    """Two attributes that a condition holds to be equal. ``nulls``: NULL equals NULL, too (``<=>``)."""

    one: Attribute
    other: Attribute
    nulls: bool


def equalities(condition: Node | None, held_by: Callable[[Node], Attribute | None] = root) -> list[Equality]:
    """The equalities that have to hold; ``held_by`` tells the attribute that an expression has the value of."""
    found = []
    for part in conjuncts(condition):
        if part.kind in ("EqualTo", "EqualNullSafe"):
            one, other = map(held_by, part.children)
            if one is not None and other is not None:
                found.append(Equality(one, other, part.kind == "EqualNullSafe"))
    return found


def non_null_attributes(
    condition: Node | None, held_by: Callable[[Node], Attribute | None] = root
) -> set[Attribute]:
    """Attributes that are not NULL where the condition holds, as it says itself."""
    found = set()
    for part in conjuncts(condition):
        all_of = part.kind == "AtLeastNNonNulls" and part.fields.get("n") == len(part.children)  # dropna
        if all_of or part.kind in _NEED_VALUES:
            found |= {held for held in map(held_by, part.children) if held is not None}
    return found


def values_of(kind: str, parts: Sequence[_Part]) -> Sequence[_Part]:
    """Those parts of an expression that its value is made of, without the conditions by which ``If`` and ``CaseWhen``
    choose. ``parts`` go with the children of an expression of that ``kind``."""
    if kind == "If":
        return parts[1:]
    if kind == "CaseWhen":  # condition, value, …, and at the end a value for all others
        return [*parts[1::2], *(parts[-1:] if len(parts) % 2 else ())]
    return parts


def subqueries(expression: Node) -> Iterator[tuple[Node, Node]]:
    """The subqueries anywhere in an expression, with their plans."""
    for node in expression.walk():
        if node.kind in _SUBQUERIES and (plan := node.expression("plan")) is not None:
            yield node, plan


def names_in(expression: Node) -> list[str]:
    """Names of the columns that an expression reads, those of fields of structs with them, each once."""
    return list(dict.fromkeys(_names(expression)))


def _names(expression: Node) -> Iterator[str]:
    name = _path(expression)
    if name:
        yield name
        return
    for child in expression.children:
        yield from _names(child)


def _path(expression: Node) -> str:
    """``after.level``; "" for what is neither a column nor a field of one."""
    if expression.kind == "AttributeReference":
        return expression.name
    field = expression.fields.get("name") if expression.kind == "GetStructField" else None
    above = _path(expression.children[0]) if field else ""
    return f"{above}.{field}" if above else ""
