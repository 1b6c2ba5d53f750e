"""Records that are parked also go to a Kafka topic of dead letters: as they came, with their place and the reason.

They are sent before the epoch that parks them commits. A crash in between sends them again: at least once.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tailrace.eventstore.errors import OperatorError, optional_part
from tailrace.eventstore.kafka.cluster import Cluster
from tailrace.eventstore.kafka.connection import client, speaking
from tailrace.eventstore.kafka.first_connection import starting
from tailrace.eventstore.model.kafka import ParkedRecord
from tailrace.eventstore.publishing.dead_letters import (
    OMITTED,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    REASON,
    TRIES,
)
from tailrace.eventstore.settings.kafka import KafkaConnectionSettings

with optional_part("Kafka", "kafka"):
    from kafka import KafkaProducer, errors
    from kafka.admin import KafkaAdminClient

_REQUEST_BYTES = 300 << 20  # more than is ever kept of a record; the broker has the say
_SECONDS = 60.0
_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
Header = tuple[str, bytes]


class DeadLetters:
    """One topic, made with the cluster's defaults when it is missing. Every call raises TransientError when the cluster
    is out of reach, and OperatorError when it refuses."""

    def __init__(self, settings: KafkaConnectionSettings, topic: str) -> None:
        self._topic = topic
        _require(settings, topic)
        with starting(settings):
            self._producer = client(
                KafkaProducer,
                settings,
                acks="all",
                allow_auto_create_topics=False,
                enable_idempotence=False,  # with it a record that is too large ends the producer
                max_request_size=_REQUEST_BYTES,
                delivery_timeout_ms=int(_SECONDS * 1000),
                request_timeout_ms=int(_SECONDS * 500),
            )

    def close(self) -> None:
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, parked: Sequence[ParkedRecord]) -> None:
        """Returns when all are taken. A value that the topic does not take is left out."""
        with speaking(self._topic):
            for each in parked:
                try:
                    self._sent(each.key, each.value, _headers(each))
                except errors.KafkaError as error:
                    if not any(isinstance(one, _TOO_LARGE) for one in (error, *error.args)):
                        raise
                    size = len(each.value or b"")
                    self._sent(each.key, None, [*_headers(each), _header(OMITTED, size)])

    def _sent(self, key: bytes | None, value: bytes | None, headers: list[Header]) -> None:
        self._producer.send(self._topic, key=key, value=value, headers=headers).get(_SECONDS)


def _require(settings: KafkaConnectionSettings, topic: str) -> None:
    with Cluster(settings) as cluster:
        if topic in cluster.topics():
            return
    with starting(settings):
        admin = client(KafkaAdminClient, settings)
    try:
        with speaking(topic):
            admin.create_topics(
                {topic: {"num_partitions": -1, "replication_factor": -1}}, wait_for_metadata=True
            )
    except OperatorError as error:
        if not isinstance(error.__cause__, errors.TopicAlreadyExistsError):  # another one made it meanwhile
            raise
    finally:
        admin.close()


def _headers(parked: ParkedRecord) -> list[Header]:
    """Those that publications give to their dead letters; the origin is a place in Kafka."""
    place = parked.place
    values = {
        ORIGIN_TOPIC: place.topic, ORIGIN_PARTITION: place.partition, ORIGIN_OFFSET: place.offset,
        REASON: parked.reason, TRIES: 1,
    }  # fmt: skip
    return [_header(name, value) for name, value in values.items()]


def _header(name: bytes, value: object) -> Header:
    return name.decode(), str(value).encode()
