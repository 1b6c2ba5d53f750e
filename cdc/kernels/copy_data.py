"""libpq is asked for CopyData messages again and again within one kernel, and they are laid end to end.

Source: PostgreSQL documentation, libpq, "Functions Associated with the COPY Command" (PQgetCopyData) and "Asynchronous
Command Processing" (PQconsumeInput)."""

from __future__ import annotations

from tailrace.cdc.kernels.rows import Bytes, Ints
from tailrace.eventstore.compiled.compiler import kernel
from tailrace.eventstore.compiled.memory import call, call_3, copy_memory

GET, CONSUME, FREE = range(3)  # places in ``functions``: PQgetCopyData, PQconsumeInput, PQfreemem
# Places in ``state``. PENDING: the size of a message that libpq has given and that had no room, its address in HELD.
# EMPTIED: how many long logical messages were left empty.
AT, COUNT, PENDING, HELD, EMPTIED = range(5)
STATE_SIZE, _INT_BYTES = 5, 8
HEAD = 26  # bytes of an XLogData frame in front of what its message says
EMPTY = HEAD + 18  # of a frame with a logical message that says nothing: tailrace.cdc.wire.replication

# Why ``fill`` returned: nothing more has arrived; ``out`` is full; the COPY has ended; libpq has an error; the first
# message alone has no room.
WAIT, FULL, END, FAILED, TOO_LARGE = range(5)

_XLOGDATA, _MESSAGE = ord("w"), ord("M")


@kernel
def fill(
    functions: Ints,
    connection: int,
    state: Ints,
    out: Bytes,
    ends: Ints,
    each: int,
    longest: int,
    head: Bytes,
) -> int:
    """Put messages into ``out``, where each counts for ``each`` bytes more, and their ends into ``ends``. Of logical
    messages longer than ``longest`` nothing is kept; ``head`` has room for HEAD bytes."""
    consumed = False
    to, held = out.ctypes.data, state.ctypes.data + HELD * _INT_BYTES
    while True:
        size = state[PENDING]
        if not size:
            size = call_3(functions[GET], connection, held, 1)
            if size < 0:
                return END if size == -1 else FAILED
        if not size:
            if consumed:
                return WAIT
            if not call(functions[CONSUME], connection):
                return FAILED
            consumed = True
            continue
        consumed = False
        at, count, kept = state[AT], state[COUNT], size
        state[PENDING] = size
        if size > longest and size > HEAD:
            copy_memory(head.ctypes.data, state[HELD], HEAD)
            if head[0] == _XLOGDATA and head[HEAD - 1] == _MESSAGE:
                kept = EMPTY
        if count >= len(ends) or at + kept > len(out) or at + each * count >= len(out):
            return FULL if count else TOO_LARGE
        if kept == size:
            copy_memory(to + at, state[HELD], size)
        else:
            copy_memory(to + at, head.ctypes.data, HEAD)
            for byte in range(at + HEAD, at + EMPTY):
                out[byte] = 0
            state[EMPTIED] += 1
        call(functions[FREE], state[HELD])
        state[PENDING] = 0
        ends[count] = state[AT] = at + kept
        state[COUNT] = count + 1


@kernel
def release(functions: Ints, state: Ints) -> None:
    """Free the message that is held."""
    call(functions[FREE], state[HELD])
    state[PENDING] = 0
