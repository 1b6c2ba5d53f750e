"""Transactions of whole batches: readers of committed records, kafka-python's consumer among them, see all or nothing,
over crashes of the broker and beside a zombie."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Timer
from typing import Any

import pyarrow as pa
import pytest

from tailrace.embedded import KafkaServer
from tailrace.eventstore.errors import Fenced, OperatorError, TailraceError
from tailrace.eventstore.kafka import seams
from tailrace.eventstore.kafka.build import RecordTooLarge
from tailrace.eventstore.kafka.cluster import Cluster
from tailrace.eventstore.kafka.codecs import Codec
from tailrace.eventstore.kafka.publisher import TransactionalPublisher
from tailrace.eventstore.kafka.reader import Partition, PartitionReader
from tests.eventstore.kafka.test_build import SCHEMA
from tests.eventstore.kafka.test_reader import by_consumer, settings_of
from tests.fixtures.brokers import KafkaFactory, TopicFactory, make_topic

pytestmark = pytest.mark.servers
KEPT = {"retention.ms": "-1"}  # records of 1970 are old

PublisherFactory = Callable[..., TransactionalPublisher]


@pytest.fixture(params=[True, False], ids=["batches", "send"])
def publisher(request: pytest.FixtureRequest, kafka: KafkaServer) -> Iterator[PublisherFactory]:
    with ExitStack() as publishers:
        yield lambda name, **more: publishers.enter_context(
            TransactionalPublisher(settings_of(kafka), name, whole_batches=request.param, **more)
        )


def table_of(values: list[bytes | None], key: bytes | None = b"key") -> pa.Table:
    content = [
        {
            "timestamp": 1000 + number,
            "key": key,
            "value": value,
            "headers": [{"name": b"n", "value": b"%d" % number}],
        }
        for number, value in enumerate(values)
    ]
    return pa.Table.from_pylist(content, schema=SCHEMA)


def seen(server: KafkaServer, topic: str, partition: int = 0) -> list[tuple[Any, ...]]:
    """What a consumer of committed records gets."""
    where = Partition(topic, partition)
    with Cluster(settings_of(server)) as cluster:
        end = cluster.offsets([where])[where].last_stable
    return by_consumer(server, {where: 0}, {where: end})[where]


@pytest.mark.kafka_versions
@pytest.mark.parametrize("codec", Codec)
def test_a_broker_takes_batches_of_every_codec(
    kafka: KafkaServer, new_topic: TopicFactory, codec: Codec
) -> None:
    """It unpacks them to check their records. Read by ourselves, as kafka-python's codecs are not installed."""
    topic = new_topic(settings=KEPT)
    partition = Partition(topic, 0)
    values: list[bytes | None] = [b"a value " * 10, None, b""] * 300
    with (
        TransactionalPublisher(settings_of(kafka), topic, codec=codec) as publishing,
        publishing.transaction(),
    ):
        publishing.send(partition, table_of(values))
    found: list[Any] = []
    with PartitionReader(settings_of(kafka), headers=True) as reader:
        reader.seek({partition: 0})
        deadline = time.monotonic() + 30
        while len(found) < len(values) and time.monotonic() < deadline:
            found += [
                row for rows in reader.fetch(0.2) for row in rows.table.drop_columns("offset").to_pylist()
            ]
    assert found == table_of(values).to_pylist()


@pytest.mark.kafka_versions
def test_all_of_a_transaction_is_seen_or_nothing(
    kafka: KafkaServer, new_topic: TopicFactory, publisher: PublisherFactory
) -> None:
    first, second = new_topic(partitions=2, settings=KEPT), new_topic(settings=KEPT)
    publishing = publisher(first, codec=Codec.GZIP)
    for round_number in range(6):
        try:
            with publishing.transaction():
                for partition in (Partition(first, 0), Partition(first, 1), Partition(second, 0)):
                    publishing.send(partition, table_of([b"%d" % round_number] * 3))
                if round_number % 2:
                    raise ArithmeticError("of the caller")
        except ArithmeticError:
            assert round_number % 2
    for topic, number in ((first, 0), (first, 1), (second, 0)):
        rows = seen(kafka, topic, number)
        assert [row[1:4] for row in rows] == [
            (1000 + number, b"key", b"%d" % round_number) for round_number in (0, 2, 4) for number in range(3)
        ]
        assert [row[4] for row in rows[:3]] == [[("n", b"%d" % number)] for number in range(3)]


@pytest.mark.kafka_versions
def test_a_second_publisher_of_the_same_name_fences_the_first(
    kafka: KafkaServer, new_topic: TopicFactory, publisher: PublisherFactory
) -> None:
    topic = new_topic(settings=KEPT)
    partition = Partition(topic, 0)

    def write(publishing: TransactionalPublisher, value: bytes) -> None:
        with publishing.transaction():
            publishing.send(partition, table_of([value]))

    zombie = publisher(topic, codec=Codec.GZIP)
    write(zombie, b"before")

    def overtaken() -> None:
        with zombie.transaction():
            zombie.send(partition, table_of([b"of the zombie"]))
            write(publisher(topic, codec=Codec.GZIP), b"behind")

    with pytest.raises(Fenced, match="Kafka says"):
        overtaken()
    with pytest.raises(Fenced):
        write(zombie, b"of the zombie")
    assert [row[3] for row in seen(kafka, topic)] == [b"before", b"behind"]


def test_a_record_that_is_too_large_aborts_its_transaction_and_the_next_goes_on(
    kafka: KafkaServer, new_topic: TopicFactory
) -> None:
    topic = new_topic(settings={"max.message.bytes": "5000"})
    partition = Partition(topic, 0)
    large = table_of([b"small", random.Random(1).randbytes(9000)])

    def write(publishing: TransactionalPublisher, table: pa.Table) -> None:
        with publishing.transaction():
            publishing.send(partition, table)

    with TransactionalPublisher(settings_of(kafka), topic, codec=Codec.GZIP) as publishing:
        with pytest.raises(RecordTooLarge) as caught:
            write(publishing, large)
        assert caught.value.row == 1
        write(publishing, large.slice(0, 1))
        # As if the topic had been given the limit since: the broker refuses the batch, which is not taken apart.
        publishing._batch_bytes_max[partition] = 1 << 20
        with pytest.raises(OperatorError, match="Kafka says MessageSizeTooLarge"):
            write(publishing, large)
        assert not publishing.usable
        with pytest.raises(OperatorError, match="Kafka says MessageSizeTooLarge"):
            write(publishing, large.slice(0, 1))
    with TransactionalPublisher(settings_of(kafka), topic, codec=Codec.GZIP) as publishing:
        write(publishing, table_of([b"behind"]))
    assert [row[3] for row in seen(kafka, topic)] == [b"small", b"behind"]


def test_a_partition_that_is_not_there_is_said(new_topic: TopicFactory, publisher: PublisherFactory) -> None:
    topic = new_topic(settings=KEPT)
    publishing = publisher(topic)

    def write(partition: Partition) -> None:
        with publishing.transaction():
            publishing.send(partition, table_of([b"x"]))

    with pytest.raises(OperatorError, match="topic nothing: Kafka says UnknownTopicOrPartition"):
        write(Partition("nothing", 0))
    with pytest.raises(OperatorError, match=f"Kafka's topic {topic} has no partition 1"):
        write(Partition(topic, 1))
    write(Partition(topic, 0))


@pytest.mark.kafka_versions
def test_a_broker_that_is_killed_in_the_middle_has_all_of_a_transaction_or_nothing(
    kafka_server: KafkaFactory,
) -> None:
    server = kafka_server(trust=True)
    make_topic(server, "kept")
    partition = Partition("kept", 0)
    outcome: dict[bytes, bool] = {}

    def kill_and_start() -> None:
        server.kill()
        server.start()

    publishing = TransactionalPublisher(settings_of(server), "kept", codec=Codec.GZIP)
    for round_number in range(3):
        value = b"%d" % round_number
        killer = Timer(round_number * 0.02, kill_and_start)
        try:
            with publishing.transaction():
                killer.start()
                for _ in range(20):
                    publishing.send(partition, table_of([value] * 500))
        except TailraceError:
            outcome[value] = False
            killer.join()
            publishing.close()
            publishing = TransactionalPublisher(settings_of(server), "kept", codec=Codec.GZIP)
        else:
            outcome[value] = True
        killer.join()
    with publishing.transaction():
        publishing.send(partition, table_of([b"last"]))
    publishing.close()
    values = [row[3] for row in seen(server, "kept")]
    for value, committed in outcome.items():
        assert values.count(value) in ((10_000,) if committed else (0, 10_000)), outcome
    assert values[-1] == b"last"


def test_whole_batches_can_be_given_to_the_pinned_version() -> None:
    assert seams.sends_batches()
