"""Records of Debezium's outbox router, as its converters write them: which events they are."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.decoder import TableDecoder
from tailrace.cdc.kafka.decoding.outbox.json_parts import members, string
from tailrace.eventstore.model.schema import EVENT_SCHEMA
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings
from tests.cdc.kafka.decoding.recorded import rows_of, table_of

TOPIC = TopicId.events("shop", "order")
ID = UUID("018f3c2e-0000-7000-8000-000000000001")
HEADERS = {"id": str(ID).encode(), "eventType": b"order_placed"}
DATA = '{"total": 1.50, "lines": [{"n": 1e2}]}'


def decoder(**outbox: Any) -> TableDecoder:
    settings = {"additional_placement": "type:header:eventType", **outbox}
    return TableDecoder.of(
        KafkaSourceSettings.model_validate({"kind": "kafka", "brokers": ["127.0.0.1:9"], "outbox": settings})
    )


def decoded(
    value: bytes | None, key: bytes | None = b"42", headers: dict[str, bytes] = HEADERS, **outbox: Any
) -> Decoded:
    pairs = [{"name": name.encode(), "value": text} for name, text in headers.items()]
    record = {"offset": 6, "timestamp": 1_772_361_000_000, "key": key, "value": value, "headers": pairs}
    return decoder(**outbox)(TOPIC, None, table_of([record]), Place(5))


def event(*arguments: Any, **more: Any) -> dict[str, Any]:
    found = decoded(*arguments, **more)
    assert found.parked == ()
    assert found.schemas == (EVENT_SCHEMA,)
    (row,) = rows_of(found)
    assert row["_op"] == "c"
    after: dict[str, Any] = row["after"]
    return after


def quoted(text: str) -> bytes:
    return json.dumps(text).encode()


def with_schema(payload: str) -> bytes:
    return f'{{"schema":{{"type":"string","optional":true}},"payload":{payload}}}'.encode()


def test_an_event_has_what_one_of_the_events_table_has() -> None:
    assert event(DATA.encode()) == {
        "stream": "42",
        "version": 7,
        "type": "order_placed",
        "schema_version": 1,
        "data": DATA,
        "metadata": "{}",
        "event_id": str(ID),
        "recorded_at": "2026-03-01 10:30:00+00:00",
    }


@pytest.mark.parametrize(
    "value",
    [DATA.encode(), quoted(DATA), with_schema(json.dumps(DATA)), with_schema(DATA), f" {DATA}\n".encode()],
    ids=["expanded or text", "JSON string", "with schema", "expanded with schema", "with spaces"],
)
def test_its_data_are_the_payload_as_it_was_written(value: bytes) -> None:
    assert event(value)["data"] == DATA


def test_a_payload_that_looks_like_a_schema_with_payload_is_itself() -> None:
    data = '{"schema":"v2","payload":{"a":1}}'
    found = decoded(data.encode())
    assert [each.reason for each in found.parked] == [] and rows_of(found)[0]["after"]["data"] == data


@pytest.mark.parametrize("value", [None, b"null", with_schema("null")])
def test_one_without_payload_has_no_data(value: bytes | None) -> None:
    assert event(value)["data"] == "{}"


@pytest.mark.parametrize("key", [b"42", b'"42"', with_schema('"42"'), with_schema("42")])
def test_the_stream_is_the_key_whatever_converter_wrote_it(key: bytes) -> None:
    assert event(DATA.encode(), key)["stream"] == "42"


def test_columns_come_from_headers_or_from_the_envelope() -> None:
    placement = "type:envelope:eventType, version:envelope, tenant:envelope:who, trace:header:traceparent, x:partition"
    outbox = {"additional_placement": placement, "version_column": "version"}
    for payload in (DATA, json.dumps(DATA)):
        value = f'{{"payload":{payload},"eventType":"order_placed","version":3,"who":"é"}}'
        for written in (value.encode(), with_schema(value)):
            headers = {"id": quoted(str(ID).upper()), "traceparent": b"00-1", "other": b"\xff"}
            found = event(written, b"42", headers, **outbox)
            assert (found["type"], found["version"], found["data"]) == ("order_placed", 3, DATA)
            assert json.loads(found["metadata"]) == {"tenant": "é", "trace": "00-1"}
            assert found["event_id"] == str(ID)


@pytest.mark.parametrize(
    ("reason", "arguments", "outbox"),
    [
        ("it has no header 'id'", (b"{}", b"42", {"eventType": b"a"}), {}),
        ("its header 'id' is no UUID", (b"{}", b"42", {"id": b"7", "eventType": b"a"}), {}),
        ("its 'type', which is its type, is not there", (b"{}", b"42", {"id": str(ID).encode()}), {}),
        ("it has no key", (b"{}", None), {}),
        ("its key is no id of a stream", (b"{}", b"x" * 1001), {}),
        ("its key is not UTF-8", (b"{}", b"\xff"), {}),
        ("its key is neither text nor JSON of one", (b"{}", b'"a'), {}),
        ("its payload is no JSON object", (b"[1]",), {}),
        ("its payload is no JSON object", (b'{"a":NaN}',), {}),
        ("its payload is no JSON object", (b'{"a":1} x',), {}),
        ("its payload is no JSON object", (b'{"a":1,"a":2}',), {}),
        ("its payload is no JSON object", (b'{"a":' + b"[" * 100_000,), {}),
        ("its payload is no JSON object", (b"hello",), {}),
        ("its payload has U+0000", (b'{"a":"\\u0000"}',), {}),
        ("its value is not UTF-8", (b"\xff",), {}),
        (
            "its value is not the envelope",
            (b'{"payload":{},"more":1}',),
            {"additional_placement": "type:header:eventType,a:envelope"},
        ),
        (
            "its 'v' is no whole number above 0",
            (b"{}", b"42", {**HEADERS, "v": b"0"}),
            {"additional_placement": "type:header:eventType,v:header", "version_column": "v"},
        ),
    ],
)
def test_what_is_no_event_says_why(reason: str, arguments: Any, outbox: dict[str, Any]) -> None:
    (parked,) = decoded(*arguments, **outbox).parked
    assert parked.offset == 6 and parked.reason.startswith(reason)


def test_settings_must_say_where_the_type_is() -> None:
    with pytest.raises(ValueError, match="does not say where records have column type"):
        decoder(additional_placement="tenant:header")
    with pytest.raises(ValueError, match="'type:headers' is no COLUMN:header"):
        decoder(additional_placement="type:headers")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=5), st.sampled_from([None, 1, "\t"]))
def test_members_are_parts_of_the_text_that_mean_the_same(document: dict[str, Any], indent: Any) -> None:
    text = json.dumps(document, indent=indent)
    assert {name: json.loads(part) for name, part in members(text).items()} == document
    assert all(part in text for part in members(text).values())
    assert string(json.dumps(text)) == text


@given(st.binary(max_size=60), st.binary(max_size=20), st.binary(max_size=20))
def test_whatever_comes_is_an_event_or_parked(value: bytes, key: bytes, header: bytes) -> None:
    found = decoded(value, key, {"id": str(uuid4()).encode(), "eventType": header})
    assert len(found.parked) + sum(each.rows.num_rows for each in found.rows) == 1
