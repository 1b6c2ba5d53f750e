"""Functions of arrays, which have one dimension and begin at 1."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tailrace.projections.definition.sql.postgres.functions.table import Absent, Row, filled
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import INT4, TEXT, PgType, array_of, spark_ddl
from tailrace.projections.definition.sql.postgres.types.values import Value, implicit, quoted


def _element(value: Value, array: Value) -> Value:
    """A value as an element of an array. Raises NotInTable."""
    assert array.type.element is not None
    found = implicit(value, array.type.element)
    if found is None:
        raise NotInTable(f"{value.type} as an element of {array.type}", "cast it")
    return found


def _some(array: Value) -> str:
    """The array; an empty one for NULL."""
    ddl = spark_ddl(array.type)
    if ddl is None:
        raise NotInTable(f"an array of {array.type.element} of unknown digits", "cast it")
    return f"coalesce({array.sql}, CAST(array() AS {ddl}))"


def _appended(arguments: Sequence[Value]) -> str:
    array, value = arguments
    return f"concat({_some(array)}, array({_element(value, array).sql}))"


def _prepended(arguments: Sequence[Value]) -> str:
    value, array = arguments
    return f"concat(array({_element(value, array).sql}), {_some(array)})"


def _with_elements(template: str, arguments: Sequence[Value]) -> str:
    """Of an array and elements. The name of the lambda's variable is no column's."""
    array, *others = arguments
    return filled(template, [array.sql, *(_element(each, array).sql for each in others)])


def _removed(arguments: Sequence[Value]) -> str:
    return _with_elements("filter({0}, each_ -> NOT (each_ <=> {1}))", arguments)


def _replaced(arguments: Sequence[Value]) -> str:
    return _with_elements("transform({0}, each_ -> if(each_ <=> {1}, {2}, each_))", arguments)


def _position(arguments: Sequence[Value]) -> str:
    found = "array_position(transform({0}, each_ -> each_ <=> {1}), true)"
    return _with_elements(f"cast(nullif({found}, 0) as int)", arguments)


def _joined(arguments: Sequence[Value]) -> str:
    one, other = arguments
    if one.type != other.type:
        raise NotInTable(f"array_cat({one.type}, {other.type})", "cast one of them")
    return filled("CASE WHEN {0} IS NULL THEN {1} WHEN {1} IS NULL THEN {0} ELSE concat({0}, {1}) END",
                  [one.sql, other.sql])  # fmt: skip


def _split(arguments: Sequence[Value]) -> str:
    text, separator, *null = arguments
    if not separator.constant:
        raise NotInTable(
            "string_to_array() without a separator", "write regexp_split_to_array() or a text as separator"
        )
    java = quoted(re.sub(r"(\W)", r"\\\1", separator.constant))
    parts = f"split({text.sql}, {java}, -1)"
    if null:
        parts = f"transform({parts}, each_ -> nullif(each_, {null[0].sql}))"
    return f"if({text.sql} = '', CAST(array() AS ARRAY<STRING>), {parts})"


def _first_dimension(template: str) -> Callable[[Sequence[Value]], str]:
    def text(arguments: Sequence[Value]) -> str:
        if arguments[1].constant != "1":
            raise NotInTable("a dimension that is not 1", "arrays have one")
        return filled(template, [arguments[0].sql])

    return text


def _texts_joined(arguments: Sequence[Value]) -> str:
    if arguments[0].type.element != TEXT:
        raise NotInTable(f"array_to_string({arguments[0].type})", "cast it to text[]")
    return filled("array_join({*})", [each.sql for each in arguments])


def _of_second(arguments: Sequence[Value]) -> PgType:
    return arguments[1].type


_SIZES = "write array_length(a, 1) or cardinality(a)"
ROWS = (
    Row("cardinality", ("array",), INT4, "size({0})"),
    Row("array_length", ("array", "int4 constant"), INT4, _first_dimension("nullif(size({0}), 0)")),
    Row("array_upper", ("array", "int4 constant"), INT4, _first_dimension("nullif(size({0}), 0)")),
    Row("array_lower", ("array", "int4 constant"), INT4, _first_dimension("if(size({0}) > 0, 1, NULL)")),
    Row("array_to_string", ("array", "text constant"), TEXT, _texts_joined),
    Row("array_to_string", ("array", "text constant", "text constant"), TEXT, _texts_joined),
    Row("array_append", ("array", "element"), "same", _appended),
    Row("array_prepend", ("element", "array"), _of_second, _prepended),
    Row("array_cat", ("array", "array"), "same", _joined),
    Row("array_remove", ("array", "element"), "same", _removed),
    Row("array_replace", ("array", "element", "element"), "same", _replaced),
    Row("array_position", ("array", "element"), INT4, _position),
    Row("string_to_array", ("text", "text constant"), array_of(TEXT), _split),
    Row("string_to_array", ("text", "text constant", "text constant"), array_of(TEXT), _split),
    Row("array_ndims", ("array",), INT4, Absent(_SIZES)),
    Row("array_dims", ("array",), TEXT, Absent(_SIZES)),
    Row("array_fill", ("element", "array"), "same", Absent("write ARRAY[…]")),
    Row(
        "array_positions",
        ("array", "element"),
        "same",
        Absent("write array_position(), or unnest() with its place"),
    ),
)
