"""The Kafka topics that a publication writes to: how they are called, made when missing, and checked when there."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.eventstore.errors import OperatorError, optional_part
from tailrace.eventstore.kafka.connection import client, speaking
from tailrace.eventstore.kafka.first_connection import starting
from tailrace.eventstore.publishing.names import published_name
from tailrace.eventstore.publishing.records import Published
from tailrace.eventstore.settings import KafkaDestinationSettings, PublicationSettings

with optional_part("Kafka", "kafka"):
    from kafka import errors
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

_CLEANUP = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class Destination:
    """A topic of Kafka."""

    name: str
    partitions: int


class Topics:
    """Looked up once each. Not for use from several threads at once."""

    def __init__(self, cluster: KafkaDestinationSettings, settings: PublicationSettings) -> None:
        self._settings = settings
        self._known: dict[Published, Destination] = {}
        self._named: dict[str, Destination] = {}
        with starting(cluster):
            self._admin = client(KafkaAdminClient, cluster)

    def close(self) -> None:
        self._admin.close()

    def destination(self, topic: Published) -> Destination:
        """Where rows of a topic go. Raises OperatorError when its Kafka topic is not as the settings say."""
        if topic not in self._known:
            name = published_name(topic, self._settings.topic)
            self._known[topic] = self._found_or_made(name, self._settings.partitions, self._settings.compact)
        return self._known[topic]

    def dead_letters(self, name: str) -> Destination:
        """Where records that wait go, too."""
        if name not in self._named:
            self._named[name] = self._found_or_made(name, None, compact=False)
        return self._named[name]

    def require_positions(self, name: str) -> None:
        """The topic of positions: one partition, of which the last record of each key stays."""
        self._found_or_made(name, 1, compact=True)

    def _found_or_made(self, name: str, partitions: int | None, compact: bool) -> Destination:
        with speaking(name):
            found = self._described(name)
            if found is None:
                self._make(name, partitions, compact)
                found = self._described(name)
        if found is None:
            raise OperatorError(f"Kafka made the topic {name}, and does not show it", hint="try again")
        count, policy = found
        if partitions is not None and count != partitions:
            raise OperatorError(
                f"the Kafka topic {name} has {count} partitions, not {partitions}",
                hint="correct `partitions` of the publication, or make the topic anew: records of a key stay in their"
                " order only while the number of partitions stays",
            )
        if compact and "compact" not in policy:
            raise OperatorError(
                f"the Kafka topic {name} is not compacted ({_CLEANUP} is {policy})",
                hint=f"`kafka-configs --alter --topic {name} --add-config {_CLEANUP}=compact`",
            )
        return Destination(name, count)

    def _described(self, name: str) -> tuple[int, str] | None:
        """How many partitions a topic has, and what becomes of its old records; None: it is not there."""
        (found,) = self._admin.describe_topics([name])
        if found["error_code"] == errors.UnknownTopicOrPartitionError.errno:
            return None
        if found["error_code"]:
            raise errors.for_code(found["error_code"])()
        resource = ConfigResource(ConfigResourceType.TOPIC, name, [_CLEANUP])
        configuration = self._admin.describe_configs([resource], config_filter="all")["topic"][name]
        return len(found["partitions"]), str(configuration[_CLEANUP]["value"])

    def _make(self, name: str, partitions: int | None, compact: bool) -> None:
        wanted = {
            "num_partitions": partitions or -1,
            "replication_factor": self._settings.replication or -1,
            "configs": {_CLEANUP: "compact"} if compact else {},
        }
        try:
            self._admin.create_topics({name: wanted}, wait_for_metadata=True)
        except errors.TopicAlreadyExistsError:
            return  # another one made it meanwhile
