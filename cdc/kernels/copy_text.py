"""The kernels of loads: rows in COPY's text format, and key hashes of columns of texts.

Source: PostgreSQL documentation, "COPY", File Formats, Text Format; what a server writes is less than what it reads
(CopyAttributeOutText in copyto.c): it escapes the backslash and six control characters, and ``\\N`` is NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.cdc.kernels.key_hash import hash_keys
from tailrace.cdc.kernels.rows import NULL, Bytes, Cells, Ints, Ints32
from tailrace.eventstore.compiled.compiler import kernel, part
from tailrace.eventstore.compiled.memory import copy_bytes, lowest, marks_64
from tailrace.eventstore.model import keys

_BACKSLASH, _TAB, _NEWLINE, _N = (ord(byte) for byte in "\\\t\nN")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}
_UNESCAPE: Bytes = np.zeros(256, np.uint8)
for _letter, _character in _ESCAPED.items():
    _UNESCAPE[ord(_letter)] = ord(_character)
# Unsigned, and for the type checker whole numbers like any.
_NONE, _ONE = (cast(int, np.uint64(number)) for number in (0, 1))
_SLACK = 15  # bytes that a copy in steps of 16 may write behind its end
_KEY_BYTES = 256  # of most keys
_POSITION_MAX = (1 << 31) - 1


@part
def _marks(data: Bytes, data_at: int, base: int) -> int:
    """Which of the 64 bytes from ``base`` on, as far as there are so many, are a tab, a newline or a backslash."""
    if base + 64 <= len(data):
        return marks_64(data_at + base, _TAB, _NEWLINE, _BACKSLASH)
    marks = _NONE
    for at in range(base, len(data)):
        byte = data[at]
        if byte in (_TAB, _NEWLINE, _BACKSLASH):
            marks |= _ONE << (at - base)
    return marks


@part
def _begins_escape(data: Bytes, at: int, begin: int, unescape: Bytes) -> bool:
    """Whether a server writes this backslash, in the cell that begins at ``begin``: for NULL, or for a character."""
    if at + 2 >= len(data):
        return False
    if data[at + 1] == _N:
        return at == begin and (data[at + 2] == _TAB or data[at + 2] == _NEWLINE)
    return bool(unescape[data[at + 1]])


@kernel
def find_cells(data: Bytes, data_at: int, unescape: Bytes, ends: Ints32, sizes: Ints, escapes: Ints) -> bool:
    """Where each cell of each row ends (at its tab or newline), and by column how many bytes are between, and how many
    escapes. ``data_at`` is the address of the data. False when this is not what a server writes in exactly so many
    cells (``ends``)."""
    place, cell, begin, escaped = 0, 0, 0, -1
    for base in range(0, len(data), 64):
        marks = _marks(data, data_at, base)
        while marks:
            at = base + lowest(marks)
            marks &= marks - _ONE
            if at == escaped:  # the second backslash of two
                continue
            if data[at] == _BACKSLASH:
                if not _begins_escape(data, at, begin, unescape):
                    return False
                escapes[place] += 1
                escaped = at + 1
                continue
            is_last = data[at] == _NEWLINE
            if cell >= len(ends) or is_last != (place + 1 == len(sizes)):
                return False
            ends[cell] = at
            sizes[place] += at - begin
            cell += 1
            place = 0 if is_last else place + 1
            begin = at + 1
    return cell == len(ends) and begin == len(data)


@kernel
def copy_column(
    data: Bytes, data_at: int, ends: Ints32, place: int, columns: int, out_at: int, offsets: Ints
) -> None:
    """The bytes of a column without backslashes to the address ``out_at``, where there is room for 15 more than they
    are; ``offsets`` as an Arrow array has them, one more than rows."""
    to = 0
    for row in range(len(offsets) - 1):
        cell = row * columns + place
        begin = ends[cell - 1] + 1 if cell else 0
        size = ends[cell] - begin
        copy_bytes(out_at + to, data_at + begin, size, len(data) - begin)
        to += size
        offsets[row + 1] = to


@kernel
def unescape_column(
    data: Bytes,
    unescape: Bytes,
    ends: Ints32,
    place: int,
    columns: int,
    out: Bytes,
    offsets: Ints,
    valid: Bytes,
) -> int:
    """``copy_column`` for a column with backslashes, which are resolved or mean NULL. Validity bits are those of an
    Arrow array, all 0 before. Returns how many cells are NULL."""
    to, nulls = 0, 0
    for row in range(len(offsets) - 1):
        cell = row * columns + place
        at = ends[cell - 1] + 1 if cell else 0
        end = ends[cell]
        if end - at == 2 and data[at] == _BACKSLASH and data[at + 1] == _N:
            nulls += 1
        else:
            valid[row >> 3] |= np.uint8(1 << (row & 7))
            while at < end:
                byte = data[at]
                if byte == _BACKSLASH:
                    at += 1
                    byte = unescape[data[at]]
                out[to] = byte
                at += 1
                to += 1
        offsets[row + 1] = to
    return nulls


def columns_of(data: Bytes, rows: int, columns: int) -> list[pa.Array] | None:
    """Whole rows as one large binary array per column, null for NULL. None when they are not exactly so many rows of so
    many columns."""
    ends: Ints32 = np.empty(rows * columns, np.int32)
    sizes, escapes = np.zeros(columns, np.int64), np.zeros(columns, np.int64)
    at = data.ctypes.data
    if len(data) > _POSITION_MAX or not find_cells(data, at, _UNESCAPE, ends, sizes, escapes):
        return None
    # As one piece each: from 4 MiB on numpy has the system use large pages.
    room = np.cumsum(sizes + _SLACK)
    texts: Bytes = np.empty(int(room[-1]), np.uint8)
    offsets: NDArray[np.int64] = np.empty((columns, rows + 1), np.int64)
    offsets[:, 0] = 0
    found = []
    for place in range(columns):
        out = texts[room[place] - sizes[place] - _SLACK : room[place]]
        valid, nulls = None, 0
        if escapes[place]:
            bits = np.zeros((rows + 7) >> 3, np.uint8)
            nulls = unescape_column(data, _UNESCAPE, ends, place, columns, out, offsets[place], bits)
            valid = pa.py_buffer(bits) if nulls else None
        else:
            copy_column(data, at, ends, place, columns, out.ctypes.data, offsets[place])
        buffers = [valid, pa.py_buffer(offsets[place]), pa.py_buffer(out[: offsets[place, rows]])]
        found.append(pa.LargeBinaryArray.from_buffers(pa.large_binary(), rows, buffers, nulls))
    return found


def hash_columns(columns: Sequence[pa.Array]) -> pa.Array:
    """``tailrace.eventstore.model.keys.hash_columns``, which is its specification, without Python for each row."""
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
        room = hash_keys(data, cells, first, places, np.empty(room, np.uint8), hashes)
    return pa.array(hashes)
