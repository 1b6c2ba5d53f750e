"""Frames become whole transactions, and these become blocks: when an epoch may be cut, and what is inside.

A table of (state, message) on three states:

    idle      between transactions
    open      inside one that is kept
    skipping  inside one that the log already has (sent again after a reconnect): its Relation and Type messages are
              kept, for the server sends them once per connection; everything else is dropped

Blocks hold whole transactions. The exception is a transaction larger than a block may be: ``spill`` hands out the part
of it that has come, to be written to files that are registered at its commit. Relation and Type messages outside of
kept transactions are as many as the source has tables: when they reach a block's size they are cut too, as a block
of no transaction. Only tags, Begin and Commit are parsed here; ``tailrace.cdc.columnar.decode`` does the rest.

``feed`` takes one message and is the rule; ``take`` takes many frames at once, the frequent ones by a kernel.
"""

from __future__ import annotations

import struct
from array import array
from enum import Enum

import numpy as np

from tailrace.cdc.kernels import transactions
from tailrace.cdc.kernels.rows import Bytes, Ints
from tailrace.cdc.wire import authentic
from tailrace.cdc.wire.block import Data, FrameBlock, PartialBlock
from tailrace.cdc.wire.buffer import HINT
from tailrace.cdc.wire.copy_data import Messages
from tailrace.cdc.wire.replication import moment
from tailrace.eventstore.errors import ProtocolError
from tailrace.eventstore.model.position import format_lsn

_ROOM_BYTES = 1 << 20  # to gather in, at first
_LSN_MAX = (1 << 63) - 1
# Each cell costs the decoder some 20 bytes, a NULL of one byte in the stream too: what bounds bytes and rows would let
# a table of hundreds of empty columns take gigabytes.
BLOCK_CELLS = 2_000_000
BLOCK_BYTES_MAX = 512 << 20  # a block's columns must stay below Arrow's 2 GiB per string column

_BEGIN = struct.Struct(">cQqI")
_COMMIT = struct.Struct(">cBQQq")


class AssemblyState(Enum):
    IDLE = "idle"
    OPEN = "open"
    SKIPPING = "skipping"


class Action(Enum):
    BEGIN = "begin"
    COMMIT = "commit"
    KEEP = "keep"
    COUNT = "keep and count as a change"
    DROP = "drop"
    MESSAGE = "keep and count when transactional, else drop"


_OUTSIDE = {"B": Action.BEGIN, "R": Action.KEEP, "Y": Action.KEEP, "M": Action.MESSAGE, "A": Action.DROP}
_INSIDE = {
    "C": Action.COMMIT,
    "R": Action.KEEP,
    "Y": Action.KEEP,
    "O": Action.KEEP,
    "I": Action.COUNT,
    "U": Action.COUNT,
    "D": Action.COUNT,
    "T": Action.COUNT,
    "M": Action.MESSAGE,
    "A": Action.DROP,
}
_SKIPPED = {
    tag: action if action in (Action.COMMIT, Action.KEEP) and tag != "O" else Action.DROP
    for tag, action in _INSIDE.items()
}

_COUNT = Action.COUNT

TRANSITIONS: dict[AssemblyState, dict[int, Action]] = {
    AssemblyState.IDLE: {ord(tag): action for tag, action in _OUTSIDE.items()},
    AssemblyState.OPEN: {ord(tag): action for tag, action in _INSIDE.items()},
    AssemblyState.SKIPPING: {ord(tag): action for tag, action in _SKIPPED.items()},
}


_MODES = {
    AssemblyState.IDLE: transactions.IDLE,
    AssemblyState.OPEN: transactions.OPEN,
    AssemblyState.SKIPPING: transactions.SKIPPING,
}
_STATES = {mode: state for state, mode in _MODES.items()}


class Assembler:
    """Collects the pgoutput messages of one connection.

    ``skip_through`` is the commit LSN of the last transaction in the log: those at or below it are dropped. A
    connection's Assembler is thrown away with it; after a ProtocolError it must not be used again.
    """

    def __init__(
        self, epoch_bytes: int, epoch_changes: int, skip_through: int, epoch_cells: int = BLOCK_CELLS
    ) -> None:
        self._epoch_bytes = min(epoch_bytes, BLOCK_BYTES_MAX)
        self._epoch_changes = epoch_changes
        self._epoch_cells = epoch_cells
        self._skip_through = skip_through
        self._limits = transactions.Limits(self._epoch_bytes, epoch_changes, epoch_cells, skip_through)
        # Where the open transaction alone exceeds an epoch: the whole ones gathered and an epoch behind them.
        self._bytes_limit = self._epoch_bytes
        self._changes_limit = epoch_changes
        self._cells_limit = epoch_cells
        self._state = AssemblyState.IDLE
        self._actions = TRANSITIONS[AssemblyState.IDLE]
        self._room: Bytes = np.empty(_ROOM_BYTES, np.uint8)
        self._size = 0
        self._ends: Ints = np.empty(_ROOM_BYTES // 64, np.int64)
        self._messages = 0
        self._changes = 0
        self._cells = 0
        # The end of the whole transactions gathered: bytes, messages, changes, cells, and how many transactions.
        self._whole_bytes = 0
        self._whole_messages = 0
        self._whole_changes = 0
        self._whole_cells = 0
        self._transactions = 0
        # The transaction begun last, and the one committed last.
        self._xid = 0
        self._begin_lsn = 0
        self._begin_ts = 0
        self._commit_lsn = 0
        self._end_lsn = 0
        self._commit_ts = 0
        self._spilled = False
        self._continues: int | None = None
        self.gathered = 0  # transactions kept, since the beginning
        self.skipped = 0  # transactions dropped because the log has them
        self.dropped_messages = 0  # non-transactional messages: not captured
        self.forged_messages = 0  # of them, those with a prefix of ours: nobody of us writes such

    def feed(self, frame: bytes) -> bool:
        """Take one pgoutput message; True when it makes a cut due: ``full`` or ``oversized``.

        Raises ProtocolError when it cannot come now.
        """
        action = self._actions.get(frame[0] if frame else -1)
        if action is _COUNT:  # the frequent one; looking up a member of an Enum is slow
            self._keep(frame)
            self._changes += 1
            self._cells += transactions.cells_of(frame)
            return self._beyond_limit
        if action is Action.BEGIN:
            self._begin(frame)
        elif action is Action.COMMIT:
            self._commit(frame)
        elif action is Action.KEEP:
            self._keep(frame)
        elif action is Action.MESSAGE:
            self._message(frame)
        elif action is None:
            raise self._error(frame, f"cannot come while {self._state.value}")
        return self.full or self.oversized

    def take(self, frames: Messages, at: int) -> tuple[int, bool]:
        """Take XLogData frames from number ``at`` on.

        Returns the number of the next frame and whether a cut is due before it; without one, it is a frame of another
        kind, or there is none left. Raises ProtocolError.
        """
        ends = frames.ends
        while at < len(ends):
            at, status = self._take_frequent(frames.data, ends, at)
            if status == transactions.DUE:
                return at, True
            if status == transactions.ROOM:
                start = int(ends[at - 1]) if at else 0
                self._make_room(int(ends[at]) - start, 1)
            elif status == transactions.OTHER:
                frame = frames[at]
                if len(frame) <= transactions.HEADER or frame[:1] != b"w":
                    return at, False
                at += 1
                if self.feed(frame[transactions.HEADER :]):
                    return at, True
        return at, False

    def _take_frequent(self, data: Bytes, ends: Ints, at: int) -> tuple[int, int]:
        whole = (self._whole_bytes, self._whole_messages, self._whole_changes, self._whole_cells)
        sizes = (self._size, self._messages, self._changes, self._cells)
        gathered = (*sizes, self._transactions, self.gathered)
        begun = (self._xid, self._begin_lsn, self._begin_ts, self._commit_lsn, self._end_lsn, self._commit_ts)
        state = np.array([at, _MODES[self._state], *gathered, *whole, *begun, self._spilled], np.int64)
        status = transactions.take(data, ends, state, self._limits, self._room, self._ends)
        numbers: list[int] = state.tolist()
        at, mode, self._size, self._messages, self._changes, self._cells = numbers[
            : transactions.TRANSACTIONS
        ]
        self._transactions, self.gathered = numbers[transactions.TRANSACTIONS : transactions.WHOLE_SIZE]
        self._xid, self._begin_lsn, self._begin_ts = numbers[transactions.XID : transactions.COMMIT_LSN]
        self._commit_lsn, self._end_lsn, self._commit_ts = numbers[
            transactions.COMMIT_LSN : transactions.SPILLED
        ]
        self._spilled = bool(numbers[transactions.SPILLED])
        self._mark_whole(*numbers[transactions.WHOLE_SIZE : transactions.XID])
        self._enter(_STATES[mode])
        return at, status

    @property
    def open(self) -> bool:
        """Inside a transaction (also one that is dropped)."""
        return self._state is not AssemblyState.IDLE

    @property
    def pending_bytes(self) -> int:
        """Bytes gathered and not handed out, of whole and open transactions."""
        return self._size

    @property
    def transactions(self) -> int:
        """Whole transactions gathered and not handed out."""
        return self._transactions

    @property
    def commit_lsn(self) -> int:
        """The last whole transaction received, dropped ones included; 0 before the first."""
        return self._commit_lsn

    @property
    def end_lsn(self) -> int:
        """The last whole transaction received, dropped ones included; 0 before the first."""
        return self._end_lsn

    @property
    def full(self) -> bool:
        """The whole transactions gathered, or Relation messages behind them, reach the size of an epoch: cut now."""
        if self._has_many_relations:
            return True
        if not self._transactions:
            return False
        return (
            self._whole_bytes >= self._epoch_bytes
            or self._whole_changes >= self._epoch_changes
            or self._whole_cells >= self._epoch_cells
        )

    @property
    def oversized(self) -> bool:
        """The open transaction alone exceeds an epoch: ``cut`` what is whole, then ``spill``."""
        if self._state is not AssemblyState.OPEN:
            return False
        return self._beyond_limit

    @property
    def _has_many_relations(self) -> bool:
        """Outside of kept transactions nothing else is gathered."""
        return self._state is not AssemblyState.OPEN and self._size >= self._bytes_limit

    @property
    def _beyond_limit(self) -> bool:
        return (
            self._size >= self._bytes_limit
            or self._changes >= self._changes_limit
            or self._cells >= self._cells_limit
        )

    def cut(self) -> FrameBlock | None:
        """Hand out all whole transactions, and Relation messages behind them; None when there is none and these are
        few. What is open stays."""
        if not (self._transactions or self._has_many_relations):
            return None
        if self._state is AssemblyState.OPEN:
            data, ends = self._split(self._whole_bytes, self._whole_messages)
        else:
            data, ends = self._split(self._size, self._messages)
        block = FrameBlock(
            data=data,
            ends=ends,
            transactions=self._transactions,
            changes=self._whole_changes,
            commit_lsn=self._commit_lsn,
            end_lsn=self._end_lsn,
            commit_ts=moment(self._commit_ts),
            continues=self._continues,
        )
        self._changes -= self._whole_changes
        self._cells -= self._whole_cells
        self._transactions = 0
        self._mark_whole(0, 0, 0, 0)
        self._continues = None
        return block

    def spill(self) -> PartialBlock:
        """Hand out what has come of the open transaction. The whole ones before it must have been cut.

        Raises ValueError when there is no open transaction, or whole ones wait.
        """
        if self._state is not AssemblyState.OPEN or self._transactions:
            raise ValueError("only a transaction that is open and first in line can be spilled")
        data, ends = self._split(self._size, self._messages)
        block = PartialBlock(
            data=data,
            ends=ends,
            changes=self._changes,
            xid=self._xid,
            commit_lsn=self._begin_lsn,
            commit_ts=moment(self._begin_ts),
            continues=self._xid if self._spilled else None,
        )
        self._changes = self._cells = 0
        self._spilled = True
        self._continues = self._xid
        return block

    def _split(self, size: int, messages: int) -> tuple[Data, array[int]]:
        ends = array("q")
        ends.frombytes(self._ends[:messages].tobytes())
        rest, rest_ends = self._room[size : self._size].copy(), self._ends[messages : self._messages] - size
        if size < _ROOM_BYTES:
            data: Data = self._room[:size].tobytes()
        else:  # the room itself: a copy would be as large, and this much would stay with us
            data = self._room.data[:size].toreadonly()
            huge = len(self._room) > 4 * self._epoch_bytes  # after one huge row
            self._room = np.empty(max(_ROOM_BYTES, len(rest), 0 if huge else len(self._room)), np.uint8)
        self._size, self._messages = len(rest), len(rest_ends)
        self._room[: self._size], self._ends[: self._messages] = rest, rest_ends
        return data, ends

    def _make_room(self, size: int, messages: int) -> None:
        """At least so much more. What is not yet written to costs no memory."""
        if self._size + size > len(self._room):
            room = np.empty(max(2 * len(self._room), self._size + size), np.uint8)
            room[: self._size] = self._room[: self._size]
            self._room = room
        if self._messages + messages > len(self._ends):
            ends = np.empty(max(2 * len(self._ends), self._messages + messages), np.int64)
            ends[: self._messages] = self._ends[: self._messages]
            self._ends = ends

    def _mark_whole(self, size: int, messages: int, changes: int, cells: int) -> None:
        self._whole_bytes, self._whole_messages = size, messages
        self._whole_changes, self._whole_cells = changes, cells
        self._bytes_limit, self._changes_limit = size + self._epoch_bytes, changes + self._epoch_changes
        self._cells_limit = cells + self._epoch_cells

    def _keep(self, frame: bytes) -> None:
        self._make_room(len(frame), 1)
        end = self._size + len(frame)
        self._room[self._size : end] = np.frombuffer(frame, np.uint8)
        self._ends[self._messages] = self._size = end
        self._messages += 1

    def _message(self, frame: bytes) -> None:
        if len(frame) < 2 or frame[1] > 1:
            raise self._error(frame, "has unknown flags")
        if not frame[1]:
            self.dropped_messages += 1
            self.forged_messages += authentic.claims_to_be_ours(frame)
        elif self._state is AssemblyState.IDLE:
            raise self._error(frame, "is transactional but outside of a transaction")
        else:
            self._keep(frame)
            self._changes += 1

    def _begin(self, frame: bytes) -> None:
        if len(frame) != _BEGIN.size:
            raise self._error(frame, f"has {len(frame)} bytes")
        _, commit_lsn, commit_ts, xid = _BEGIN.unpack(frame)
        if not self._commit_lsn < commit_lsn <= _LSN_MAX:
            raise self._error(
                frame, f"commits at {format_lsn(commit_lsn)}, not after {format_lsn(self._commit_lsn)}"
            )
        self._begin_lsn, self._begin_ts, self._xid = commit_lsn, commit_ts, xid
        if commit_lsn <= self._skip_through:
            self._enter(AssemblyState.SKIPPING)
        else:
            self._keep(frame)
            self._enter(AssemblyState.OPEN)

    def _commit(self, frame: bytes) -> None:
        if len(frame) != _COMMIT.size:
            raise self._error(frame, f"has {len(frame)} bytes")
        _, flags, commit_lsn, end_lsn, commit_ts = _COMMIT.unpack(frame)
        if flags or commit_lsn != self._begin_lsn or not commit_lsn < end_lsn <= _LSN_MAX:
            raise self._error(frame, "does not belong to the transaction begun")
        self._commit_lsn, self._end_lsn, self._commit_ts = commit_lsn, end_lsn, commit_ts
        if self._state is AssemblyState.SKIPPING:
            self.skipped += 1
        else:
            self._keep(frame)
            self._transactions += 1
            self.gathered += 1
            self._mark_whole(self._size, self._messages, self._changes, self._cells)
            self._spilled = False
        self._enter(AssemblyState.IDLE)

    def _enter(self, state: AssemblyState) -> None:
        self._state = state
        self._actions = TRANSITIONS[state]

    def _error(self, frame: bytes, problem: str) -> ProtocolError:
        return ProtocolError(f"pgoutput message {frame[:1]!r} {problem}", hint=HINT)
