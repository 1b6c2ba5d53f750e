"""The load by chunks of tables that came later, or must be read again, beside a running stream.

Chunks are read by worker threads and take effect in the append thread when their mark arrives in the stream
(``cdc.chunks`` says why that is exact). The rows that the stream brings are appended from the load's first mark on,
so a load goes on where it was after a crash: how far each range of keys is stands in the catalog, moved by the very
append that holds the chunk. A topic is complete when all ranges are read and no row has an unknown cell.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from psycopg import Connection

from cdc.chunks import Snapshot, Touched, surviving
from cdc.columnar.decode import ControlMessage
from cdc.columnar.values import table_rows
from cdc.directory import TopicsChanged, changed
from cdc.first import Waiting
from cdc.postgres.chunk import (
    Chunk,
    Keyset,
    Piece,
    chunk,
    commit_mark,
    open_session,
    plan_ranges,
    read_keyset,
    transactions_begun,
    transactions_ended,
)
from cdc.postgres.publication import read_publication
from cdc.postgres.snapshot import TableChanged
from cdc.task import Stopped, Task
from cdc.throttle import Throttle
from eventstore import failpoints
from eventstore.errors import OperatorError, TransientError
from eventstore.model import KeyTexts, Load, LoadRange, LoadStep, Op, TopicId, TopicRows
from eventstore.schema import TopicSchema, change_schema
from eventstore.state import unknown_keys

Row = tuple[object, ...]

BEGIN_PREFIX = "tailrace.load"
CHUNK_PREFIX = "tailrace.chunk"
_CHUNK_BYTES = 16 << 20  # of texts; about what becomes one file
_FIRST_ROWS = 1000  # until it is known how large rows are
_GROWTH = 4
_KEYS_PER_CHUNK = 500
_RANGES_PER_WORKER = 4
_RANGED_BYTES_MIN = 16 << 20
_AGAIN_SECONDS = 10.0
_POLL_SECONDS = 0.2


class _Void(Exception):
    """The chunk holds nothing of use any more: it is read again."""


@dataclass(slots=True)
class _Topic:
    """One topic being loaded. ``begun``: its first mark is in the stream, so rows are appended."""

    id: TopicId
    schema: TopicSchema
    touched: Touched = field(default_factory=Touched)
    begun: bool = False
    ranges: dict[int, LoadRange] = field(default_factory=dict)
    expected: int = 0
    finished: bool = False

    @property
    def rows(self) -> int:
        return sum(each.rows for each in list(self.ranges.values()))


@dataclass(slots=True)
class _Attempt:
    """What waits for its mark. ``published``: how the table was published when its load began. ``settled``: None until
    the append that holds it is durable, then whether it counted."""

    topic: _Topic
    content: bytes
    begins: Load | None = None
    published: str = ""
    rows: pa.Table | None = None
    snapshot: Snapshot | None = None
    step: LoadStep | None = None
    settled: bool | None = None
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Woven:
    """Rows of a block with those of chunks between them, and the progress they bring."""

    rows: list[TopicRows]
    begins: list[Load] = field(default_factory=list)
    published: list[tuple[TopicId, str]] = field(default_factory=list)
    steps: list[LoadStep] = field(default_factory=list)
    verdicts: list[tuple[_Attempt, bool]] = field(default_factory=list)

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


class ChunkedLoad:
    """Loads ``topics`` (with their latest versions) one after the other, each with several workers."""

    def __init__(
        self,
        task: Task,
        publication: str,
        topics: Mapping[TopicId, TopicSchema],
        rates: Mapping[TopicId, int],
    ) -> None:
        self._task = replace(task, stop=threading.Event())  # it ends with its session, whatever ends that
        self._store = task.store
        self._settings = task.settings
        self._policies = task.policies
        self._address = task.address
        self._publication = publication
        self._progress = task.progress
        self._rates = rates
        self._topics = {topic: self._resumed(topic, schema) for topic, schema in topics.items()}
        self._attempts: dict[bytes, _Attempt] = {}
        self._floors: dict[
            bytes, Snapshot | None
        ] = {}  # of chunks under way: the oldest snapshot they may have
        self._latest: Snapshot | None = None
        self._lock = threading.Lock()
        self._stop = self._task.stop
        self._pool = ThreadPoolExecutor(1, "tailrace-load")
        self._future: Future[None] | None = None

    def _resumed(self, topic: TopicId, schema: TopicSchema) -> _Topic:
        """A topic that an earlier session began to load, in the version it still has, goes on where it was."""
        load = self._store.load(topic)
        if load is None or load.version != schema.version:
            return _Topic(topic, schema)
        ranges = {each.number: each for each in load.ranges}
        return _Topic(topic, schema, begun=True, ranges=ranges, expected=load.expected_rows)

    @property
    def topics(self) -> Collection[TopicId]:
        return list(self._topics)

    def __contains__(self, topic: TopicId) -> bool:
        return topic in self._topics

    def start(self) -> None:
        self._future = self._pool.submit(self._run)

    def close(self) -> None:
        self._stop.set()
        self._pool.shutdown()

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
        """Topics that are whole; each is told once. Raises what ended the load."""
        if self._future is not None and self._future.done():
            self._future.result()
        whole = [topic.id for topic in self._topics.values() if topic.finished]
        for topic in whole:
            del self._topics[topic]
        return whole

    def _take(self, topic: _Topic, rows: Sequence[TopicRows], woven: Woven) -> None:
        for part in rows:
            topic.touched.observe(part)
        if topic.begun:
            woven.rows += rows

    def _apply(self, attempt: _Attempt, mark: ControlMessage, woven: Woven) -> None:
        topic = attempt.topic
        del self._attempts[mark.content]
        if attempt.begins is not None:
            topic.begun = True
            topic.touched = Touched()
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

    def _emptied(self, topic: _Topic, mark: ControlMessage) -> list[TopicRows]:
        """A truncate in front of rows that are read again: what was known before no longer counts."""
        if next(self._store.read(topic.id, columns=["_op"]), None) is None:
            return []
        target = change_schema(topic.schema)
        row = dict.fromkeys(target.names) | {
            "_hash": 0,
            "_op": Op.TRUNCATE.value,
            "_lsn": mark.commit_lsn,
            "_txn": 0,
            "_ordinal": 0,
            "_commit_ts": mark.commit_ts,
            "_before": "none",
        }
        return [TopicRows(topic.id, topic.schema.version, pa.Table.from_pylist([row], schema=target))]

    def _forget(self, topic: _Topic, content: bytes) -> None:
        """Nobody needs what all chunks under way and to come see."""
        with self._lock:
            self._floors.pop(content, None)
            floors = [*self._floors.values()] if self._floors else [self._latest]
        known = [floor for floor in floors if floor is not None]
        if len(known) == len(floors):
            topic.touched.forget(min(known, key=lambda snapshot: snapshot.xmin))

    # the load's threads

    def _run(self) -> None:
        """Topics in turn; one that cannot be loaded now does not hold up the others."""
        waiting = deque(self._topics.values())
        failed = 0
        while waiting and not self._stop.is_set():
            topic = waiting.popleft()
            try:
                self._load(topic)
                failed = 0
                continue
            except TopicsChanged:
                raise
            except Stopped:  # also of a worker whose neighbour failed
                pass
            except TableChanged as error:
                self._progress.note(error.message)
            except (TransientError, OperatorError) as error:
                self._progress.tell(
                    f"the load of {topic.id.text} is tried again: {error.message}; {error.hint}"
                )
            waiting.append(topic)
            failed += 1
            if failed >= len(waiting):
                self._stop.wait(_AGAIN_SECONDS if failed > 1 else 1.0)

    def _load(self, topic: _Topic) -> None:
        started, before = time.monotonic(), topic.rows
        with closing(open_session(self._address)) as control:
            if not topic.begun:
                self._begin(topic, control)
            self._wait_for_transactions(control)
        rate = self._rates.get(topic.id, self._settings.load_rows_per_second)
        throttle = Throttle(rate)
        self._read_ranges(topic, throttle)
        self._fill_holes(topic, throttle)
        topic.finished = True
        seconds = max(time.monotonic() - started, 1e-3)
        self._progress.note(
            f"loaded {topic.rows - before} rows of {topic.id.text} in {seconds:.1f} s by chunks"
        )

    def _begin(self, topic: _Topic, control: Connection[Row]) -> None:
        keyset = read_keyset(control, self._address, self._publication, topic.schema.relid)
        self._require_known(topic, keyset)
        assert keyset is not None
        parts = self._settings.load_workers * _RANGES_PER_WORKER if self._settings.load_workers > 1 else 1
        expected, bounds = plan_ranges(control, self._address, keyset, parts, _RANGED_BYTES_MIN)
        ranges = tuple(LoadRange(number, after, upto) for number, (after, upto) in enumerate(bounds))
        load = Load(topic.id, topic.schema.version, 0, expected, ranges)
        attempt = self._attempt(topic, begins=load)
        publication = read_publication(control, self._publication, self._address)
        if publication is not None and topic.schema.relid in publication.entries:
            attempt.published = publication.entries[topic.schema.relid].identity.to_json()
        commit_mark(control, self._address, BEGIN_PREFIX, attempt.content)
        self._await(attempt)

    def _require_known(self, topic: _Topic, keyset: Keyset | None) -> None:
        """Raises TopicsChanged when the table is not what this session took it for."""
        if keyset is None:
            raise TopicsChanged(f"no table with a key is left for {topic.id.text}")
        if not keyset.table.readable:
            raise OperatorError(
                f"the source's user may not read {keyset.table.text}",
                hint="GRANT USAGE ON its SCHEMA and SELECT ON the table (loads and verify read it)",
            )
        if changed(keyset.table, topic.schema, self._policies) is not None:
            raise TopicsChanged(f"the columns of {topic.id.text} changed while it was being loaded")

    def _wait_for_transactions(self, control: Connection[Row]) -> None:
        """Until all that ran when this session's stream and load had begun has ended and is visible: what commits
        later was or will be noted in ``touched``."""
        waiting = Waiting(self._task, control, what="the load")
        begun = transactions_begun(control, self._address)
        while transactions_ended(control, self._address) < begun:
            waiting()
            self._stop.wait(_POLL_SECONDS / 4)

    def _read_ranges(self, topic: _Topic, throttle: Throttle) -> None:
        todo = deque(each.number for each in topic.ranges.values() if not each.done)
        workers = min(self._settings.load_workers, len(todo))
        halt = threading.Event()
        if not workers:
            return
        with ThreadPoolExecutor(workers, "tailrace-chunk") as pool:
            running = [pool.submit(_Worker(self, topic, throttle, halt).read, todo) for _ in range(workers)]
            try:
                self._watch(topic, running)
            finally:
                halt.set()

    def _watch(self, topic: _Topic, running: Collection[Future[None]]) -> None:
        """Wait for the workers and report; raise what one of them raised, or Stopped."""
        started, before = time.monotonic(), topic.rows
        pending = set(running)
        while pending:
            rows = topic.rows
            rate = (rows - before) / max(time.monotonic() - started, 1e-3)
            names = [each.text for each in self.topics]
            self._progress.loading(names, rows, max(topic.expected, rows), rate)
            done, pending = wait(pending, _POLL_SECONDS, FIRST_EXCEPTION)
            for future in done:
                future.result()
            if pending and self._stop.is_set():
                raise Stopped

    def _fill_holes(self, topic: _Topic, throttle: Throttle) -> None:
        """Read rows again, by key, that the log knows only in part: an update that did not send a TOASTed value came
        in front of a chunk that did not hold the row any more, or was dropped with it."""
        worker = _Worker(self, topic, throttle, self._stop)
        while not self._stop.is_set():
            load = self._store.load(topic.id)
            if load is None:
                raise TopicsChanged(f"the load of {topic.id.text} was ended")
            holes = list(unknown_keys(self._store, topic.id, since=load.epoch))
            if not holes:
                return
            self._progress.note(f"{len(holes)} rows of {topic.id.text} are read again by key")
            worker.read_keys(holes)

    # attempts

    def _attempt(self, topic: _Topic, begins: Load | None = None) -> _Attempt:
        attempt = _Attempt(topic, secrets.token_bytes(16), begins)
        if begins is not None:
            self._attempts[attempt.content] = attempt
        else:
            with self._lock:
                self._floors[attempt.content] = self._latest
        return attempt

    def snapshot_taken(self, attempt: _Attempt, snapshot: Snapshot) -> None:
        attempt.snapshot = snapshot
        with self._lock:
            self._floors[attempt.content] = snapshot
            if self._latest is None or snapshot.xmin > self._latest.xmin:
                self._latest = snapshot

    def expect(self, attempt: _Attempt) -> None:
        """Its mark may arrive from now on."""
        self._attempts[attempt.content] = attempt

    def give_up(self, attempt: _Attempt) -> None:
        """Its mark may arrive or not: whoever takes it out decides."""
        self._attempts.pop(attempt.content, None)
        with self._lock:
            self._floors.pop(attempt.content, None)

    def _await(self, attempt: _Attempt, halt: threading.Event | None = None) -> bool:
        """Until the mark is in the log; whether the attempt counted. Raises Stopped."""
        while not attempt.done.wait(_POLL_SECONDS):
            if self._stop.is_set() or (halt is not None and halt.is_set()):
                raise Stopped
        return bool(attempt.settled)


class _Worker:
    """One connection that reads chunks. While the mark of one is on its way, the next is read already."""

    def __init__(self, load: ChunkedLoad, topic: _Topic, throttle: Throttle, halt: threading.Event) -> None:
        self._load = load
        self._topic = topic
        self._throttle = throttle
        self._halt = halt
        self._label: tuple[str, str] | None = None
        self._rows = min(_FIRST_ROWS, load._settings.load_chunk_rows)

    def read(self, todo: deque[int]) -> None:
        with closing(open_session(self._load._address)) as connection:
            while not self._halt.is_set():
                try:
                    number = todo.popleft()
                except IndexError:
                    return
                self._read_range(connection, number)

    def _read_range(self, connection: Connection[Row], number: int) -> None:
        here = self._topic.ranges[number]
        previous: _Attempt | None = None
        after, done = here.after, False
        while not done:
            if self._halt.is_set():
                raise Stopped
            piece = Piece(after, here.upto, self._rows)
            try:
                previous, after, done = self._read_chunk(connection, number, piece, previous)
            except _Void:
                previous = None
                now = self._topic.ranges[number]
                after, done = now.after, now.done
        if previous is not None and not self._load._await(previous, self._halt):
            self._read_range(connection, number)

    def _read_chunk(
        self, connection: Connection[Row], number: int, piece: Piece, previous: _Attempt | None
    ) -> tuple[_Attempt, KeyTexts | None, bool]:
        """Raises _Void when the chunk before must be read again: this one would leave a gap."""
        attempt = self._load._attempt(self._topic)
        with self._reading(connection, attempt, piece) as (keyset, found):
            last = keyset.texts_of(found.texts, found.rows - 1) if found.rows else piece.after
            done = found.rows < piece.limit
            attempt.step = LoadStep(self._topic.id, number, last, found.rows, done)
            self._learn(found)
            if previous is not None and not self._load._await(previous, self._halt):
                raise _Void
            self._commit(connection, attempt)
        return attempt, last, done

    def read_keys(self, keys: Sequence[KeyTexts]) -> None:
        """Read rows by key; those that are gone were deleted, which the stream tells."""
        with closing(open_session(self._load._address)) as connection:
            for start in range(0, len(keys), _KEYS_PER_CHUNK):
                piece = Piece(keys=tuple(keys[start : start + _KEYS_PER_CHUNK]))
                attempt = self._load._attempt(self._topic)
                with self._reading(connection, attempt, piece):
                    self._commit(connection, attempt)
                self._load._await(attempt, self._halt)

    @contextmanager
    def _reading(
        self, connection: Connection[Row], attempt: _Attempt, piece: Piece
    ) -> Iterator[tuple[Keyset, Chunk]]:
        topic, load = self._topic, self._load
        try:
            self._throttle.wait(load._stop)
            label = self._label = self._label or self._read_label(connection)
            with chunk(connection, load._address, load._publication, topic.schema.relid, label, piece) as (
                keyset,
                found,
            ):
                load._require_known(topic, keyset)
                load.snapshot_taken(attempt, found.snapshot)
                texts = [found.texts[at] for at in topic.schema.places]
                attempt.rows = table_rows(texts, topic.schema, load._policies, lsn=0)
                self._throttle.taken(found.rows)
                failpoints.hit("chunk_read")
                yield keyset, found
        except BaseException:
            load.give_up(attempt)
            raise

    def _read_label(self, connection: Connection[Row]) -> tuple[str, str]:
        keyset = read_keyset(
            connection, self._load._address, self._load._publication, self._topic.schema.relid
        )
        self._load._require_known(self._topic, keyset)
        assert keyset is not None
        return keyset.table.label

    def _commit(self, connection: Connection[Row], attempt: _Attempt) -> None:
        self._load.expect(attempt)
        commit_mark(connection, self._load._address, CHUNK_PREFIX, attempt.content)

    def _learn(self, found: Chunk) -> None:
        """How many rows the next chunk may have."""
        fitting = _CHUNK_BYTES * max(found.rows, 1) // max(found.bytes, 1)
        most = self._load._settings.load_chunk_rows
        self._rows = max(1, min(fitting, _GROWTH * self._rows, most))


_PREFIXES = (BEGIN_PREFIX, CHUNK_PREFIX)


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
