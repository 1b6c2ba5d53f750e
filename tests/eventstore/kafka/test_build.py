"""Tables become batches that kafka-python and our own reader read back as they were."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from tailrace.eventstore.kafka import build as building
from tailrace.eventstore.kafka.build import BuiltBatch, RecordTooLarge, build
from tailrace.eventstore.kafka.codecs import (
    Codec,
    Damaged,
    OutputFull,
    compress,
    compressed_size_max,
    decompress_into,
)
from tailrace.eventstore.kafka.records import SCHEMA_WITH_HEADERS, FetchedBatches, decode
from tailrace.eventstore.kafka.seams import _Prebuilt

SCHEMA = pa.schema([field for field in SCHEMA_WITH_HEADERS if field.name != "offset"])

texts = st.one_of(st.none(), st.sampled_from([b"", b"a", b"x" * 70]), st.binary(max_size=300))
rows = st.fixed_dictionaries(
    {
        "timestamp": st.integers(0, 1 << 42),
        "key": texts,
        "value": texts,
        "headers": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from([b"", b"id", "ä".encode()]), "value": texts}),
            max_size=2,
        ),
    }
)


def read_back(table: pa.Table, codec: Codec, batch_bytes_max: int) -> tuple[list[bytes], list[Any]]:
    """The batches, and their records by our own reader."""
    offset, found, sent = 0, [], []
    for built in build(table, codec, batch_bytes_max):
        data = bytearray(built.data)
        data[:8] = offset.to_bytes(8, "big")  # as the broker does
        prebuilt = _Prebuilt(type(built)(built.count, data))
        prebuilt.set_producer_state(7, 3, offset, True)
        prebuilt.close()
        sent.append(bytes(data))
        (part,) = decode(FetchedBatches("shop", 0, offset, memoryview(data)), headers=True)
        found += part.table.drop_columns("offset").to_pylist()
        assert part.table["offset"].to_pylist() == list(range(offset, offset + built.count))
        offset += built.count
    return sent, found


@given(
    st.lists(rows, max_size=30), st.sampled_from(Codec), st.sampled_from([1, 200, 100_000]), st.integers(0, 5)
)
def test_what_is_built_is_read_back(
    content: list[dict[str, Any]], codec: Codec, limit: int, left_out: int
) -> None:
    table = pa.Table.from_pylist(content, schema=SCHEMA).slice(left_out)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(building, "BATCH_BYTES", limit)
        sent, found = read_back(table, codec, 1 << 20)
    assert found == table.to_pylist()
    assert limit == 100_000 or len(sent) >= table.num_rows * (limit == 1)
    if codec in (Codec.NONE, Codec.GZIP):  # kafka-python's others are not installed
        theirs = [
            (item.timestamp, item.key, item.value, [(name.encode(), value) for name, value in item.headers])
            for batch in sent
            for item in next(MemoryRecords(batch))
        ]
        times = table["timestamp"].cast(pa.int64()).to_pylist()
        assert theirs == [
            (time, row["key"], row["value"], [(item["name"], item["value"]) for item in row["headers"]])
            for time, row in zip(times, found, strict=True)
        ]
        for batch in map(MemoryRecords, sent):
            head = next(batch)
            assert (
                head.validate_crc()
                and head.is_transactional
                and (head.producer_id, head.producer_epoch) == (7, 3)
            )


def test_a_table_without_headers_is_built() -> None:
    content: list[dict[str, Any]] = [{"timestamp": 5, "key": b"k", "value": None}]
    _, found = read_back(pa.Table.from_pylist(content, schema=SCHEMA.remove(3)), Codec.LZ4, 1000)
    assert [(row["key"], row["value"], row["headers"]) for row in found] == [(b"k", None, [])]


@pytest.mark.parametrize("codec", Codec)
def test_no_batch_is_larger_than_its_topic_takes(codec: Codec) -> None:
    chance = random.Random(5)
    content: list[dict[str, Any]] = [
        {"timestamp": 5, "key": None, "value": chance.randbytes(chance.randrange(3000)), "headers": []}
        for _ in range(300)
    ]
    sent, found = read_back(pa.Table.from_pylist(content, schema=SCHEMA), codec, 5000)
    assert max(map(len, sent)) <= 5000 and len(sent) > 50
    assert [row["value"] for row in found] == [row["value"] for row in content]


def test_a_record_that_is_too_large_is_named_behind_those_before_it() -> None:
    values = [b"small", b"small", random.Random(5).randbytes(6000), b"small"]
    table = pa.table({"timestamp": pa.array([5] * 4), "key": values, "value": values})
    built: list[BuiltBatch] = []
    with pytest.raises(RecordTooLarge, match="a record of 120") as caught:
        built.extend(build(table, Codec.ZSTD, 5000))
    assert caught.value.row == 2
    table = table.set_column(1, "key", [[b"x" * 100_000] * 4]).set_column(2, "value", [[b"small"] * 4])
    assert [batch.count for batch in build(table, Codec.ZSTD, 5000)] == [1] * 4  # it fits when compressed


@given(st.sampled_from(Codec), st.binary(max_size=2000), st.integers(1, 40))
def test_codecs_give_back_what_they_took(codec: Codec, data: bytes, times: int) -> None:
    packed = compress(codec, data * times)
    assert len(packed) <= compressed_size_max(len(data) * times)
    out = bytearray(len(data) * times + 3)
    assert decompress_into(codec, packed, memoryview(out)) == len(data) * times
    assert out[:-3] == data * times
    if data:
        with pytest.raises(OutputFull):
            decompress_into(codec, packed, memoryview(out)[: len(data) * times - 1])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff" * 9, id="a size that does not end"),
        pytest.param(b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2 + b"\x00", id="half the size of a block"),
        pytest.param(b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2 + b"\x00\x00\x00\x02\x00", id="a block cut"),
        pytest.param(b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2 + b"\xff\xff\xff\xff", id="a negative size"),
    ],
)
def test_frames_of_snappy_that_are_wrong_are_refused(data: bytes) -> None:
    with pytest.raises(Damaged, match="snappy: "):
        decompress_into(Codec.SNAPPY, data, memoryview(bytearray(100)))


@given(st.sampled_from(Codec), st.binary(max_size=100), st.data())
def test_codecs_refuse_what_is_damaged_or_give_something(
    codec: Codec, data: bytes, draw: st.DataObject
) -> None:
    packed = bytearray(compress(codec, data * 10))
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(packed)))
        packed[at : at + draw.draw(st.integers(0, 2))] = draw.draw(st.binary(max_size=2))
    with suppress(Damaged, OutputFull):
        assert decompress_into(codec, bytes(packed), memoryview(bytearray(5000))) <= 5000
