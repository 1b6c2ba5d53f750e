"""Records into topics, all or none of a transaction.

::

    open -> transaction: send … send -> commit -> transaction …        commit: every batch is taken, then all are seen
                                     \\-> abort                         nothing is seen
    after any other error: close, and open again, which ends what the one before left

Opening with the same transactional id fences whoever had it before. What was committed last, the caller reads from a
record that each transaction writes for that: whether a commit whose answer was lost took place is told by nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tailrace.eventstore.errors import OperatorError, TailraceError, optional_part
from tailrace.eventstore.kafka import seams
from tailrace.eventstore.kafka.build import build
from tailrace.eventstore.kafka.cluster import Cluster
from tailrace.eventstore.kafka.codecs import Codec
from tailrace.eventstore.kafka.connection import client, speaking
from tailrace.eventstore.kafka.first_connection import starting
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.settings.kafka import KafkaConnectionSettings

with optional_part("Kafka", "kafka"):
    from kafka import KafkaProducer

IN_FLIGHT_BYTES = 32 << 20
"""So many bytes of batches wait for their brokers; ``send`` waits for room."""
REQUEST_BYTES = 4 << 20
END_SECONDS = 60.0
_DELIVERY_MS, _REQUEST_MS = 60_000, 20_000
_NOTHING = -1  # less than any number of bytes


class TransactionalPublisher:
    """Writes under one transactional id. Not for use from several threads at once.

    ``whole_batches`` builds batches here; without it kafka-python makes them record by record, uncompressed. Default:
    whether the installed kafka-python allows it. Raises ``Fenced`` when another process opened the same id.
    """

    def __init__(
        self,
        settings: KafkaConnectionSettings,
        transactional_id: str,
        *,
        codec: Codec = Codec.LZ4,
        whole_batches: bool | None = None,
    ) -> None:
        self._codec = codec
        self._whole_batches = seams.sends_batches() if whole_batches is None else whole_batches
        self._on_their_way: deque[seams.Delivery] = deque()
        self._bytes = 0
        self._ended: TailraceError | None = None
        self._batch_bytes_max: dict[Partition, int] = {}
        self._cluster = Cluster(settings)
        try:
            with starting(settings):
                self._producer = client(
                    KafkaProducer,
                    settings,
                    metrics_enabled=False,
                    transactional_id=transactional_id,
                    acks="all",
                    allow_auto_create_topics=False,
                    delivery_timeout_ms=_DELIVERY_MS,
                    request_timeout_ms=_REQUEST_MS,
                    max_request_size=REQUEST_BYTES,
                )
        except BaseException:
            self._cluster.close()
            raise
        if self._whole_batches:
            seams.give_batches(self._producer)
        try:
            with speaking():
                self._producer.init_transactions()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is sent inside is seen by readers of committed records when this ends well, else never. After an error
        of the block the transaction is aborted, and the next may begin, unless ``usable`` says that it cannot: close
        this publisher then, open one again and see what was committed."""
        if self._ended is not None:
            raise self._ended
        with speaking():
            self._producer.begin_transaction()
        try:
            yield
            self._settle(_NOTHING)
        except BaseException as error:
            self._abort(error)
            raise
        try:
            with speaking():
                seams.end_transaction(self._producer, END_SECONDS, commit=True)
        except TailraceError as error:
            self._ended = error
            raise

    @property
    def usable(self) -> bool:
        """Whether another transaction may begin."""
        return self._ended is None

    def _abort(self, reason: BaseException) -> None:
        self._on_their_way.clear()
        self._bytes = 0
        try:
            with speaking():
                seams.end_transaction(self._producer, END_SECONDS, commit=False)
        except TailraceError as error:  # who opens the id next aborts it
            self._ended = self._ended or (reason if isinstance(reason, TailraceError) else error)

    def send(self, partition: Partition, table: pa.Table) -> None:
        """Send the rows of a table to a partition: ``timestamp``, ``key``, ``value`` and perhaps ``headers``, as in
        ``records.SCHEMA_WITH_HEADERS``. Raises ``RecordTooLarge`` with the row, and what a broker said to batches
        before."""
        batch_bytes_max = self.batch_limit(partition)
        with speaking(partition.topic):
            if not self._whole_batches:
                self._send_records(partition, table)
                return
            for built in build(table, self._codec, batch_bytes_max):
                self._bytes += len(built.data)
                self._on_their_way.append(seams.send_batch(self._producer, *partition, built))
                self._settle(IN_FLIGHT_BYTES)

    def close(self) -> None:
        """An open transaction is aborted by who opens the id next, or after its time-out."""
        self._producer.close(timeout=1)
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def batch_limit(self, partition: Partition) -> int:
        """How large a batch a partition takes, which is looked for first: a producer would wait for one that is not
        there."""
        if partition not in self._batch_bytes_max:
            if partition.partition not in self._cluster.topic(partition.topic).partitions:
                raise OperatorError(
                    f"Kafka's topic {partition.topic} has no partition {partition.partition}",
                    hint="add partitions to it, or correct the number",
                )
            self._batch_bytes_max[partition] = self._cluster.batch_bytes_max(partition.topic)
        return self._batch_bytes_max[partition]

    def _settle(self, allowed: int) -> None:
        """Wait until no more bytes than ``allowed`` are on their way."""
        while self._on_their_way and self._bytes > allowed:
            delivery = self._on_their_way.popleft()
            self._bytes -= delivery.size
            try:
                with speaking():
                    delivery.wait(2 * _DELIVERY_MS / 1000)
            except TailraceError as error:
                self._ended = (
                    error  # a batch that was refused has a sequence number that its broker waits for
                )
                raise

    def _send_records(self, partition: Partition, table: pa.Table) -> None:
        """Where batches cannot be given."""
        times = table["timestamp"].cast(pa.int64()).to_pylist()
        headers: list[list[dict[str, Any]]] = (
            table["headers"].to_pylist() if "headers" in table.column_names else [[]] * table.num_rows
        )
        rows = zip(times, table["key"].to_pylist(), table["value"].to_pylist(), headers, strict=True)
        for time, key, value, items in rows:
            given = [(item["name"].decode(), item["value"]) for item in items]
            sent = self._producer.send(
                partition.topic,
                value,
                key=key,
                headers=given,
                partition=partition.partition,
                timestamp_ms=time,
            )
            size = len(key or b"") + len(value or b"")
            self._bytes += size
            self._on_their_way.append(seams.Delivery(sent, size))
            self._settle(IN_FLIGHT_BYTES)
