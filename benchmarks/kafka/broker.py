"""A broker, topics of Debezium's envelopes in it, and which clients are installed."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka.admin import KafkaAdminClient, NewTopic

from tailrace.embedded import KafkaServer
from tailrace.eventstore.kafka.codecs import Codec
from tailrace.eventstore.kafka.publisher import TransactionalPublisher
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.settings import KafkaConnectionSettings

CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
MODULE_OF = {Codec.LZ4: "lz4", Codec.ZSTD: "zstandard"}
"""What kafka-python needs for a codec."""
CONFLUENT = importlib.util.find_spec("confluent_kafka") is not None
CLIENTS = ("confluent-kafka",) if CONFLUENT else ()
_TRANSACTION = 10_000  # records; a busy broker takes its time for so many small batches
_INSTALLED = Path(sys.prefix) / "servers" / "kafka" / "jars"  # by tests/servers-setup


def by_kafka_python(codec: Codec) -> bool:
    """Whether kafka-python can do without us what is measured."""
    return codec not in MODULE_OF or importlib.util.find_spec(MODULE_OF[codec]) is not None


@contextmanager
def broker() -> Iterator[KafkaServer]:
    jars = None if "TAILRACE_KAFKA_JARS" in os.environ else _INSTALLED
    with KafkaServer(trust=True, jars=jars) as server:
        yield server


def settings_of(server: KafkaServer) -> KafkaConnectionSettings:
    return KafkaConnectionSettings(brokers=(server.address,))


def make_topic(server: KafkaServer, name: str, batch_bytes_max: int = 1 << 20) -> Partition:
    admin = KafkaAdminClient(bootstrap_servers=server.address)
    try:
        kept = {
            "max.message.bytes": str(batch_bytes_max),
            "retention.ms": "-1",
        }  # however old records say to be
        admin.create_topics([NewTopic(name, 1, 1, topic_configs=kept)])
    finally:
        admin.close()
    return Partition(name, 0)


def envelopes(count: int) -> pa.Table:
    """Records as Debezium writes them without schemas: about 590 bytes."""
    values = [json.dumps(_envelope(number), separators=(",", ":")).encode() for number in range(count)]
    keys = [b'{"id":%d}' % number for number in range(count)]
    times = pa.array([1_760_000_000_000 + number for number in range(count)], pa.timestamp("ms", "UTC"))
    return pa.table(
        {
            "timestamp": times,
            "key": pa.array(keys, pa.large_binary()),
            "value": pa.array(values, pa.large_binary()),
        }
    )


def _envelope(number: int) -> dict[str, Any]:
    mark = f"{number * 2_654_435_761 % (1 << 128):x}"
    row = {
        "id": number, "customer_id": number * 7919 % 100_003, "status": ("new", "paid", "sent")[number % 3],
        "total": f"{number % 99_991 / 100:.2f}", "note": f"order {number} of a customer who writes a line, {mark * 4}",
        "placed_at": 1_760_000_000_000_000 + number * 1000, "express": number % 5 == 0,
    }  # fmt: skip
    source = {
        "version": "3.4.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1_760_000_000_000 + number,
        "snapshot": "false", "db": "shop", "sequence": f'["{24_000_000 + number * 90}","{24_000_040 + number * 90}"]',
        "schema": "public", "table": "orders", "txId": 700 + number // 5, "lsn": 24_000_040 + number * 90, "xmin": None,
    }  # fmt: skip
    return {"before": None, "after": row, "source": source, "transaction": None, "op": "c",
            "ts_ms": 1_760_000_000_100 + number}  # fmt: skip


def fill(server: KafkaServer, records: pa.Table, codec: Codec, name: str = "") -> Partition:
    """A new topic with the records, in batches as producers make them by default (Kafka Connect's, too): 16 KiB before
    they are compressed."""
    partition = make_topic(server, name or f"filled-{codec.name.lower()}", (16 << 10) + 1300)
    with TransactionalPublisher(settings_of(server), partition.topic, codec=codec) as publisher:
        for first in range(0, records.num_rows, _TRANSACTION):
            with publisher.transaction():
                publisher.send(partition, records.slice(first, _TRANSACTION))
    return partition
