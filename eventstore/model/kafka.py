"""How far topics of Kafka are in the log, and which of their records are not."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from enum import StrEnum


class SnapshotPhase(StrEnum):
    """What the records of a partition have told of a snapshot by Debezium, so far."""

    UNSEEN = ""
    STREAMED = "streamed"  # no snapshot was seen whole, and rows were streamed
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition of a Kafka topic: all records below ``next_offset`` are in the log, parked, or bring nothing.

    ``topic_id`` is Kafka's own, another one when a topic is made anew; "" where the broker has none. ``commit_lsn`` and
    ``row_lsn`` are the highest of the streamed rows' positions in Postgres (Debezium's ``sequence``), in this order:
    what comes at or below them came before.
    """

    topic: str
    partition: int
    topic_id: str
    next_offset: int
    commit_lsn: int = 0
    row_lsn: int = 0
    snapshot: SnapshotPhase = SnapshotPhase.UNSEEN


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where a record is in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}, partition {self.partition}, offset {self.offset}"


@dataclass(frozen=True, slots=True)
class ParkedRecord:
    """A record that could not be read, as it came; without key and value it is in Kafka alone. ``reason`` quotes no
    values; ``parked_at``: µs since 1970 UTC."""

    place: RecordPlace
    reason: str
    parked_at: int
    key: builtins.bytes | None = field(repr=False)
    value: builtins.bytes | None = field(repr=False)

    @property
    def is_kept(self) -> bool:
        return self.key is not None or self.value is not None
