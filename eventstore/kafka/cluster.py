"""What a cluster says of its topics: which there are, what they are, where their partitions begin and end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tailrace.eventstore.errors import OperatorError, optional_part
from tailrace.eventstore.kafka.connection import client, refusal, speaking
from tailrace.eventstore.kafka.first_connection import starting
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.settings.kafka import KafkaConnectionSettings

with optional_part("Kafka", "kafka"):
    from kafka import TopicPartition, errors
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
    from kafka.protocol.consumer import IsolationLevel, OffsetSpec


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """``id`` is another one when a topic was deleted and made again."""

    name: str
    id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Offsets of the first record that is there, behind the last that a reader of committed records can be given, and
    behind the last."""

    earliest: int
    last_stable: int
    high_water: int


class Cluster:
    """Not for use from several threads at once."""

    def __init__(self, settings: KafkaConnectionSettings) -> None:
        with starting(settings):
            self._admin = client(KafkaAdminClient, settings)

    def id(self) -> str:
        """Of the cluster, whichever of its brokers answers."""
        with speaking():
            return str(self._admin.describe_cluster()["cluster_id"])

    def topics(self) -> list[str]:
        """Names of the topics that the user may see, without those of the broker itself."""
        with speaking():
            described = self._admin.describe_topics()
        return sorted(topic["name"] for topic in described if not topic["is_internal"])

    def described(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Those of the topics that are there, and may be seen, by one question."""
        with speaking():
            found = self._admin.describe_topics(sorted(names)) if names else []
        return {topic["name"]: _description(topic) for topic in found if not topic["error_code"]}

    def topic(self, name: str) -> TopicDescription:
        """Raises ``OperatorError`` when it is not there, or not to be seen."""
        with speaking(name):
            (found,) = self._admin.describe_topics([name])
        if found["error_code"]:
            raise refusal(errors.for_code(found["error_code"])(), f"topic {name}: ")
        return _description(found)

    def offsets(self, partitions: Collection[Partition]) -> dict[Partition, PartitionOffsets]:
        """Where each begins and ends."""
        asked = [TopicPartition(*partition) for partition in partitions]

        def ask(spec: OffsetSpec, level: IsolationLevel) -> list[int]:
            found = self._admin.list_partition_offsets(dict.fromkeys(asked, spec), level)
            return [found[partition].offset for partition in asked]

        with speaking():
            earliest = ask(OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED)
            stable = ask(OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED)
            latest = ask(OffsetSpec.LATEST, IsolationLevel.READ_UNCOMMITTED)
        return {
            partition: PartitionOffsets(*ends)
            for partition, *ends in zip(partitions, earliest, stable, latest, strict=True)
        }

    def batch_bytes_max(self, topic: str) -> int:
        """How large a batch the topic takes (``max.message.bytes``)."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, ["max.message.bytes"])
        with speaking(topic):
            found = self._admin.describe_configs([resource], config_filter="all")
        try:
            return int(found["topic"][topic]["max.message.bytes"]["value"])
        except (KeyError, TypeError, ValueError):
            raise OperatorError(
                f"topic {topic} does not say how large a batch it takes",
                hint="give the user the right to describe the topic's configuration (DESCRIBE_CONFIGS)",
            ) from None

    def close(self) -> None:
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _description(found: Mapping[str, Any]) -> TopicDescription:
    numbers = sorted(partition["partition_index"] for partition in found["partitions"])
    return TopicDescription(found["name"], str(found["topic_id"] or ""), tuple(numbers))
