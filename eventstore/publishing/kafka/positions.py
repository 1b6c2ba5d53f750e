"""Where a publication's position is kept in Kafka, and reading it there."""

from __future__ import annotations

import time

from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.kafka.cluster import Cluster
from tailrace.eventstore.kafka.reader import Partition, PartitionReader
from tailrace.eventstore.publishing.parked import ParkedKey
from tailrace.eventstore.publishing.position import Position
from tailrace.eventstore.settings import KafkaDestinationSettings

POSITION_KEY = b"position"
_READ_SECONDS = 60.0


def position_topic(store: str, publication: str) -> str:
    return f"tailrace-{store}-{publication}-position"


def last_state(settings: KafkaDestinationSettings, topic: str) -> tuple[Position | None, list[ParkedKey]]:
    """The last committed position, and the keys that wait; only a publisher that fenced all others knows that no other
    comes. Raises TransientError when it cannot be read in a minute, OperatorError when the topic is not there."""
    partition = Partition(topic, 0)
    with Cluster(settings) as cluster:
        ends = cluster.offsets([partition])[partition]
    found: dict[bytes | None, bytes | None] = {}
    at = ends.earliest
    deadline = time.monotonic() + _READ_SECONDS
    with PartitionReader(settings) as reader:
        reader.seek({partition: at})
        while at < ends.high_water:
            for rows in reader.fetch(1.0):
                at = rows.next_offset
                for record in rows.table.select(["key", "value"]).to_pylist():
                    found[record["key"]] = record["value"]
            if time.monotonic() > deadline:
                raise TransientError(
                    f"the position in {topic} cannot be read: a transaction there does not end",
                    hint="the cluster ends it after its time-out; try again",
                )
    position = found.pop(POSITION_KEY, None)
    parked = [ParkedKey.from_json(value, topic) for value in found.values() if value is not None]
    return None if position is None else Position.from_json(position, topic), parked


def shown_state(settings: KafkaDestinationSettings, topic: str) -> tuple[Position | None, list[ParkedKey]]:
    """For a look beside a running publisher, also when nothing was ever published."""
    with Cluster(settings) as cluster:
        if topic not in cluster.topics():
            return None, []
    return last_state(settings, topic)
