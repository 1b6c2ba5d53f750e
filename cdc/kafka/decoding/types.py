"""Columns of Postgres, as settings name their types, or as the schema in a record tells them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tailrace.cdc.kafka.decoding import fields
from tailrace.cdc.kafka.decoding.fields import ELEMENTS, Field
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model.schema import NUMERIC, Column, TopicSchema

_NAMES = {
    16: "boolean", 17: "bytea", 18: '"char"', 19: "name", 20: "bigint", 21: "smallint", 23: "integer", 25: "text",
    26: "oid", 114: "json", 142: "xml", 600: "point", 650: "cidr", 700: "real", 701: "double precision",
    774: "macaddr8", 790: "money", 829: "macaddr", 869: "inet", 1042: "character", 1043: "character varying",
    1082: "date", 1083: "time without time zone", 1114: "timestamp without time zone",
    1184: "timestamp with time zone", 1186: "interval", 1266: "time with time zone", 1560: "bit", 1562: "bit varying",
    1700: "numeric", 2950: "uuid",
    3614: "tsvector", 3802: "jsonb", 3904: "int4range", 3906: "numrange", 3908: "tsrange", 3910: "tstzrange",
    3912: "daterange", 3926: "int8range",
}  # fmt: skip
_ALIASES = {
    "bool": 16, "int8": 20, "int2": 21, "int": 23, "int4": 23, "float4": 700, "float8": 701, "float": 701, "char": 1042,
    "bpchar": 1042, "varchar": 1043, "time": 1083, "timestamp": 1114, "timestamptz": 1184, "timetz": 1266,
    "varbit": 1562, "decimal": 1700,
}  # fmt: skip
_OIDS = {name: oid for oid, name in _NAMES.items()} | _ALIASES
_OF_EXTENSIONS = ("citext", "hstore", "ltree")
_TYPE = re.compile(
    r"(?P<name>\"char\"|[a-z][a-z0-9_ ]*?)\s*(\(\s*(?P<first>[0-9]+)\s*(,\s*(?P<second>-?[0-9]+)\s*)?\))?"
    r"(?P<zone> with(out)? time zone)?(?P<array>\s*\[\])?"
)
_OWN = re.compile(r"[^.]+\.[^.]+")
_FEW_DIGITS, _PRECISION_MAX = re.compile("[0-9]{1,4}"), 1000
_HEADER = 4  # VARHDRSZ
_LENGTHS = (1042, 1043)
_ARRAYS = {element: array for array, element in ELEMENTS.items()}

_BY_NAME = {
    fields.DATE: 1082, fields.CONNECT_DATE: 1082, fields.ISO_DATE: 1082, fields.MILLI_TIME: 1083,
    fields.MICRO_TIME: 1083, fields.NANO_TIME: 1083, fields.ISO_TIME: 1083, fields.CONNECT_TIME: 1083,
    fields.ZONED_TIME: 1266, fields.MILLI_STAMP: 1114, fields.MICRO_STAMP: 1114, fields.NANO_STAMP: 1114,
    fields.ISO_STAMP: 1114, fields.CONNECT_STAMP: 1114, fields.ZONED_STAMP: 1184, fields.DURATION: 1186,
    fields.INTERVAL: 1186, fields.VARIABLE_DECIMAL: 1700, fields.BITS: 1562, fields.UUID: 2950, fields.JSON: 114,
    fields.XML: 142, fields.TSVECTOR: 3614, fields.POINT: 600,
}  # fmt: skip
_BY_TYPE = {
    "boolean": 16, "int8": 21, "int16": 21, "int32": 23, "int64": 20, "float": 700, "double": 701, "string": 25,
    "bytes": 17,
}  # fmt: skip


def declared_table(columns: Mapping[str, str], key: Sequence[str], label: str) -> TopicSchema:
    """A table whose columns and types are written in settings. Raises UsageError on a type that is not known."""
    found = tuple(
        _declared(number, name, text, name in key, label)
        for number, (name, text) in enumerate(columns.items(), 1)
    )
    return TopicSchema(version=1, columns=found, bag=not key)


def _declared(number: int, name: str, text: str, key: bool, label: str) -> Column:
    match = _TYPE.fullmatch(text.strip())
    if match is not None:
        words = match["name"].strip() + (match["zone"] or "")
        oid = _OIDS.get(words)
        if oid is None and words.removesuffix(" without time zone") in ("time", "timestamp"):
            oid = _OIDS[words]
        if oid is not None and (match["array"] is None or oid in _ARRAYS):
            typmod = _typmod(oid, match["first"], match["second"])
            return Column(number, name, _ARRAYS[oid] if match["array"] else oid, typmod, text, key)
        if words in _OF_EXTENSIONS and not match["first"] and not match["array"]:
            return Column(number, name, fields.UNKNOWN, type_name=words, key=key)
    if _OWN.fullmatch(text):
        return Column(number, name, fields.UNKNOWN, type_name=text, key=key)
    raise UsageError(
        f"column {label}.{name}: {text!r} is no type that is known",
        hint='write it as Postgres does, such as "numeric(12,2)"; a type of the database\'s own with its schema, such'
        ' as "public.mood"',
    )


def _typmod(oid: int, first: str | None, second: str | None) -> int:
    if first is None:
        return {1042: 1 + _HEADER, fields.BIT: 1}.get(oid, -1)
    if oid == NUMERIC:
        return (int(first) << 16 | int(second or 0) & 0x7FF) + _HEADER
    return int(first) + (_HEADER if oid in _LENGTHS else 0)


def told_column(number: int, name: str, field: Field, key: bool) -> Column:
    """A column as far as the schema in a record tells it. What it does not tell is taken as text of an unknown type."""
    oid, typmod = _told(field)
    if field.type == "array" and field.items is not None:
        element, typmod = _told(field.items)
        oid = _ARRAYS.get(element, fields.UNKNOWN)
        return Column(number, name, oid, typmod, _text(element, typmod, field.items) + "[]", key)
    return Column(number, name, oid, typmod, _text(oid, typmod, field), key)


def _told(field: Field) -> tuple[int, int]:
    if field.name == fields.DECIMAL:
        precision, scale = (field.parameter(name) for name in ("connect.decimal.precision", "scale"))
        known = all(text and _FEW_DIGITS.fullmatch(text) for text in (precision, scale))
        if precision and scale and known and int(scale) <= int(precision) <= _PRECISION_MAX:
            return NUMERIC, _typmod(NUMERIC, precision, scale)
        return NUMERIC, -1
    if field.name:
        return _BY_NAME.get(field.name, fields.UNKNOWN), -1
    return _BY_TYPE.get(field.type, fields.UNKNOWN), -1


def _text(oid: int, typmod: int, field: Field) -> str:
    if oid == fields.UNKNOWN:
        return fields.HSTORE if field.type == "map" else field.name.rpartition(".")[2].lower() or field.type
    if oid == NUMERIC and typmod >= 0:
        packed = typmod - _HEADER
        return f"numeric({packed >> 16},{packed & 0x7FF})"
    return _NAMES[oid]
