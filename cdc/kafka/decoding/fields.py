"""Fields of Kafka Connect's schemas: what a value in JSON is meant to be, and which column of Postgres it comes from.

A record that carries its schema says the fields. For one that does not, ``field_of`` says which field the connector
makes of a column under its settings (Debezium documentation, "Data type mappings" of the PostgreSQL connector). So
values are read in one way, whoever said how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tailrace.cdc.kafka.topics.declaration import (
    BinaryMode,
    DecimalMode,
    HstoreMode,
    IntervalMode,
    Modes,
    TimeMode,
)
from tailrace.eventstore.model.schema import NUMERIC, Column

TIME, CONNECT, DATA = "io.debezium.time.", "org.apache.kafka.connect.data.", "io.debezium.data."
DATE, ISO_DATE, CONNECT_DATE = f"{TIME}Date", f"{TIME}IsoDate", f"{CONNECT}Date"
MILLI_TIME, MICRO_TIME, NANO_TIME = f"{TIME}Time", f"{TIME}MicroTime", f"{TIME}NanoTime"
ISO_TIME, CONNECT_TIME, ZONED_TIME = f"{TIME}IsoTime", f"{CONNECT}Time", f"{TIME}ZonedTime"
MILLI_STAMP, MICRO_STAMP, NANO_STAMP = f"{TIME}Timestamp", f"{TIME}MicroTimestamp", f"{TIME}NanoTimestamp"
ISO_STAMP, CONNECT_STAMP, ZONED_STAMP = (
    f"{TIME}IsoTimestamp",
    f"{CONNECT}Timestamp",
    f"{TIME}ZonedTimestamp",
)
DURATION, INTERVAL = f"{TIME}MicroDuration", f"{TIME}Interval"
DECIMAL, VARIABLE_DECIMAL = f"{CONNECT}Decimal", f"{DATA}VariableScaleDecimal"
BITS, UUID, JSON, XML, ENUM = f"{DATA}Bits", f"{DATA}Uuid", f"{DATA}Json", f"{DATA}Xml", f"{DATA}Enum"
LTREE, TSVECTOR, POINT = f"{DATA}Ltree", f"{DATA}Tsvector", f"{DATA}geometry.Point"

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID = 16, 17, 20, 21, 23, 25, 26
FLOAT4, FLOAT8, UNKNOWN, MONEY, DATES = 700, 701, 705, 790, 1082
FIRST_OWN = 16384
"""Of the oids of types that are not of Postgres itself (FirstNormalObjectId, transam.h)."""
TIMES, STAMPS, ZONED_STAMPS, INTERVALS, ZONED_TIMES = 1083, 1114, 1184, 1186, 1266
BIT, VARBIT, UUIDS, POINTS = 1560, 1562, 2950, 600
_AS_TEXT = {
    18,  # "char"
    *(
        19,
        TEXT,
        114,
        142,
        650,
        774,
        829,
        869,
        1042,
        1043,
    ),  # name … json xml cidr macaddr8 macaddr inet bpchar varchar
    *(3614, 3802, 3904, 3906, 3908, 3910, 3912, 3926),  # tsvector jsonb and ranges
}
"""Types of which Debezium sends the text of the server."""
_EXTENSIONS = {"citext", "ltree"}
HSTORE = "hstore"
ELEMENTS = {  # array type oid -> element type oid
    1000: BOOL, 1001: BYTEA, 1002: 18, 1003: 19, 1005: INT2, 1007: INT4, 1009: TEXT, 1014: 1042, 1015: 1043,
    1016: INT8, 1021: FLOAT4, 1022: FLOAT8, 1028: OID, 1115: STAMPS, 1182: DATES, 1183: TIMES, 1185: ZONED_STAMPS,
    1231: NUMERIC, 1270: ZONED_TIMES, 2951: UUIDS, 199: 114, 3807: 3802, 1041: 869, 651: 650, 1040: 829, 775: 774,
    3905: 3904, 3907: 3906, 3909: 3908, 3911: 3910, 3913: 3912, 3927: 3926,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """A schema of Kafka Connect, as its JSON converter writes it. ``name`` is the semantic one; ``items`` that of an
    array's elements."""

    type: str
    name: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    items: Field | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or AttributeError on what is no schema."""
        items = document.get("items")
        return cls(
            str(document["type"]),
            str(document.get("name") or ""),
            tuple((str(name), str(value)) for name, value in (document.get("parameters") or {}).items()),
            None if items is None else cls.of(items),
        )

    def parameter(self, name: str) -> str | None:
        return dict(self.parameters).get(name)

    @property
    def text(self) -> str:
        """For errors."""
        return f"{self.type} ({self.name})" if self.name else self.type


def fields_of(document: Mapping[str, Any]) -> dict[str, Field]:
    """The fields of a struct, by name. Raises as ``Field.of``."""
    return {str(each["field"]): Field.of(each) for each in document["fields"]}


def element_of(column: Column) -> Column | None:
    """An array column's element as a column of its own; None when the column is no array that is known."""
    element = ELEMENTS.get(column.meant_oid)
    if element is None:
        return None
    return Column(column.id, column.name, element, column.meant_typmod)


def bare_name(column: Column) -> str:
    """The name of the column's type without schema and modifier."""
    return column.type_name.split("(")[0].rsplit(".", 1)[-1].strip('"')


def as_text(column: Column) -> bool:
    """Whether Debezium sends the server's text of such a column as a string."""
    return (
        column.meant_oid in _AS_TEXT
        or column.type_kind == "e"
        or (column.meant_oid != UNKNOWN and bare_name(column) in _EXTENSIONS)
    )


def field_of(column: Column, modes: Modes) -> Field | None:
    """The field that the connector makes of a column; None when it sends no such columns, unless told to."""
    element = element_of(column)
    if element is not None:
        inner = field_of(element, modes)
        return Field("array", items=inner) if inner is not None else None
    oid = column.meant_oid
    if oid >= FIRST_OWN and column.type_name.endswith("[]"):  # of an enum, say; others are not sent
        return Field("array", items=Field("string"))
    if as_text(column) or oid == UNKNOWN:
        return Field("string")
    if bare_name(column) == HSTORE and oid not in _FIXED:
        return Field("string", JSON) if modes.hstore is HstoreMode.JSON else Field("map")
    if oid in (NUMERIC, MONEY):
        return _decimal(column, modes.decimal)
    if oid == BYTEA:
        return Field("bytes" if modes.binary is BinaryMode.BYTES else "string")
    if oid in (DATES, TIMES, STAMPS):
        return _temporal(column, modes.time)
    if oid == INTERVALS:
        numeric = modes.interval is IntervalMode.NUMERIC
        return Field("int64", DURATION) if numeric else Field("string", INTERVAL)
    if oid == BIT:
        length = max(column.meant_typmod, 1)
        return Field("boolean") if length == 1 else Field("bytes", BITS, (("length", str(length)),))
    return _FIXED.get(oid)


_FIXED = {
    BOOL: Field("boolean"),
    INT2: Field("int16"),
    INT4: Field("int32"),
    INT8: Field("int64"),
    OID: Field("int64"),
    FLOAT4: Field("float"),
    FLOAT8: Field("double"),
    ZONED_STAMPS: Field("string", ZONED_STAMP),
    ZONED_TIMES: Field("string", ZONED_TIME),
    UUIDS: Field("string", UUID),
    POINTS: Field("struct", POINT),
    VARBIT: Field("bytes", BITS),
}


def _decimal(column: Column, mode: DecimalMode) -> Field:
    if mode is DecimalMode.STRING:
        return Field("string")
    if mode is DecimalMode.DOUBLE:
        return Field("double")
    if column.meant_oid == MONEY:
        return Field("bytes", DECIMAL, (("scale", "2"),))
    if column.meant_typmod < 0:
        return Field("struct", VARIABLE_DECIMAL)
    scale = (column.meant_typmod - 4) & 0x7FF  # as the connector reads it, also where it is negative
    return Field("bytes", DECIMAL, (("scale", str(scale)),))


def _temporal(column: Column, mode: TimeMode) -> Field:
    """A date, time or timestamp without zone; ``adaptive`` looks at how many digits the column keeps of a second."""
    kind = {DATES: 0, TIMES: 1, STAMPS: 2}[column.meant_oid]
    if mode is TimeMode.ISOSTRING:
        return Field("string", (ISO_DATE, ISO_TIME, ISO_STAMP)[kind])
    if mode is TimeMode.CONNECT:
        return (Field("int32", CONNECT_DATE), Field("int32", CONNECT_TIME), Field("int64", CONNECT_STAMP))[
            kind
        ]
    if kind == 0:
        return Field("int32", DATE)
    if mode is TimeMode.NANOSECONDS:
        return Field("int64", (NANO_TIME, NANO_STAMP)[kind - 1])
    milli = 0 <= column.meant_typmod <= 3 and mode is not TimeMode.MICROSECONDS
    if kind == 1:
        milli = milli and mode is TimeMode.ADAPTIVE
        return Field("int32", MILLI_TIME) if milli else Field("int64", MICRO_TIME)
    return Field("int64", MILLI_STAMP if milli else MICRO_STAMP)
