"""Which reader turns the values of a field into texts of a column; and which pairs of the two are refused."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid

from tailrace.cdc.kafka.decoding import fields
from tailrace.cdc.kafka.decoding.fields import Field, as_text, bare_name, element_of
from tailrace.cdc.kafka.decoding.values import arrays, numbers, texts, times
from tailrace.cdc.kafka.decoding.values.cells import Reader
from tailrace.cdc.kafka.topics.declaration import BinaryMode, Modes
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import NUMERIC, Column

_SCALE = re.compile("-?[0-9]{1,18}")
_OTHER_TEXTS = (1042, 1043, 114, 3802)  # bpchar, varchar, json, jsonb
_INTEGERS = ("int8", "int16", "int32", "int64")
_BY_NAME: dict[tuple[int, str], Reader] = {
    (fields.DATES, fields.DATE): times.day,
    (fields.DATES, fields.CONNECT_DATE): times.day,
    (fields.DATES, fields.ISO_DATE): times.iso_day,
    (fields.TIMES, fields.MILLI_TIME): times.clock(1000),
    (fields.TIMES, fields.CONNECT_TIME): times.clock(1000),
    (fields.TIMES, fields.MICRO_TIME): times.clock(1),
    (fields.TIMES, fields.NANO_TIME): times.clock(0.001),
    (fields.TIMES, fields.ISO_TIME): times.iso_clock(),
    (fields.ZONED_TIMES, fields.ZONED_TIME): times.iso_clock("+00"),
    (fields.STAMPS, fields.MILLI_STAMP): times.stamp(1000),
    (fields.STAMPS, fields.CONNECT_STAMP): times.stamp(1000),
    (fields.STAMPS, fields.MICRO_STAMP): times.stamp(1),
    (fields.STAMPS, fields.NANO_STAMP): times.stamp(0.001),
    (fields.STAMPS, fields.ISO_STAMP): times.iso_stamp(),
    (fields.ZONED_STAMPS, fields.ZONED_STAMP): times.iso_stamp("+00"),
    (fields.INTERVALS, fields.INTERVAL): times.interval,
    (fields.POINTS, fields.POINT): texts.point,
}
_BY_TYPE: dict[tuple[int, str], Reader] = {
    (fields.BOOL, "boolean"): numbers.boolean,
    (fields.BIT, "boolean"): numbers.bit,
    (fields.UUIDS, "string"): texts.string,
    (fields.BYTEA, "bytes"): texts.binary(BinaryMode.BASE64),
}
_REFUSED = {
    fields.DURATION: "interval.handling.mode=numeric leaves only about how long an interval is: set it to string in the"
    ' connector, or take the number as it is: declare the column as "bigint"',
    fields.BITS: "the connector does not send how many bits there are: leave the column out there"
    ' (column.exclude.list), or take the bytes: declare the column as "bytea"',
}


def reader_of(column: Column, field: Field, modes: Modes, table: str) -> Reader:
    """Raises OperatorError, which says what to declare, when it is not known how the one becomes the other."""
    reader = _array(column, field, modes, table) if field.type == "array" else _scalar(column, field, modes)
    if reader is None:
        hint = _REFUSED.get(field.name) or (
            "declare the column with the type that it has in Postgres, and the connector's handling modes; or leave it"
            " out there (column.exclude.list)"
        )
        raise OperatorError(
            f"column {table}.{column.name}: it is not known how {field.text} becomes"
            f" {column.type_name or f'the type with oid {column.meant_oid}'}",
            hint=hint,
        )
    return reader


def _array(column: Column, field: Field, modes: Modes, table: str) -> Reader | None:
    element = element_of(column)
    own = column.meant_oid >= fields.FIRST_OWN or column.meant_oid == fields.UNKNOWN
    if own and field.items is not None and field.items.type == "string":
        return arrays.array(texts.string)
    if element is None or field.items is None:
        return None
    return arrays.array(reader_of(element, field.items, modes, table))


def _scalar(column: Column, field: Field, modes: Modes) -> Reader | None:
    oid, typmod = column.meant_oid, column.meant_typmod
    found = _BY_NAME.get((oid, field.name)) or _BY_TYPE.get((oid, field.type))
    if found is not None:
        return found
    if field.type == "string" and (as_text(column) or oid == fields.UNKNOWN):
        return texts.string
    if field.type in ("float", "double") and oid in (fields.FLOAT4, fields.FLOAT8):
        return numbers.floating(single=field.type == "float", exact=column.key)
    if field.type in _INTEGERS and oid in (fields.INT2, fields.INT4, fields.INT8, fields.OID):
        return numbers.integer
    if oid in (NUMERIC, fields.MONEY):
        reader = _decimal(field, oid, typmod)
        return numbers.money(reader) if reader is not None and oid == fields.MONEY else reader
    if oid == fields.BYTEA and field.type == "string" and modes.binary is not BinaryMode.BYTES:
        return texts.binary(modes.binary)
    if oid == fields.BIT and field.name == fields.BITS:
        return numbers.bits(max(typmod, 1))
    if bare_name(column) == fields.HSTORE and (field.type == "map" or field.name == fields.JSON):
        return texts.hstore
    return None


def _decimal(field: Field, oid: int, typmod: int) -> Reader | None:
    scale = None if typmod < 0 else (typmod - 4) & 0x7FF
    negative = scale is not None and scale >= 1024
    if field.name == fields.DECIMAL:
        digits = field.parameter("scale") or ""
        return numbers.decimal(int(digits), negative) if _SCALE.fullmatch(digits) else None
    if field.name == fields.VARIABLE_DECIMAL:
        return numbers.variable_decimal
    if field.type == "string":
        return numbers.decimal_text(negative)
    if field.type == "double":
        return numbers.decimal_double(2 if oid == fields.MONEY else 0 if negative else scale)
    return None


def null_if_unsent(column: Column, field: Field, modes: Modes) -> bool:
    """Whether the connector sends null for a long value that an UPDATE leaves alone, as it does where it has no
    placeholder. (For ``numeric`` it does so, too; but a number of which that is so has thousands of digits.)"""
    if field.type == "array":
        element, items = element_of(column), field.items
        return element is None or items is None or not _has_placeholder(element.meant_oid, items)
    if field.name == fields.BITS:
        return column.meant_oid != fields.BIT
    return column.meant_oid == fields.BYTEA and field.type == "string" and modes.binary is not BinaryMode.HEX


def _has_placeholder(element: int, items: Field) -> bool:
    if element == fields.DATES:
        return items.name == fields.DATE
    if element == fields.BYTEA:
        return items.type == "bytes"
    return element in (fields.TEXT, *_OTHER_TEXTS, fields.INT4, fields.INT8, fields.UUIDS)


def placeholders(field: Field, placeholder: str) -> frozenset[bytes]:
    """What a value is in place of one that the server did not send."""
    return frozenset(text.encode() for text in _placeholder_texts(field, placeholder))


def _placeholder_texts(field: Field, placeholder: str) -> set[str]:
    """As UnchangedToastedPlaceholder of the connector makes them; for other types it sends null."""
    data = placeholder.encode()
    encoded = base64.b64encode(data).decode()
    pairs = json.dumps({placeholder: placeholder}, ensure_ascii=False, separators=(",", ":"))
    match field.type:
        case "string" if not field.name.startswith(fields.TIME):
            return {placeholder, encoded, data.hex(), pairs}
        case "bytes" if not field.name:
            return {encoded}
        case "map":
            return {pairs}
        case "array" if field.items is not None:
            return _array_placeholders(field.items, placeholder, encoded)
    return set()


def _array_placeholders(items: Field, placeholder: str, encoded: str) -> set[str]:
    if items.name == fields.UUID:
        digest = hashlib.md5(placeholder.encode(), usedforsecurity=False).digest()
        found: list[object] = [[str(uuid.UUID(bytes=digest, version=3))]]
    elif items.type == "string" and not items.name.startswith(fields.TIME):
        found = [[placeholder], [encoded]]
    elif items.type == "bytes" and not items.name:
        found = [[encoded]]
    elif items.type in ("int32", "int64") and items.name in ("", fields.DATE, fields.CONNECT_DATE):
        found = [list(placeholder.encode())]
    else:
        return set()
    return {json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in found}
