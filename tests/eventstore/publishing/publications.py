"""A publication of the small shop to a real broker, and reading back what a consumer of committed records sees."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from tailrace.embedded import KafkaServer
from tailrace.eventstore.kafka.cluster import Cluster
from tailrace.eventstore.kafka.reader import Partition, PartitionReader
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.publishing.kafka.session import KafkaSession
from tailrace.eventstore.publishing.position import Position
from tailrace.eventstore.publishing.publisher import PublishedCounts, Publisher
from tailrace.eventstore.settings import KafkaDestinationSettings, PublicationSettings, StoreSettings
from tests.tailrace.conftest import Project


def cluster_of(server: KafkaServer) -> KafkaDestinationSettings:
    return KafkaDestinationSettings(kind="kafka", brokers=(server.address,))


class Record(NamedTuple):
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Publication:
    """What one process would be started with. Topics of Kafka begin with ``name``, as the broker is shared."""

    cluster: KafkaDestinationSettings
    settings: PublicationSettings
    name: str

    @classmethod
    def new(cls, server: KafkaServer, **settings: Any) -> Publication:
        name = f"p{secrets.token_hex(4)}"
        wanted = {"topics": ("shop.*",), "topic": f"{name}.{{table}}", **settings}
        return cls(cluster_of(server), PublicationSettings(destination="bus", **wanted), name)

    def project(self, folder: Path) -> Project:
        """The same for the command line, with the store in ``folder``."""
        settings = self.settings.model_dump(exclude_none=True, exclude_defaults=True, mode="json")
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        project = Project(folder)
        project.configure(
            "[store]\ncatalog = 'sqlite:///catalog.db'\nsegments = 'segments'\n"
            f"[destinations.bus]\nkind = 'kafka'\nbrokers = {json.dumps(self.cluster.brokers)}\n"
            f"[publish.{self.name}]\n" + "\n".join(lines)
        )
        return project

    def open(self) -> KafkaSession:
        return KafkaSession(self.cluster, self.settings, StoreSettings().name, self.name)

    def publisher(self, log: Log, **more: Any) -> Publisher:
        stop = more.pop("stop", None) or threading.Event()
        return Publisher(log, self.name, self.settings, self.open, stop=stop, **more)

    def once(self, log: Log) -> tuple[Position, list[PublishedCounts]]:
        reports: list[PublishedCounts] = []
        return self.publisher(log, report=reports.append).run_once(), reports

    def records(self, table: str = "orders") -> list[Record]:
        """What is committed, by partition in offset order."""
        return list(committed(self.cluster, f"{self.name}.{table}"))


def committed(cluster: KafkaDestinationSettings, topic: str) -> Iterator[Record]:
    with Cluster(cluster) as asked, PartitionReader(cluster, headers=True) as reader:
        there = topic in asked.topics()
        partitions = [Partition(topic, number) for number in asked.topic(topic).partitions] if there else []
        for partition, ends in asked.offsets(partitions).items():
            at = ends.earliest
            reader.seek({partition: at})
            while at < ends.last_stable:
                for rows in reader.fetch(1.0):
                    at = rows.next_offset
                    yield from (_record(partition, row) for row in rows.table.to_pylist())


def _record(partition: Partition, row: dict[str, Any]) -> Record:
    headers = [(each["name"].decode(), each["value"]) for each in row["headers"]]
    return Record(partition.partition, row["offset"], row["timestamp"], row["key"], row["value"], headers)


def value_of(record: Record) -> dict[str, Any] | None:
    """The value of a record; None for a tombstone."""
    return None if record.value is None else json.loads(record.value)
