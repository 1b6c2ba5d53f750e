"""Records in Avro are what the same records are in Connect's JSON; and bytes that are no records do no harm.

What Connect's converter wrote of every type is in the recordings (``test_golden``)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.decoding.avro.schema import DEPTH_MAX, AvroSchema, SchemaProblem, parse_schema
from tailrace.cdc.kafka.decoding.avro.values import Schemas, schema_numbers
from tailrace.cdc.kafka.decoding.decode import decode
from tailrace.cdc.kafka.decoding.json_values import Found, Paths
from tailrace.cdc.kafka.topics.declaration import Declaration
from tailrace.cdc.kernels import json_text
from tests.cdc.kafka.decoding.recorded import (
    declaration_of,
    decoded,
    native_rows,
    recorded,
    rows_of,
    schema_texts,
    schemas_of,
    table_of,
    topic,
)
from tests.support import avro

SIMPLE = ("boolean", "int16", "int32", "int64", "float", "double", "bytes", "string")
POINT = {
    "type": "struct", "name": "Point", "optional": True,
    "fields": [{"field": "x", "type": "double"}, {"field": "wkb", "type": "bytes", "optional": True}],
}  # fmt: skip
NOTES = {"type": "map", "values": {"type": "string", "optional": True}}
ROW: dict[str, Any] = {
    "type": "struct", "name": "shop.public.items.Value", "optional": True,
    "fields": [
        *({"field": kind, "type": kind, "optional": True} for kind in SIMPLE),
        *({"field": f"{kind}s", "type": "array", "items": {"type": kind, "optional": True}} for kind in SIMPLE),
        {**POINT, "field": "point"},
        {"field": "points", "type": "array", "items": POINT},
        {**NOTES, "field": "notes"},
    ],
}  # fmt: skip
VALUES = {
    "boolean": st.booleans(),
    "int16": st.integers(-(1 << 15), (1 << 15) - 1),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode()),
    "string": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
}
POINTS = st.fixed_dictionaries({"x": VALUES["double"], "wkb": st.none() | VALUES["bytes"]})
ROWS = st.fixed_dictionaries(
    {kind: st.none() | values for kind, values in VALUES.items()}
    | {f"{kind}s": st.lists(st.none() | values, max_size=3) for kind, values in VALUES.items()}
    | {
        "point": st.none() | POINTS,
        "points": st.lists(st.none() | POINTS, max_size=2),
        "notes": st.dictionaries(VALUES["string"], st.none() | VALUES["string"], max_size=2),
    }
)
PATHS = Paths({name["field"]: None for name in ROW["fields"]}, wrapped=True)


def column(*records: bytes | None) -> pa.Array:
    return pa.array(records, pa.large_binary())


def values(found: Found) -> list[dict[str, Any]]:
    """By record what was found, as JSON means it."""
    rows: list[dict[str, Any]] = [{} for _ in found.good]
    for name in (each["field"] for each in ROW["fields"]):
        for row, text, kind in zip(rows, found.texts((name,)).to_pylist(), found.kinds((name,)), strict=True):
            is_string = kind in (json_text.STRING, json_text.ESCAPED)
            value = text.decode() if is_string and text is not None else json.loads(text or b"null")
            row[name] = single(value) if name in ("float", "floats") else value
    return rows


def single(value: Any) -> Any:
    """Of 32 bits, which fewer digits tell from others."""
    if isinstance(value, list):
        return [single(each) for each in value]
    return value if value is None else float(np.float32(value))


@settings(max_examples=30, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_every_value_is_that_of_connects_json(rows: list[dict[str, Any]]) -> None:
    """Also where records in JSON are between them."""
    inner = {**ROW, "optional": False}
    schemas = {7: parse_schema(avro.schema_text(inner))}
    in_avro = [avro.record(7, inner, row) for row in rows]
    in_json = [json.dumps(row).encode() for row in rows]
    expected = values(Found(column(*in_json), PATHS))
    assert values(Found(column(*in_avro), PATHS, schemas)) == expected
    mixed = [one if at % 2 else other for at, (one, other) in enumerate(zip(in_avro, in_json, strict=True))]
    assert values(Found(column(*mixed), PATHS, schemas)) == expected


def test_floating_point_numbers_that_are_none_are_words() -> None:
    words = [float("nan"), float("inf"), float("-inf")]
    connect = {"type": "struct", "fields": [{"field": "double", "type": "double"}, ROW["fields"][13]]}
    paths = Paths({"double": None, "doubles": None}, wrapped=True)
    records = [avro.record(7, connect, {"double": word, "doubles": words}) for word in words]
    found = Found(column(*records), paths, {7: parse_schema(avro.schema_text(connect))})
    assert found.texts(("double",)).to_pylist() == [b"NaN", b"Infinity", b"-Infinity"]
    assert [json.loads(text) for text in found.texts(("doubles",)).to_pylist()] == [
        ["NaN", "Infinity", "-Infinity"]
    ] * 3


@pytest.mark.parametrize("first", [0, 1])
def test_a_topic_whose_format_changes_gives_the_same_rows(first: int) -> None:
    in_json, in_avro = (recorded(name)["whole"].to_pylist() for name in ("told", "avro"))
    assert len(in_json) == len(in_avro)
    mixed = [
        (one, other)[at // 3 % 2 ^ first]
        for at, (one, other) in enumerate(zip(in_json, in_avro, strict=True))
    ]
    declaration = declaration_of("told", "whole")
    result = decode(table_of(mixed), topic("whole"), declaration, None, Place(5), schemas_of("avro"))
    assert result.parked == ()
    assert rows_of(result) == native_rows("whole")
    assert len(result.schemas) == 1


@pytest.mark.parametrize("table", ["pairs", "altered", "whole"])
def test_types_are_told_as_by_connects_json(table: str) -> None:
    untold = Declaration(modes=declaration_of("told", table).modes)
    found = [decoded(name, table, untold) for name in ("told", "avro")]
    assert [each.parked for each in found] == [(), ()]
    assert found[0].schemas == found[1].schemas
    assert rows_of(found[0]) == rows_of(found[1])


def number_of(name: str) -> int:
    """The schema in the recording of a record of this name."""
    return next(
        number for number, text in schema_texts("avro").items() if json.loads(text).get("name") == name
    )


def pairs(*values: bytes, schemas: Schemas | None = None) -> Decoded:
    """Records of the table ``pairs``: one that is right, these, and another that is right."""
    right = [row for row in recorded("avro")["pairs"].to_pylist() if row["value"]][:2]
    records: list[dict[str, Any]] = [right[0], *({**right[1], "value": value} for value in values), right[1]]
    schemas = schemas_of("avro") if schemas is None else schemas
    table = table_of([{**row, "offset": at} for at, row in enumerate(records)])
    return decode(table, topic("pairs"), declaration_of("avro", "pairs"), None, Place(5), schemas)


def a_record() -> bytes:
    value: bytes = recorded("avro")["pairs"]["value"][0].as_py()
    return value


HEADER = 5
HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut in the header": (lambda record: record[:3], "ends too early"),
    "nothing behind the header": (lambda record: record[:HEADER], "ends too early"),
    "cut": (lambda record: record[:-1], "ends too early"),
    "more behind": (lambda record: record + b"\0", "more behind the Avro record"),
    "no such branch": (
        lambda record: record[:HEADER] + b"\x08" + record[HEADER + 1 :],
        "a branch of a union",
    ),
    "a number without end": (lambda record: record[:HEADER] + b"\xff" * 40, "a number that is too long"),
    "a string of 2^62 bytes": (
        lambda record: record[:HEADER] + avro.number(0) + avro.number(1) + avro.number(1 << 62),
        "ends too early",
    ),
    "another magic": (lambda record: b"\x01" + record[1:], "not UTF-8|not a JSON object|not JSON"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_record_that_is_not_what_its_schema_says_is_parked_alone(what: str) -> None:
    damage, reason = HOSTILE[what]
    result = pairs(damage(a_record()))
    assert [parked.offset for parked in result.parked] == [1]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(result.parked[0].reason)
    assert len(rows_of(result)) == 2


def test_a_schema_that_cannot_be_used_parks_its_records_alone() -> None:
    known = schemas_of("avro")
    assert known is not None
    result = pairs(avro.framed(999, b"\0"), schemas={**known, 999: "the schema registry has no schema 999"})
    assert [parked.reason for parked in result.parked] == ["its value: the schema registry has no schema 999"]
    assert len(rows_of(result)) == 2


def test_avro_without_a_registry_is_parked_with_what_is_missing() -> None:
    records = recorded("avro")["pairs"].slice(0, 2)
    result = decode(records, topic("pairs"), declaration_of("avro", "pairs"), None, Place(5))
    assert {parked.reason for parked in result.parked} == {
        "its value: it begins as Avro with the number of a schema does, and the source names no registry"
    }


ITEMS = {"type": "struct", "fields": [{"field": "items", "type": "array", "items": {"type": "boolean"}}]}
EMPTY = {"type": "struct", "fields": [{"field": "items", "type": "array", "items": POINT}]}


@pytest.mark.parametrize("count", [100_000_000, 1 << 62, -(1 << 63), -100_000_000])
def test_a_count_of_items_that_are_not_there_takes_neither_time_nor_memory(count: int) -> None:
    record = avro.framed(7, avro.number(count) + avro.number(5) + b"\0" * 5)
    found = Found(column(record), Paths({"items": None}), {7: parse_schema(avro.schema_text(ITEMS))})
    assert not found.good[0]
    assert "too early" in found.problem(0) or "too long" in found.problem(0)


def test_a_record_that_becomes_far_longer_as_text_is_refused() -> None:
    name = "n" * 200
    inner = {
        "type": "struct",
        "name": "Wide",
        "fields": [{"field": name, "type": "string", "optional": True}],
    }
    connect = {"type": "struct", "fields": [{"field": "items", "type": "array", "items": inner}]}
    record = avro.record(7, connect, {"items": [{name: None}] * 10_000})
    found = Found(column(record), Paths({"items": None}), {7: parse_schema(avro.schema_text(connect))})
    assert found.problem(0).startswith("its values are too many times longer as texts")


def row_schema(fields: list[Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Row",
        "fields": [{"name": f"f{at}", "type": t} for at, t in enumerate(fields)],
    }


def nested(depth: int) -> Any:
    inner: Any = "int"
    for _ in range(depth):
        inner = {"type": "array", "items": inner}
    return inner


def doubling(times: int) -> dict[str, Any]:
    """Records of which each holds two of the one before."""
    kind: Any = "int"
    for level in range(times):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{level - 1}" if level else "int"}]
        kind = {"type": "record", "name": f"R{level}", "fields": fields}
    found: dict[str, Any] = kind
    return found


REFUSED = {
    "no JSON": ("{", "it is no Avro schema"),
    "a number": ("7", "it is no Avro schema"),
    "brackets without end": ("[" * 100_000, "it is no Avro schema"),
    "no record": ('"string"', "a schema of string, not of a record"),
    "a record of itself": (json.dumps(row_schema([["null", "Row"]])), "its record 'Row' holds itself"),
    "a record without fields": (json.dumps(row_schema([])), "has no fields"),
    "null alone": (json.dumps(row_schema(["null"])), "'null' is none that Connect"),
    "a union of two types": (json.dumps(row_schema([["int", "string"]])), "a union is of more"),
    "a union of three": (json.dumps(row_schema([["null", "int", "string"]])), "a union is of more"),
    "fixed": (json.dumps(row_schema([{"type": "fixed", "name": "F", "size": 1 << 40}])), "'fixed' is none"),
    "a type nobody knows": (json.dumps(row_schema(["R9"])), "'R9' is none"),
    "a name twice": (
        json.dumps({"type": "record", "name": "Row", "fields": [{"name": "a", "type": "int"}] * 2}),
        "there twice",
    ),
    "a name with a quote": (
        json.dumps({"type": "record", "name": "Row", "fields": [{"name": 'a"', "type": "int"}]}),
        "has no name of Avro",
    ),
    "nested too deep": (json.dumps(row_schema([nested(DEPTH_MAX)])), "nest deeper"),
    "deep by names": (json.dumps(doubling(DEPTH_MAX + 1)), "nest deeper|more than 20,000 types"),
    "doubling": (json.dumps(doubling(20)), "more than 20,000 types"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_schema_is_checked_before_it_is_used(what: str) -> None:
    text, reason = REFUSED[what]
    with pytest.raises(SchemaProblem, match=reason):
        parse_schema(text)


def test_the_deepest_schema_is_read() -> None:
    depth = DEPTH_MAX - 2
    schema = parse_schema(json.dumps(row_schema([nested(depth)])))
    record = avro.framed(7, avro.number(1) * depth + avro.number(5) + avro.number(0) * depth)
    found = Found(column(record), Paths({"f0": None}), {7: schema})
    assert found.texts(("f0",)).to_pylist() == [b"[" * depth + b"5" + b"]" * depth]


def test_numbers_of_schemas_are_found_in_keys_values_and_headers() -> None:
    headers = [{"name": b"__debezium.oldkey", "value": avro.framed(1 << 31, b"")}]
    records: list[dict[str, Any]] = [
        {"key": avro.framed(1, b""), "value": avro.framed(2, b"x"), "headers": headers},
        {"key": b"{}", "value": b"\0\0\0"},
        {"key": None, "value": b""},
    ]
    assert schema_numbers(table_of(records)) == {1, 2, 1 << 31}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_bytes_are_rows_or_parked(data: st.DataObject) -> None:
    """Whatever stands behind the number of a schema, and whatever becomes of a record on its way."""
    right = a_record()
    damaged = bytearray(right)
    for at in data.draw(st.lists(st.integers(0, len(right) - 1), max_size=3)):
        damaged[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(right)))
    anything = avro.framed(number_of("Envelope"), data.draw(st.binary(max_size=60)))
    known = schemas_of("avro")
    assert known is not None
    some = [bytes(damaged), right[:end], right + right[end:], anything]
    numbers = schema_numbers(table_of([{"key": None, "value": value} for value in some]))
    unknown: dict[int, AvroSchema | str] = dict.fromkeys(numbers, "not there")
    result = pairs(*some, schemas={**unknown, **known})
    gone = {parked.offset for parked in result.parked}
    assert not {0, len(some) + 1} & gone, "the others do not notice"
    assert result.origins.num_rows + len(gone) + result.ignored == len(some) + 2
