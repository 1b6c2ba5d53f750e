"""Reading on beside a consumer into a bounded buffer, so that one that is slow now and then finds rows in memory."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Self

from tailrace.eventstore.subscriptions.batch import Batch
from tailrace.eventstore.subscriptions.cursor import Cursor
from tailrace.eventstore.subscriptions.membership import StartPosition

_EMPTY_BYTES = 1024  # of a batch without rows: a filter may leave out everything of very many


class ReadAhead:
    """The buffer of one member, a context manager: a thread reads its partitions on, by turns, until ``max_bytes``
    wait; the batch that reaches them is the last. What was read of a file and is no batch yet is not counted."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting = 0
        self._due: dict[AheadCursor, int] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="tailrace-read-ahead", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the batches in the buffer."""
        with self._changed:
            return self._waiting

    def add(self, size: int) -> None:
        with self._changed:
            self._waiting += size
            self._changed.notify()

    def read_on(self, cursor: AheadCursor, end: int) -> None:
        """Have a partition read on to offset ``end`` when its turn comes and there is room."""
        with self._changed:
            self._due[cursor] = end
            self._changed.notify()

    def _read(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or (self._due and self._waiting < self._max_bytes))
                if self._ended:
                    return
                cursor = next(iter(self._due))
                end = self._due.pop(cursor)
            if cursor.read(end):
                with self._changed:
                    self._due.setdefault(cursor, end)


class AheadCursor:
    """A cursor that is ahead of what was given: ``position`` is that of the consumer."""

    def __init__(self, cursor: Cursor, buffer: ReadAhead) -> None:
        self.position = cursor.position
        self._cursor = cursor
        self._buffer = buffer
        self._batches: deque[Batch] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def next(self, end: int) -> Batch | None:
        """As ``Cursor.next``. Waits for a batch that is being read, and reads one itself when none is."""
        with self._lock:
            batch = self._pop_buffered() or self._cursor.next(end)
            if batch is not None:
                self.position = StartPosition(batch.end_offset, batch.last_epoch)
            more = self._cursor.position.next_offset < end
        if more:
            self._buffer.read_on(self, end)
        return batch

    def move(self, start: StartPosition) -> None:
        """As ``Cursor.move``: what was read ahead is forgotten."""
        with self._lock:
            self._forget()
            self._cursor.move(start)
            self.position = start

    def close(self) -> None:
        """Forget what was read ahead, and read nothing more."""
        with self._lock:
            self._closed = True
            self._forget()
            self._cursor.close()

    def read(self, end: int) -> bool:
        """Read one batch into the buffer; whether there may be more below ``end``."""
        with self._lock:
            if self._closed:
                return False
            try:
                found = self._cursor.next(end)
            except Exception:  # noqa: BLE001 - it is raised again when the consumer comes there
                return False
            if found is None:
                return False
            self._batches.append(found)
            self._buffer.add(_size(found))
            return True

    def _pop_buffered(self) -> Batch | None:
        if not self._batches:
            return None
        found = self._batches.popleft()
        self._buffer.add(-_size(found))
        return found

    def _forget(self) -> None:
        self._buffer.add(-sum(_size(each) for each in self._batches))
        self._batches.clear()


def _size(batch: Batch) -> int:
    return int(batch.rows.nbytes) + _EMPTY_BYTES
