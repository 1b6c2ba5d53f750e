"""From a table of records to whole batches, ready to be sent: only the producer's numbers and the checksum are
missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.kafka import write_kernel
from tailrace.eventstore.kafka.batches import FORMAT, HEAD, LENGTH_END
from tailrace.eventstore.kafka.codecs import Codec, compress, compressed_size_max
from tailrace.eventstore.kafka.write_kernel import Spans

BATCH_BYTES = 512 << 10
"""Records of this size, before they are compressed, make a batch: half of what a topic takes by default."""
_NONE = -1


class RecordTooLarge(OperatorError):
    """A record is larger than its topic takes. ``row`` is its place in the table that was to be sent."""

    def __init__(self, row: int, size: int, batch_bytes_max: int) -> None:
        super().__init__(
            f"a record of {size} bytes does not fit into a batch of {batch_bytes_max} bytes, the most that its topic "
            "takes",
            hint="raise max.message.bytes of the topic, or leave the record out",
        )
        self.row = row


@dataclass(frozen=True, slots=True)
class BuiltBatch:
    """``data`` is the whole batch, as from a producer that has no id."""

    count: int
    data: bytearray


def build(table: pa.Table, codec: Codec, batch_bytes_max: int) -> Iterator[BuiltBatch]:
    """Batches of a table with the columns ``timestamp``, ``key``, ``value`` and perhaps ``headers``, as in
    ``records.SCHEMA_WITH_HEADERS``, none of more than ``batch_bytes_max``. Raises ``RecordTooLarge``: the batches
    before are right."""
    columns = _Columns.of(table)
    limit = min(BATCH_BYTES, max(batch_bytes_max - HEAD.size - compressed_size_max(0), 1))
    out: NDArray[np.uint8] = np.empty(limit, np.uint8)
    state: NDArray[np.int64] = np.zeros(write_kernel.STATE_SIZE, np.int64)
    first = 0
    while first < table.num_rows:
        count = write_kernel.write_records(first, limit, *columns.arrays(), out, state)
        if count == 0:
            out = np.empty(int(state[write_kernel.NEEDED]), np.uint8)
            continue
        size = int(state[write_kernel.SIZE])
        payload = compress(codec, out[:size].data)
        if HEAD.size + len(payload) > batch_bytes_max:
            raise RecordTooLarge(first, size, batch_bytes_max)
        times = (int(columns.times[first]), int(state[write_kernel.MAX_TIMESTAMP]))
        yield BuiltBatch(count, _batch(payload, codec, count, times))
        first += count


def _batch(
    payload: bytes | bytearray | memoryview, codec: Codec, count: int, times: tuple[int, int]
) -> bytearray:
    data = bytearray(HEAD.size + len(payload))
    length = len(data) - LENGTH_END
    HEAD.pack_into(data, 0, 0, length, _NONE, FORMAT, 0, codec, count - 1, *times, _NONE, _NONE, _NONE, count)
    data[HEAD.size :] = payload
    return data


@dataclass(frozen=True, slots=True)
class _Columns:
    times: NDArray[np.int64]
    keys: Spans
    values: Spans
    header_ends: NDArray[np.int64]
    names: Spans
    contents: Spans

    @classmethod
    def of(cls, table: pa.Table) -> _Columns:
        table = table.combine_chunks()
        times = _array(table, "timestamp", pa.timestamp("ms", "UTC")).cast(pa.int64())
        if times.null_count:
            raise ValueError("each record needs a timestamp")
        ends: NDArray[np.int64] = np.zeros(table.num_rows + 1, np.int64)
        names = contents = _spans(pa.array([], pa.large_binary()))
        if "headers" in table.column_names:
            headers = _array(table, "headers", table.schema.field("headers").type)
            ends = headers.offsets.to_numpy().astype(np.int64)
            items = headers.values
            names, contents = _spans(items.field("name")), _spans(items.field("value"))
        keys, values = (_spans(_array(table, name, pa.large_binary())) for name in ("key", "value"))
        return cls(times.to_numpy(), keys, values, ends, names, contents)

    def arrays(self) -> tuple[NDArray[np.int64], Spans, Spans, NDArray[np.int64], Spans, Spans]:
        return self.times, self.keys, self.values, self.header_ends, self.names, self.contents


def _array(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    column = table[name].cast(kind)
    return (
        column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], kind)])
    )


def _spans(column: pa.Array) -> Spans:
    _, offsets, data = column.buffers()
    if not len(column):
        none: NDArray[np.int64] = np.zeros(0, np.int64)
        return Spans(np.zeros(0, np.uint8), none, none)
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    sizes = np.diff(ends)
    if column.null_count:
        sizes[column.is_null().to_numpy(zero_copy_only=False)] = _NONE
    bytes_there = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return Spans(bytes_there, np.ascontiguousarray(ends[:-1]), sizes)
