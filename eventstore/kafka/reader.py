"""Reading committed records of partitions: no consumer group, the caller keeps the offsets.

::

    seek(offsets) -> fetch() -> tables, each with the offset to go on at -> fetch() …   and seek again after an error
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa

from tailrace.eventstore.errors import OperatorError, ProtocolError, optional_part
from tailrace.eventstore.kafka import seams
from tailrace.eventstore.kafka.connection import client, speaking
from tailrace.eventstore.kafka.first_connection import starting
from tailrace.eventstore.kafka.records import (
    BATCH_BYTES_MAX,
    SCHEMA,
    SCHEMA_WITH_HEADERS,
    RecordBatchRows,
    decode,
)
from tailrace.eventstore.settings.kafka import KafkaConnectionSettings

with optional_part("Kafka", "kafka"):
    from kafka import KafkaConsumer, TopicPartition

PARTITION_FETCH_BYTES = 8 << 20
"""Of one partition in one answer. A broker sends a batch that is larger all the same, alone."""
FETCH_BYTES = 32 << 20
"""Of all partitions in one answer. There is one under way for each broker."""
_ANSWER_BYTES_MAX = 1 << 30
"""kafka-python ends the connection on a larger answer, and asks again for ever; its default is below the largest record
that brokers take. What is too large to be unpacked is said by ``decode``."""


class Partition(NamedTuple):
    topic: str
    partition: int


class PartitionReader:
    """Reads partitions from given offsets on. Not for use from several threads at once.

    ``whole_batches`` decodes batches here, with a cap on what is decompressed (``batch_bytes_max``); without it
    kafka-python makes an object of each record, and caps nothing. Default: whether the installed kafka-python allows
    it. A topic that is deleted while it is read brings nothing more, and no error: ask ``Cluster.topic`` when it is
    silent.
    """

    def __init__(
        self,
        settings: KafkaConnectionSettings,
        *,
        headers: bool = False,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        whole_batches: bool | None = None,
    ) -> None:
        self._headers = headers
        self._batch_bytes_max = batch_bytes_max
        self._reported: dict[Partition, int] = {}
        with starting(settings):
            self._consumer = client(
                KafkaConsumer,
                settings,
                metrics_enabled=False,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                allow_auto_create_topics=False,
                fetch_max_bytes=FETCH_BYTES,
                max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
                receive_message_max_bytes=_ANSWER_BYTES_MAX,
            )
        self._fetch: Callable[[int], Iterator[RecordBatchRows]] = self._records
        if seams.reads_batches() if whole_batches is None else whole_batches:
            seams.take_batches(self._consumer)
            self._fetch = self._batches

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        """Read these partitions, and no others, from these offsets on."""
        with speaking():
            for topic in {partition.topic for partition in offsets}:
                there = self._consumer.partitions_for_topic(topic)
                missing = [item for item in offsets if item.topic == topic and item.partition not in there]
                if missing:
                    raise OperatorError(
                        f"Kafka has no topic {topic}" if not there else
                        f"Kafka's topic {topic} has no partition {missing[0].partition}",
                        hint="make it, or correct its name; one that the user may not describe is not seen either",
                    )  # fmt: skip
            self._consumer.assign([TopicPartition(*partition) for partition in offsets])
            for partition, offset in offsets.items():
                self._consumer.seek(TopicPartition(*partition), offset)
        self._reported = dict(offsets)

    def fetch(self, seconds: float) -> list[RecordBatchRows]:
        """What has arrived, waiting for the first as long as ``seconds``; nothing then. Tables of one partition come in
        the order of offsets; one may be empty, when all records up to its ``next_offset`` were aborted or removed.

        Raises ``OffsetLost``: an offset is no longer there. ``OperatorError`` and ``ProtocolError``: see ``decode``.
        After an error, ``seek`` again.
        """
        with speaking():
            return list(self._fetch(int(seconds * 1000)))

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _batches(self, timeout_ms: int) -> Iterator[RecordBatchRows]:
        for fetched in seams.polled(self._consumer, timeout_ms):
            end = fetched.first_offset
            for rows in decode(fetched, headers=self._headers, batch_bytes_max=self._batch_bytes_max):
                end = rows.next_offset
                yield rows
            if end == fetched.first_offset:
                raise ProtocolError(
                    f"{fetched.place}: {len(fetched.data)} bytes from offset {end} on hold no whole batch",
                    hint="if it says so again, look at the broker's files with `kafka-dump-log`",
                )

    def _records(self, timeout_ms: int) -> Iterator[RecordBatchRows]:
        """Where batches cannot be taken out."""
        polled = self._consumer.poll(timeout_ms=timeout_ms)
        schema = SCHEMA_WITH_HEADERS if self._headers else SCHEMA
        for partition, before in self._reported.items():
            known = TopicPartition(*partition)
            end = self._consumer.position(known)
            if end is not None and end > before:
                self._reported[partition] = end
                rows = [_row(record) for record in polled.get(known, [])]
                yield RecordBatchRows(*partition, pa.Table.from_pylist(rows, schema=schema), end)


def _row(record: Any) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": None if record.timestamp == -1 else record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": [{"name": name.encode(), "value": value} for name, value in record.headers],
    }
