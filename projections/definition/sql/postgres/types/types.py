"""Postgres' types as far as expressions are translated, and the types of Spark that hold their values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class PgType:
    """``precision`` and ``scale`` are those of a numeric; ``scale`` is None where values may have different ones, or
    where Spark's differ from Postgres'. ``element`` is that of an array, ``fields`` those of a record."""

    name: str
    precision: int | None = None
    scale: int | None = None
    element: PgType | None = None
    fields: tuple[tuple[str, PgType], ...] = ()

    def __str__(self) -> str:
        words = _WORDS.get(self.name, self.name)
        return f"{self.element}[]" if self.element else words

    @property
    def is_number(self) -> bool:
        return self.name in NUMBERS

    @property
    def is_integer(self) -> bool:
        return self.name in INTEGERS


BOOL, TEXT, BYTEA = PgType("bool"), PgType("text"), PgType("bytea")
INT2, INT4, INT8 = PgType("int2"), PgType("int4"), PgType("int8")
FLOAT4, FLOAT8 = PgType("float4"), PgType("float8")
NUMERIC = PgType("numeric")
DATE, TIME, TIMESTAMP, TIMESTAMPTZ = (
    PgType("date"),
    PgType("time"),
    PgType("timestamp"),
    PgType("timestamptz"),
)
INTERVAL = PgType("interval")
UNKNOWN = PgType("unknown")
"""Of a quoted constant and of NULL: whatever its place asks for."""
VOID = PgType("void")
"""Of a column that no input has: nothing can be said of it."""

INTEGERS = ("int2", "int4", "int8")
NUMBERS = ("int2", "int4", "int8", "numeric", "float4", "float8")
"""In the order in which one becomes the next."""
_WORDS = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "unknown": "an untyped constant", "record": "a composite",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
}  # fmt: skip
_SPARK = {
    "bool": "BOOLEAN", "text": "STRING", "bytea": "BINARY", "int2": "SMALLINT", "int4": "INT", "int8": "BIGINT",
    "float4": "FLOAT", "float8": "DOUBLE", "date": "DATE", "time": "TIME(6)", "timestamp": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
}  # fmt: skip
_OF_SPARK = {
    "boolean": BOOL, "string": TEXT, "binary": BYTEA, "short": INT2, "integer": INT4, "long": INT8, "float": FLOAT4,
    "double": FLOAT8, "date": DATE, "time": TIME, "timestamp": TIMESTAMPTZ, "timestamp_ntz": TIMESTAMP, "void": VOID,
}  # fmt: skip
MAX_DIGITS = 38


def numeric(precision: int | None, scale: int | None) -> PgType:
    return replace(NUMERIC, precision=precision, scale=scale)


def array_of(element: PgType) -> PgType:
    return PgType("array", element=element)


def spark_ddl(type_: PgType) -> str | None:
    """Spark's name of a type; None when it has none, or its digits are not known."""
    if type_.name == "numeric":
        known = type_.precision is not None and type_.scale is not None
        return f"DECIMAL({type_.precision},{type_.scale})" if known else None
    if type_.element is not None:
        inner = spark_ddl(type_.element)
        return inner and f"ARRAY<{inner}>"
    return _SPARK.get(type_.name)


def type_of_spark(type_: Any) -> PgType:
    """The type of a column of a DataFrame. What Spark has no type for is text."""
    name = type_.typeName()
    if name == "decimal":
        return numeric(type_.precision, type_.scale)
    if name == "array":
        return array_of(type_of_spark(type_.elementType))
    if name == "struct":
        return PgType(
            "record", fields=tuple((each.name, type_of_spark(each.dataType)) for each in type_.fields)
        )
    return _OF_SPARK.get(name, PgType(name))
