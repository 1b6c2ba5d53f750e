"""CopyData messages, many at once: libpq is called from compiled code, without the GIL.

psycopg gives one message per call, an object each; with rows of a hundred bytes that took a third of a load's time,
and its threads in turns. Here libpq, the very one that psycopg uses and on its connection, is called by
``tailrace.cdc.kernels.copy_data``. Where its functions are not found, psycopg is used.
"""

from __future__ import annotations

import ctypes
import sys
from enum import IntEnum
from functools import cache
from importlib import import_module

import numpy as np
import psycopg
from psycopg import pq

from tailrace.cdc.kernels import copy_data as kernels
from tailrace.cdc.kernels.rows import Bytes, Ints
from tailrace.cdc.wire.copy_data import Messages
from tailrace.cdc.wire.replication import without_long_message

_FUNCTIONS = ("PQgetCopyData", "PQconsumeInput", "PQfreemem")
_MESSAGE_BYTES_MIN = 1
_ANY_LENGTH = 1 << 62


class FillResult(IntEnum):
    """Why filling stopped: nothing more has arrived; the inbox is full; the COPY has ended."""

    WAIT = kernels.WAIT
    FULL = kernels.FULL
    END = kernels.END


class Inbox:
    """The messages of one COPY, up to ``room`` bytes of them at once, where each counts for ``each`` bytes more. A
    message larger than that comes alone. Of logical messages in a replication stream that are longer than ``longest``
    nothing is kept (``without_long_message``).

    Until it is closed nothing else receives from the connection. ``compiled`` False: by psycopg, message by message.
    """

    def __init__(
        self,
        pgconn: pq.abc.PGconn,
        room: int,
        each: int = 0,
        *,
        longest: int = _ANY_LENGTH,
        compiled: bool = True,
    ) -> None:
        self._pgconn = pgconn
        self._room, self._each, self._longest = room, each, longest
        self._functions = functions() if compiled and hasattr(pgconn, "pgconn_ptr") else None
        self._state: Ints = np.zeros(kernels.STATE_SIZE, np.int64)
        self._head: Bytes = np.zeros(kernels.HEAD, np.uint8)
        self._message = b""  # what psycopg has given and had no room
        self._begin(room)

    def _begin(self, room: int) -> None:
        self._state[kernels.AT] = self._state[kernels.COUNT] = 0
        self._out: Bytes = np.empty(room, np.uint8)
        # A message that needs more room than that comes alone: of 1 GiB, room for as many ends would be 8 GiB.
        self._ends: Ints = np.empty(self._room // (_MESSAGE_BYTES_MIN + self._each) + 1, np.int64)

    def fill(self) -> FillResult:
        """Take in what has arrived; waits for nothing.

        Raises psycopg.OperationalError when the connection is broken; what came before can still be taken."""
        ask = self._ask_psycopg if self._functions is None else self._ask
        status = ask()
        while status == kernels.TOO_LARGE:
            self._begin(int(self._state[kernels.PENDING]))
            status = ask()
        if status == kernels.FAILED:
            raise psycopg.OperationalError(self._pgconn.get_error_message())
        return FillResult(status)

    def take(self, *, reuse: bool = False) -> Messages:
        """What was received since the last time. The inbox goes on with other memory, or, to ``reuse`` it while it is
        near to the processor, with this: then the next ``fill`` overwrites what was taken."""
        state = self._state
        messages = Messages(self._out[: state[kernels.AT]], self._ends[: state[kernels.COUNT]])
        if reuse and len(self._out) == self._room:
            state[kernels.AT] = state[kernels.COUNT] = 0
        else:
            self._begin(self._room)
        return messages

    def take_emptied(self) -> int:
        """Of how many long logical messages nothing was kept since the last time."""
        emptied = int(self._state[kernels.EMPTIED])
        self._state[kernels.EMPTIED] = 0
        return emptied

    def close(self) -> None:
        """Free what was not taken."""
        if self._functions is not None and self._state[kernels.PENDING]:
            kernels.release(self._functions, self._state)

    def _ask(self) -> int:
        assert self._functions is not None
        connection: int | None = getattr(self._pgconn, "pgconn_ptr", None)
        if connection is None:
            raise psycopg.OperationalError("the connection is closed")
        return kernels.fill(
            self._functions,
            connection,
            self._state,
            self._out,
            self._ends,
            self._each,
            self._longest,
            self._head,
        )

    def _ask_psycopg(self) -> int:
        """What the kernel does, through psycopg."""
        state, consumed = self._state, False
        while True:
            if not self._message:
                size, data = self._pgconn.get_copy_data(1)
                if size < 0:
                    return kernels.END
                if not size:
                    if consumed:
                        return kernels.WAIT
                    self._pgconn.consume_input()
                    consumed = True
                    continue
                empty = without_long_message(data, self._longest) if size > self._longest else None
                state[kernels.EMPTIED] += empty is not None
                self._message = empty or bytes(data)
            consumed = False
            at, count, size = int(state[kernels.AT]), int(state[kernels.COUNT]), len(self._message)
            state[kernels.PENDING] = size
            full = count >= len(self._ends) or at + self._each * count >= len(self._out)
            if full or at + size > len(self._out):
                return kernels.FULL if count else kernels.TOO_LARGE
            self._out[at : at + size] = np.frombuffer(self._message, np.uint8)
            self._message, state[kernels.PENDING] = b"", 0
            self._ends[count] = state[kernels.AT] = at + size
            state[kernels.COUNT] = count + 1


def prepare() -> None:
    """Load the kernel from the cache or compile it now. libpq takes a connection of 0 for a failure."""
    if (found := functions()) is not None:
        none, state = np.zeros(0, np.uint8), np.zeros(kernels.STATE_SIZE, np.int64)
        kernels.fill(found, 0, state, none, state, 0, _ANY_LENGTH, none)


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
