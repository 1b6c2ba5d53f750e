"""CopyData messages, many at once: libpq is called from compiled code, without the GIL.

psycopg gives one message per call, an object each; with rows of a hundred bytes that took a third of a load's time,
and its threads in turns. Here libpq, the very one that psycopg uses and on its connection, is asked again and again
inside one kernel, and messages are laid end to end. Where its functions are not found, psycopg is used.

Source: PostgreSQL documentation, libpq, "Functions Associated with the COPY Command" (PQgetCopyData) and "Asynchronous
Command Processing" (PQconsumeInput).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import import_module
from itertools import pairwise

import numpy as np
import psycopg
from psycopg import pq

from tailrace.cdc.kernels.rows import Bytes, Ints
from tailrace.eventstore.compiled.compiler import kernel
from tailrace.eventstore.compiled.memory import call, call_3, copy_memory

_FUNCTIONS = ("PQgetCopyData", "PQconsumeInput", "PQfreemem")
_GET, _CONSUME, _FREE = range(3)
# Places in ``state``. PENDING: the size of a message that libpq has given and that had no room, its address in HELD.
_AT, _COUNT, _PENDING, _HELD = range(4)
_STATE_SIZE = 4


class FillResult(IntEnum):
    """Why filling stopped: nothing more has arrived; the inbox is full; the COPY has ended."""

    WAIT = 0
    FULL = 1
    END = 2


_FAILED, _TOO_LARGE = 3, 4
_MESSAGE_BYTES_MIN = 1


@kernel
def _fill(functions: Ints, connection: int, state: Ints, held: int, out: Bytes, ends: Ints, each: int) -> int:
    """Put messages into ``out`` and their ends into ``ends``. ``held`` is the address of ``state[_HELD]``, for
    libpq."""
    consumed = False
    to = out.ctypes.data
    while True:
        size = state[_PENDING]
        if not size:
            size = call_3(functions[_GET], connection, held, 1)
            if size < 0:
                return FillResult.END.value if size == -1 else _FAILED
        if not size:
            if consumed:
                return FillResult.WAIT.value
            if not call(functions[_CONSUME], connection):
                return _FAILED
            consumed = True
            continue
        consumed = False
        at, count = state[_AT], state[_COUNT]
        state[_PENDING] = size
        if count >= len(ends) or at + size > len(out) or at + each * count >= len(out):
            return FillResult.FULL.value if count else _TOO_LARGE
        copy_memory(to + at, state[_HELD], size)
        call(functions[_FREE], state[_HELD])
        state[_PENDING] = 0
        ends[count] = state[_AT] = at + size
        state[_COUNT] = count + 1


@kernel
def _release(functions: Ints, state: Ints) -> None:
    call(functions[_FREE], state[_HELD])
    state[_PENDING] = 0


@dataclass(frozen=True, slots=True)
class Messages:
    """Payloads of CopyData messages, end to end: number i is ``data[ends[i - 1]:ends[i]]``."""

    data: Bytes
    ends: Ints

    def __len__(self) -> int:
        return len(self.ends)

    def each(self) -> Iterator[bytes]:
        for start, end in pairwise([0, *self.ends.tolist()]):
            yield self.data[start:end].tobytes()


class Inbox:
    """The messages of one COPY, up to ``room`` bytes of them at once, where each counts for ``each`` bytes more. A
    message larger than that comes alone.

    Until it is closed nothing else receives from the connection. ``compiled`` False: by psycopg, message by message.
    """

    def __init__(self, pgconn: pq.abc.PGconn, room: int, each: int = 0, *, compiled: bool = True) -> None:
        self._pgconn = pgconn
        self._room, self._each = room, each
        self._functions = functions() if compiled and hasattr(pgconn, "pgconn_ptr") else None
        self._state: Ints = np.zeros(_STATE_SIZE, np.int64)
        self._message = b""  # what psycopg has given and had no room
        self._begin(room)

    def _begin(self, room: int) -> None:
        self._state[_AT] = self._state[_COUNT] = 0
        self._out: Bytes = np.empty(room, np.uint8)
        self._ends: Ints = np.empty(room // (_MESSAGE_BYTES_MIN + self._each) + 1, np.int64)

    def fill(self) -> FillResult:
        """Take in what has arrived; waits for nothing.

        Raises psycopg.OperationalError when the connection is broken; what came before can still be taken."""
        ask = self._ask_psycopg if self._functions is None else self._ask
        status = ask()
        while status == _TOO_LARGE:
            self._begin(int(self._state[_PENDING]))
            status = ask()
        if status == _FAILED:
            raise psycopg.OperationalError(self._pgconn.get_error_message())
        return FillResult(status)

    def take(self) -> Messages:
        """What was received since the last time. The inbox goes on with other memory."""
        messages = Messages(self._out[: self._state[_AT]], self._ends[: self._state[_COUNT]])
        self._begin(self._room)
        return messages

    def close(self) -> None:
        """Free what was not taken."""
        if self._functions is not None and self._state[_PENDING]:
            _release(self._functions, self._state)

    def _ask(self) -> int:
        assert self._functions is not None
        connection: int | None = getattr(self._pgconn, "pgconn_ptr", None)
        if connection is None:
            raise psycopg.OperationalError("the connection is closed")
        held = self._state.ctypes.data + _HELD * self._state.itemsize
        return _fill(self._functions, connection, self._state, held, self._out, self._ends, self._each)

    def _ask_psycopg(self) -> int:
        """What the kernel does, through psycopg."""
        state, consumed = self._state, False
        while True:
            if not self._message:
                size, data = self._pgconn.get_copy_data(1)
                if size < 0:
                    return FillResult.END
                if not size:
                    if consumed:
                        return FillResult.WAIT
                    self._pgconn.consume_input()
                    consumed = True
                    continue
                self._message = bytes(data)
            consumed = False
            at, count, size = int(state[_AT]), int(state[_COUNT]), len(self._message)
            state[_PENDING] = size
            full = count >= len(self._ends) or at + self._each * count >= len(self._out)
            if full or at + size > len(self._out):
                return FillResult.FULL if count else _TOO_LARGE
            self._out[at : at + size] = np.frombuffer(self._message, np.uint8)
            self._message, state[_PENDING] = b"", 0
            self._ends[count] = state[_AT] = at + size
            state[_COUNT] = count + 1


@cache
def functions() -> Ints | None:
    """Addresses of the functions in the libpq that psycopg uses. None where they are not to be had: it may be linked
    into psycopg and hidden there."""
    try:
        library = _library()
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _FUNCTIONS]
        same = library.PQlibVersion() == pq.version()
    except (AttributeError, ImportError, OSError):
        return None
    return np.array(found, np.int64) if same else None


def _library() -> ctypes.CDLL:
    """Names are looked up in psycopg's extension module and what that is linked with, so this libpq is its own."""
    module = sys.modules[pq.PGconn.__module__]
    if pq.__impl__ == "python":
        own: ctypes.CDLL = import_module("psycopg.pq._pq_ctypes").pq
        return own
    return ctypes.CDLL(module.__file__)
