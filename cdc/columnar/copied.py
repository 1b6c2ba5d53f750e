"""Rows as COPY's text format has them, and key hashes of columns of texts: the kernels of loads.

Source: PostgreSQL documentation, "COPY", File Formats, Text Format; what a server writes is less than what it reads
(CopyAttributeOutText in copyto.c): it escapes the backslash and six control characters, and ``\\N`` is NULL.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cdc.columnar import kernels
from cdc.columnar.compiled import kernel
from cdc.columnar.kernels import NULL, Bytes, Cells, Ints, Ints32
from eventstore import keys

_BACKSLASH, _TAB, _NEWLINE, _N = (ord(byte) for byte in "\\\t\nN")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}
_UNESCAPE: Bytes = np.zeros(256, np.uint8)
for _letter, _character in _ESCAPED.items():
    _UNESCAPE[ord(_letter)] = ord(_character)
_KEY_BYTES = 256  # of most keys
_POSITION_MAX = (1 << 31) - 1


@kernel
def measure_rows(data: Bytes, unescape: Bytes, sizes: Ints) -> int:
    """Add up the bytes of each column's texts. Returns the number of rows, -1 when this is not what a server writes."""
    rows, place, at = 0, 0, 0
    while at < len(data):
        begin, size = at, 0
        while at < len(data) and data[at] != _TAB and data[at] != _NEWLINE:
            if data[at] != _BACKSLASH:
                at += 1
                size += 1
                continue
            if at + 2 >= len(data):
                return -1
            if data[at + 1] == _N:
                if at != begin or (data[at + 2] != _TAB and data[at + 2] != _NEWLINE):
                    return -1
            elif unescape[data[at + 1]]:
                size += 1
            else:
                return -1
            at += 2
        if at >= len(data) or place >= len(sizes):
            return -1
        sizes[place] += size
        place += 1
        if data[at] == _NEWLINE:
            if place != len(sizes):
                return -1
            place = 0
            rows += 1
        at += 1
    return rows if place == 0 else -1


@kernel
def split_rows(data: Bytes, unescape: Bytes, starts: Ints, out: Bytes, offsets: Ints, valid: Bytes) -> None:
    """The texts that ``measure_rows`` found sound, column by column in ``out`` from ``starts`` on; ``offsets`` from
    there (one more than rows each) and validity bits as an Arrow array has them, 0 before."""
    columns = len(starts)
    stride, bits = len(offsets) // columns, len(valid) // columns
    row, place, at = 0, 0, 0
    while at < len(data):
        begin, to = starts[place], offsets[place * stride + row]
        null = data[at] == _BACKSLASH and data[at + 1] == _N
        if null:
            at += 2
        while data[at] != _TAB and data[at] != _NEWLINE:
            byte = data[at]
            if byte == _BACKSLASH:
                at += 1
                byte = unescape[data[at]]
            out[begin + to] = byte
            at += 1
            to += 1
        offsets[place * stride + row + 1] = to
        if not null:
            valid[place * bits + (row >> 3)] |= np.uint8(1 << (row & 7))
        place += 1
        if data[at] == _NEWLINE:
            place = 0
            row += 1
        at += 1


def columns_of(data: bytes, rows: int, columns: int) -> list[pa.Array] | None:
    """Whole rows as one large binary array per column, null for NULL. None when they are not exactly so many rows of so
    many columns."""
    bytes_of: Bytes = np.frombuffer(data, np.uint8)
    sizes = np.zeros(columns, np.int64)
    if measure_rows(bytes_of, _UNESCAPE, sizes) != rows:
        return None
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    offsets = np.zeros((columns, rows + 1), np.int64)
    valid = np.zeros((columns, (rows + 7) >> 3), np.uint8)
    split_rows(bytes_of, _UNESCAPE, starts, out, offsets.reshape(-1), valid.reshape(-1))
    return [
        pa.LargeBinaryArray.from_buffers(
            pa.large_binary(),
            rows,
            [
                pa.py_buffer(valid[at]),
                pa.py_buffer(offsets[at]),
                pa.py_buffer(out[starts[at] :][: sizes[at]]),
            ],
        )
        for at in range(columns)
    ]


def hash_columns(columns: Sequence[pa.Array]) -> pa.Array:
    """``eventstore.keys.hash_columns``, which is its specification, without Python for each row."""
    texts = [column.cast(pa.large_binary()) for column in columns]
    if not texts or not len(texts[0]) or sum(column.nbytes for column in texts) > _POSITION_MAX:
        return keys.hash_columns(columns)
    rows, width = len(texts[0]), len(texts)
    at: NDArray[np.int32] = np.empty((rows, width), np.int32)
    size: NDArray[np.int32] = np.empty((rows, width), np.int32)
    pieces, start = [], 0
    for place, column in enumerate(texts):
        offsets = np.frombuffer(column.buffers()[1], np.int64, rows + 1, column.offset * 8)
        whole = column.buffers()[2]
        pieces.append(
            np.frombuffer(whole, np.uint8)[offsets[0] : offsets[-1]] if whole else np.zeros(0, np.uint8)
        )
        at[:, place] = offsets[:-1] - offsets[0] + start
        size[:, place] = np.diff(offsets)
        size[~column.is_valid().to_numpy(zero_copy_only=False), place] = NULL
        start += len(pieces[-1])
    data = pieces[0] if width == 1 else np.concatenate(pieces)
    data.flags.writeable = False
    cells = Cells(at.reshape(-1), size.reshape(-1))
    first: Ints32 = np.arange(0, rows * width, width, dtype=np.int32)
    places: Ints32 = np.arange(width, dtype=np.int32)
    hashes, room = np.empty(rows, np.int64), _KEY_BYTES
    while room:
        room = kernels.hash_keys(data, cells, first, places, np.empty(room, np.uint8), hashes)
    return pa.array(hashes)
