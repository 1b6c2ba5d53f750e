"""Records are read from a real broker: what kafka-python's consumer of committed records gives, whatever the codec,
with transactions, aborts, gaps and crashes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from tailrace.embedded import KafkaServer
from tailrace.eventstore.errors import OperatorError, ProtocolError
from tailrace.eventstore.kafka import seams
from tailrace.eventstore.kafka.cluster import Cluster, PartitionOffsets
from tailrace.eventstore.kafka.connection import OffsetLost
from tailrace.eventstore.kafka.reader import Partition, PartitionReader
from tailrace.eventstore.kafka.records import RecordBatchRows
from tailrace.eventstore.settings import KafkaConnectionSettings
from tests.fixtures.brokers import KafkaFactory, TopicFactory, make_topic

pytestmark = pytest.mark.servers

Records = dict[Partition, list[tuple[Any, ...]]]
ReaderFactory = Callable[..., PartitionReader]


def settings_of(server: KafkaServer) -> KafkaConnectionSettings:
    return KafkaConnectionSettings(brokers=(server.address,))


@pytest.fixture(params=[True, False], ids=["batches", "poll"])
def reader(request: pytest.FixtureRequest, kafka: KafkaServer) -> Iterator[ReaderFactory]:
    """Makes readers of both kinds, which have to agree."""
    with ExitStack() as readers:
        yield lambda **more: readers.enter_context(
            PartitionReader(settings_of(kafka), headers=True, whole_batches=request.param, **more)
        )


@pytest.fixture
def producer(kafka: KafkaServer) -> Iterator[Callable[..., KafkaProducer]]:
    made: list[KafkaProducer] = []

    def make(transactional_id: str | None = None, **more: Any) -> KafkaProducer:
        made.append(KafkaProducer(bootstrap_servers=kafka.address, transactional_id=transactional_id, **more))
        if transactional_id is not None:
            made[-1].init_transactions()
        return made[-1]

    yield make
    for each in made:
        each.close()


def read(reader: PartitionReader, offsets: Mapping[Partition, int], ends: Mapping[Partition, int]) -> Records:
    """All records up to ``ends``."""
    reader.seek(offsets)
    found: Records = {partition: [] for partition in offsets}
    at = dict(offsets)
    deadline = time.monotonic() + 60
    while any(at[partition] < ends[partition] for partition in ends):
        assert time.monotonic() < deadline, f"stands at {at}, and {ends} was to come"
        for rows in reader.fetch(1.0):
            partition = Partition(rows.topic, rows.partition)
            assert rows.next_offset > at[partition]
            at[partition] = rows.next_offset
            found[partition] += plain(rows)
    return found


def plain(rows: RecordBatchRows) -> list[tuple[Any, ...]]:
    rows.table.validate(full=True)
    columns = [rows.table[name] for name in ("offset", "timestamp", "key", "value", "headers")]
    columns[1] = columns[1].cast(pa.int64())
    return [
        (*row[:4], [(item["name"].decode(), item["value"]) for item in row[4]])
        for row in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


def fetch_until_error(reader: PartitionReader) -> None:
    for _ in range(50):
        reader.fetch(0.2)


def by_consumer(
    server: KafkaServer, offsets: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> Records:
    """The same by kafka-python alone."""
    consumer = KafkaConsumer(
        bootstrap_servers=server.address, isolation_level="read_committed", auto_offset_reset="none",
        enable_auto_commit=False,
    )  # fmt: skip
    try:
        consumer.assign([TopicPartition(*partition) for partition in offsets])
        for partition, offset in offsets.items():
            consumer.seek(TopicPartition(*partition), offset)
        found: Records = {partition: [] for partition in offsets}
        while any(consumer.position(TopicPartition(*partition)) < end for partition, end in ends.items()):
            for known, records in consumer.poll(1000).items():
                found[Partition(*known)] += [
                    (item.offset, item.timestamp, item.key, item.value, item.headers) for item in records
                ]
        return found
    finally:
        consumer.close()


def write_transactions(topic: str, make: Callable[..., KafkaProducer], seed: int) -> None:
    """Two producers in turns, each commits or aborts by chance, between them one without transactions."""
    chance = random.Random(seed)
    producers = [make(f"{topic}-{number}", linger_ms=5) for number in range(2)]
    bare = make()
    open_now: set[int] = set()
    for round_number in range(25):
        number = chance.randrange(2)
        if number not in open_now:
            producers[number].begin_transaction()
            open_now.add(number)
        for record in range(chance.randrange(1, 5)):
            value = f"{round_number}/{record}".encode() * chance.randrange(1, 40)
            key = None if record == 3 else f"key {number}".encode()
            headers = [("round", str(round_number).encode())] * chance.randrange(3)
            producers[number].send(topic, value, key=key, headers=headers, partition=chance.randrange(2))
        producers[number].flush()
        bare.send(topic, None, key=b"bare", partition=chance.randrange(2)).get(30)
        if chance.random() < 0.5:
            end = (
                producers[number].commit_transaction
                if chance.random() < 0.5
                else producers[number].abort_transaction
            )
            end()
            open_now.discard(number)
    for number in open_now:
        producers[number].abort_transaction()


@pytest.mark.kafka_versions
@pytest.mark.parametrize("seed", [1, 2])
def test_committed_records_are_read_and_others_are_not(
    kafka: KafkaServer,
    new_topic: TopicFactory,
    producer: Callable[..., KafkaProducer],
    reader: ReaderFactory,
    seed: int,
) -> None:
    topic = new_topic(partitions=2)
    write_transactions(topic, producer, seed)
    partitions = [Partition(topic, number) for number in range(2)]
    with Cluster(settings_of(kafka)) as cluster:
        ends = {partition: found.last_stable for partition, found in cluster.offsets(partitions).items()}
    assert min(ends.values()) > 25
    everything = by_consumer(kafka, dict.fromkeys(partitions, 0), ends)
    starts = random.Random(seed)
    for start in (
        0,
        *(starts.randrange(25) for _ in range(3)),
    ):  # also in the middle of batches and transactions
        offsets = dict.fromkeys(partitions, start)
        wanted = {
            partition: [row for row in rows if row[0] >= start] for partition, rows in everything.items()
        }
        assert read(reader(), offsets, ends) == wanted


def test_an_open_transaction_holds_back_what_comes_behind_it(
    kafka: KafkaServer, new_topic: TopicFactory, producer: Callable[..., KafkaProducer], reader: ReaderFactory
) -> None:
    topic = new_topic()
    partition = Partition(topic, 0)
    slow, quick = producer(f"{topic}-slow"), producer()
    quick.send(topic, b"before").get(30)
    slow.begin_transaction()
    slow.send(topic, b"in it").get(30)
    quick.send(topic, b"behind").get(30)
    with Cluster(settings_of(kafka)) as cluster:
        assert cluster.offsets([partition]) == {partition: PartitionOffsets(0, 1, 3)}
        reading = reader()
        assert [row[3] for row in read(reading, {partition: 0}, {partition: 1})[partition]] == [b"before"]
        assert reading.fetch(0.3) == []
        slow.commit_transaction()
        rest = read(reading, {partition: 1}, {partition: 3})[partition]
        assert [row[3] for row in rest] == [b"in it", b"behind"]
        assert cluster.offsets([partition])[partition].last_stable == 4  # the marker has an offset


def test_a_compacted_topic_has_gaps(
    kafka: KafkaServer, new_topic: TopicFactory, producer: Callable[..., KafkaProducer], reader: ReaderFactory
) -> None:
    settings = {
        "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100",
        "max.compaction.lag.ms": "100", "delete.retention.ms": "100",
    }  # fmt: skip
    topic = new_topic(settings=settings)
    partition = Partition(topic, 0)
    writing = producer()
    deadline = time.monotonic() + 100
    while True:
        for number in range(20):
            writing.send(topic, b"x" * 100, key=b"key %d" % (number % 3))
        writing.flush()
        time.sleep(0.5)  # a segment ends by its age
        with Cluster(settings_of(kafka)) as cluster:
            end = cluster.offsets([partition])[partition].last_stable
        found = read(reader(), {partition: 0}, {partition: end})[partition]
        if len(found) < end - 10:
            break
        assert time.monotonic() < deadline, f"nothing of {end} records was removed"
    offsets = [row[0] for row in found]
    assert offsets == sorted(set(offsets))
    # The cleaner goes on beside us: what it left last is what both see.
    assert {row[2] for row in found} == {b"key 0", b"key 1", b"key 2"}
    middle = offsets[len(offsets) // 2]
    assert read(reader(), {partition: middle}, {partition: end})[partition][-1] == found[-1]


@pytest.mark.kafka_versions
def test_what_retention_removed_is_said(
    kafka: KafkaServer, new_topic: TopicFactory, producer: Callable[..., KafkaProducer], reader: ReaderFactory
) -> None:
    topic = new_topic()
    partition = Partition(topic, 0)
    writing = producer()
    for number in range(10):
        writing.send(topic, b"%d" % number).get(30)
    admin = KafkaAdminClient(bootstrap_servers=kafka.address)
    admin.delete_records({TopicPartition(topic, 0): 4})
    admin.close()
    with Cluster(settings_of(kafka)) as cluster:
        assert cluster.offsets([partition])[partition].earliest == 4
    for lost in (2, 11):
        reading = reader()
        reading.seek({partition: lost})
        with pytest.raises(OffsetLost, match="OffsetOutOfRange") as caught:
            fetch_until_error(reading)
        assert topic in str(caught.value) and caught.value.hint
    assert len(read(reader(), {partition: 4}, {partition: 10})[partition]) == 6


def test_names_that_are_not_there_are_said(
    kafka: KafkaServer, new_topic: TopicFactory, reader: ReaderFactory
) -> None:
    topic = new_topic(partitions=2)
    with pytest.raises(OperatorError, match="Kafka has no topic nothing"):
        reader().seek({Partition("nothing", 0): 0})
    with pytest.raises(OperatorError, match=f"Kafka's topic {topic} has no partition 2"):
        reader().seek({Partition(topic, 1): 0, Partition(topic, 2): 0})
    with Cluster(settings_of(kafka)) as cluster:
        with pytest.raises(OperatorError, match="topic nothing: Kafka says UnknownTopicOrPartition"):
            cluster.topic("nothing")
        before = cluster.topic(topic)
        assert before.partitions == (0, 1) and topic in cluster.topics()
        assert not [name for name in cluster.topics() if name.startswith("__")]
        assert cluster.batch_bytes_max(topic) == 1048588
        admin = KafkaAdminClient(bootstrap_servers=kafka.address)
        admin.delete_topics([topic])
        admin.close()
        deadline = time.monotonic() + 60
        while topic in cluster.topics():
            assert time.monotonic() < deadline
        make_topic(kafka, topic)
        while topic not in cluster.topics():
            assert time.monotonic() < deadline
        assert cluster.topic(topic).id != before.id


def test_a_broker_that_dies_and_comes_back_goes_on(kafka_server: KafkaFactory) -> None:
    server = kafka_server(trust=True)
    make_topic(server, "kept")
    partition = Partition("kept", 0)
    writing = KafkaProducer(bootstrap_servers=server.address)
    with PartitionReader(settings_of(server), headers=True) as reading:
        for round_number in range(2):
            for number in range(3):
                writing.send("kept", b"%d" % number)
            writing.flush()
            start, end = 3 * round_number, 3 * round_number + 3
            found = read(reading, {partition: start}, {partition: end})[partition]
            assert [row[3] for row in found] == [b"0", b"1", b"2"]
            if round_number == 0:
                server.kill()
                assert reading.fetch(1.0) == []
                server.start()
    writing.close()


def test_a_batch_that_is_damaged_on_the_way_is_refused(
    kafka: KafkaServer,
    new_topic: TopicFactory,
    producer: Callable[..., KafkaProducer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic()
    partition = Partition(topic, 0)
    writing = producer()
    writing.send(topic, b"a value").get(30)
    polled = seams.polled

    def damage(consumer: KafkaConsumer, timeout_ms: int) -> Any:
        for fetched in polled(consumer, timeout_ms):
            data = bytearray(fetched.data)
            data[-3] ^= 1
            yield type(fetched)(
                fetched.topic, fetched.partition, fetched.first_offset, memoryview(bytes(data))
            )

    with PartitionReader(settings_of(kafka), headers=True, whole_batches=True) as reading:
        with monkeypatch.context() as patched:
            patched.setattr(seams, "polled", damage)
            reading.seek({partition: 0})
            with pytest.raises(
                ProtocolError, match=f"topic {topic}, partition 0, batch at offset 0: its checksum"
            ):
                fetch_until_error(reading)
        assert [row[3] for row in read(reading, {partition: 0}, {partition: 1})[partition]] == [b"a value"]


def test_whole_batches_can_be_taken_out_of_the_pinned_version() -> None:
    assert seams.reads_batches()
