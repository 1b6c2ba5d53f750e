"""Apply chunks to the stream: a chunk takes effect where its mark arrives, in the append thread.

Between its snapshot and its mark the stream may have brought newer states of its rows;
``tailrace.cdc.snapshot.chunk_merge`` says which of them still hold. Worker threads
(``tailrace.cdc.snapshot.chunk_reader``) announce here what they read, and wait until it is in the log.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from tailrace.cdc.columnar.decode import ControlMessage
from tailrace.cdc.columnar.rows import truncate_row
from tailrace.cdc.context import Stopped
from tailrace.cdc.snapshot.chunk_merge import PgSnapshot, TouchedKeys, current_rows
from tailrace.cdc.snapshot.topic_load import LoadOutput
from tailrace.eventstore.metadata import load_progress
from tailrace.eventstore.metadata.topics import had_rows
from tailrace.eventstore.model.epoch import Load, LoadRange, LoadStep, TopicRows
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store

BEGIN_PREFIX = "tailrace.load"
CHUNK_PREFIX = "tailrace.chunk"
_PREFIXES = (BEGIN_PREFIX, CHUNK_PREFIX)
_POLL_SECONDS = 0.2


@dataclass(slots=True)
class ChunkedTopic:
    """One topic that is loaded by chunks. ``begun``: its first mark is in the stream, so rows are appended."""

    id: TopicId
    schema: TopicSchema
    touched: TouchedKeys = field(default_factory=TouchedKeys)
    begun: bool = False
    ranges: dict[int, LoadRange] = field(default_factory=dict)
    expected: int = 0
    finished: bool = False

    @property
    def rows(self) -> int:
        return sum(each.rows for each in list(self.ranges.values()))


@dataclass(slots=True)
class PendingMark:
    """A mark on its way from the source into the stream, with what takes effect where it arrives: the begin of a load
    (``begins``, ``published``: how the table was published then) or the ``rows`` of a chunk.

        new       until its rows and their snapshot are known
        expected  committed in the source; ``wait`` returns
        settled   in the log. It counted, or the chunk was dropped and must be read again."""

    topic: ChunkedTopic
    content: bytes
    begins: Load | None = None
    published: str = ""
    rows: pa.Table | None = None
    snapshot: PgSnapshot | None = None
    step: LoadStep | None = None
    _counted: bool = False
    _settled: threading.Event = field(default_factory=threading.Event)

    def settle(self, *, counted: bool) -> None:
        """The epoch with the mark is in the log."""
        if counted and self.step is not None:
            ranges = self.topic.ranges
            ranges[self.step.number] = _advance(ranges[self.step.number], self.step)
        self._counted = counted
        self._settled.set()

    def wait(self, *halts: threading.Event) -> bool:
        """Wait until the mark is in the log; whether it counted. Raises Stopped when one of ``halts`` is set before."""
        while not self._settled.wait(_POLL_SECONDS):
            if any(halt.is_set() for halt in halts):
                raise Stopped
        return self._counted


def _advance(before: LoadRange, step: LoadStep) -> LoadRange:
    return LoadRange(before.number, step.after, before.upto, before.rows + step.rows, step.done)


class ChunkApplier:
    """Applies chunks of some topics to the stream. Only the append thread calls ``apply``, ``take_part``,
    ``has_begun`` and ``take_finished``; any thread may call the rest."""

    def __init__(self, store: Store, topics: Mapping[TopicId, TopicSchema]) -> None:
        self._store = store
        self._topics = {topic: self._resume(topic, schema) for topic, schema in topics.items()}
        self._marks: dict[bytes, PendingMark] = {}
        # The oldest snapshot that each chunk under way may have.
        self._floors: dict[bytes, PgSnapshot | None] = {}
        self._latest: PgSnapshot | None = None
        self._lock = threading.Lock()

    def _resume(self, topic: TopicId, schema: TopicSchema) -> ChunkedTopic:
        """The topic as an earlier session left it, when that began to load the same version."""
        load = load_progress.read(self._store.catalog, topic)
        if load is None or load.version != schema.version:
            return ChunkedTopic(topic, schema)
        ranges = {each.number: each for each in load.ranges}
        return ChunkedTopic(topic, schema, begun=True, ranges=ranges, expected=load.expected_rows)

    @property
    def loading(self) -> Collection[ChunkedTopic]:
        """The topics that are not whole yet."""
        return list(self._topics.values())

    def __contains__(self, topic: TopicId) -> bool:
        return topic in self._topics

    # the append thread's side

    def apply(self, rows: Sequence[TopicRows], control: Sequence[ControlMessage], output: LoadOutput) -> None:
        """Rows of a block, in commit order, with the chunks whose marks are in it."""
        for topic in self._topics.values():
            mine = [part for part in rows if part.topic == topic.id]
            for message in control:
                mark = self._marks.get(message.content) if message.prefix in _PREFIXES else None
                if mark is not None and mark.topic is topic:
                    before, mine = _split(mine, message.commit_lsn)
                    self._take(topic, before, output)
                    self._apply(mark, message, output)
            self._take(topic, mine, output)

    def waits_for(self, content: bytes) -> bool:
        """Whether a mark with this content is expected."""
        return content in self._marks

    def take_part(self, rows: TopicRows) -> bool:
        """Rows of a transaction that has not committed yet. Whether they are to be written."""
        topic = self._topics[rows.topic]
        topic.touched.observe(rows)
        return topic.begun

    def has_begun(self, topic: TopicId) -> bool:
        """Whether rows of the topic are appended, so that a change that puts them in doubt ends the load."""
        return topic in self._topics and self._topics[topic].begun

    @property
    def finished(self) -> bool:
        """Whether the load of any topic is finished."""
        return any(topic.finished for topic in self._topics.values())

    def take_finished(self) -> list[TopicId]:
        """Topics whose load is finished; they are forgotten here."""
        finished = [topic.id for topic in self._topics.values() if topic.finished]
        for topic in finished:
            del self._topics[topic]
        return finished

    def _take(self, topic: ChunkedTopic, rows: Sequence[TopicRows], output: LoadOutput) -> None:
        if topic.begun:  # what comes before counts for no chunk: the begin waits until it is visible
            for part in rows:
                topic.touched.observe(part)
            output.rows += rows

    def _apply(self, mark: PendingMark, message: ControlMessage, output: LoadOutput) -> None:
        topic = mark.topic
        del self._marks[message.content]
        if mark.begins is not None:
            topic.begun = True
            topic.touched = TouchedKeys()
            topic.ranges = {each.number: each for each in mark.begins.ranges}
            topic.expected = mark.begins.expected_rows
            output.begins.append(
                Load(topic.id, topic.schema.version, message.commit_lsn, topic.expected, mark.begins.ranges)
            )
            output.published.append((topic.id, mark.published))
            output.rows += self._truncate(topic, message)
            output.after_commit.append(partial(mark.settle, counted=True))
            return
        assert mark.rows is not None and mark.snapshot is not None
        current = current_rows(mark.rows, mark.snapshot, topic.touched)
        self._forget(topic, message.content)
        if current is not None:
            output.rows.append(TopicRows(topic.id, topic.schema.version, _with_position(current, message)))
            if mark.step is not None:
                output.steps.append(mark.step)
        output.after_commit.append(partial(mark.settle, counted=current is not None))

    def _truncate(self, topic: ChunkedTopic, message: ControlMessage) -> list[TopicRows]:
        """In front of rows that are read again: the rows before no longer count."""
        if not had_rows(self._store.catalog, topic.id):
            return []
        rows = truncate_row(topic.schema, message.commit_lsn, message.commit_ts)
        return [TopicRows(topic.id, topic.schema.version, rows)]

    def _forget(self, topic: ChunkedTopic, content: bytes) -> None:
        """Drop the keys that all chunks under way and to come see."""
        with self._lock:
            self._floors.pop(content, None)
            floors = [*self._floors.values()] if self._floors else [self._latest]
        known = [floor for floor in floors if floor is not None]
        if len(known) == len(floors):
            topic.touched.forget(known)

    # the workers' side

    def new_mark(self, topic: ChunkedTopic, begins: Load | None = None) -> PendingMark:
        """A mark for the begin of a load, or for a chunk that is about to be read."""
        mark = PendingMark(topic, secrets.token_bytes(16), begins)
        if begins is not None:
            self._marks[mark.content] = mark
        else:
            with self._lock:
                self._floors[mark.content] = self._latest
        return mark

    def set_snapshot(self, mark: PendingMark, snapshot: PgSnapshot) -> None:
        mark.snapshot = snapshot
        with self._lock:
            self._floors[mark.content] = snapshot
            if self._latest is None or snapshot.xmin > self._latest.xmin:
                self._latest = snapshot

    def expect(self, mark: PendingMark) -> None:
        """The mark may arrive from now on."""
        self._marks[mark.content] = mark

    def give_up(self, mark: PendingMark) -> None:
        """The mark may still arrive; then it has no effect, unless the append thread has taken it already."""
        self._marks.pop(mark.content, None)
        with self._lock:
            self._floors.pop(mark.content, None)


def _split(rows: Sequence[TopicRows], lsn: int) -> tuple[list[TopicRows], list[TopicRows]]:
    """Rows of transactions that commit below an LSN, and the others. They come in commit order."""
    before: list[TopicRows] = []
    after: list[TopicRows] = []
    for part in rows:
        at = int(np.searchsorted(part.rows["_lsn"].to_numpy(), lsn))
        if at:
            before.append(TopicRows(part.topic, part.version, part.rows.slice(0, at)))
        if at < part.rows.num_rows:
            after.append(TopicRows(part.topic, part.version, part.rows.slice(at)))
    return before, after


def _with_position(rows: pa.Table, mark: ControlMessage) -> pa.Table:
    """Rows of a chunk as rows of the transaction that committed its mark."""
    count = rows.num_rows
    values = {
        "_lsn": pa.array(np.full(count, mark.commit_lsn, np.int64)),
        "_ordinal": pa.array(np.arange(count, dtype=np.int64)),
        "_commit_ts": pa.array(np.full(count, mark.commit_ts, np.int64)).cast(pa.timestamp("us", "UTC")),
    }
    for name, array in values.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), array)
    return rows
