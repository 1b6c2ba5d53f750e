"""The compiled loop that writes records: what ``kernels.find_records`` reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailrace.eventstore.compiled.compiler import kernel, part
from tailrace.eventstore.compiled.memory import copy_bytes
from tailrace.eventstore.kafka.kernels import Bytes, Ints

# Places in ``state``: how many bytes were written, and the largest timestamp among them; or the bytes that the first
# record needs, if there is no room for it.
SIZE, MAX_TIMESTAMP, NEEDED, STATE_SIZE = range(4)


class Spans(NamedTuple):
    """Some bytes of each row: they begin at ``at`` in ``data``; size -1 for none."""

    data: Bytes
    at: Ints
    size: Ints


@part
def _zigzag(number: int) -> np.uint64:
    return np.uint64((np.int64(number) << 1) ^ (np.int64(number) >> 63))


@part
def _varint_size(number: int) -> int:
    rest, size = _zigzag(number), 1
    while rest > np.uint64(0x7F):
        rest >>= np.uint64(7)
        size += 1
    return size


@part
def _put(out: Bytes, to: int, number: int) -> int:
    """Write a varint; returns the place behind it."""
    rest = _zigzag(number)
    while rest > np.uint64(0x7F):
        out[to] = np.uint8(rest & np.uint64(0x7F)) | np.uint8(0x80)
        rest >>= np.uint64(7)
        to += 1
    out[to] = np.uint8(rest)
    return to + 1


@part
def _put_span(out: Bytes, to: int, spans: Spans, row: int) -> int:
    size = spans.size[row]
    to = _put(out, to, size)
    if size <= 0:
        return to
    begin = spans.at[row]
    spare = min(len(out) - to, len(spans.data) - begin)
    copy_bytes(out.ctypes.data + to, spans.data.ctypes.data + begin, size, spare)
    return int(to + size)


@part
def _span_size(spans: Spans, row: int) -> int:
    size = spans.size[row]
    return int(_varint_size(size) + max(size, 0))


@kernel
def write_records(
    first: int, limit: int, times: Ints, keys: Spans, values: Spans, header_ends: Ints, names: Spans, contents: Spans,
    out: Bytes, state: Ints,
) -> int:  # fmt: skip
    """Write rows from ``first`` on while they fit into ``limit`` bytes, the first in any case if it fits into ``out``.
    Returns how many; 0 when there is no room for the first. Headers of row i are those from ``header_ends[i]`` to
    ``header_ends[i + 1]``."""
    to, row = 0, first
    state[MAX_TIMESTAMP] = times[first]
    while row < len(times):
        begin, end = header_ends[row], header_ends[row + 1]
        body = 1 + _varint_size(times[row] - times[first]) + _varint_size(row - first)
        body += _span_size(keys, row) + _span_size(values, row) + _varint_size(end - begin)
        for header in range(begin, end):
            body += _span_size(names, header) + _span_size(contents, header)
        size = _varint_size(body) + body
        if to + size > len(out) or (row > first and to + size > limit):
            state[NEEDED] = size
            break
        to = _put(out, to, body)
        out[to] = 0
        to = _put(out, to + 1, times[row] - times[first])
        to = _put(out, to, row - first)
        to = _put_span(out, to, keys, row)
        to = _put_span(out, to, values, row)
        to = _put(out, to, end - begin)
        for header in range(begin, end):
            to = _put_span(out, to, names, header)
            to = _put_span(out, to, contents, header)
        state[MAX_TIMESTAMP] = max(state[MAX_TIMESTAMP], times[row])
        row += 1
    state[SIZE] = to
    return row - first
