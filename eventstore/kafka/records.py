"""What one fetch of a partition brought, as Arrow tables of its records.

::

    bytes -> whole batches -> those that are committed -> decompressed side by side, at most CHUNK_BYTES of them
          -> places of keys, values and headers -> one table

Control records and records of aborted transactions leave gaps in the offsets, as compaction does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.eventstore.errors import OperatorError, ProtocolError
from tailrace.eventstore.kafka import kernels
from tailrace.eventstore.kafka.batches import (
    AbortedTransaction,
    Batch,
    CommittedOnly,
    batches_in,
    records_fit,
)
from tailrace.eventstore.kafka.codecs import Codec, Damaged, OutputFull, decompress_into

CHUNK_BYTES = 32 << 20  # of decompressed records in one table, unless one batch alone has more
BATCH_BYTES_MAX = 256 << 20  # of one batch; a record of 100 MB, the largest that anybody configures, fits
BATCH_RECORDS_MAX = (
    4 << 20
)  # of one batch; compressed, more would be a few kilobytes, and take gigabytes to note
HEADERS_MAX = 16 << 20  # of the records in one table: as many as fit into CHUNK_BYTES
_FIRST_RATIO = 4.0
_ROOM_MIN = 1 << 16

_HEADER = pa.struct([("name", pa.large_binary()), ("value", pa.large_binary())])
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("key", pa.large_binary()),
        pa.field("value", pa.large_binary()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", pa.list_(_HEADER), nullable=False))


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """What a broker sent of one partition. The first batch may begin before ``first_offset``, where reading goes on."""

    topic: str
    partition: int
    first_offset: int
    data: memoryview
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def place(self) -> str:
        return f"topic {self.topic}, partition {self.partition}"


@dataclass(frozen=True, slots=True)
class RecordBatchRows:
    """Records of one partition in offset order, columns as in ``SCHEMA`` (``SCHEMA_WITH_HEADERS`` if they were asked
    for). A key or value that is null is a null; so is a timestamp that nobody gave. Reading goes on at
    ``next_offset``."""

    topic: str
    partition: int
    table: pa.Table
    next_offset: int


def decode(
    fetched: FetchedBatches, *, headers: bool = False, batch_bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[RecordBatchRows]:
    """The committed records, a table at a time; the last table may be empty, as ``next_offset`` says more. Raises
    ``ProtocolError`` for bytes that are no batches, ``OperatorError`` for a batch of more than ``batch_bytes_max`` when
    decompressed."""
    committed = CommittedOnly(fetched.aborted)
    chunk = _Chunk(fetched, headers, batch_bytes_max)
    for batch in batches_in(fetched.data, fetched.place):
        if committed.shows(batch) and batch.last_offset >= fetched.first_offset:
            if chunk.size and chunk.expects(batch) > CHUNK_BYTES:
                yield chunk.rows()
                chunk = _Chunk(fetched, headers, batch_bytes_max, chunk.ratio)
            chunk.add(batch)
        chunk.next_offset = batch.last_offset + 1
    if chunk.next_offset > fetched.first_offset:
        yield chunk.rows()


@dataclass(slots=True)
class _Chunk:
    """Records of some batches, decompressed side by side into ``room``."""

    fetched: FetchedBatches
    headers: bool
    batch_bytes_max: int
    ratio: float = _FIRST_RATIO  # how much larger the last batch was than its bytes
    room: NDArray[np.uint8] = field(init=False)
    size: int = 0
    batches: list[tuple[int, ...]] = field(default_factory=list)
    next_offset: int = 0

    def __post_init__(self) -> None:
        expected = min(int(len(self.fetched.data) * self.ratio), CHUNK_BYTES)
        self.room = np.empty(expected + _ROOM_MIN, np.uint8)

    def expects(self, batch: Batch) -> int:
        """About how many bytes there will be with this batch."""
        return self.size + int(len(batch.records) * (self.ratio if batch.codec else 1.0))

    def add(self, batch: Batch) -> None:
        if batch.count > BATCH_RECORDS_MAX:
            raise self._too_many(batch.base_offset, f"{batch.count} records", BATCH_RECORDS_MAX)
        begin = self.size
        self.size += self._decompress(batch)
        if not records_fit(batch.count, self.size - begin):
            raise self._wrong(batch.base_offset)
        append_time = batch.max_timestamp if batch.log_append_time else kernels.FROM_RECORDS
        self.batches.append(
            (begin, self.size, batch.base_offset, batch.base_timestamp, batch.last_offset - batch.base_offset,
             batch.count, append_time)
        )  # fmt: skip

    def rows(self) -> RecordBatchRows:
        batches = np.array(self.batches, np.int64).reshape(-1, kernels.BATCH_FIELDS)
        data = self.room[: self.size]
        count = int(batches[:, kernels.COUNT].sum())
        records: NDArray[np.int64] = np.empty((kernels.RECORD_FIELDS, count), np.int64)
        found = kernels.find_records(data, batches, self.fetched.first_offset, records)
        if found < 0:
            raise self._wrong(int(batches[-1 - found, kernels.BASE_OFFSET]))
        if self.headers and found:
            self._require_few_headers(records[:, :found])
        table = _table(data, records[:, :found], self.headers)
        return RecordBatchRows(self.fetched.topic, self.fetched.partition, table, self.next_offset)

    def _require_few_headers(self, records: NDArray[np.int64]) -> None:
        """Only a batch that is larger than a table may have so many."""
        total = int(records[kernels.HEADERS].sum())
        if total > HEADERS_MAX:
            most = int(records[kernels.OFFSET][records[kernels.HEADERS].argmax()])
            base = max(
                batch[kernels.BASE_OFFSET] for batch in self.batches if batch[kernels.BASE_OFFSET] <= most
            )
            raise self._too_many(base, f"{total} headers", HEADERS_MAX)

    def _decompress(self, batch: Batch) -> int:
        codec, compressed = Codec(batch.codec), len(batch.records)
        want = max(int(compressed * self.ratio * 1.25), _ROOM_MIN) if codec else compressed
        while True:
            want = min(want, self.batch_bytes_max)
            self._make_room(want)
            try:
                size = decompress_into(codec, batch.records, self.room[self.size : self.size + want].data)
            except OutputFull:
                if want == self.batch_bytes_max:
                    raise self._too_large(batch) from None
                want *= 4
            except Damaged as error:
                raise self._wrong(batch.base_offset, f"{codec.name.lower()}: {error}") from None
            else:
                if codec and compressed:
                    self.ratio = size / compressed
                return size

    def _make_room(self, size: int) -> None:
        if len(self.room) < self.size + size:
            larger: NDArray[np.uint8] = np.empty(max(self.size + size, 2 * len(self.room)), np.uint8)
            larger[: self.size] = self.room[: self.size]
            self.room = larger

    def _wrong(self, offset: int, what: str = "its records are not what its head says") -> ProtocolError:
        return ProtocolError(
            f"{self.fetched.place}, batch at offset {offset}: {what}",
            hint="its producer wrote it so, as its checksum is right: `kafka-dump-log` shows it; continue behind it",
        )

    def _too_many(self, offset: int, what: str, allowed: int) -> OperatorError:
        return OperatorError(
            f"{self.fetched.place}, batch at offset {offset}: {what} are more than {allowed}",
            hint="no producer sends so many together unless it means harm: continue behind it",
        )

    def _too_large(self, batch: Batch) -> OperatorError:
        return OperatorError(
            f"{self.fetched.place}, batch at offset {batch.base_offset}: {len(batch.records)} bytes are more than "
            f"{self.batch_bytes_max} when decompressed",
            hint="allow larger batches if this one is what its producer meant, or continue behind it",
        )


def _table(data: NDArray[np.uint8], records: NDArray[np.int64], headers: bool) -> pa.Table:
    times = records[kernels.TIMESTAMP]
    columns = [
        pa.array(records[kernels.OFFSET]),
        pa.array(times, mask=times == kernels.NO_TIMESTAMP).cast(pa.timestamp("ms", "UTC")),
        _bytes(data, records[kernels.KEY_AT], records[kernels.KEY_SIZE]),
        _bytes(data, records[kernels.VALUE_AT], records[kernels.VALUE_SIZE]),
    ]
    if not headers:
        return pa.table(columns, schema=SCHEMA)
    return pa.table([*columns, _headers(data, records)], schema=SCHEMA_WITH_HEADERS)


def _bytes(data: NDArray[np.uint8], at: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.Array:
    """Spans as one column; a size of -1 is a null."""
    ends = _ends(np.maximum(sizes, 0))
    out: NDArray[np.uint8] = np.empty(int(ends[-1]), np.uint8)
    kernels.copy_spans(data, at, ends, out)
    valid = None
    if len(sizes) and sizes.min() < 0:
        valid = pa.py_buffer(np.packbits(sizes >= 0, bitorder="little"))
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(out)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), buffers)


def _headers(data: NDArray[np.uint8], records: NDArray[np.int64]) -> pa.Array:
    ends = _ends(records[kernels.HEADERS])
    found: NDArray[np.int64] = np.empty((kernels.HEADER_FIELDS, int(ends[-1])), np.int64)
    kernels.find_headers(data, records[kernels.HEADERS_AT], records[kernels.HEADERS], found)
    names = _bytes(data, found[kernels.NAME_AT], found[kernels.NAME_SIZE])
    values = _bytes(data, found[kernels.CONTENT_AT], found[kernels.CONTENT_SIZE])
    items = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), items)


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    ends: NDArray[np.int64] = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends
