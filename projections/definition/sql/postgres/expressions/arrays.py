"""Arrays: constructors, subscripts, slices, ANY and ALL, joining, containing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tailrace.projections.definition.sql.postgres.expressions.operators import as_type, comparable
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import (
    BOOL,
    INT4,
    UNKNOWN,
    PgType,
    array_of,
    spark_ddl,
)
from tailrace.projections.definition.sql.postgres.types.values import Value, common_type, implicit, literal_as

_PLAIN_ELEMENT = re.compile(r'[^{},"\\\s]([^{},"\\]*[^{},"\\\s])?')


def array(values: Sequence[Value], zone: str) -> Value:
    """``ARRAY[…]``. Raises NotInTable."""
    kind = common_type(values)
    if not values or kind is None or kind.element is not None or kind.name == "record":
        raise NotInTable("this ARRAY", "its elements have one type; an empty one is cast: '{}'::int[]")
    elements = [as_type(each, kind, zone) for each in values]
    return Value(f"array({', '.join(each.sql for each in elements)})", array_of(kind))


def array_literal(text: str, type_: PgType) -> Value:
    """``'{a,b}'`` as an array. Raises NotInTable."""
    inner = text.strip()
    element = type_.element
    if element is None or not (inner.startswith("{") and inner.endswith("}")):
        raise NotInTable(f"{text!r} as {type_}", "write ARRAY[…]")
    parts = [part.strip() for part in inner[1:-1].split(",")] if inner[1:-1].strip() else []
    values = []
    for part in parts:
        if not _PLAIN_ELEMENT.fullmatch(part):
            raise NotInTable(f"{text!r} as {type_}", "write ARRAY[…]")
        unquoted = Value("NULL", UNKNOWN) if part.upper() == "NULL" else Value("", UNKNOWN, part)
        found = literal_as(unquoted, element)
        if found is None:
            raise NotInTable(f"{part!r} as {element}", "write it as Postgres prints it")
        values.append(found.sql)
    return Value(f"CAST(array({', '.join(values)}) AS {spark_ddl(type_)})", type_)


def subscript(value: Value, at: Value) -> Value:
    """``a[i]``; NULL outside. Raises NotInTable."""
    element, place = value.type.element, implicit(at, INT4)
    if element is None or place is None:
        raise NotInTable(f"{value.type}[{at.type}]", "")
    return Value(f"get({value.sql}, greatest({place.sql}, 0) - 1)", element)


def slice_(value: Value, start: Value | None, end: Value | None) -> Value:
    """``a[m:n]`` with constants. Raises NotInTable."""
    bounds = [each.constant for each in (start, end) if each is not None]
    if value.type.element is None or any(each is None or not re.fullmatch(r"-?\d+", each) for each in bounds):
        raise NotInTable("this slice", "its bounds are numbers")
    first = max(1, int(start.constant or 1)) if start is not None else 1
    length = str(max(0, int(end.constant or 0) - first + 1)) if end is not None else f"size({value.sql})"
    return Value(f"slice({value.sql}, {first}, {length})", value.type)


def any_of(value: Value, elements: Value, zone: str) -> Value:
    """``x = ANY (array)``. Raises NotInTable."""
    kind = elements.type.element
    if kind is None:
        raise NotInTable(f"ANY of {elements.type}", "cast it to an array")
    one, _ = comparable("=", [value, Value("", kind)], zone)
    if one.type.name != kind.name:
        raise NotInTable(f"{value.type} = ANY ({elements.type})", "cast one of them")
    found = f"array_contains({elements.sql}, {one.sql})"
    return Value(f"(CASE WHEN size({elements.sql}) = 0 THEN FALSE ELSE {found} END)", BOOL)


def joined(left: Value, right: Value, zone: str) -> Value:
    """``||`` with an array on a side; a NULL array adds nothing. Raises NotInTable."""
    kind = left.type if left.type.element is not None else right.type
    assert kind.element is not None
    both = left.type.element is not None and right.type.element is not None
    ddl = spark_ddl(kind)
    if both and left.type == right.type:
        return Value(f"coalesce(concat({left.sql}, {right.sql}), {left.sql}, {right.sql})", kind)
    if both or ddl is None or UNKNOWN in (left.type, right.type):
        raise NotInTable(f"{left.type} || {right.type}", "cast one of them")
    parts = []
    for each in (left, right):
        if each.type == kind:
            parts.append(f"coalesce({each.sql}, CAST(array() AS {ddl}))")
        else:
            parts.append(f"array({as_type(each, kind.element, zone).sql})")
    return Value(f"concat({', '.join(parts)})", kind)


def contains(left: Value, right: Value) -> Value:
    """``@>``: an element that is NULL is in no array. Raises NotInTable."""
    _require_one_type("@>", left, right)
    within = f"forall({right.sql}, each -> coalesce(array_contains({left.sql}, each), FALSE))"
    return Value(f"(CASE WHEN {left.sql} IS NOT NULL THEN {within} END)", BOOL)


def overlaps(left: Value, right: Value) -> Value:
    """``&&``: an element that is NULL is in no array. Raises NotInTable."""
    _require_one_type("&&", left, right)
    found = f"coalesce(arrays_overlap({left.sql}, {right.sql}), FALSE)"
    return Value(f"(CASE WHEN {left.sql} IS NOT NULL AND {right.sql} IS NOT NULL THEN {found} END)", BOOL)


def _require_one_type(operator: str, left: Value, right: Value) -> None:
    """Both are arrays of one type. Raises NotInTable."""
    if left.type.element is None or left.type != right.type:
        hint = "" if left.type.element is None else "cast one of them"
        raise NotInTable(f"{left.type} {operator} {right.type}", hint)
