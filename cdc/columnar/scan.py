"""One block's pass of ``kernels.scan``: its state, the room it works in, and errors in words."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailrace.cdc.kernels import rows as kernels
from tailrace.cdc.kernels.rows import Bytes, Cells, Ints, Routes, Rows
from tailrace.cdc.wire import pgoutput
from tailrace.cdc.wire.buffer import HINT
from tailrace.eventstore.errors import ProtocolError
from tailrace.eventstore.model.position import format_lsn

Data = bytes | memoryview
_BLOCK_BYTES_MAX = (1 << 31) - 1  # positions of cells are 32 bits
_CELLS_PER_ROW = 8  # a first guess
_SPARE = 16

_PROBLEMS = {
    kernels.EMPTY: "no message",
    kernels.OUTSIDE: "a row outside of a transaction",
    kernels.NESTED: "transactions do not nest",
    kernels.BEGIN_WRONG: "not a begin",
    kernels.COMMIT_WRONG: "not the commit of this transaction",
    kernels.SHORT: "too short for a row",
    kernels.KIND: "a row of another kind belongs here",
    kernels.UNSENT_OLD: "an unchanged cell in an old row",
    kernels.WIDTH: "the number of cells does not fit its table",
    kernels.BINARY: "a binary cell, though text was asked for",
    kernels.CELL_TAG: "unknown cell tag",
    kernels.KEY_LEFT_OUT: "the server left out a key column",
    kernels.EVENT_LEFT_OUT: "an event with a value left out",
    kernels.NOT_FILLED: "the row does not fill its message",
}


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The rows and cells of one block. ``transactions``: commit LSN, xid, commit time (µs since 2000-01-01) by
    number."""

    data: Bytes
    rows: Rows
    cells: Cells
    transactions: Ints

    def rows_of(self, number: int) -> NDArray[np.intp]:
        """The rows of a route, in commit order."""
        return np.flatnonzero(self.rows.route == number)


class Scan:
    """Passes over the blocks of one connection, one after another; a transaction may go on from block to block."""

    def __init__(self) -> None:
        self._state = np.zeros(kernels.STATE_SIZE, np.int64)
        self.release()

    def release(self) -> None:
        """Forget the block and what was found in it; ``open`` and the transaction's numbers stay."""
        self._block: Data = b""
        self._data = np.zeros(0, np.uint8)
        self._ends = np.zeros(0, np.int64)
        self._make_room(0, 0, 0)

    def begin(self, data: Data, ends: array[int]) -> None:
        """Raises ProtocolError on a block too large for 32-bit positions."""
        if len(data) > _BLOCK_BYTES_MAX:
            raise ProtocolError(f"a block of {len(data)} bytes", hint=HINT)
        self._block = data
        self._data, self._ends = np.frombuffer(data, np.uint8), np.frombuffer(ends, np.int64)
        state = self._state
        state[[kernels.MESSAGE, kernels.ROWS, kernels.CELLS, kernels.TRANSACTIONS]] = 0
        rows = len(ends) + _SPARE
        self._make_room(rows, min(_CELLS_PER_ROW * rows, len(data)) + _SPARE, len(ends) // 2 + 2)
        if self.open:
            self._transactions[:3] = state[[kernels.LSN, kernels.XID, kernels.COMMIT_TS]]
            state[kernels.TRANSACTIONS] = 1
            state[kernels.STAMP] &= (1 << kernels.STAMP_SHIFT) - 1

    def run(self, routes: Routes) -> int:
        """Go on; returns the kernel's status. After ROOM there is more of it."""
        status = kernels.scan(
            self._data, self._ends, self._state, routes, self._rows, self._cells, self._transactions
        )
        if status == kernels.ROOM:
            self._grow(int(routes.widths.max(initial=0)))
        return status

    def next(self) -> None:
        """The message at which the kernel stopped is done."""
        self._state[kernels.MESSAGE] += 1

    @property
    def message(self) -> bytes:
        """The message at which the kernel stopped."""
        at = int(self._state[kernels.MESSAGE])
        return bytes(self._block[int(self._ends[at - 1]) if at else 0 : int(self._ends[at])])

    @property
    def place(self) -> str:
        """Where the kernel stopped, for errors."""
        at = int(self._state[kernels.MESSAGE])
        start = int(self._ends[min(at, len(self._ends)) - 1]) if at and len(self._ends) else 0
        return f"message {at} at byte {start} of a block, commit LSN {format_lsn(self.lsn)}"

    @property
    def relid(self) -> int:
        return int.from_bytes(self.message[1:5], "big")

    @property
    def open(self) -> bool:
        return bool(self._state[kernels.OPEN])

    @property
    def lsn(self) -> int:
        return int(self._state[kernels.LSN])

    @property
    def xid(self) -> int:
        return int(self._state[kernels.XID])

    @property
    def commit_ts(self) -> int:
        """µs since 2000-01-01 UTC."""
        return int(self._state[kernels.COMMIT_TS])

    @property
    def ordinal(self) -> int:
        return int(self._state[kernels.STAMP]) & ((1 << kernels.STAMP_SHIFT) - 1)

    def next_stamp(self) -> int:
        stamp = int(self._state[kernels.STAMP])
        self._state[kernels.STAMP] += 1
        return stamp

    def skip_ordinals(self, count: int) -> None:
        """They belong to rows that are stored undecoded."""
        self._state[kernels.STAMP] += count

    def set_ordinal(self, ordinal: int) -> None:
        """Set the ordinal of the next row of this transaction."""
        self._state[kernels.STAMP] += ordinal - self.ordinal

    def save(self) -> NDArray[np.int64]:
        """Where it is between two blocks, for ``restore``."""
        return self._state.copy()

    def restore(self, saved: NDArray[np.int64]) -> None:
        self._state[:] = saved

    def add_truncate(self, route: int) -> None:
        at = int(self._state[kernels.ROWS])
        if at == len(self._rows.op):
            self._grow(0)
        rows = self._rows
        rows.route[at], rows.op[at], rows.known[at] = route, kernels.TRUNCATE, kernels.BEFORE_NONE
        rows.stamp[at], rows.first[at], rows.old[at] = self.next_stamp(), -1, -1
        self._state[kernels.ROWS] += 1

    def result(self) -> ScanResult:
        rows = int(self._state[kernels.ROWS])
        count = int(self._state[kernels.TRANSACTIONS])
        return ScanResult(
            self._data,
            _slice(self._rows, rows),
            self._cells,
            self._transactions[: 3 * count].reshape(count, 3),
        )

    def error(self, status: int) -> ProtocolError:
        """What is wrong with the message: the reference decoder's error, or the rule of ours that it breaks."""
        message = self.message
        try:
            pgoutput.decode(message)
        except ProtocolError as error:
            return error
        at = int(self._state[kernels.MESSAGE])
        return ProtocolError(f"pgoutput message {message[:1]!r}, number {at}: {_PROBLEMS[status]}", hint=HINT)

    def _make_room(self, rows: int, cells: int, transactions: int) -> None:
        """Untouched room costs nothing: the system gives memory when it is written to."""
        self._rows = Rows(
            route=np.empty(rows, np.int32),
            op=np.empty(rows, np.uint8),
            known=np.empty(rows, np.uint8),
            stamp=np.empty(rows, np.int64),
            first=np.empty(rows, np.int32),
            old=np.empty(rows, np.int32),
        )
        self._cells = Cells(np.empty(cells, np.int32), np.empty(cells, np.int32))
        self._transactions = np.empty(3 * transactions, np.int64)

    def _grow(self, width: int) -> None:
        rows, cells, transactions = self._rows, self._cells, self._transactions
        used = [int(self._state[place]) for place in (kernels.ROWS, kernels.CELLS, kernels.TRANSACTIONS)]
        self._make_room(
            _more(len(rows.op), used[0] + 2),
            _more(len(cells.size), used[1] + 2 * width),
            _more(len(transactions) // 3, used[2] + 1),
        )
        before: list[NDArray[Any]] = [*rows, *cells, transactions]
        after: list[NDArray[Any]] = [*self._rows, *self._cells, self._transactions]
        for old, new in zip(before, after, strict=True):
            new[: len(old)] = old


def _more(size: int, needed: int) -> int:
    """Double what does not suffice."""
    return size if needed <= size else max(2 * size, needed) + _SPARE


def _slice(rows: Rows, count: int) -> Rows:
    columns: Any = [column[:count] for column in rows]
    return Rows(*columns)
