"""Reading a topic of Debezium's envelopes: record batches to Arrow tables, beside consumers that give records.

Ours is ``PartitionReader``: offset, timestamp, key and value of every record are in Arrow, checksums checked. The
others are kafka-python's ``poll`` and, where it is installed, confluent-kafka's ``consume`` (librdkafka, C), whose
fields are looked at. All read committed records. Rounds take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from benchmarks.kafka import broker
from benchmarks.options import Options, Size, median, parse
from benchmarks.results import table, write_section
from benchmarks.spent import Spent
from tailrace.embedded import KafkaServer
from tailrace.eventstore.kafka.codecs import Codec
from tailrace.eventstore.kafka.reader import Partition, PartitionReader

Work = Callable[[KafkaServer, Partition, int], Spent]
"""Reads so many records; the client is made before the time begins."""


def ours(server: KafkaServer, partition: Partition, count: int) -> Spent:
    with PartitionReader(broker.settings_of(server)) as reader:
        reader.seek({partition: 0})

        def work() -> None:
            left = count
            while left > 0:
                left -= sum(rows.table.num_rows for rows in reader.fetch(1.0))

        return Spent.on(work)


def polled(server: KafkaServer, partition: Partition, count: int) -> Spent:
    consumer = KafkaConsumer(
        bootstrap_servers=server.address, isolation_level="read_committed", enable_auto_commit=False,
        max_poll_records=10_000, max_partition_fetch_bytes=8 << 20,
    )  # fmt: skip
    known = TopicPartition(*partition)
    consumer.assign([known])
    consumer.seek(known, 0)

    def work() -> None:
        left = count
        while left > 0:
            left -= sum(map(len, consumer.poll(1000).values()))

    try:
        return Spent.on(work)
    finally:
        consumer.close()


def confluent(server: KafkaServer, partition: Partition, count: int) -> Spent:
    import confluent_kafka

    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.address, "group.id": "benchmark", "enable.auto.commit": False,
            "isolation.level": "read_committed", "check.crcs": True, "max.partition.fetch.bytes": 8 << 20,
        }
    )  # fmt: skip

    def work() -> None:
        consumer.assign([confluent_kafka.TopicPartition(partition.topic, partition.partition, 0)])
        left = count
        while left > 0:
            for record in consumer.consume(10_000, 1.0):
                record.key(), record.value(), record.offset(), record.timestamp()
                left -= 1

    try:
        return Spent.on(work)
    finally:
        consumer.close()


def ways(codec: Codec) -> Mapping[str, Work]:
    chosen: dict[str, Work] = {}
    if broker.by_kafka_python(codec):
        chosen["kafka-python poll"] = polled
    if broker.CONFLUENT:
        chosen["confluent-kafka consume"] = confluent
    return {**chosen, "tailrace, to Arrow": ours}


PACKAGES = ("kafka-python", "crc32c", "cramjam", "numba")
HEAD = ["codec: way", "CPU µs a record", "by the first's", "records/s by the clock"]


def measure(
    rounds: int, count: int, codec: Codec, works: Mapping[str, Callable[[], Spent]]
) -> list[list[str]]:
    """A line for each way; the first one is what the others are compared with."""
    runs: dict[str, list[Spent]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            runs[name].append(work())
    cost = {name: median([run.processors for run in done]) / count * 1e6 for name, done in runs.items()}
    first = next(iter(cost.values()))
    return [
        [
            f"{codec.name.lower()}: {name}",
            f"{cost[name]:.2f}",
            f"{cost[name] / first:.2f}",
            f"{count / median([run.clock for run in done]):,.0f}",
        ]
        for name, done in runs.items()
    ]


SIZES = (Size("records", 60_000, 3_000, "records of a topic"),)


def write(name: str, title: str, body: str, options: Options, more: Sequence[str] = ()) -> None:
    """A section of a run beside a broker. ``more``: packages whose versions matter, too."""
    packages = [*PACKAGES, *more]
    write_section(
        name, title, body, command=options.command, packages=packages, path=options.to,
        facts={"server": "Apache Kafka 4.4.0, on the same machine"},
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("kafka.kafka_fetch", __doc__, SIZES, arguments)
    count, lines = options["records"], []
    records = broker.envelopes(count)
    with broker.broker() as server:
        for codec in broker.CODECS:
            partition = broker.fill(server, records, codec)
            ours(server, partition, 1)  # compiles
            works = {name: partial(way, server, partition, count) for name, way in ways(codec).items()}
            lines += measure(options.repeat, count, codec, works)
    body = (
        f"{count:,} records of {records['value'].nbytes // count} bytes and a key, in one partition, in batches of "
        "16 KiB before they are compressed. CPU is that of the reading process alone, all of its threads. "
        f"Medians of {options.repeat} rounds, by turns.\n\n" + table(HEAD, lines)
    )
    write("kafka_fetch", "Reading from Kafka", body, options, broker.CLIENTS)


if __name__ == "__main__":
    main()
