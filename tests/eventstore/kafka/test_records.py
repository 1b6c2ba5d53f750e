"""Batches become tables: what kafka-python's own decoder gives, and nothing but an error from bytes that are wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords

from tailrace.eventstore.errors import OperatorError, ProtocolError, TailraceError
from tailrace.eventstore.kafka import records
from tailrace.eventstore.kafka.batches import AbortedTransaction
from tailrace.eventstore.kafka.records import FetchedBatches, RecordBatchRows, decode
from tests.support.kafka_batches import CODECS, BatchMade, Record, compressed, marker, record_bytes, varint

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]

texts = st.one_of(st.none(), st.sampled_from([b"", b"a", b"\x00\xff", b"x" * 70]), st.binary(max_size=40))
# Names that kafka-python can read, too.
names = st.sampled_from([b"", b"id", b"__debezium.newkey", "ä".encode()])


@st.composite
def batches(draw: st.DrawFn) -> list[BatchMade]:
    """A partition's batches: gaps of compaction, transactions, markers, batches without records."""
    made: list[BatchMade] = []
    offset = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 6))):
        producer = draw(st.sampled_from([-1, 7, 8]))
        if producer != -1 and draw(st.integers(0, 3)) == 0:
            made.append(marker(offset, producer, commit=draw(st.booleans())))
        else:
            deltas = sorted(draw(st.sets(st.integers(0, 8), max_size=5)))
            parts = [
                Record(
                    delta, draw(texts), draw(texts), tuple(draw(st.lists(st.tuples(names, texts), max_size=2))),
                    draw(st.sampled_from([0, 1, -1, 90_000, 1 << 40])),
                )
                for delta in deltas
            ]  # fmt: skip
            made.append(
                BatchMade(
                    offset, parts, draw(st.sampled_from(sorted(CODECS))), producer_id=producer,
                    base_timestamp=draw(st.sampled_from([-1, 0, 1_700_000_000_000])),
                    attributes=(0x10 if producer != -1 else 0) | draw(st.sampled_from([0, 0x08])),
                    last_delta=max([*deltas, draw(st.integers(0, 9))]),
                )
            )  # fmt: skip
        offset = made[-1].next_offset + draw(st.integers(0, 2))
    return made


aborted = st.lists(st.builds(AbortedTransaction, st.sampled_from([7, 8]), st.integers(0, 40)), max_size=3)


def fetched(made: Sequence[BatchMade], first: int = 0, transactions: Any = ()) -> FetchedBatches:
    data = memoryview(b"".join(batch.bytes() for batch in made))
    return FetchedBatches("shop", 2, first, data, tuple(transactions))


def rows_of(tables: Sequence[RecordBatchRows]) -> list[Row]:
    found: list[Row] = []
    for part in tables:
        part.table.validate(full=True)
        assert part.table.schema == records.SCHEMA_WITH_HEADERS and (part.topic, part.partition) == (
            "shop",
            2,
        )
        columns = {**{name: part.table[name] for name in part.table.column_names}}
        columns["timestamp"] = columns["timestamp"].cast(pa.int64()).fill_null(-1)
        for offset, time, key, value, headers in zip(
            *(columns[name].to_pylist() for name in columns), strict=True
        ):
            found.append((offset, time, key, value, [(item["name"], item["value"]) for item in headers]))
    return found


def by_kafka_python(
    made: Sequence[BatchMade], first: int, transactions: Sequence[AbortedTransaction]
) -> list[Row]:
    """What a consumer of committed records gets. It has no codec but gzip here, so batches are given to it plain."""
    data = b"".join(batch.plain().bytes() for batch in made)
    given = [SimpleNamespace(**transaction._asdict()) for transaction in transactions]
    partition = Fetcher.PartitionRecords(
        first, TopicPartition("shop", 2), MemoryRecords(data), isolation_level=IsolationLevel.READ_COMMITTED,
        aborted_transactions=given,
    )  # fmt: skip
    return [
        (
            item.offset,
            item.timestamp,
            item.key,
            item.value,
            [(name.encode(), value) for name, value in item.headers],
        )
        for item in partition.take()
    ]


@given(batches(), aborted, st.integers(0, 30))
def test_the_records_are_those_of_kafka_pythons_consumer(
    made: list[BatchMade], transactions: list[AbortedTransaction], first: int
) -> None:
    tables = list(decode(fetched(made, first, transactions), headers=True))
    assert rows_of(tables) == by_kafka_python(made, first, transactions)
    end = made[-1].next_offset
    assert [part.next_offset for part in tables] == ([end] if end > first else [])


@given(batches(), st.integers(0, 30))
def test_small_tables_have_the_rows_of_a_large_one(made: list[BatchMade], first: int) -> None:
    """And reading goes on behind any of them."""
    whole = rows_of(list(decode(fetched(made, first), headers=True)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records, "CHUNK_BYTES", 1)
        tables = list(decode(fetched(made, first), headers=True))
        assert rows_of(tables) == whole
        for number, part in enumerate(tables):
            rest = decode(fetched(made, part.next_offset), headers=True)
            assert rows_of(list(rest)) == rows_of(tables[number + 1 :])


@given(batches(), st.data())
def test_damaged_bytes_are_an_error_or_end_early(made: list[BatchMade], data: st.DataObject) -> None:
    """Where the checksum is right nevertheless, as a producer may write anything: see the next test."""
    sent = bytearray(fetched(made).data)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(sent) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "drop"])):
            case "flip":
                sent[at] = data.draw(st.integers(0, 255))
            case "cut":
                del sent[at + 1 :]
            case _:
                del sent[at]
        if not sent:
            return
    consume(FetchedBatches("shop", 2, 0, memoryview(bytes(sent))))


@given(batches(), st.data())
def test_records_that_a_producer_wrote_wrong_are_an_error(made: list[BatchMade], data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(made) - 1))
    payload = bytearray(b"".join(map(record_bytes, made[number].records)) or b"\x00")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]))
    wrong = replace(made[number], payload=compressed(made[number].codec, bytes(payload)))
    made[number] = replace(wrong, count=data.draw(st.sampled_from([wrong.count, 0, 1, 9])))
    consume(fetched(made))


def consume(what: FetchedBatches) -> None:
    tables = []
    try:
        tables = list(decode(what, headers=True))
    except TailraceError as error:
        assert "topic shop, partition 2" in error.message and error.hint  # noqa: PT017 either is right
    for part in tables:
        part.table.validate(full=True)
        assert part.table.num_rows <= 100


def test_random_bytes_are_an_error() -> None:
    generator = random.Random(3)
    for _ in range(500):
        consume(FetchedBatches("shop", 2, 0, memoryview(generator.randbytes(generator.randrange(300)))))


ONE = Record(0, b"k", b"v" * 100)


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        pytest.param(b"", 1, id="none where one is said to be"),
        pytest.param(record_bytes(ONE)[:-1], 1, id="cut"),
        pytest.param(record_bytes(ONE) + b"\x00", 1, id="something behind"),
        pytest.param(varint(-5) + b"\x00" * 20, 1, id="a negative size"),
        pytest.param(b"\xff" * 20, 1, id="a number that does not end"),
        pytest.param(record_bytes(replace(ONE, delta=-1)), 1, id="an offset before the batch"),
        pytest.param(record_bytes(replace(ONE, delta=6)), 1, id="an offset behind the batch"),
        pytest.param(record_bytes(ONE) * 2, 2, id="an offset twice"),
        pytest.param(
            varint(8) + b"\x00\x00\x00" + varint(1 << 30) + b"\x00" * 4, 1, id="a key behind the end"
        ),
        pytest.param(varint(8) + b"\x00\x00\x00\x01\x01" + varint(1 << 20), 1, id="a million headers"),
        pytest.param(
            varint(8) + b"\x00\x00\x00\x01\x01" + varint(1) + b"\x01\x01", 1, id="a header without a name"
        ),
    ],
)
def test_a_batch_whose_records_are_wrong_is_named(payload: bytes, count: int) -> None:
    made = BatchMade(40, [], payload=payload, count=count, last_delta=5)
    with pytest.raises(
        ProtocolError, match="topic shop, partition 2, batch at offset 40: its records are not"
    ):
        list(decode(fetched([made])))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data[:50] + b"\x00" + data[51:], "its checksum is another one"),
        (lambda data: data[:16] + b"\x01" + data[17:], "its format is 1"),
        (lambda data: data[:8] + b"\x00\x00\x00\x09" + data[12:], "it says to have 9 bytes"),
        (lambda data: b"\xff" + data[1:], "its last offset would be -"),
        (lambda data: b"\x7f" + b"\xff" * 7 + data[8:], "its last offset would be 9223372036854775807"),
        (lambda data: BatchMade(40, [ONE], last_delta=-1).bytes(), "its last offset would be 40 [+] -1"),
        (lambda data: BatchMade(40, [ONE], count=2).bytes(), "it says to have 2 records at 1 offsets"),
        (lambda data: BatchMade(40, [ONE], count=-1).bytes(), "it says to have -1 records"),
        (lambda data: BatchMade(40, [ONE], attributes=5).bytes(), "codec 5 is none that is known"),
        (lambda data: data + data, "offsets go back from 41"),
    ],
)
def test_a_head_that_is_wrong_is_named(change: Any, says: str) -> None:
    data = change(BatchMade(40, [ONE]).bytes())
    with pytest.raises(ProtocolError, match=says):
        list(decode(FetchedBatches("shop", 2, 0, memoryview(data))))


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_a_bomb_fills_no_memory(codec: str) -> None:
    zeros = compressed(codec, bytes(64 << 20))
    made = BatchMade(40, [], codec, payload=zeros, count=1)
    before = pa.total_allocated_bytes()
    with pytest.raises(OperatorError, match=r"batch at offset 40: \d+ bytes are more than 1048576"):
        list(decode(fetched([made]), batch_bytes_max=1 << 20))
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("codec", CODECS)
def test_a_large_record_is_read(codec: str) -> None:
    value = random.Random(1).randbytes(1 << 20) * 9
    (rows,) = decode(fetched([BatchMade(5, [Record(0, None, value)], codec)]))
    assert rows.table["value"].to_pylist() == [value]


def test_the_last_offset_that_there_can_be_is_read() -> None:
    (rows,) = decode(fetched([BatchMade((1 << 63) - 2, [ONE])]))
    assert rows.table["offset"].to_pylist() == [(1 << 63) - 2] and rows.next_offset == (1 << 63) - 1


def test_nothing_is_no_table_and_all_that_was_read_before_neither() -> None:
    made = [BatchMade(5, [ONE])]
    assert list(decode(fetched([]))) == list(decode(fetched([], 5))) == list(decode(fetched(made, 6))) == []


def test_a_batch_that_needs_more_room_than_guessed_leaves_those_before_it_as_they_are() -> None:
    small = [Record(0, None, random.Random(1).randbytes(150_000)), Record(1, b"k", b"v")]
    large = [Record(0, b"large", b"x" * (8 << 20))]
    (rows,) = decode(fetched([BatchMade(0, small, "lz4"), BatchMade(2, large, "zstd"), BatchMade(3, small)]))
    assert rows.table["value"].to_pylist() == [record.value for record in (*small, *large, *small)]


def test_columns_are_what_others_were_promised() -> None:
    described = [(field.name, str(field.type), field.nullable) for field in records.SCHEMA_WITH_HEADERS]
    assert described == [
        ("offset", "int64", False),
        ("timestamp", "timestamp[ms, tz=UTC]", True),
        ("key", "large_binary", True),
        ("value", "large_binary", True),
        ("headers", "list<item: struct<name: large_binary, value: large_binary>>", False),
    ]


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_compressed_bytes_that_are_damaged_are_an_error(codec: str) -> None:
    good = compressed(codec, record_bytes(ONE) * 50)
    for at in range(len(good)):
        for wrong in (good[:at], good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :]):
            consume(fetched([BatchMade(40, [], codec, payload=wrong, count=50, last_delta=60)]))
