"""Between the thread that owns the socket and the thread that appends: blocks one way, positions back.

Bounded in bytes: the socket's thread asks ``full`` before it reads on. It sleeps in ``select``; a byte in a pipe
wakes it when something came back.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass

from tailrace.cdc.wire.block import FrameBlock, PartialBlock


@dataclass(frozen=True, slots=True)
class ThroughPosition:
    """Everything that commits below ``lsn`` was received and appended: store it, so that it may be confirmed."""

    lsn: int


@dataclass(frozen=True, slots=True)
class ForgedMessages:
    """So many messages with a prefix of ours came outside of any transaction, where none of ours stands."""

    number: int


Item = FrameBlock | PartialBlock | ThroughPosition | ForgedMessages


class Handover:
    """One session's queue. ``close`` ends it from either side; an error given to it is raised on both."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._taken = 0  # of the item that is being appended
        self._busy = False
        self._taken_at = self._append_seconds = 0.0
        self._condition = threading.Condition()
        self._durable = 0
        self._closed = False
        self._error: BaseException | None = None
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    # the socket's side

    def fileno(self) -> int:
        """Readable when something came back."""
        return self._reader

    def put(self, item: Item) -> None:
        """Hand over. Whether it is full is asked before reading, not here: a block is never split to fit."""
        with self._condition:
            self._items.append(item)
            self._bytes += _size(item)
            self._condition.notify_all()

    @property
    def idle(self) -> bool:
        """The append thread has nothing to do: hand over early rather than gather more."""
        return not self._items and not self._busy

    @property
    def append_seconds(self) -> float:
        """How long the last item took."""
        return self._append_seconds

    def is_full(self, gathered: int) -> bool:
        """Whether blocks handed over and ``gathered`` bytes beside them reach the limit, so reading must stop."""
        return self._bytes + gathered >= self._bytes_max

    @property
    def bytes(self) -> int:
        return self._bytes

    def durable_position(self) -> int:
        """The position that is durable in the log; raises the error that ended the other side."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        if self._error is not None:
            raise self._error
        return self._durable

    def drain(self, seconds: float) -> bool:
        """Wait until all that was handed over is appended; False after ``seconds`` or when the other side ended."""
        with self._condition:
            return self._condition.wait_for(lambda: self._closed or self.idle, seconds) and self.idle

    # the append side

    def get(self, seconds: float) -> Item | None:
        """The next item, None after ``seconds`` without one or when closed. Call ``task_done`` when it is appended."""
        with self._condition:
            self._condition.wait_for(lambda: self._items or self._closed, seconds)
            if not self._items or self._closed:
                return None
            self._busy, self._taken_at = True, time.monotonic()
            item = self._items.popleft()
            self._taken = _size(item)
            return item

    def task_done(self, durable_lsn: int) -> None:
        """The item taken last is appended, up to this position."""
        with self._condition:
            self._bytes -= self._taken
            self._durable = max(self._durable, durable_lsn)
            self._busy, self._append_seconds = False, time.monotonic() - self._taken_at
            self._condition.notify_all()
        self._wake()

    # both

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self, error: BaseException | None = None) -> None:
        """End the session; the first error stays."""
        with self._condition:
            self._closed = True
            self._error = self._error or error
            self._condition.notify_all()
        self._wake()

    def release(self) -> None:
        """Give the pipe back, after both sides have ended."""
        os.close(self._reader)
        os.close(self._writer)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")


def _size(item: Item) -> int:
    if isinstance(item, ThroughPosition | ForgedMessages):
        return 0
    return len(item.data) + item.ends.itemsize * len(item.ends)
