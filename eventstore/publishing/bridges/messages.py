"""Messages of records: each with an id that is the same whenever it is made again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.eventstore.publishing.bridges.bridge import Message
from tailrace.eventstore.publishing.names import published_name
from tailrace.eventstore.publishing.records import TopicRecords
from tailrace.eventstore.settings import PublicationSettings


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message and where it is from: row ``row`` of ``records``. ``to_all``: it concerns every key of its topic."""

    message: Message
    records: TopicRecords
    row: int
    hash: int
    to_all: bool


class Messages:
    """Makes messages of one publication of one log."""

    def __init__(self, log_id: str, publication: str, settings: PublicationSettings) -> None:
        self._origin = (log_id, publication)
        self._settings = settings

    def of(self, records: Sequence[TopicRecords]) -> Iterator[Outgoing]:
        """In their order. Tombstones behind Debezium's deletes are left out: they are for compacted topics of Kafka."""
        tombstones = self._settings.format != "debezium"
        for each in records:
            name = published_name(each.topic, self._settings.topic)
            before, part = None, 0
            for row, record in enumerate(each.records.to_pylist()):
                place = record["partition"], record["offset"]
                part = part + 1 if place == before else 0
                before = place
                if record["value"] is not None or tombstones:
                    message = self._message(each, name, record, part)
                    yield Outgoing(message, each, row, record["hash"], record["to_all"])

    def _message(self, found: TopicRecords, name: str, record: dict[str, Any], part: int) -> Message:
        topic, partition, offset = ".".join(found.topic.parts), record["partition"], record["offset"]
        return Message(
            _id(*self._origin, found.topic.text, partition, offset, part),
            name,
            topic,
            f"{partition}/{offset}",
            record["key"],
            record["value"],
            tuple((each["name"].decode(), each["value"]) for each in record["headers"]),
        )


def _id(*place: str | int) -> str:
    """Standard Webhooks allows no ``.`` in it, and SQS no more than 128 letters: so it is a digest."""
    return hashlib.blake2b(json.dumps(place).encode(), digest_size=16).hexdigest()
