"""Records of plain JSON: which rows they are, and which cannot be read."""

from __future__ import annotations

import json
from typing import Any

from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.decoding.plain.declaration import KeyFormat, PlainDeclaration
from tailrace.cdc.kafka.decoding.plain.decode import decode_plain
from tailrace.cdc.kafka.decoding.types import declared_table
from tailrace.eventstore.model.topic import TopicId
from tests.cdc.kafka.decoding.recorded import rows_of, table_of

TOPIC = TopicId.table("shop", "kafka", "prices")


def declared(columns: dict[str, str], key: tuple[str, ...] = (), **more: Any) -> PlainDeclaration:
    return PlainDeclaration(declared_table(columns, key, "prices"), **more)


PRICES = declared(
    {"sku": "text", "price": "numeric(6,2)", "note": "text"}, ("sku",), key_format=KeyFormat.TEXT
)


def decoded(declaration: PlainDeclaration, *records: tuple[Any, Any]) -> Decoded:
    """Records given as key and value; what is no bytes is written as JSON."""
    rows = [{"key": _data(key), "value": _data(value)} for key, value in records]
    return decode_plain(table_of(rows), TOPIC, declaration, None, Place(5))


def _data(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def reasons(found: Decoded) -> dict[int, str]:
    return {each.offset: each.reason for each in found.parked}


def test_a_record_is_the_row_of_its_key_and_one_without_value_its_delete() -> None:
    found = decoded(
        PRICES, (b"a", {"sku": "a", "price": 1.5}), (b"b", {"price": "2.10", "note": None}), (b"a", None)
    )
    assert reasons(found) == {}
    assert [(row["_op"], row["key"], row["after"]) for row in rows_of(found)] == [
        ("u", {"sku": "a"}, {"sku": "a", "price": "1.50", "note": None}),
        ("u", {"sku": "b"}, {"sku": "b", "price": "2.10", "note": None}),
        ("d", {"sku": "a"}, None),
    ]
    (schema,) = found.schemas
    assert [(column.id, column.name, column.key) for column in schema.columns] == [
        (1, "sku", True),
        (2, "price", False),
        (3, "note", False),
    ]
    assert found.origins["offset"].to_pylist() == [0, 1, 2]


def test_one_that_does_not_fit_is_parked_with_its_member_and_the_others_are_read() -> None:
    found = decoded(
        PRICES,
        (b"a", {"price": 1.555}),
        (b"a", {"price": 123456.0}),
        (b"a", {"price": True}),
        (b"a", {"prize": 1}),
        (b"a", {"sku": "b"}),
        (None, {"sku": "a"}),
        (b"\xff", {}),
        (b"a", b"[1]"),
        (b"a", b'{"price": 1'),
        (b"good", {"price": 1}),
    )
    assert reasons(found) == {
        0: "its member 'price' is no numeric(6,2), or not written as one",
        1: "its member 'price' is no numeric(6,2), or not written as one",
        2: "its member 'price' is no numeric(6,2), or not written as one",
        3: "its member 'prize' is no column: declare it, or have unknown fields ignored",
        4: "its member 'sku' is not what its key says",
        5: "its key: there is none",
        6: "its key: not UTF-8, or with U+0000, which no text of Postgres has",
        7: "its value: not a JSON object (at byte 0)",
        8: "its value: the JSON text ends too early (at byte 11)",
    }
    assert [row["key"]["sku"] for row in rows_of(found)] == ["good"]
    assert found.origins["offset"].to_pylist() == [9]


def test_events_are_rows_of_their_own_and_nothing_takes_them_away() -> None:
    clicks = declared({"page": "text", "at": "timestamp with time zone"}, events=True)
    click = {"page": "/", "at": "2026-03-01T10:00:00+01:00"}
    found = decoded(clicks, (None, click), (b"any", click), (b"any", None))
    assert reasons(found) == {2: "it has no value, and nothing takes away from events"}
    rows = [(row["_op"], row["after"]) for row in rows_of(found)]
    assert rows == [("c", {"page": "/", "at": "2026-03-01 09:00:00+00:00"})] * 2
    assert found.schemas[0].bag


def test_keys_are_objects_of_the_record_bare_json_or_columns_of_the_value() -> None:
    columns = {"shop": "integer", "sku": "text", "n": "bigint"}
    both = declared(columns, ("shop", "sku"))
    found = decoded(
        both, ({"shop": 1, "sku": "a"}, {"n": 2}), ({"shop": 1}, {"n": 2, "sku": "x"}), ("a", {"n": 1})
    )
    assert [row["key"] for row in rows_of(found)] == [{"shop": 1, "sku": "a"}]
    assert reasons(found)[1] == "its member 'sku' is not what its key says"
    assert reasons(found)[2] == "its key: not a JSON object (at byte 0)"
    one = declared({"shop": "integer", "n": "bigint"}, ("shop",))
    found = decoded(
        one, (7, {"n": 1}), ({"shop": 8}, {}), (b"9 ", None), (b"1}", {}), ("x", {}), (None, {}), (b"-0", {})
    )
    assert [(row["_op"], row["key"]["shop"]) for row in rows_of(found)] == [
        ("u", 7),
        ("u", 8),
        ("d", 9),
        ("u", 0),
    ]
    assert list(reasons(found)) == [3, 4, 5]
    inside = declared(columns, ("shop", "sku"), key_format=KeyFormat.VALUE)
    found = decoded(
        inside, (b"\xff", {"shop": 1, "sku": "a", "n": 1}), (b"", {"shop": 1, "sku": None}), (b"k", None)
    )
    assert [row["key"] for row in rows_of(found)] == [{"shop": 1, "sku": "a"}]
    assert reasons(found) == {
        1: "column 'sku' of its key is not there, or null",
        2: "it has no value, in which its key is said to be",
    }


def test_the_hash_of_a_key_does_not_depend_on_how_it_was_written() -> None:
    columns = {"id": "bigint", "price": "numeric(6,2)", "at": "timestamp"}
    keyed = declared(columns, ("id", "price", "at"), key_format=KeyFormat.VALUE)
    found = decoded(
        keyed,
        (None, b'{"id": 7, "price": 1.5, "at": "2026-01-01T00:00:00"}'),
        (None, b'{"id": "7", "price": "1.50", "at": "2026-01-01 00:00:00.000"}'),
        (None, b'{"id": 7, "price": 15e-1, "at": "2026-01-01T00:00:00.0000000"}'),
    )
    assert reasons(found) == {}
    assert len(set(found.rows[0].rows["_hash"].to_pylist())) == 1


def test_unknown_members_are_ignored_where_that_is_said() -> None:
    found = decoded(declared({"id": "integer"}, ("id",), closed=False), (1, {"id": 1, "more": {"id": [2]}}))
    assert [row["after"] for row in rows_of(found)] == [{"id": 1}]
