"""Translated expressions, constants, and how a value gets the type that its place asks for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from tailrace.projections.definition.sql.postgres.types.intervals import Interval
from tailrace.projections.definition.sql.postgres.types.types import (
    DATE,
    INT4,
    INT8,
    INTERVAL,
    NUMBERS,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    VOID,
    PgType,
    numeric,
    spark_ddl,
)


@dataclass(frozen=True, slots=True)
class Value:
    """An expression in Spark's SQL that can be put beside any operator, and its type in Postgres. ``constant`` is the
    text of a literal, ``interval`` a constant interval."""

    sql: str
    type: PgType
    constant: str | None = None
    interval: Interval | None = None

    @classmethod
    def of_interval(cls, interval: Interval) -> Value:
        """A constant interval, which is nothing by itself in Spark."""
        return cls("", INTERVAL, None, interval)

    @property
    def is_null(self) -> bool:
        return self.type == UNKNOWN and self.constant is None


NULL = Value("NULL", UNKNOWN)
_DIGITS = {"int2": (5, 0), "int4": (10, 0), "int8": (19, 0)}
_DAY = r"(?!0000)\d{4}-\d{1,2}-\d{1,2}"
_FORMS = {
    "int2": r"\s*[+-]?\d+\s*", "int4": r"\s*[+-]?\d+\s*", "int8": r"\s*[+-]?\d+\s*",
    "float4": r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|(?i:nan|[+-]?inf(inity)?)",
    "float8": r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|(?i:nan|[+-]?inf(inity)?)",
    "bool": r"(?i:\s*(t|true|f|false|y|yes|n|no|0|1)\s*)",
    "date": _DAY,
    "time": r"\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?",
    "timestamp": _DAY + r"([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?",
    "timestamptz": _DAY + r"([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?([+-]\d{2}(:?\d{2})?|Z)?)?",
}  # fmt: skip
"""The forms of quoted constants that both databases read alike."""
_INSTANT = re.compile(
    r"(\d{4}-\d{1,2}-\d{1,2})[ T](\d{2}:\d{2})(:\d{2}(?:\.\d{1,6})?)?([+-]\d{2}(?::?\d{2})?|Z)?"
)
_BYTES = re.compile(r"\\x((?:[0-9a-fA-F]{2})*)")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.I)


def quoted(text: str) -> str:
    """A text as a literal of Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return "'" + escaped.replace("{", "{{").replace("}", "}}") + "'"


def name_text(name: str) -> str:
    """A name as Spark takes it literally."""
    return "`" + name.replace("`", "``").replace("{", "{{").replace("}", "}}") + "`"


def number(text: str) -> Value:
    """A number as it is written: integer, bigint or numeric by its size and form."""
    if text.isdecimal() and int(text) < 2**63:
        kind = INT4 if int(text) < 2**31 else INT8
        return Value(str(int(text)) + ("L" if kind == INT8 else ""), kind, text)
    return decimal(text)


def decimal(text: str) -> Value:
    """A numeric constant with its own digits."""
    value = Decimal(text.strip())
    plain = format(value, "f")
    scale = len(plain.partition(".")[2])
    precision = max(len(plain.lstrip("-").replace(".", "").lstrip("0")), scale, 1)
    return Value(_negative(f"{plain}BD"), numeric(precision, scale), text)


def _negative(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def null_of(type_: PgType) -> Value:
    ddl = spark_ddl(type_)
    return Value(f"CAST(NULL AS {ddl})" if ddl else "NULL", type_)


def literal_as(value: Value, type_: PgType) -> Value | None:
    """A quoted constant, or NULL, as a type; None when its text is in a form that may not mean the same in Spark."""
    if value.constant is None:
        return null_of(type_)
    text = value.constant
    if type_.name == "text":
        return Value(quoted(text), TEXT, text)
    if type_.name == "bytea" and (bytes_ := _BYTES.fullmatch(text)):
        return Value(f"X'{bytes_[1]}'", type_, text)
    if type_.name == "bytea" and "\\" not in text:
        return Value(f"CAST({quoted(text)} AS BINARY)", type_, text)
    if type_.name == "numeric":
        return decimal(text) if _NUMBER.fullmatch(text) else None
    form, ddl = _FORMS.get(type_.name), spark_ddl(type_)
    if form is None or ddl is None or not re.fullmatch(form, text):
        return None
    written = _with_seconds(text.strip()) if type_.name == "timestamptz" else text.strip()
    return Value(f"CAST({quoted(written)} AS {ddl})", type_, text)


def in_form(sql: str, type_: PgType) -> str:
    """A text if it has a form of the type that both databases read alike, else an empty one, which is none. Spark reads
    more: ``2024`` and ``2024-02-29, or so`` as dates, ``1d`` as a float."""
    form = rf"\A\s*(?:{_FORMS[type_.name]})\s*\z"
    return f"regexp_extract({sql}, {quoted(form)}, 0)"


def _with_seconds(text: str) -> str:
    """An instant in the one form of an offset that Spark reads: ``2026-01-01 00:00:00+01:00``."""
    found = _INSTANT.fullmatch(text)
    if found is None:
        return text
    day, clock, seconds, offset = found.groups()
    hours = (offset or "").removesuffix("Z")
    zone = f"{hours[:3]}:{hours[-2:] if len(hours) > 3 else '00'}" if hours else offset or ""
    return f"{day} {clock}{seconds or ':00'}{zone}"


def of_column(sql: str, type_: PgType) -> Value:
    """What a query or a table of FROM gives: there a constant without a type is a text, as in Postgres since 10."""
    return Value(f"CAST({sql} AS STRING)", TEXT) if type_ == UNKNOWN else Value(sql, type_)


def implicit(value: Value, type_: PgType) -> Value | None:
    """The value where Postgres expects a type, if that is converted without a cast."""
    if value.type == VOID or value.type.name == type_.name == "numeric":
        return value
    if value.type == type_:
        return value
    if value.type == UNKNOWN:
        return literal_as(value, type_)
    return _promoted(value, type_)


def _promoted(value: Value, type_: PgType) -> Value | None:
    order = (DATE.name, TIMESTAMP.name, TIMESTAMPTZ.name)
    for kinds in (NUMBERS, order):
        if value.type.name in kinds and type_.name in kinds:
            if kinds.index(value.type.name) > kinds.index(type_.name):
                return None
            return converted(value, type_)
    return None


def converted(value: Value, type_: PgType) -> Value:
    """A number or a time as a type further on in the order of types."""
    if type_.name == "numeric":
        precision, scale = _DIGITS[value.type.name]
        if value.constant is not None and value.type.is_integer:
            return replace(decimal(value.constant), constant=value.constant)
        return Value(f"CAST({value.sql} AS DECIMAL({precision},{scale}))", numeric(precision, scale))
    return Value(f"CAST({value.sql} AS {spark_ddl(type_)})", type_, None)


def common_type(values: Sequence[Value]) -> PgType | None:
    """The type of CASE, coalesce, IN and the like; None when Postgres finds none. Constants alone are text."""
    types = [value.type for value in values if value.type not in (UNKNOWN, VOID)]
    if not types:
        return TEXT
    if all(each.is_number for each in types):
        found = max(types, key=lambda each: NUMBERS.index(each.name))
        return _common_numeric(types) if found.name == "numeric" else found
    order = [DATE.name, TIMESTAMP.name, TIMESTAMPTZ.name]
    if all(each.name in order for each in types):
        return max(types, key=lambda each: order.index(each.name))
    return types[0] if all(each == types[0] for each in types) else None


def _common_numeric(types: Sequence[PgType]) -> PgType:
    scales = {0 if each.is_integer else each.scale for each in types}
    return numeric(None, scales.pop() if len(scales) == 1 else None)
