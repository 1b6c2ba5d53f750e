"""The compiled loops over records: ``find_records`` notes where each record's parts are, ``copy_spans`` lays one part
of all records end to end, ``find_headers`` notes headers.

A record, all numbers but the attributes varints (zigzag): its size; attributes (1 byte); timestamp and offset, as
differences from the batch's first; size of the key and the key, -1 for none; the same for the value; number of headers,
each a name and a value with their sizes. Arrays are accessed without bounds checks, so every byte is compared with the
end of its record before it is read.

Source: Kafka's protocol guide, "Record".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailrace.eventstore.compiled.compiler import kernel, part
from tailrace.eventstore.compiled.memory import copy_bytes

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

# What is known of a batch, per place: where its records begin and end, offset and timestamp of its first, the
# difference of its last offset, how many there are, and the timestamp of all where the broker gave it.
BEGIN, END, BASE_OFFSET, BASE_TIMESTAMP, LAST_DELTA, COUNT, APPEND_TIMESTAMP, BATCH_FIELDS = range(8)
NO_TIMESTAMP = -1
FROM_RECORDS = np.iinfo(np.int64).min
"""In APPEND_TIMESTAMP: each record has its own."""

# What is noted of a record, per place; a size is -1 for none.
OFFSET, TIMESTAMP, KEY_AT, KEY_SIZE, VALUE_AT, VALUE_SIZE, HEADERS_AT, HEADERS, RECORD_FIELDS = range(9)
# And of a header.
NAME_AT, NAME_SIZE, CONTENT_AT, CONTENT_SIZE, HEADER_FIELDS = range(5)

_VARINT_BITS, _VARLONG_BITS = 35, 70  # 5 and 10 bytes
_SHORT = -1


@part
def _varint(data: Bytes, at: int, end: int, bits: int) -> tuple[int, int]:
    """The number at a place, and the place behind it: -1 when it does not end in time."""
    number, shift = np.uint64(0), 0
    while at < end and shift < bits:
        byte = data[at]
        number |= np.uint64(byte & 0x7F) << np.uint64(shift)
        at += 1
        shift += 7
        if byte < 0x80:
            return int(np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1))), at
    return 0, _SHORT


@part
def _span(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Size and place of bytes that have their size in front, which may be -1; place -1 when they do not fit."""
    size, at = _varint(data, at, end, _VARINT_BITS)
    if at == _SHORT or size < -1 or size > end - at:
        return 0, _SHORT
    return size, at


@part
def _after_headers(data: Bytes, at: int, end: int, count: int) -> int:
    """The place behind so many headers; -1 when they do not fit."""
    for _ in range(count):
        size, at = _span(data, at, end)
        if at == _SHORT or size < 0:
            return _SHORT
        size, at = _span(data, at + size, end)
        if at == _SHORT:
            return _SHORT
        at += max(size, 0)
    return at


@kernel
def find_records(data: Bytes, batches: Ints, first_offset: int, records: Ints) -> int:
    """Note the records of ``batches`` from ``first_offset`` on in ``records``, which has room for all. Returns how many
    were noted, or -1 minus the number of a batch whose records are not what its head says."""
    found = 0
    for batch in range(len(batches)):
        at, batch_end = batches[batch, BEGIN], batches[batch, END]
        before = -1
        for _ in range(batches[batch, COUNT]):
            size, at = _span(data, at, batch_end)
            if at == _SHORT or size < 1:
                return -1 - batch
            end = at + size
            time_delta, at = _varint(data, at + 1, end, _VARLONG_BITS)
            if at == _SHORT:
                return -1 - batch
            delta, at = _varint(data, at, end, _VARINT_BITS)
            if at == _SHORT or delta <= before or delta > batches[batch, LAST_DELTA]:
                return -1 - batch
            before = delta
            key_size, key_at = _span(data, at, end)
            if key_at == _SHORT:
                return -1 - batch
            value_size, value_at = _span(data, key_at + max(key_size, 0), end)
            if value_at == _SHORT:
                return -1 - batch
            headers, headers_at = _varint(data, value_at + max(value_size, 0), end, _VARINT_BITS)
            if headers_at == _SHORT or headers < 0 or _after_headers(data, headers_at, end, headers) != end:
                return -1 - batch
            at = end
            offset = batches[batch, BASE_OFFSET] + delta
            if offset >= first_offset:
                timestamp = batches[batch, APPEND_TIMESTAMP]
                if timestamp == FROM_RECORDS:
                    timestamp = batches[batch, BASE_TIMESTAMP] + time_delta
                records[OFFSET, found] = offset
                records[TIMESTAMP, found] = timestamp
                records[KEY_AT, found] = key_at
                records[KEY_SIZE, found] = key_size
                records[VALUE_AT, found] = value_at
                records[VALUE_SIZE, found] = value_size
                records[HEADERS_AT, found] = headers_at
                records[HEADERS, found] = headers
                found += 1
        if at != batch_end:
            return -1 - batch
    return found


@kernel
def find_headers(data: Bytes, at: Ints, counts: Ints, headers: Ints) -> None:
    """Note the headers of records that ``find_records`` has gone over; ``headers`` has room for all."""
    found = 0
    for record in range(len(at)):
        place = at[record]
        for _ in range(counts[record]):
            size, place = _varint(data, place, len(data), _VARINT_BITS)
            headers[NAME_AT, found] = place
            headers[NAME_SIZE, found] = size
            size, place = _varint(data, place + size, len(data), _VARINT_BITS)
            headers[CONTENT_AT, found] = place
            headers[CONTENT_SIZE, found] = size
            place += max(size, 0)
            found += 1


@kernel
def copy_spans(data: Bytes, at: Ints, ends: Ints, out: Bytes) -> None:
    """Lay bytes end to end: those of span i begin at ``at[i]`` and go to ``ends[i]`` to ``ends[i + 1]`` of ``out``."""
    data_at, out_at = data.ctypes.data, out.ctypes.data
    for span in range(len(at)):
        begin, to = at[span], ends[span]
        copy_bytes(out_at + to, data_at + begin, ends[span + 1] - to, min(len(data) - begin, len(out) - to))
