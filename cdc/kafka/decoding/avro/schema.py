"""Avro schemas that a registry gives: checked, and told as the schemas of Kafka Connect that they were made of.

Connect's Avro converter writes a field's semantic name and parameters into ``connect.name`` and
``connect.parameters``, and decimals, dates and times also as Avro's logical types. What it never writes is refused:
unions of more than a type and null, ``fixed``, types that hold themselves, values without a byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn

from tailrace.cdc.kafka.decoding import fields

SCHEMA_BYTES_MAX = 1 << 20
NODES_MAX = 20_000
"""Types in a schema, each as often as it is used. A table of 1,600 columns has 3,200 in its two images."""
DEPTH_MAX = 32
_NAME_MAX = 256
_NAME = re.compile(r"[^\W\d]\w*")
_PARAMETERS = ("scale", "connect.decimal.precision", "length")
_PARAMETER_MAX = 64


class Kind(IntEnum):
    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7
    ENUM = 8
    ARRAY = 9
    MAP = 10
    RECORD = 11


class Union(IntEnum):
    """Which branch of a union is null."""

    NONE = 0  # no union
    FIRST = 1
    LAST = 2
    ALONE = 3  # a union of one type


_SIMPLE = {
    "boolean": Kind.BOOLEAN, "int": Kind.INT, "long": Kind.LONG, "float": Kind.FLOAT, "double": Kind.DOUBLE,
    "bytes": Kind.BYTES, "string": Kind.STRING,
}  # fmt: skip
_OF_CONNECT = {
    Kind.BOOLEAN: "boolean", Kind.INT: "int32", Kind.LONG: "int64", Kind.FLOAT: "float", Kind.DOUBLE: "double",
    Kind.BYTES: "bytes", Kind.STRING: "string", Kind.ENUM: "string", Kind.ARRAY: "array", Kind.MAP: "map",
    Kind.RECORD: "struct",
}  # fmt: skip
_LOGICAL = {
    (Kind.BYTES, "decimal"): fields.DECIMAL,
    (Kind.INT, "date"): fields.CONNECT_DATE,
    (Kind.INT, "time-millis"): fields.CONNECT_TIME,
    (Kind.LONG, "timestamp-millis"): fields.CONNECT_STAMP,
}


class SchemaProblem(ValueError):
    """Why a schema is refused, in words for an operator."""


@dataclass(frozen=True, slots=True)
class Node:
    """A type. ``members`` of a record, by name; of an array or map the one, with an empty name."""

    kind: Kind
    connect: Mapping[str, Any]
    nodes: int = 1
    depth: int = 1
    union: Union = Union.NONE
    members: tuple[tuple[str, Node], ...] = ()
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """``connect``: the schema as Connect's JSON converter writes it, without what nobody asks for."""

    root: Node
    connect: bytes


def parse_schema(text: str) -> AvroSchema:
    """Raises SchemaProblem."""
    if len(text) > SCHEMA_BYTES_MAX:
        raise SchemaProblem(f"it is longer than {SCHEMA_BYTES_MAX:,} characters")
    try:
        root = _Reader().read(json.loads(text), "", 1)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, SchemaProblem):
            raise
        raise SchemaProblem("it is no Avro schema") from error
    if root.kind is not Kind.RECORD:
        raise SchemaProblem(f"it is a schema of {root.kind.name.lower()}, not of a record")
    return AvroSchema(root, json.dumps(root.connect).encode())


class _Reader:
    """Names are known from their definition on; one that is not finished is None."""

    def __init__(self) -> None:
        self._named: dict[str, Node | None] = {}

    def read(self, document: object, namespace: str, depth: int) -> Node:
        if depth > DEPTH_MAX:
            _refuse(f"its types nest deeper than {DEPTH_MAX}")
        if isinstance(document, list):
            return self._union(document, namespace, depth)
        if isinstance(document, str):
            return self._by_name(document, {}, namespace)
        if not isinstance(document, dict):
            _refuse("it is no Avro schema")
        kind = document["type"]
        if not isinstance(kind, str):
            return self.read(kind, namespace, depth + 1)
        match kind:
            case "array" | "map":
                inner = self.read(document["items" if kind == "array" else "values"], namespace, depth + 1)
                return _container(Kind.ARRAY if kind == "array" else Kind.MAP, inner, document)
            case "enum":
                return self._enum(document, namespace)
            case "record":
                return self._record(document, namespace, depth)
        return self._by_name(kind, document, namespace)

    def _by_name(self, name: str, document: Mapping[str, Any], namespace: str) -> Node:
        if name in _SIMPLE:
            return Node(_SIMPLE[name], _connect(_SIMPLE[name], document))
        full = _full_name(name, namespace)
        if full not in self._named:
            _refuse(f"a type {name[:_NAME_MAX]!r} is none that Connect's Avro converter writes")
        found = self._named[full]
        return found if found is not None else _refuse(f"its record {full!r} holds itself")

    def _union(self, branches: list[object], namespace: str, depth: int) -> Node:
        types = [each for each in branches if each != "null"]
        if len(types) != 1 or len(branches) > 2:
            _refuse("a union is of more, or less, than a type and null")
        node = self.read(types[0], namespace, depth + 1)
        if node.union is not Union.NONE:
            _refuse("a union in a union")
        kind = Union.ALONE if len(branches) == 1 else Union.FIRST if branches[0] == "null" else Union.LAST
        return Node(node.kind, node.connect, node.nodes, node.depth, kind, node.members, node.symbols)

    def _define(self, document: Mapping[str, Any], namespace: str) -> tuple[str, str]:
        """The full name of a type that is defined, and the namespace inside of it."""
        name, given = document["name"], document.get("namespace", namespace)
        full = _full_name(str(name), str(given or ""))
        if not all(_is_name(part) for part in full.split(".")) or len(full) > _NAME_MAX:
            _refuse(f"{full[:_NAME_MAX]!r} is no name of Avro")
        if full in self._named:
            _refuse(f"it defines {full!r} twice")
        self._named[full] = None
        return full, full.rpartition(".")[0]

    def _enum(self, document: Mapping[str, Any], namespace: str) -> Node:
        full, _ = self._define(document, namespace)
        symbols = tuple(document["symbols"])
        if not 0 < len(symbols) <= NODES_MAX or not all(_is_name(each) for each in symbols):
            _refuse(f"symbols of {full!r} are no names of Avro")
        node = Node(Kind.ENUM, _connect(Kind.ENUM, document), len(symbols), symbols=symbols)
        self._named[full] = node
        return node

    def _record(self, document: Mapping[str, Any], namespace: str, depth: int) -> Node:
        full, inside = self._define(document, namespace)
        members: dict[str, Node] = {}
        nodes = 1
        for field in document["fields"]:
            name = field["name"]
            if not _is_name(name) or name in members:
                _refuse(f"a field of {full!r} has no name of Avro, or one that is there twice")
            members[name] = node = self.read(field["type"], inside, depth + 1)
            nodes += node.nodes
            if nodes > NODES_MAX:
                _refuse(f"it has more than {NODES_MAX:,} types")
        if not members:
            _refuse(f"its record {full!r} has no fields")
        told = [{"field": name, **node.connect} for name, node in members.items()]
        connect = {**_connect(Kind.RECORD, {"connect.name": full, **document}), "fields": told}
        node = Node(Kind.RECORD, connect, nodes, _depth(members.values()), members=tuple(members.items()))
        self._named[full] = node
        return node


def _container(kind: Kind, inner: Node, document: Mapping[str, Any]) -> Node:
    connect = _connect(kind, document) | ({"items": inner.connect} if kind is Kind.ARRAY else {})
    return Node(kind, connect, inner.nodes + 1, _depth([inner]), members=(("", inner),))


def _depth(inside: Iterable[Node]) -> int:
    depth = 1 + max(each.depth for each in inside)
    return depth if depth <= DEPTH_MAX else _refuse(f"its types nest deeper than {DEPTH_MAX}")


def _connect(kind: Kind, document: Mapping[str, Any]) -> dict[str, Any]:
    """Type, name and parameters of Connect's schema."""
    logical = document.get("logicalType")
    name = document.get("connect.name")
    if name is None and isinstance(logical, str):
        name = _LOGICAL.get((kind, logical))
    narrow = document.get("connect.type")
    type_ = narrow if kind is Kind.INT and narrow in ("int8", "int16") else _OF_CONNECT[kind]
    told: dict[str, Any] = {"type": type_}
    if name is not None:
        told["name"] = str(name)[:_NAME_MAX]
    parameters = document.get("connect.parameters") or {}
    if not parameters and name == fields.DECIMAL:
        parameters = {"scale": document.get("scale", 0), "connect.decimal.precision": document["precision"]}
    kept = {each: str(parameters[each])[:_PARAMETER_MAX] for each in _PARAMETERS if each in parameters}
    return told | ({"parameters": kept} if kept else {})


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _is_name(name: object) -> bool:
    """Also with letters beyond ASCII, which Java's Avro takes."""
    return isinstance(name, str) and len(name) <= _NAME_MAX and _NAME.fullmatch(name) is not None


def _refuse(reason: str) -> NoReturn:
    raise SchemaProblem(reason)
