"""Writes what Connect's Avro converter writes, from what its JSON converter does: for values that no recording has."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

Document = dict[str, Any]
_SIMPLE = {
    "boolean": "boolean", "int8": "int", "int16": "int", "int32": "int", "int64": "long", "float": "float",
    "double": "double", "bytes": "bytes", "string": "string",
}  # fmt: skip


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def avro_schema(connect: Document, names: set[str] | None = None) -> Any:
    """Of a schema of Connect's JSON. A record is defined once."""
    names = set() if names is None else names
    kind = connect["type"]
    if kind == "struct":
        name = connect.get("name") or f"Nameless{len(names)}"
        inner: Any = name
        if name not in names:
            names.add(name)
            fields = [{"name": each["field"], "type": avro_schema(each, names)} for each in connect["fields"]]
            inner = {"type": "record", "name": name, "fields": fields, "connect.name": name}
    elif kind == "array":
        inner = {"type": "array", "items": avro_schema(connect["items"], names)}
    elif kind == "map":
        inner = {"type": "map", "values": avro_schema(connect["values"], names)}
    else:
        inner = {"type": _SIMPLE[kind]}
        if kind in ("int8", "int16"):
            inner["connect.type"] = kind
        if connect.get("name"):
            inner |= {"connect.name": connect["name"], "connect.parameters": connect.get("parameters", {})}
    return ["null", inner] if connect.get("optional") else inner


def encoded(connect: Document, value: Any) -> bytes:
    """A value of Connect's JSON."""
    if connect.get("optional"):
        return number(0) if value is None else number(1) + encoded(connect | {"optional": False}, value)
    match connect["type"]:
        case "struct":
            return b"".join(encoded(each, value[each["field"]]) for each in connect["fields"])
        case "array":
            items = b"".join(encoded(connect["items"], each) for each in value)
            return (number(len(value)) + items if value else b"") + number(0)
        case "map":
            pairs = [text(key) + encoded(connect["values"], each) for key, each in value.items()]
            return (number(-len(pairs)) + sized(b"".join(pairs)) if pairs else b"") + number(0)
        case "boolean":
            return bytes([value])
        case "float" | "double" as kind:
            return struct.pack("<f" if kind == "float" else "<d", value)
        case "bytes":
            return sized(base64.b64decode(value))
        case "string":
            return text(value)
    return number(value)


def record(number_: int, connect: Document, value: Any) -> bytes:
    return framed(number_, encoded(connect, value))


def schema_text(connect: Document) -> str:
    return json.dumps(avro_schema(connect))


def text(value: str) -> bytes:
    return sized(value.encode())


def sized(data: bytes) -> bytes:
    return number(len(data)) + data


def number(value: int) -> bytes:
    rest = ((value << 1) ^ (value >> 63)) & (1 << 64) - 1
    parts = []
    while rest > 127:
        parts.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*parts, rest])
