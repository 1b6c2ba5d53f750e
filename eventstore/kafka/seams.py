"""Every private name of kafka-python that is used, in one place.

Its public ``poll`` makes an object of each record, its ``send`` takes one record at a time. Between them and the
network it has whole batches, and there we take them out and put them in. Leaders, fetch sessions, truncation, TLS,
SASL, sequences, retries and transactions stay kafka-python's.

Private names may change with any release. ``reads_batches`` says whether those of the installed one are known; where
they are not, ``poll`` is used.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Iterator
from typing import Any

from tailrace.eventstore.errors import optional_part

with optional_part("Kafka", "kafka"):
    import crc32c
    import kafka
    from kafka import errors
    from kafka.consumer.fetcher import Fetcher
    from kafka.net.inet import KafkaNetSocket
    from kafka.producer.future import FutureRecordMetadata
    from kafka.producer.producer_batch import ProducerBatch
    from kafka.producer.sender import Sender
    from kafka.structs import TopicPartition

from tailrace.eventstore.kafka.batches import CHECKED_FROM, LENGTH_END, TRANSACTIONAL, AbortedTransaction
from tailrace.eventstore.kafka.build import BuiltBatch
from tailrace.eventstore.kafka.records import FetchedBatches

_KNOWN_VERSION = "3.0."
_UNPACK_PARAMETERS = ["self", "tp", "records", "key_deserializer", "value_deserializer"]
_LAST_DELTA_AT = 23
_ATTRIBUTES_END = _LAST_DELTA_AT
_PRODUCER, _PRODUCER_AT = struct.Struct(">qhi"), 43
_NO_PRODUCER = (-1, -1, -1)
_CHECKSUM = struct.Struct(">I")


_SCHEME = "tailrace"


class _ClosingSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python ships no types
    """No proxy, but where kafka-python 3.0 lets a socket be chosen. Its own leaves one that could not connect to the
    garbage collector: while a broker is away there is one more with each try."""

    SCHEMES = (_SCHEME,)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


def closing_sockets() -> dict[str, Any]:
    """Options of a client by which it closes sockets that could not connect."""
    return {"proxy_url": f"{_SCHEME}://"} if kafka.__version__.startswith(_KNOWN_VERSION) else {}


def reads_batches() -> bool:
    """Whether whole batches can be taken out of the installed kafka-python."""
    records = getattr(Fetcher, "PartitionRecords", None)
    unpack = getattr(records, "_unpack_records", None)
    return (
        kafka.__version__.startswith(_KNOWN_VERSION)
        and unpack is not None
        and list(inspect.signature(unpack).parameters) == _UNPACK_PARAMETERS
    )


class _WholeFetch:
    """What takes the place of a record: all that a broker sent of one partition."""

    def __init__(self, fetched: FetchedBatches) -> None:
        self.fetched = fetched
        self.offset = fetched.first_offset  # the fetcher skips what lies before the offset it asked for


class _RawPartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """Of each answer of a broker, one thing that is no record: its bytes, with what is needed to decode them."""

    leader_epoch: int
    next_fetch_offset: int

    def _unpack_records(
        self, tp: TopicPartition, records: Any, key_deserializer: Any, value_deserializer: Any
    ) -> Iterator[_WholeFetch]:
        data = memoryview(records._buffer)
        self.leader_epoch, self.next_fetch_offset = _ends(data, self.leader_epoch, self.next_fetch_offset)
        self.bytes_read = len(data)
        if len(data):
            aborted = (
                AbortedTransaction(each.producer_id, each.first_offset) for each in self.aborted_transactions
            )
            yield _WholeFetch(FetchedBatches(tp.topic, tp.partition, self.fetch_offset, data, tuple(aborted)))
        self.drain()


def _ends(data: memoryview, epoch: int, next_offset: int) -> tuple[int, int]:
    """Leader's epoch and the offset behind the last whole batch, unchecked: decoding checks them."""
    at = 0
    while len(data) - at >= _LAST_DELTA_AT + 4:
        base_offset, length, epoch_there = struct.unpack_from(">qii", data, at)
        end = at + LENGTH_END + length
        if length < 0 or end > len(data):
            break
        (last_delta,) = struct.unpack_from(">i", data, at + _LAST_DELTA_AT)
        epoch, next_offset = epoch_there, base_offset + last_delta + 1
        at = end
    return epoch, next_offset


def take_batches(consumer: kafka.KafkaConsumer) -> None:
    """Let ``poll`` of this consumer give what brokers sent instead of records: see ``polled``."""
    consumer._fetcher.PartitionRecords = _RawPartitionRecords


def polled(consumer: kafka.KafkaConsumer, timeout_ms: int) -> list[FetchedBatches]:
    return [item.fetched for items in consumer.poll(timeout_ms=timeout_ms).values() for item in items]


class _Prebuilt:
    """A batch in the place of kafka-python's builder of one. It is asked, in this order: for its size, with the
    producer's numbers to close, and for its bytes; the bytes again for each time that it is sent."""

    def __init__(self, built: BuiltBatch) -> None:
        self._built = built
        self._closed = False
        self.producer_id, self.producer_epoch, self.base_sequence = _NO_PRODUCER

    def append(self, *record: Any) -> None:
        """There is no room for another record."""

    def is_full(self) -> bool:
        return True

    def next_offset(self) -> int:
        return self._built.count

    def size_in_bytes(self) -> int:
        return len(self._built.data)

    def compression_rate(self) -> float:
        return 1.0

    def set_producer_state(self, producer_id: int, epoch: int, sequence: int, transactional: bool) -> None:
        if self._closed:
            raise errors.IllegalStateError(
                "a batch that was sent keeps its producer"
            )  # else it is stored twice
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, epoch, sequence
        _PRODUCER.pack_into(self._built.data, _PRODUCER_AT, producer_id, epoch, sequence)
        if transactional:
            self._built.data[_ATTRIBUTES_END - 1] |= TRANSACTIONAL

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            data = self._built.data
            _CHECKSUM.pack_into(
                data, CHECKED_FROM - _CHECKSUM.size, crc32c.crc32c(memoryview(data)[CHECKED_FROM:])
            )

    def buffer(self) -> bytearray:
        return self._built.data


class Delivery:
    """A batch or a record on its way, of so many bytes."""

    def __init__(self, sent: FutureRecordMetadata, size: int) -> None:
        self._sent = sent
        self.size = size

    def wait(self, seconds: float) -> None:
        """Until a broker has it. Raises kafka-python's errors."""
        self._sent.get(seconds)


def sends_batches() -> bool:
    """Whether whole batches can be given to the installed kafka-python."""
    return bool(
        kafka.__version__.startswith(_KNOWN_VERSION)
        and hasattr(Sender, "_can_split")
        and list(inspect.signature(ProducerBatch.__init__).parameters)[:3] == ["self", "tp", "records"]
    )


def give_batches(producer: kafka.KafkaProducer) -> None:
    """Prepare a producer for ``send_batch``."""
    producer._sender._can_split = lambda batch, error: (
        False
    )  # one that is too large is an error, and stays whole


def send_batch(producer: kafka.KafkaProducer, topic: str, partition: int, built: BuiltBatch) -> Delivery:
    """Put a batch at the end of what is to be sent to a partition."""
    known = TopicPartition(topic, partition)
    if partition not in producer.partitions_for(
        topic
    ):  # it asks the cluster; unasked, the batch waits for ever
        raise errors.UnknownTopicOrPartitionError(f"there is no partition {partition}")
    manager, accumulator = producer._transaction_manager, producer._accumulator
    if manager.is_transactional():
        manager.maybe_add_partition_to_transaction(known)
    batch = ProducerBatch(known, _Prebuilt(built))
    batch.max_record_size = len(built.data)
    sent = FutureRecordMetadata(batch.produce_future, 0, -1, None, -1, -1, -1)  # of its first record
    with accumulator._tp_lock(known):
        accumulator._batches[known].append(batch)
        accumulator._incomplete.add(batch)
    producer._sender.wakeup()
    return Delivery(sent, len(built.data))


def end_transaction(producer: kafka.KafkaProducer, seconds: float, *, commit: bool) -> None:
    """As the public methods do, which wait for ever."""
    manager = producer._transaction_manager
    result = manager.begin_commit() if commit else manager.begin_abort()
    producer._sender.wakeup()
    if not result.wait(timeout_ms=seconds * 1000):
        raise errors.KafkaTimeoutError(f"the transaction did not end within {seconds:.0f} s")
