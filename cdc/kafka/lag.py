"""How far a Kafka source's partitions are in the log, beside where they end in Kafka."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.eventstore.kafka.cluster import Cluster
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.metadata.kafka_progress import shown_partitions
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """``end``: behind the last record that may be read; None where the partition is not there any more."""

    topic: str
    partition: int
    next_offset: int
    end: int | None

    @property
    def records(self) -> int:
        """At most: offsets have gaps."""
        return max(0, (self.end or 0) - self.next_offset)


def read_lag(store: Store, name: str, settings: KafkaSourceSettings) -> list[PartitionLag]:
    """The partitions that were begun. Raises TransientError (out of reach), OperatorError."""
    known = shown_partitions(store.catalog, name)
    with Cluster(settings) as cluster:
        there = cluster.described({each.topic for each in known})
        partitions = [
            Partition(each.topic, each.partition)
            for each in known
            if each.topic in there and each.partition in there[each.topic].partitions
        ]
        offsets = cluster.offsets(partitions)
    ends = {each: found.last_stable for each, found in offsets.items()}
    return [
        PartitionLag(
            each.topic, each.partition, each.next_offset, ends.get(Partition(each.topic, each.partition))
        )
        for each in known
    ]
