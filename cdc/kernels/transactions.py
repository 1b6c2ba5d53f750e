"""The kernel of ``tailrace.cdc.stream.assemble``: it takes the frequent messages without Python for each.

    mode      message                                  effect                        mode after it
    IDLE      Begin of a transaction not in the log    kept                          OPEN
    OPEN      Insert, Update, Delete                   kept and counted              OPEN
    OPEN      Commit of the open transaction           kept; transactions end here   IDLE
    SKIPPING  Insert, Update, Delete                   dropped                       SKIPPING

In front of anything else it stops. What is allowed when is thus said in one place: the table in ``assemble``.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.cdc.kernels.rows import Bytes, Ints
from tailrace.eventstore.compiled.compiler import kernel, part
from tailrace.eventstore.compiled.memory import copy_bytes

IDLE, OPEN, SKIPPING = range(3)  # modes
# Places in ``state``: the next frame and the mode; what is gathered; the part of it that is whole transactions; the
# transaction begun last; the one committed last; whether a part of the open one was handed out.
AT, MODE = range(2)
SIZE, MESSAGES, CHANGES, CELLS, TRANSACTIONS, GATHERED = range(2, 8)
WHOLE_SIZE, WHOLE_MESSAGES, WHOLE_CHANGES, WHOLE_CELLS = range(8, 12)
XID, BEGIN_LSN, BEGIN_TS = range(12, 15)
COMMIT_LSN, END_LSN, COMMIT_TS = range(15, 18)
SPILLED = 18
STATE_SIZE = 19

# Why ``take`` returned: all frames taken; this frame is for the caller; no room in ``out``; an epoch is full.
DONE, OTHER, ROOM, DUE = range(4)


class Limits(NamedTuple):
    """When an epoch is full, and up to which commit LSN the log has everything."""

    size: int
    changes: int
    cells: int
    skip_through: int


HEADER = 25  # of an XLogData frame
_XLOGDATA, _B, _C, _I, _U, _D, _N = (ord(tag) for tag in "wBCIUDN")
_BEGIN_SIZE, _COMMIT_SIZE, _ROW_SIZE_MIN = 21, 26, 8


@part
def _int64(data: Bytes, at: int) -> int:
    value = 0
    for byte in range(8):
        value = value << 8 | int(data[at + byte])
    return value


@part
def _cells(data: Bytes, at: int, size: int) -> int:
    """How many cells an insert, update or delete has, as its first tuple says. The decoder checks that number."""
    if size < _ROW_SIZE_MIN:
        return 0
    count = int(data[at + 6]) << 8 | int(data[at + 7])
    return count * 2 if data[at] == _U and data[at + 5] != _N else count


def cells_of(message: bytes) -> int:
    """The same for one message in Python; 0 for other kinds."""
    if message[0] not in (_I, _U, _D) or len(message) < _ROW_SIZE_MIN:
        return 0
    return int.from_bytes(message[6:8], "big") << (message[0] == _U and message[5] != _N)


@part
def _begins(chunk: Bytes, at: int, size: int, state: Ints, skip_through: int) -> bool:
    """Whether this is the Begin of a transaction to keep; then it is open."""
    if state[MODE] != IDLE or size != _BEGIN_SIZE or chunk[at + 1] > 127:
        return False
    lsn = _int64(chunk, at + 1)
    if lsn <= state[COMMIT_LSN] or lsn <= skip_through:
        return False
    state[BEGIN_LSN], state[BEGIN_TS] = lsn, _int64(chunk, at + 9)
    xid = 0
    for byte in range(17, 21):
        xid = xid << 8 | int(chunk[at + byte])
    state[XID], state[MODE] = xid, OPEN
    return True


@part
def _commits(chunk: Bytes, at: int, size: int, state: Ints) -> bool:
    """Whether this is the Commit of the open transaction; the caller closes it."""
    if state[MODE] != OPEN or size != _COMMIT_SIZE or chunk[at + 1] or chunk[at + 10] > 127:
        return False
    end_lsn = _int64(chunk, at + 10)
    if _int64(chunk, at + 2) != state[BEGIN_LSN] or end_lsn <= state[BEGIN_LSN]:
        return False
    state[COMMIT_LSN], state[END_LSN] = state[BEGIN_LSN], end_lsn
    state[COMMIT_TS] = _int64(chunk, at + 18)
    return True


@kernel
def take(chunk: Bytes, ends: Ints, state: Ints, limits: Limits, out: Bytes, out_ends: Ints) -> int:
    """Take frames from number ``state[AT]`` on; returns why it stopped there: DONE, OTHER, ROOM or DUE.

    Frame i is ``chunk[ends[i - 1]:ends[i]]``. The caller checks that ``ends`` rise and end with the chunk.
    """
    start = ends[state[AT] - 1] if state[AT] else 0
    while state[AT] < len(ends):
        at, end = start + HEADER, ends[state[AT]]
        size = end - at
        if size <= 0 or chunk[start] != _XLOGDATA:
            return OTHER
        if state[SIZE] + size > len(out) or state[MESSAGES] >= len(out_ends):
            return ROOM
        tag = chunk[at]
        change = tag in (_I, _U, _D)
        if change and state[MODE] == SKIPPING:
            state[AT] += 1
            start = end
            continue
        if change:
            if state[MODE] != OPEN:
                return OTHER
            state[CHANGES] += 1
            state[CELLS] += _cells(chunk, at, size)
        elif tag == _B:
            if not _begins(chunk, at, size, state, limits.skip_through):
                return OTHER
        elif tag != _C or not _commits(chunk, at, size, state):
            return OTHER
        to = state[SIZE]
        spare = min(len(chunk) - at, len(out) - to)
        copy_bytes(out.ctypes.data + to, chunk.ctypes.data + at, size, spare)
        state[SIZE] = to + size
        out_ends[state[MESSAGES]] = to + size
        state[MESSAGES] += 1
        if tag == _C:
            state[MODE], state[SPILLED] = IDLE, 0
            state[TRANSACTIONS] += 1
            state[GATHERED] += 1
            state[WHOLE_SIZE], state[WHOLE_MESSAGES] = state[SIZE], state[MESSAGES]
            state[WHOLE_CHANGES], state[WHOLE_CELLS] = state[CHANGES], state[CELLS]
        state[AT] += 1
        start = end
        whole = state[TRANSACTIONS] > 0 and (
            state[WHOLE_SIZE] >= limits.size
            or state[WHOLE_CHANGES] >= limits.changes
            or state[WHOLE_CELLS] >= limits.cells
        )
        large = state[MODE] == OPEN and (
            state[SIZE] - state[WHOLE_SIZE] >= limits.size
            or state[CHANGES] - state[WHOLE_CHANGES] >= limits.changes
            or state[CELLS] - state[WHOLE_CELLS] >= limits.cells
        )
        if whole or large:
            return DUE
    return DONE
