"""Reading chunks of a table, one connection a worker. While the mark of one is on its way, the next is read already."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from psycopg import Connection

from tailrace.cdc.columnar.values import LoadStamp, loaded_rows
from tailrace.cdc.context import Stopped, Task
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.snapshot.chunk_apply import CHUNK_PREFIX, ChunkApplier, ChunkedTopic, PendingMark
from tailrace.cdc.snapshot.chunk_query import (
    CHUNK_BYTES,
    ChunkBounds,
    ChunkRows,
    ChunkTooLarge,
    KeyedTable,
    chunk,
    commit_mark,
    open_session,
    read_keyset,
)
from tailrace.cdc.topics import TopicsChanged, changed_schema
from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.epoch import KeyTexts, LoadStep

Row = tuple[object, ...]

_FIRST_ROWS = 1000  # until it is known how large rows are
_GROWTH = 4
_KEYS_PER_CHUNK = 500


class _EarlierChunkDropped(Exception):
    """An earlier chunk was dropped, so this one would leave a gap: both are read again."""


class ChunkReader:
    """One worker of a topic's load. ``halt`` ends it, as the task's stop does."""

    def __init__(
        self,
        task: Task,
        publication: str,
        applier: ChunkApplier,
        topic: ChunkedTopic,
        throttle: Throttle,
        halt: threading.Event,
    ) -> None:
        self._task = task
        self._address = task.address
        self._publication = publication
        self._applier = applier
        self._topic = topic
        self._throttle = throttle
        self._halts = (halt, task.stop)
        self._label: tuple[str, str] | None = None
        self._rows = min(_FIRST_ROWS, task.settings.load_chunk_rows)
        self._connection: Connection[Row] | None = None

    @property
    def _halted(self) -> bool:
        return any(event.is_set() for event in self._halts)

    def read(self, todo: deque[int]) -> None:
        with closing(self):
            while not self._halted:
                try:
                    number = todo.popleft()
                except IndexError:
                    return
                self._read_range(number)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connect(self) -> Connection[Row]:
        if self._connection is None:
            self._connection = open_session(self._address)
        return self._connection

    def _read_range(self, number: int) -> None:
        here = self._topic.ranges[number]
        previous: PendingMark | None = None
        after, done = here.after, False
        while not done:
            if self._halted:
                raise Stopped
            piece = ChunkBounds(after, here.upto, self._rows)
            try:
                previous, after, done = self._read_chunk(number, piece, previous)
            except ChunkTooLarge as large:
                self._rows = large.rows
                self.close()
            except _EarlierChunkDropped:
                previous = None
                now = self._topic.ranges[number]
                after, done = now.after, now.done
        if previous is not None and not previous.wait(*self._halts):
            self._read_range(number)

    def _read_chunk(
        self, number: int, piece: ChunkBounds, previous: PendingMark | None
    ) -> tuple[PendingMark, KeyTexts | None, bool]:
        """Raises _EarlierChunkDropped, ChunkTooLarge."""
        connection, mark = self._connect(), self._applier.new_mark(self._topic)
        with self._open_chunk(connection, mark, piece) as (keyset, found):
            last = keyset.texts_of(found.texts, found.rows - 1) if found.rows else piece.after
            done = found.rows < piece.limit
            mark.step = LoadStep(self._topic.id, number, last, found.rows, done)
            self._learn(found)
            if previous is not None and not previous.wait(*self._halts):
                raise _EarlierChunkDropped
            self._commit(connection, mark)
        return mark, last, done

    def read_keys(self, keys: Sequence[KeyTexts]) -> None:
        """Read rows by key; the stream deletes those that are gone."""
        start, most = 0, _KEYS_PER_CHUNK
        with closing(self):
            while start < len(keys):
                piece = ChunkBounds(keys=tuple(keys[start : start + most]))
                connection, mark = self._connect(), self._applier.new_mark(self._topic)
                try:
                    with self._open_chunk(connection, mark, piece):
                        self._commit(connection, mark)
                except ChunkTooLarge as large:
                    most = large.rows
                    self.close()
                    continue
                mark.wait(*self._halts)
                start += len(piece.keys)

    @contextmanager
    def _open_chunk(
        self, connection: Connection[Row], mark: PendingMark, piece: ChunkBounds
    ) -> Iterator[tuple[KeyedTable, ChunkRows]]:
        topic = self._topic
        try:
            self._throttle.wait(self._task.stop)
            label = self._label = self._label or self._read_label(connection)
            with chunk(connection, self._address, self._publication, topic.schema.relid, label, piece) as (
                keyset,
                found,
            ):
                require_known(topic, keyset, self._task.policies)
                self._applier.set_snapshot(mark, found.snapshot)
                texts = [found.texts[at] for at in topic.schema.places]
                mark.rows = loaded_rows(texts, topic.schema, self._task.policies, LoadStamp(lsn=0))
                self._throttle.count(found.rows)
                failpoints.hit("chunk_read")
                yield keyset, found
        except BaseException:
            self._applier.give_up(mark)
            raise

    def _read_label(self, connection: Connection[Row]) -> tuple[str, str]:
        keyset = read_keyset(connection, self._address, self._publication, self._topic.schema.relid)
        require_known(self._topic, keyset, self._task.policies)
        assert keyset is not None
        return keyset.table.label

    def _commit(self, connection: Connection[Row], mark: PendingMark) -> None:
        self._applier.expect(mark)
        commit_mark(connection, self._address, CHUNK_PREFIX, mark.content)

    def _learn(self, rows: ChunkRows) -> None:
        """How many rows the next chunk may have."""
        fitting = CHUNK_BYTES * max(rows.rows, 1) // max(rows.bytes, 1)
        most = self._task.settings.load_chunk_rows
        self._rows = max(1, min(fitting, _GROWTH * self._rows, most))


def require_known(topic: ChunkedTopic, keyset: KeyedTable | None, policies: Policies) -> None:
    """Raises TopicsChanged when the table is not the one that this session knows."""
    if keyset is None:
        raise TopicsChanged(f"no table with a key is left for {topic.id.text}")
    if not keyset.table.readable:
        raise OperatorError(
            f"the source's user may not read {keyset.table.text}",
            hint="GRANT USAGE ON its SCHEMA and SELECT ON the table (loads and verify read it)",
        )
    if changed_schema(keyset.table, topic.schema, policies) is not None:
        raise TopicsChanged(f"the columns of {topic.id.text} changed while it was being loaded")


class Throttle:
    """A limit on rows per second that the threads of a load share. ``per_second``: None means no limit."""

    def __init__(self, per_second: int | None) -> None:
        self._per_second = per_second
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def wait(self, stop: threading.Event) -> None:
        """Wait until the rows read so far fit the limit, or ``stop`` is set."""
        if self._per_second is not None:
            stop.wait(max(0.0, self._free_at - time.monotonic()))

    def count(self, rows: int) -> None:
        if self._per_second is not None:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + rows / self._per_second
