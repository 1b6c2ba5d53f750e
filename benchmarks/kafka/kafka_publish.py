"""Writing records to a topic in transactions: batches built from Arrow, beside producers that take records.

Ours is ``TransactionalPublisher`` and a table. The others are kafka-python's ``send`` and, where it is installed,
confluent-kafka's ``produce`` (librdkafka, C), each given keys, values and timestamps as bytes and numbers that are
there already. All wait for every record to be acknowledged (acks=all) and for the commit. Rounds take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from kafka import KafkaProducer

from benchmarks.kafka import broker
from benchmarks.kafka.kafka_fetch import HEAD, measure, write
from benchmarks.options import Size, parse
from benchmarks.results import table
from benchmarks.spent import Spent
from tailrace.embedded import KafkaServer
from tailrace.eventstore.kafka.build import BATCH_BYTES
from tailrace.eventstore.kafka.codecs import Codec
from tailrace.eventstore.kafka.publisher import TransactionalPublisher
from tailrace.eventstore.kafka.reader import Partition

Record = tuple[bytes, bytes, int]
"""Key, value, timestamp."""


def ours(server: KafkaServer, partition: Partition, codec: Codec, records: pa.Table) -> Spent:
    with TransactionalPublisher(broker.settings_of(server), "ours", codec=codec) as publisher:

        def work() -> None:
            with publisher.transaction():
                publisher.send(partition, records)

        return Spent.on(work)


def sent(server: KafkaServer, partition: Partition, codec: Codec, records: Sequence[Record]) -> Spent:
    producer = KafkaProducer(
        bootstrap_servers=server.address, transactional_id="kafka-python", linger_ms=20, batch_size=BATCH_BYTES,
        compression_type=codec.name.lower() if codec else None,
    )  # fmt: skip
    producer.init_transactions()

    def work() -> None:
        producer.begin_transaction()
        for key, value, time in records:
            producer.send(partition.topic, value, key=key, partition=partition.partition, timestamp_ms=time)
        producer.commit_transaction()

    try:
        return Spent.on(work)
    finally:
        producer.close()


def confluent(server: KafkaServer, partition: Partition, codec: Codec, records: Sequence[Record]) -> Spent:
    import confluent_kafka

    producer: Any = confluent_kafka.Producer(
        {
            "bootstrap.servers": server.address, "transactional.id": "confluent", "linger.ms": 20,
            "compression.type": codec.name.lower(), "batch.size": BATCH_BYTES,
            "queue.buffering.max.messages": len(records) + 1,
        }
    )  # fmt: skip
    producer.init_transactions(30)

    def work() -> None:
        producer.begin_transaction()
        for key, value, time in records:
            producer.produce(partition.topic, value, key, partition.partition, timestamp=time)
        producer.commit_transaction(60)

    return Spent.on(work)


SIZES = (Size("records", 60_000, 3_000, "records of a transaction"),)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("kafka.kafka_publish", __doc__, SIZES, arguments)
    count, lines = options["records"], []
    given = broker.envelopes(count)
    times = given["timestamp"].cast(pa.int64()).to_pylist()
    records = list(zip(given["key"].to_pylist(), given["value"].to_pylist(), times, strict=True))
    with broker.broker() as server:
        for codec in broker.CODECS:
            partition = broker.make_topic(server, f"written-{codec.name.lower()}")
            ours(server, partition, codec, given.slice(0, 10))  # compiles
            works: dict[str, Callable[[], Spent]] = {}
            if broker.by_kafka_python(codec):
                works["kafka-python send"] = partial(sent, server, partition, codec, records)
            if broker.CONFLUENT:
                works["confluent-kafka produce"] = partial(confluent, server, partition, codec, records)
            works["tailrace, from Arrow"] = partial(ours, server, partition, codec, given)
            lines += measure(options.repeat, count, codec, works)
    body = (
        f"{count:,} records of {given['value'].nbytes // count} bytes and a key to one partition, in one transaction "
        "and batches of 512 KiB. CPU is that of the writing process alone, all of its threads. "
        f"Medians of {options.repeat} rounds, by turns.\n\n" + table(HEAD, lines)
    )
    write("kafka_publish", "Writing to Kafka", body, options, broker.CLIENTS)


if __name__ == "__main__":
    main()
