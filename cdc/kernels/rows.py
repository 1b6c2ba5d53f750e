"""Kernels over raw messages: ``scan`` finds every row and cell of a block, the others collect columns from them.

``scan`` goes from message to message:

    outside a transaction   Begin: inside.   Commit: NESTED.   A row: OUTSIDE.
    inside                  Commit: outside. Begin: NESTED.    A row: one or two rows and their cells are noted.

It pauses at a message that it leaves to the caller (OTHER), at a table that has no route yet (ROUTE) and when it needs
room (ROOM), and goes on when it is called again. Every other status is an error, which the caller puts into words.
``state`` carries the pass on, also from block to block.

``tailrace.cdc.wire.pgoutput`` is the specification. Arrays are accessed without bounds checks, so every field is
compared with the end of its message before it is read.

``Rows`` is a table of arrays, ``Cells`` another; a row names its first cell. A cell is (where its text
begins, its size); the size is NULL or UNSENT when there is no text."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.eventstore.compiled.compiler import kernel, part
from tailrace.eventstore.compiled.memory import copy_bytes

Bytes = NDArray[np.uint8]
Ints32 = NDArray[np.int32]
Ints = NDArray[np.int64]

NULL, UNSENT = -1, -2  # sizes of cells without a text

# Places in ``state``: the next message; how many rows, cells and transactions are noted; whether a transaction is open,
# its numbers, and the stamp of its next row.
MESSAGE, ROWS, CELLS, TRANSACTIONS, OPEN, LSN, XID, COMMIT_TS, STAMP = range(9)
STATE_SIZE = 9

# Why ``scan`` returned. Up to ROOM it can go on.
DONE, OTHER, ROUTE, ROOM = range(4)
EMPTY, OUTSIDE, NESTED, BEGIN_WRONG, COMMIT_WRONG, SHORT, KIND, UNSENT_OLD, WIDTH, BINARY, CELL_TAG = range(
    4, 15
)
KEY_LEFT_OUT, EVENT_LEFT_OUT, NOT_FILLED = range(15, 18)

# Kinds of routes. Events are insert-only: their updates and deletes are counted.
TABLE, EVENTS, IGNORED = range(3)
# Places in ``counts``, per route.
COUNT_IGNORED, COUNT_UPDATED, COUNT_DELETED, COUNT_UNSENT, COUNTS = range(5)

# Operations: numbers in ``rows.OPS``.
CREATE, UPDATE, DELETE, TRUNCATE, MESSAGE_OP = 1, 2, 3, 4, 5
# What is known of a row's old image; MOVED: it is the old key, on the create half of a key change.
BEFORE_NONE, BEFORE_KEY, BEFORE_FULL, BEFORE_MOVED = range(4)

STAMP_SHIFT = 40  # a stamp is the transaction's number in the block and, below, the ordinal of the row in it

_B, _C, _I, _U, _D, _K, _N, _O = (ord(tag) for tag in "BCIUDKNO")
_TEXT, _NULL_TAG, _UNSENT_TAG, _BINARY_TAG = (ord(tag) for tag in "tnub")
_BEGIN_SIZE, _COMMIT_SIZE, _ROW_SIZE_MIN = 21, 26, 8


@part
def _uint16(data: Bytes, at: int) -> int:
    return int(np.int64(data[at]) << 8 | np.int64(data[at + 1]))


@part
def _uint32(data: Bytes, at: int) -> int:
    return int(
        np.int64(data[at]) << 24
        | np.int64(data[at + 1]) << 16
        | np.int64(data[at + 2]) << 8
        | np.int64(data[at + 3])
    )


@part
def _int64(data: Bytes, at: int) -> int:
    return _uint32(data, at) << 32 | _uint32(data, at + 4)


@part
def _find(relids: Ints, relid: int) -> int:
    """The place of a number in a sorted array, or -1."""
    low, high = 0, len(relids)
    while low < high:
        middle = (low + high) >> 1
        if relids[middle] < relid:
            low = middle + 1
        else:
            high = middle
    return low if low < len(relids) and relids[low] == relid else -1


class Routes(NamedTuple):
    """Where the rows of each table go. ``relids`` (sorted) are table oids and ``numbers`` their routes; the rest is by
    route: its kind, how many cells a row has, where its key's places end in ``key_places``, and counters."""

    relids: Ints
    numbers: Ints32
    kinds: Bytes
    widths: Ints32
    key_ends: Ints32
    key_places: Ints32
    counts: Ints


class Rows(NamedTuple):
    """The rows of a block: route, operation, what is known of the old row, stamp, first cell of the row, and first cell
    of its old row (-1: none). The row of a delete is its old one."""

    route: Ints32
    op: Bytes
    known: Bytes
    stamp: Ints
    first: Ints32
    old: Ints32


class Cells(NamedTuple):
    """The cells of a block: where their text begins, and its size, NULL or UNSENT."""

    at: Ints32
    size: Ints32


@part
def _tuple(data: Bytes, at: int, end: int, width: int, cells: Cells, first: int) -> tuple[int, int, int]:
    """One tuple: (status, where it ends, cells not sent). With ``width`` -1 any width is taken and nothing stored."""
    if end - at < 2:
        return SHORT, at, 0
    count = _uint16(data, at)
    at += 2
    if width >= 0 and count != width:
        return WIDTH, at, 0
    unsent = 0
    for number in range(count):
        if at >= end:
            return SHORT, at, 0
        tag = data[at]
        at += 1
        begin, size = at, NULL
        if tag == _TEXT:
            if end - at < 4:
                return SHORT, at, 0
            size = _uint32(data, at)
            begin = at + 4
            if size > end - begin:
                return SHORT, at, 0
            at = begin + size
        elif tag == _UNSENT_TAG:
            size = UNSENT
            unsent += 1
        elif tag == _BINARY_TAG:
            return BINARY, at, 0
        elif tag != _NULL_TAG:
            return CELL_TAG, at, 0
        if width >= 0:
            cells.at[first + number] = begin
            cells.size[first + number] = size
    return DONE, at, unsent


@part
def _old_and_new(
    data: Bytes, start: int, end: int, width: int, cells: Cells, free: int
) -> tuple[int, int, int, int, int]:
    """An insert, update or delete taken apart into cells from ``free`` on: (status, what is known of its old row, first
    cell of the old row, first cell of the new one, cells of the new row not sent); -1 where there is no such row."""
    tag, kind, at = data[start], data[start + 5], start + 6
    known, old, new, unsent = BEFORE_NONE, -1, -1, 0
    old_width = -1
    if tag != _I and kind in (_K, _O):
        known, old, begin = BEFORE_KEY if kind == _K else BEFORE_FULL, free, at
        status, at, unsent = _tuple(data, at, end, width, cells, old)
        if status != DONE:
            return status, known, old, new, unsent
        if unsent:
            return UNSENT_OLD, known, old, new, unsent
        old_width = _uint16(data, begin)
        if tag == _U:
            if at >= end:
                return SHORT, known, old, new, unsent
            kind = data[at]
            at += 1
    elif tag == _D:
        return KIND, known, old, new, unsent
    if tag != _D:
        if kind != _N:
            return KIND, known, old, new, unsent
        new, begin = free + width if old >= 0 else free, at
        status, at, unsent = _tuple(data, at, end, width, cells, new)
        if status != DONE:
            return status, known, old, new, unsent
        if old_width >= 0 and _uint16(data, begin) != old_width:
            return WIDTH, known, old, new, unsent
    if at != end:
        return NOT_FILLED, known, old, new, unsent
    return DONE, known, old, new, unsent


@part
def _fill(cells: Cells, old: int, new: int, width: int, keys: Ints32, known: int) -> int:
    """Cells of an update that were not sent, from its old row as far as that is known: all of it, or the key. Returns
    how many are still missing."""
    for number in range(width if known == BEFORE_FULL else len(keys)):
        place = number if known == BEFORE_FULL else keys[number]
        if cells.size[new + place] == UNSENT:
            cells.at[new + place] = cells.at[old + place]
            cells.size[new + place] = cells.size[old + place]
    unsent = 0
    for place in range(width):
        unsent += cells.size[new + place] == UNSENT
    return unsent


@part
def _same_key(data: Bytes, cells: Cells, old: int, new: int, keys: Ints32) -> bool:
    for number in range(len(keys)):
        one, other = old + keys[number], new + keys[number]
        size = cells.size[one]
        if size != cells.size[other]:
            return False
        for byte in range(size):
            if data[cells.at[one] + byte] != data[cells.at[other] + byte]:
                return False
    return True


@part
def _add(rows: Rows, state: Ints, route: int, op: int, known: int, first: int, old: int) -> None:
    row = state[ROWS]
    rows.route[row], rows.op[row], rows.known[row] = route, op, known
    rows.stamp[row], rows.first[row], rows.old[row] = state[STAMP], first, old
    state[ROWS] += 1
    state[STAMP] += 1


@part
def _change(data: Bytes, start: int, end: int, state: Ints, routes: Routes, rows: Rows, cells: Cells) -> int:
    """One insert, update or delete. Nothing of it is stored unless the status is DONE."""
    tag = data[start]
    if not state[OPEN]:
        return OUTSIDE
    if end - start < _ROW_SIZE_MIN:
        return SHORT
    found = _find(routes.relids, _uint32(data, start + 1))
    if found < 0:
        return ROUTE
    route = routes.numbers[found]
    kind, width, free = routes.kinds[route], int(routes.widths[route]), state[CELLS]
    if state[ROWS] + 2 > len(rows.op) or free + 2 * width > len(cells.size):
        return ROOM
    status, known, old, new, unsent = _old_and_new(
        data, start, end, -1 if kind == IGNORED else width, cells, free
    )
    if status != DONE:
        return status
    if kind == IGNORED:
        routes.counts[route * COUNTS + COUNT_IGNORED] += 1
        return DONE
    if kind == EVENTS and tag != _I:
        routes.counts[route * COUNTS + (COUNT_UPDATED if tag == _U else COUNT_DELETED)] += 1
        return DONE
    if kind == EVENTS and unsent:
        return EVENT_LEFT_OUT
    keys = routes.key_places[routes.key_ends[route - 1] if route else 0 : routes.key_ends[route]]
    if old >= 0 and unsent:
        unsent = _fill(cells, old, new, width, keys, known)
    if unsent:
        for number in range(len(keys)):
            if cells.size[new + keys[number]] == UNSENT:
                return KEY_LEFT_OUT
        routes.counts[route * COUNTS + COUNT_UNSENT] += 1
    if new < 0:
        _add(rows, state, route, DELETE, known, old, old)
    elif old >= 0 and not _same_key(data, cells, old, new, keys):
        _add(rows, state, route, DELETE, known, old, old)
        _add(rows, state, route, CREATE, BEFORE_MOVED, new, old)
    else:
        _add(rows, state, route, CREATE if tag == _I else UPDATE, known, new, old)
    state[CELLS] = free + (2 * width if old >= 0 and new >= 0 else width)
    return DONE


@part
def _begin(data: Bytes, start: int, end: int, state: Ints, transactions: Ints) -> int:
    number = state[TRANSACTIONS]
    if state[OPEN]:
        return NESTED
    if 3 * number + 3 > len(transactions):
        return ROOM
    if end - start != _BEGIN_SIZE or data[start + 1] > 127:
        return BEGIN_WRONG
    state[LSN] = transactions[3 * number] = _int64(data, start + 1)
    state[COMMIT_TS] = transactions[3 * number + 2] = _int64(data, start + 9)
    state[XID] = transactions[3 * number + 1] = _uint32(data, start + 17)
    state[STAMP] = number << STAMP_SHIFT
    state[TRANSACTIONS] = number + 1
    state[OPEN] = 1
    return DONE


@part
def _commit(data: Bytes, start: int, end: int, state: Ints) -> int:
    if not state[OPEN]:
        return NESTED
    if end - start != _COMMIT_SIZE or data[start + 1] != 0 or _int64(data, start + 2) != state[LSN]:
        return COMMIT_WRONG
    state[OPEN] = 0
    return DONE


@kernel
def scan(
    data: Bytes,
    ends: Ints,
    state: Ints,
    routes: Routes,
    rows: Rows,
    cells: Cells,
    transactions: Ints,
) -> int:
    """Go through messages from ``state[MESSAGE]`` on; returns why it stopped there.

    ``transactions`` has three numbers each: commit LSN, xid, commit time. After ROOM the caller makes room for at least
    two rows, two tuples of the widest table and one transaction.
    """
    start = ends[state[MESSAGE] - 1] if state[MESSAGE] else 0
    while state[MESSAGE] < len(ends):
        end = ends[state[MESSAGE]]
        if end <= start or end > len(data):
            return EMPTY
        tag = data[start]
        if tag in (_I, _U, _D):
            status = _change(data, start, end, state, routes, rows, cells)
        elif tag == _B:
            status = _begin(data, start, end, state, transactions)
        elif tag == _C:
            status = _commit(data, start, end, state)
        else:
            status = OTHER
        if status != DONE:
            return status
        start = end
        state[MESSAGE] += 1
    return DONE


@kernel
def measure(cells: Cells, first: Ints32, place: int, offsets: Ints32, valid: Bytes) -> int:
    """Offsets and validity bits of one column of the rows whose cells begin at ``first`` (-1: NULL), as an Arrow binary
    array has them: one offset more than rows, one bit a row, all zero before. Returns how many are NULL."""
    total, nulls = 0, 0
    for row in range(len(first)):
        offsets[row] = total
        size = cells.size[first[row] + place] if first[row] >= 0 else NULL
        if size >= 0:
            total += size
            valid[row >> 3] |= np.uint8(1 << (row & 7))
        else:
            nulls += 1
    offsets[len(first)] = total
    return nulls


@kernel
def copy(data: Bytes, cells: Cells, first: Ints32, place: int, offsets: Ints32, out: Bytes) -> None:
    """The bytes of the column that ``measure`` measured."""
    for row in range(len(first)):
        size = offsets[row + 1] - offsets[row]
        if size > 0:
            begin, to = cells.at[first[row] + place], offsets[row]
            spare = min(len(data) - begin, len(out) - to)
            copy_bytes(out.ctypes.data + to, data.ctypes.data + begin, size, spare)


@kernel
def count_unsent(cells: Cells, first: Ints32, width: int, offsets: Ints32) -> int:
    """How many cells were not sent, up to each row; one offset more than rows. Returns how many in all."""
    total = 0
    for row in range(len(first)):
        offsets[row] = total
        if first[row] >= 0:
            for place in range(width):
                total += cells.size[first[row] + place] == UNSENT
    offsets[len(first)] = total
    return total


@kernel
def find_unsent(cells: Cells, first: Ints32, width: int, places: Ints32) -> None:
    """The places of the cells that ``count_unsent`` counted."""
    total = 0
    for row in range(len(first)):
        if first[row] >= 0:
            for place in range(width):
                if cells.size[first[row] + place] == UNSENT:
                    places[total] = place
                    total += 1
