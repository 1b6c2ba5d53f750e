"""Chunks in the stream: a chunk takes effect where its mark arrives, in the append thread.

Between its snapshot and its mark the stream may have brought newer states of its rows;
``tailrace.cdc.snapshot.chunk_merge`` says which of
them still hold. Worker threads (``tailrace.cdc.snapshot.chunk_reader``) announce what they read here, and wait
until it is in the log.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tailrace.cdc.columnar.decode import ControlMessage
from tailrace.cdc.columnar.rows import truncate_row
from tailrace.cdc.context import Stopped
from tailrace.cdc.snapshot.chunk_merge import PgSnapshot, TouchedKeys, surviving
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
    """One topic being loaded. ``begun``: its first mark is in the stream, so rows are appended."""

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
    """What waits for its mark. ``published``: how the table was published when its load began. ``settled``: None until
    the append that holds it is durable, then whether it counted."""

    topic: ChunkedTopic
    content: bytes
    begins: Load | None = None
    published: str = ""
    rows: pa.Table | None = None
    snapshot: PgSnapshot | None = None
    step: LoadStep | None = None
    settled: bool | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def counted(self, *halts: threading.Event) -> bool:
        """Wait until its mark is in the log, or an event; whether it counted. Raises Stopped for the latter."""
        while not self.done.wait(_POLL_SECONDS):
            if any(halt.is_set() for halt in halts):
                raise Stopped
        return bool(self.settled)


@dataclass(slots=True)
class Woven:
    """Rows of a block with those of chunks between them, and the progress they bring."""

    rows: list[TopicRows]
    begins: list[Load] = field(default_factory=list)
    published: list[tuple[TopicId, str]] = field(default_factory=list)
    steps: list[LoadStep] = field(default_factory=list)
    verdicts: list[tuple[PendingMark, bool]] = field(default_factory=list)

    def durable(self) -> None:
        """To be called when the rows are in the log."""
        for attempt, counted in self.verdicts:
            if counted and attempt.step is not None:
                before = attempt.topic.ranges[attempt.step.number]
                attempt.topic.ranges[attempt.step.number] = moved(before, attempt.step)
            attempt.settled = counted
            attempt.done.set()


def moved(before: LoadRange, step: LoadStep) -> LoadRange:
    return LoadRange(before.number, step.after, before.upto, before.rows + step.rows, step.done)


class ChunkApplier:
    """Brings the chunks of some topics into the rows of the stream. ``weave`` and what stands with it is called by the
    append thread alone, the rest by any."""

    def __init__(self, store: Store, topics: Mapping[TopicId, TopicSchema]) -> None:
        self._store = store
        self._topics = {topic: self._resumed(topic, schema) for topic, schema in topics.items()}
        self._attempts: dict[bytes, PendingMark] = {}
        # Of chunks under way: the oldest snapshot they may have.
        self._floors: dict[bytes, PgSnapshot | None] = {}
        self._latest: PgSnapshot | None = None
        self._lock = threading.Lock()

    def _resumed(self, topic: TopicId, schema: TopicSchema) -> ChunkedTopic:
        """A topic that an earlier session began to load, in the version it still has, goes on where it was."""
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

    def weave(self, rows: Sequence[TopicRows], control: Sequence[ControlMessage]) -> Woven:
        """Rows of a block, in commit order, with the chunks whose marks are in it."""
        woven = Woven([part for part in rows if part.topic not in self._topics])
        for topic in self._topics.values():
            mine = [part for part in rows if part.topic == topic.id]
            for mark in control:
                attempt = self._attempts.get(mark.content) if mark.prefix in _PREFIXES else None
                if attempt is not None and attempt.topic is topic:
                    before, mine = _split(mine, mark.commit_lsn)
                    self._take(topic, before, woven)
                    self._apply(attempt, mark, woven)
            self._take(topic, mine, woven)
        return woven

    def part(self, rows: TopicRows) -> bool:
        """Rows of a transaction that has not committed yet. Whether they are to be kept."""
        topic = self._topics[rows.topic]
        topic.touched.observe(rows)
        return topic.begun

    def begun(self, topic: TopicId) -> bool:
        """Whether rows of the topic are being appended, so that what puts them in doubt ends the load."""
        return topic in self._topics and self._topics[topic].begun

    def finished(self) -> list[TopicId]:
        """Topics that are whole; each is told once."""
        whole = [topic.id for topic in self._topics.values() if topic.finished]
        for topic in whole:
            del self._topics[topic]
        return whole

    def _take(self, topic: ChunkedTopic, rows: Sequence[TopicRows], woven: Woven) -> None:
        for part in rows:
            topic.touched.observe(part)
        if topic.begun:
            woven.rows += rows

    def _apply(self, attempt: PendingMark, mark: ControlMessage, woven: Woven) -> None:
        topic = attempt.topic
        del self._attempts[mark.content]
        if attempt.begins is not None:
            topic.begun = True
            topic.touched = TouchedKeys()
            topic.ranges = {each.number: each for each in attempt.begins.ranges}
            topic.expected = attempt.begins.expected_rows
            woven.begins.append(
                Load(topic.id, topic.schema.version, mark.commit_lsn, topic.expected, attempt.begins.ranges)
            )
            woven.published.append((topic.id, attempt.published))
            woven.rows += self._emptied(topic, mark)
            woven.verdicts.append((attempt, True))
            return
        assert attempt.rows is not None and attempt.snapshot is not None
        kept = surviving(attempt.rows, attempt.snapshot, topic.touched)
        self._forget(topic, mark.content)
        if kept is not None:
            woven.rows.append(TopicRows(topic.id, topic.schema.version, _stamped(kept, mark)))
            if attempt.step is not None:
                woven.steps.append(attempt.step)
        woven.verdicts.append((attempt, kept is not None))

    def _emptied(self, topic: ChunkedTopic, mark: ControlMessage) -> list[TopicRows]:
        if not had_rows(self._store.catalog, topic.id):
            return []
        rows = truncate_row(topic.schema, mark.commit_lsn, mark.commit_ts)
        return [TopicRows(topic.id, topic.schema.version, rows)]

    def _forget(self, topic: ChunkedTopic, content: bytes) -> None:
        """Nobody needs what all chunks under way and to come see."""
        with self._lock:
            self._floors.pop(content, None)
            floors = [*self._floors.values()] if self._floors else [self._latest]
        known = [floor for floor in floors if floor is not None]
        if len(known) == len(floors):
            topic.touched.forget(min(known, key=lambda snapshot: snapshot.xmin))

    # the workers' side

    def attempt(self, topic: ChunkedTopic, begins: Load | None = None) -> PendingMark:
        attempt = PendingMark(topic, secrets.token_bytes(16), begins)
        if begins is not None:
            self._attempts[attempt.content] = attempt
        else:
            with self._lock:
                self._floors[attempt.content] = self._latest
        return attempt

    def snapshot_taken(self, attempt: PendingMark, snapshot: PgSnapshot) -> None:
        attempt.snapshot = snapshot
        with self._lock:
            self._floors[attempt.content] = snapshot
            if self._latest is None or snapshot.xmin > self._latest.xmin:
                self._latest = snapshot

    def expect(self, attempt: PendingMark) -> None:
        """Its mark may arrive from now on."""
        self._attempts[attempt.content] = attempt

    def give_up(self, attempt: PendingMark) -> None:
        """Its mark may arrive or not: whoever takes it out decides."""
        self._attempts.pop(attempt.content, None)
        with self._lock:
            self._floors.pop(attempt.content, None)


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


def _stamped(rows: pa.Table, mark: ControlMessage) -> pa.Table:
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
