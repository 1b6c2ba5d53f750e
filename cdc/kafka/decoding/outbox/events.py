"""One record of the router as an event.

key              the stream's id: text, or the JSON of a text or number, with or without its schema
header id        the event's id
value            its data, a JSON object: itself, as text, or in a JSON string, which is what the router makes of a
                 text column; with or without its schema; inside of an envelope, where columns are placed there.
                 No value: an event without data, {}
other columns    type and versions where settings say so; the rest is metadata, by the names of the columns
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from tailrace.cdc.kafka.decoding.outbox.json_parts import members, string
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.stream import Stream

ID_HEADER = "id"
_PAYLOAD, _SCHEMA = "payload", "schema"
_TYPE_BYTES_MAX = 1000
_INT4, _INT8 = 31, 63


class NoEvent(Exception):
    """A record is no event; the text says why, without values."""


@dataclass(frozen=True, slots=True)
class OutboxDeclaration:
    """``headers`` and ``envelope``: where records have which columns, by their names there."""

    headers: Mapping[str, str]
    envelope: Mapping[str, str]
    type_column: str
    version_column: str | None = None
    schema_version_column: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    stream: str
    version: int
    type: str
    schema_version: int
    data: str
    metadata: str
    id: UUID


def event_of(
    declared: OutboxDeclaration,
    category: str,
    key: bytes | None,
    value: bytes | None,
    headers: Mapping[str, bytes | None],
    offset: int,
) -> Event:
    """Raises NoEvent."""
    if ID_HEADER not in headers:
        raise NoEvent(f"it has no header {ID_HEADER!r}: the router writes the event's id there")
    columns, data = _value(value, declared)
    for name, column in declared.headers.items():
        if (said := headers.get(name)) is not None:
            columns[column] = _text(said, f"its header {name!r}")
    metadata = {
        name: text
        for name, text in columns.items()
        if name not in (declared.type_column, declared.version_column, declared.schema_version_column)
    }
    return Event(
        stream=_stream(key, category),
        version=_number(columns, declared.version_column, _INT8, offset + 1),
        type=_type(columns, declared.type_column),
        schema_version=_number(columns, declared.schema_version_column, _INT4, 1),
        data=data,
        metadata=json.dumps(metadata, ensure_ascii=False, separators=(",", ":")),
        id=_uuid(_text(headers[ID_HEADER] or b"", f"its header {ID_HEADER!r}")),
    )


def _stream(key: bytes | None, category: str) -> str:
    if key is None:
        raise NoEvent("it has no key: the router writes the aggregate's id there")
    text = _text(key, "its key")
    try:
        return Stream(category, text).id
    except UsageError as error:
        raise NoEvent(f"its key is no id of a stream: {error.hint}") from None


def _type(columns: Mapping[str, str], column: str) -> str:
    found = columns.get(column)
    if not found or len(found.encode()) > _TYPE_BYTES_MAX:
        raise NoEvent(
            f"its {column!r}, which is its type, is not there, empty or longer than {_TYPE_BYTES_MAX} bytes"
        )
    return found


def _number(columns: Mapping[str, str], column: str | None, bits: int, otherwise: int) -> int:
    if column is None:
        return otherwise
    text = columns.get(column, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) < 1 << bits):
        raise NoEvent(f"its {column!r} is no whole number above 0")
    return int(text)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NoEvent(f"its header {ID_HEADER!r} is no UUID") from None


def _text(data: bytes, what: str) -> str:
    """A scalar as a converter writes it: text, or JSON, or JSON with its schema."""
    text = _decoded(data, what)
    if not text.startswith(('"', "{")):
        return text
    try:
        if text.startswith("{"):
            text = _without_schema(text)
        return string(text) if text.startswith('"') else text
    except (ValueError, RecursionError):
        raise NoEvent(f"{what} is neither text nor JSON of one") from None


def _without_schema(text: str) -> str:
    """The payload of {"schema": …, "payload": …}; every other object as it is. Raises ValueError."""
    found = members(text)
    if found.keys() != {_SCHEMA, _PAYLOAD}:
        return text
    schema = json.loads(found[_SCHEMA])
    is_schema = schema is None or (isinstance(schema, dict) and isinstance(schema.get("type"), str))
    return found[_PAYLOAD] if is_schema else text


def _value(value: bytes | None, declared: OutboxDeclaration) -> tuple[dict[str, str], str]:
    """Columns in the envelope, and the data."""
    if value is None:
        return {}, "{}"
    text = _decoded(value, "its value").strip(" \t\r\n")
    try:
        if text.startswith("{"):
            text = _without_schema(text).strip(" \t\r\n")
        columns: dict[str, str] = {}
        if declared.envelope:
            columns, text = _opened(text, declared.envelope)
        if text.startswith('"'):
            text = string(text)
        if text == "null":
            return columns, "{}"
        members(text)
    except (ValueError, RecursionError):
        raise NoEvent("its payload is no JSON object, as itself, as text or in a string") from None
    if "\0" in text or "\\u0000" in text:
        raise NoEvent("its payload has U+0000, which no JSON of Postgres has")
    return columns, text


def _opened(text: str, envelope: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Columns and payload of an envelope. Raises ValueError, NoEvent."""
    found = members(text)
    if _PAYLOAD not in found or not found.keys() <= {_PAYLOAD, *envelope}:
        raise NoEvent("its value is not the envelope that additional_placement says")
    columns = {
        column: string(found[name]) if found[name].startswith('"') else found[name]
        for name, column in envelope.items()
        if name in found and found[name] != "null"
    }
    return columns, found[_PAYLOAD].strip(" \t\r\n")


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NoEvent(f"{what} is not UTF-8") from None
