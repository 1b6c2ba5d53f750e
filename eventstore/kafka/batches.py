"""Record batches, laid end to end as brokers send them: their heads, and which of them a reader of committed records
may see. Records inside are ``kernels.py``'s.

Sources: Kafka's protocol guide, "Record Batch" and "Control Batches"; KIP-98 (transactions), KIP-534 (a batch that
keeps the time of its removal has that as base of its timestamps, so nothing changes here).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.eventstore.errors import ProtocolError, optional_part
from tailrace.eventstore.kafka.codecs import Codec

with optional_part("Kafka", "kafka"):
    import crc32c

# Base offset, length of what follows, leader's epoch, format; checksum; attributes, last offset's and times; producer's
# id, epoch and first sequence number; number of records.
HEAD = struct.Struct(">qiibIhiqqqhii")
LENGTH_END = 12  # behind the length
CHECKED_FROM = 21  # what is behind the checksum
FORMAT = 2
_FORMAT_AT = 16
_CODEC_BITS, _LOG_APPEND_TIME, TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_LARGEST_OFFSET = (1 << 63) - 1
_RECORD_BYTES_MIN = 7
_NO_PRODUCER = -1
_ABORT = 0


class AbortedTransaction(NamedTuple):
    """A producer's transaction that was aborted, and the offset of its first record."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One whole batch. ``records`` are compressed with ``codec``."""

    base_offset: int
    last_offset: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    count: int
    records: memoryview

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC_BITS

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & _CONTROL)


def batches_in(data: memoryview, place: str) -> Iterator[Batch]:
    """The whole batches of a partition, from ``place``. A broker may cut the last one. Raises ``ProtocolError``."""
    at, next_offset = 0, 0
    while len(data) - at > _FORMAT_AT:
        base_offset, length = struct.unpack_from(">qi", data, at)
        where = f"{place}, batch at offset {base_offset}"
        _check_format(data[at + _FORMAT_AT], where)
        if length < HEAD.size - LENGTH_END:
            raise _damaged(where, f"it says to have {length} bytes, fewer than a head")
        end = at + LENGTH_END + length
        if end > len(data):
            return
        batch = _read(data[at:end], where)
        if batch.base_offset < next_offset:
            raise _damaged(where, f"offsets go back from {next_offset}")
        next_offset = batch.last_offset + 1
        yield batch
        at = end


def _read(data: memoryview, where: str) -> Batch:
    (base_offset, _, _, _, checksum, attributes, last_delta, base_timestamp, max_timestamp, producer_id, _, _,
     count) = HEAD.unpack_from(data)  # fmt: skip
    if crc32c.crc32c(data[CHECKED_FROM:]) != checksum:
        raise _damaged(where, "its checksum is another one")
    if not 0 <= base_offset <= _LARGEST_OFFSET - 1 - last_delta or last_delta < 0:
        raise _damaged(where, f"its last offset would be {base_offset} + {last_delta}")
    if not 0 <= count <= last_delta + 1:
        raise _damaged(where, f"it says to have {count} records at {last_delta + 1} offsets")
    if attributes & _CODEC_BITS > max(Codec):
        raise _damaged(where, f"codec {attributes & _CODEC_BITS} is none that is known")
    return Batch(
        base_offset, base_offset + last_delta, attributes, base_timestamp, max_timestamp, producer_id, count,
        data[HEAD.size :],
    )  # fmt: skip


def records_fit(count: int, size: int) -> bool:
    """Whether so many records may be in so many bytes."""
    return count * _RECORD_BYTES_MIN <= size


class CommittedOnly:
    """Which batches a reader of committed records sees, asked in order.

    A fetch names the aborted transactions that it touches. Each begins at its first offset and ends at its producer's
    abort marker, a control batch. ::

        producer   -> aborted   at the first offset of one of its aborted transactions
        aborted    -> producer  at its abort marker
    """

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._waiting = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted: set[int] = set()

    def shows(self, batch: Batch) -> bool:
        if batch.producer_id != _NO_PRODUCER:
            while self._waiting and self._waiting[0].first_offset <= batch.last_offset:
                self._aborted.add(self._waiting.popleft().producer_id)
            if batch.control and _is_abort(batch):
                self._aborted.discard(batch.producer_id)
            elif batch.transactional and batch.producer_id in self._aborted:
                return False
        return not batch.control


def _is_abort(batch: Batch) -> bool:
    """Whether the one record of a control batch marks an abort. Its key is two int16: a version and the kind. The
    fields before it are varints of one byte each: a marker is the first record, and small."""
    key = bytes(batch.records[5:9])
    return batch.codec == Codec.NONE and len(key) == 4 and int.from_bytes(key[2:], "big") == _ABORT


def _check_format(number: int, where: str) -> None:
    if number != FORMAT:
        raise ProtocolError(
            f"{where}: its format is {number}, and only {FORMAT} is read",
            hint="brokers before 3.0 may keep formats 0 and 1 of old topics: copy the topic with a newer producer",
        )


def _damaged(where: str, what: str) -> ProtocolError:
    return ProtocolError(
        f"{where}: {what}",
        hint="if reading again gives the same, the broker's file is damaged, which `kafka-dump-log` shows: continue "
        "behind it, or let another replica lead",
    )
