"""Rows and domain events as records, without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.schema import EVENT_SCHEMA, Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.publishing.formats.debezium import debezium_records
from tailrace.eventstore.publishing.formats.events import (
    binary_cloud_events,
    json_events,
    structured_cloud_events,
)
from tailrace.eventstore.publishing.formats.rows import row_records
from tailrace.eventstore.publishing.records import EpochRows
from tailrace.eventstore.segment.segment import stored_schema

ITEMS = TopicId.table("shop", "public", "items")
SCHEMA = TopicSchema(
    1,
    (
        Column(1, "id", 23, type_name="integer", key=True),
        Column(2, "note", 25, type_name="text"),
        Column(3, "size", 701, type_name="double precision"),
    ),
)
ORDER = TopicId.events("shop", "order")
DATA_ID, METADATA_ID = 5, 6


def stored(schema: TopicSchema, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of one transaction each, in one partition."""
    known = [
        {
            "_partition": 0, "_offset": at, "_epoch": 1, "_hash": hash_texts([str(row["key"])]), "_lsn": at,
            "_txn": 1, "_ordinal": 0, "_before": "none", **row,
        }
        for at, row in enumerate(rows)
    ]  # fmt: skip
    return pa.Table.from_pylist(known, schema=stored_schema(schema))


def row(
    op: str, number: int, note: str | None = "x", size: float | None = 1.5, **more: Any
) -> dict[str, Any]:
    after = None if op == "d" else {"id": number, "note": note, "size": size}
    return {"_op": op, "key": {"id": number}, "after": after, **more}


def of(topic: TopicId, rows: pa.Table) -> EpochRows:
    return EpochRows(topic, 1, rows)


def told(records: pa.Table) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Key, value and headers of each, out of JSON where they are."""
    return [
        (_parsed(each["key"]), _parsed(each["value"]), _headers(each["headers"]))
        for each in records.to_pylist()
    ]


def _headers(found: list[dict[str, bytes]]) -> dict[str, Any]:
    return {each["name"].decode(): _parsed(each["value"]) for each in found}


def _parsed(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return json.loads(value)
    except ValueError:
        return value.decode()


def test_plain_rows_have_a_tombstone_for_a_delete_and_leave_out_what_was_not_sent() -> None:
    rows = [
        row("c", 1, 'a "quoted"\n\x01\\ word ✓'),
        row("u", 1, None, float("nan"), _unchanged=[2]),
        row("u", 1, None, _raw=[(2, None)]),
        row("u", 1, None, None, _raw=[(3, b"1e400")]),
        row("d", 1),
        row("c", 2, None, None),
    ]
    assert told(row_records(of(ITEMS, stored(SCHEMA, rows)), SCHEMA)) == [
        ({"id": 1}, {"id": 1, "note": 'a "quoted"\n\x01\\ word ✓', "size": 1.5}, {}),
        ({"id": 1}, {"id": 1, "size": "NaN"}, {"tailrace-not-sent": ["note"]}),
        ({"id": 1}, {"id": 1, "note": None, "size": 1.5}, {"tailrace-erased": ["note"]}),
        ({"id": 1}, {"id": 1, "note": None, "size": "1e400"}, {}),
        ({"id": 1}, None, {}),
        ({"id": 2}, {"id": 2, "note": None, "size": None}, {}),
    ]


def test_plain_rows_are_refused_where_they_cannot_say_what_happened() -> None:
    truncate = {"_op": "t", "key": None, "after": None}
    with pytest.raises(OperatorError, match=r"shop\.public\.items was truncated"):
        row_records(of(ITEMS, stored(SCHEMA, [row("c", 1), truncate])), SCHEMA)
    bag = TopicSchema(1, SCHEMA.columns, bag=True)
    with pytest.raises(OperatorError, match=r"shop\.public\.items has no key"):
        row_records(of(ITEMS, stored(bag, [])), bag)


def test_the_lsn_of_debeziums_envelope_grows_from_row_to_row_up_to_the_commit() -> None:
    rows = [
        {**row("u", 1), "_lsn": lsn, "_ordinal": ordinal}
        for lsn, ordinal in ((900, 0), (900, 4), (950, 0), (950, 1))
    ]
    given = of(ITEMS, stored(SCHEMA, rows))

    def positions(found: EpochRows) -> list[tuple[str, int]]:
        sources = [value["source"] for _, value, _ in told(debezium_records(found, SCHEMA))]
        return [(source["sequence"], source["lsn"]) for source in sources]

    assert positions(given) == [
        ('["900","896"]', 896), ('["900","900"]', 900), ('["950","949"]', 949), ('["950","950"]', 950),
    ]  # fmt: skip
    assert [lsn for _, lsn in positions(replace(given, ordinals=10))] == [890, 894, 940, 941]


def event(stream: str, version: int, data: str | None, op: str = "c") -> dict[str, Any]:
    after = {
        "stream": stream, "version": version, "type": "OrderPlaced", "schema_version": 2, "data": data,
        "metadata": '{"by": "ann"}', "event_id": f"id-{version}",
        "recorded_at": datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC),
    }  # fmt: skip
    erased = {"_raw": [(DATA_ID, None)]} if data is None else {}
    return {"_op": op, "key": {"stream": stream}, "after": after, **erased}


def events() -> pa.Table:
    return stored(
        EVENT_SCHEMA,
        [
            event("o-1", 1, '{"total": 12.50}'),
            event("o-1", 1, '{"total": 99}', op="u"),  # tampered with: no event
            event("o-2", 1, None),
        ],
    )


def test_events_are_plain_json_by_their_stream() -> None:
    first, erased = told(json_events(of(ORDER, events()), EVENT_SCHEMA))
    assert first == (
        "o-1",
        {
            "event_id": "id-1", "stream": "o-1", "version": 1, "type": "OrderPlaced", "schema_version": 2,
            "recorded_at": "2026-01-02T03:04:05.6Z", "data": {"total": 12.5}, "metadata": {"by": "ann"},
        },
        {},
    )  # fmt: skip
    assert (erased[0], erased[1]["data"], erased[2]) == ("o-2", None, {"tailrace-erased": ["data"]})


ATTRIBUTES = {
    "specversion": "1.0", "id": "id-1", "source": "/shop/order", "type": "OrderPlaced", "subject": "o-1",
    "time": "2026-01-02T03:04:05.6Z", "partitionkey": "o-1", "sequence": "1", "metadata": '{"by": "ann"}',
}  # fmt: skip


def test_events_are_structured_cloud_events() -> None:
    first, erased = told(structured_cloud_events(of(ORDER, events()), EVENT_SCHEMA))
    value = {**ATTRIBUTES, "schemaversion": 2, "datacontenttype": "application/json", "data": {"total": 12.5}}
    assert first == ("o-1", value, {"content-type": "application/cloudevents+json; charset=UTF-8"})
    assert erased[2].keys() == {"content-type", "tailrace-erased"}


def test_events_are_binary_cloud_events() -> None:
    table = binary_cloud_events(of(ORDER, events()), EVENT_SCHEMA)
    first, erased = table.to_pylist()
    assert first["value"] == b'{"total": 12.50}'
    assert {each["name"].decode(): each["value"].decode() for each in first["headers"]} == {
        "content-type": "application/json",
        **{f"ce_{name}": value for name, value in ATTRIBUTES.items()},
        "ce_schemaversion": "2",
    }
    assert erased["value"] == b"null"  # none at all would be a tombstone of the stream
