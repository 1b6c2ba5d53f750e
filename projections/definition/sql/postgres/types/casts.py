"""Casts: the table of pairs of types, and the types that a query may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    MAX_DIGITS,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    VOID,
    PgType,
    array_of,
    numeric,
    spark_ddl,
)
from tailrace.projections.definition.sql.postgres.types.values import (
    Value,
    converted,
    in_form,
    literal_as,
    null_of,
    quoted,
)
from tailrace.projections.definition.sql.postgres.types.zones import UTC, instant, printed, wall_clock

_NAMED: Mapping[exp.DType, PgType] = {
    exp.DType.BOOLEAN: BOOL, exp.DType.TEXT: TEXT, exp.DType.VARBINARY: BYTEA, exp.DType.SMALLINT: INT2,
    exp.DType.INT: INT4, exp.DType.BIGINT: INT8, exp.DType.FLOAT: FLOAT4, exp.DType.DOUBLE: FLOAT8,
    exp.DType.DATE: DATE, exp.DType.TIME: TIME, exp.DType.TIMESTAMP: TIMESTAMP, exp.DType.TIMESTAMPTZ: TIMESTAMPTZ,
}  # fmt: skip


def named_type(type_: exp.DataType) -> tuple[PgType, int | None]:
    """A type that a query names, and the length of a varchar. Raises NotInTable."""
    sizes = [int(each.name) for each in type_.expressions if isinstance(each, exp.DataTypeParam)]
    kind = type_.this
    if kind in _NAMED and not sizes:
        return _NAMED[kind], None
    if kind == exp.DType.VARCHAR and len(sizes) < 2:
        return TEXT, sizes[0] if sizes else None
    if kind == exp.DType.DECIMAL and not sizes:
        return NUMERIC, None
    if kind == exp.DType.DECIMAL and sizes[0] <= MAX_DIGITS:
        return numeric(sizes[0], sizes[1] if len(sizes) > 1 else 0), None
    if kind == exp.DType.DECIMAL:
        raise NotInTable(f"numeric of {sizes[0]} digits", f"at most {MAX_DIGITS} are kept")
    if (
        kind == exp.DType.ARRAY
        and len(type_.expressions) == 1
        and isinstance(type_.expressions[0], exp.DataType)
    ):
        element, length = named_type(type_.expressions[0])
        if length is None and element.element is None:
            return array_of(element), None
    raise NotInTable(f"the type {type_.sql(dialect='postgres').lower()}", "")


_Cast = Callable[[Value, PgType, str], str]


def _plain(value: Value, type_: PgType, _: str) -> str:
    return f"CAST({value.sql} AS {spark_ddl(type_)})"


def _from_text(value: Value, type_: PgType, _: str) -> str:
    return f"CAST({in_form(value.sql, type_)} AS {spark_ddl(type_)})"


def _from_numeric(value: Value, type_: PgType, _: str) -> str:
    """Half away from zero."""
    return f"CAST(round({value.sql}, 0) AS {spark_ddl(type_)})"


def _from_float(value: Value, type_: PgType, _: str) -> str:
    """Half to even."""
    return f"CAST(rint({value.sql}) AS {spark_ddl(type_)})"


def _numeric_to_text(value: Value, _: PgType, __: str) -> str:
    if value.type.scale is None:
        raise NotInTable(
            "the text of a numeric of which it is not known how many digits Postgres shows",
            "cast it to numeric(p,s) first",
        )
    return f"CAST({value.sql} AS STRING)"


def _no_exponent(value: Value, _: PgType, __: str) -> str:
    raise NotInTable(
        f"the text of {value.type}, whose digits Spark chooses otherwise", "cast it to numeric(p,s) first"
    )


def _binary_digits(value: Value, type_: PgType, __: str) -> str:
    raise NotInTable(f"a cast from {value.type} to {type_}, which takes 15 digits in Postgres and 17 in Spark",
                     "keep it a float; round(x) works on floats")  # fmt: skip


def _time_to_text(value: Value, _: PgType, __: str) -> str:
    return printed(value.sql, f"CAST({value.sql} AS STRING)")


def _instant_to_text(value: Value, _: PgType, zone: str) -> str:
    if zone != UTC:
        raise NotInTable(
            "the text of a timestamptz in a zone with summer time", "write it AT TIME ZONE, then cast it"
        )
    clock = wall_clock(value.sql, zone)
    return printed(clock, f"concat(CAST({clock} AS STRING), '+00')")


def _truth(value: Value, _: PgType, __: str) -> str:
    """Every beginning of a word counts. What is none of these is an error in both."""
    word = f"lower(trim({value.sql}))"
    cases = " ".join(
        f"WHEN {word} IN ({', '.join(map(quoted, words))}) THEN {truth}"
        for truth, words in (("TRUE", _TRUE), ("FALSE", _FALSE))
    )
    return f"(CASE {cases} ELSE CAST({value.sql} AS BOOLEAN) END)"


_TRUE = ("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1")
_FALSE = ("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0")
_INTS, _FLOATS = ("int2", "int4", "int8"), ("float4", "float8")
_TABLE: dict[tuple[str, str], _Cast] = {
    **{(one, other): _plain for one in _INTS for other in (*_INTS, *_FLOATS, "text")},
    **{("numeric", other): _from_numeric for other in _INTS},
    **{(one, other): _from_float for one in _FLOATS for other in _INTS},
    **{(one, other): _plain for one in _FLOATS for other in _FLOATS},
    **{("numeric", other): _plain for other in _FLOATS},
    **{(one, "numeric"): _binary_digits for one in _FLOATS},
    **{(one, "text"): _no_exponent for one in _FLOATS},
    **{("text", other): _from_text for other in (*_INTS, *_FLOATS, "date", "time", "timestamp")},
    ("numeric", "text"): _numeric_to_text,
    ("text", "bool"): _truth, ("int4", "bool"): _plain, ("bool", "int4"): _plain, ("bool", "text"): _plain,
    ("date", "text"): _time_to_text, ("time", "text"): _plain, ("timestamp", "text"): _time_to_text,
    ("date", "timestamp"): _plain, ("timestamp", "date"): _plain,
    ("date", "timestamptz"): lambda value, _, zone: instant(f"CAST({value.sql} AS TIMESTAMP_NTZ)", zone),
    ("timestamp", "timestamptz"): lambda value, _, zone: instant(value.sql, zone),
    ("timestamptz", "timestamp"): lambda value, _, zone: wall_clock(value.sql, zone),
    ("timestamptz", "date"): lambda value, _, zone: f"CAST({wall_clock(value.sql, zone)} AS DATE)",
    ("timestamp", "time"): _plain,
    ("timestamptz", "text"): _instant_to_text,
}  # fmt: skip
"""By the types' names; to numeric see ``_to_numeric``."""


def cast(value: Value, type_: PgType, length: int | None, zone: str) -> Value:
    """The value as a type; ``length`` cuts a varchar. Raises NotInTable."""
    found = _cast(value, type_, zone)
    return found if length is None else Value(f"substring({found.sql}, 1, {length})", TEXT)


def _cast(value: Value, type_: PgType, zone: str) -> Value:
    if value.type == VOID:
        return Value(value.sql, type_)
    if value.type == UNKNOWN:
        return _cast_literal(value, type_, zone)
    if type_.name == "numeric" and value.type.name in ("numeric", "text", *_INTS):
        return _to_numeric(value, type_)
    if value.type == type_ == TEXT and value.constant is None:  # it may be no text in Postgres: that is meant
        return Value(_plain(value, TEXT, zone), TEXT)
    if value.type == type_:
        return value
    way = _TABLE.get((value.type.name, type_.name))
    if way is None:
        raise NotInTable(f"a cast from {value.type} to {type_}", "")
    return Value(way(value, type_, zone), type_)


def _cast_literal(value: Value, type_: PgType, zone: str) -> Value:
    found = literal_as(value, type_)
    if found is None:
        raise NotInTable(f"{value.constant!r} as {type_}", "write it as Postgres prints it")
    if type_ == TIMESTAMPTZ and value.constant is not None and zone != UTC:
        clock = literal_as(value, TIMESTAMP)
        return Value(instant(clock.sql, zone), TIMESTAMPTZ) if clock is not None else found
    if type_.name == "numeric" and type_.precision is not None:
        return _to_numeric(found, type_) if value.constant is not None else null_of(type_)
    return found


def _to_numeric(value: Value, type_: PgType) -> Value:
    if type_.precision is not None:
        if type_.scale is None or not 0 <= type_.scale <= type_.precision:
            raise NotInTable(
                f"numeric({type_.precision},{type_.scale})", "the scale is from 0 to the precision"
            )
        return Value(f"CAST({value.sql} AS {spark_ddl(type_)})", type_)
    if value.type.name == "text":
        raise NotInTable("a cast from text to numeric without its digits", "say how many: numeric(p,s)")
    return converted(value, type_) if value.type.is_integer else value
