"""The load of tables by chunks, when they came later or must be read again, beside a running stream.

Chunks are read by worker threads and take effect in the append thread when their mark arrives in the stream
(``tailrace.cdc.snapshot.chunk_merge`` says why that is exact). The rows that the stream brings are appended from the
load's first mark on, so after a crash a load goes on where it was: the catalog says how far each range of keys is,
moved by the append that holds the chunk. A topic is complete when all ranges are read and no row has an unknown cell.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace

from psycopg import Connection

from tailrace.cdc.columnar.decode import ControlMessage
from tailrace.cdc.context import Stopped, Task, transaction_wait
from tailrace.cdc.postgres.publication import read_publication
from tailrace.cdc.snapshot.chunk_apply import BEGIN_PREFIX, ChunkApplier, ChunkedTopic
from tailrace.cdc.snapshot.chunk_query import (
    commit_mark,
    open_session,
    plan_ranges,
    read_keyset,
    transactions_begun,
    transactions_ended,
)
from tailrace.cdc.snapshot.chunk_reader import ChunkReader, Throttle, require_known
from tailrace.cdc.snapshot.copy import TableChanged
from tailrace.cdc.snapshot.topic_load import LoadOutput, Versions
from tailrace.cdc.topics import TopicsChanged
from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.metadata import load_progress
from tailrace.eventstore.model.epoch import EpochBatch, Load, LoadRange, TopicRows
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.state.state import unknown_keys

Row = tuple[object, ...]

_RANGES_PER_WORKER = 4
_RANGED_BYTES_MIN = 16 << 20
_AGAIN_SECONDS = 10.0
_POLL_SECONDS = 0.2


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
        self._address = task.address
        self._publication = publication
        self._progress = task.progress
        self._rates = rates
        self._applier = ChunkApplier(task.store, topics)
        self._stop = self._task.stop
        self._pool = ThreadPoolExecutor(1, "tailrace-load")
        self._future: Future[None] | None = None

    @property
    def topics(self) -> Collection[TopicId]:
        return [topic.id for topic in self._applier.loading]

    def start(self) -> None:
        self._future = self._pool.submit(self._run)

    def close(self) -> None:
        self._stop.set()
        self._pool.shutdown()

    # the append thread's side

    def waits_for(self, mark: bytes) -> bool:
        return self._applier.waits_for(mark)

    def appends(self, topic: TopicId) -> bool:
        return self._applier.has_begun(topic)

    def take(self, rows: Sequence[TopicRows], control: Sequence[ControlMessage], output: LoadOutput) -> None:
        self._applier.apply(rows, control, output)

    def take_part(self, rows: TopicRows) -> bool:
        return self._applier.take_part(rows)

    def keep_version(self, topic: TopicId, schema: TopicSchema) -> None:
        """The load will read the table as it is then."""

    def doubt(self, topic: TopicId, lsn: int) -> None:
        """The load will read the rows as they are then."""

    def ready(self, through_lsn: int) -> bool:
        if self._future is not None and self._future.done():
            self._future.result()
        return self._applier.finished

    def batch(self, state: SourceState, unstored: Versions) -> EpochBatch:
        """The rows are in the log already."""
        topics = self._applier.take_finished()
        return EpochBatch(state.name, state.commit_lsn, state.end_lsn, state.through_lsn, completes=topics)

    # the load's threads

    def _run(self) -> None:
        """Topics in turn; one that cannot be loaded now does not hold up the others."""
        waiting = deque(self._applier.loading)
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
                self._progress.report(
                    f"the load of {topic.id.text} is tried again: {error.message}; {error.hint}"
                )
            waiting.append(topic)
            failed += 1
            if failed >= len(waiting):
                self._stop.wait(_AGAIN_SECONDS if failed > 1 else 1.0)

    def _load(self, topic: ChunkedTopic) -> None:
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

    def _begin(self, topic: ChunkedTopic, control: Connection[Row]) -> None:
        keyset = read_keyset(control, self._address, self._publication, topic.schema.relid)
        require_known(topic, keyset, self._task.policies)
        assert keyset is not None
        parts = self._settings.load_workers * _RANGES_PER_WORKER if self._settings.load_workers > 1 else 1
        expected, bounds = plan_ranges(control, self._address, keyset, parts, _RANGED_BYTES_MIN)
        ranges = tuple(LoadRange(number, after, upto) for number, (after, upto) in enumerate(bounds))
        load = Load(topic.id, topic.schema.version, 0, expected, ranges)
        mark = self._applier.new_mark(topic, begins=load)
        publication = read_publication(control, self._publication, self._address)
        if publication is not None and topic.schema.relid in publication.entries:
            mark.published = publication.entries[topic.schema.relid].identity.to_json()
        commit_mark(control, self._address, BEGIN_PREFIX, mark.content)
        mark.wait(self._stop)

    def _wait_for_transactions(self, control: Connection[Row]) -> None:
        """Wait until every transaction that ran when this session's stream and load had begun has ended and is visible:
        what commits later was or will be noted in ``touched``."""
        waiting = transaction_wait(self._task, control, what="the load")
        begun = transactions_begun(control, self._address)
        while transactions_ended(control, self._address) < begun:
            waiting()
            self._stop.wait(_POLL_SECONDS / 4)

    def _read_ranges(self, topic: ChunkedTopic, throttle: Throttle) -> None:
        todo = deque(each.number for each in topic.ranges.values() if not each.done)
        workers = min(self._settings.load_workers, len(todo))
        halt = threading.Event()
        if not workers:
            return  # all read by a session before
        with ThreadPoolExecutor(workers, "tailrace-chunk") as pool:
            running = [pool.submit(self._reader(topic, throttle, halt).read, todo) for _ in range(workers)]
            try:
                self._watch(topic, running)
            finally:
                halt.set()

    def _watch(self, topic: ChunkedTopic, running: Collection[Future[None]]) -> None:
        """Wait for the workers and report; raise what one of them raised, or Stopped."""
        started, before = time.monotonic(), topic.rows
        pending = set(running)
        while pending:
            rows = topic.rows
            rate = (rows - before) / max(time.monotonic() - started, 1e-3)
            names = [each.text for each in self.topics]
            self._progress.set_load(names, rows, max(topic.expected, rows), rate)
            done, pending = wait(pending, _POLL_SECONDS, FIRST_EXCEPTION)
            for future in done:
                future.result()
            if pending and self._stop.is_set():
                raise Stopped

    def _fill_holes(self, topic: ChunkedTopic, throttle: Throttle) -> None:
        """Read rows again, by key, that the log knows only in part: an update that did not send a TOASTed value came
        in front of a chunk that did not hold the row any more, or was dropped with it."""
        worker = self._reader(topic, throttle, self._stop)
        while True:
            self._task.require_going()
            load = load_progress.read(self._store.catalog, topic.id)
            if load is None:
                raise TopicsChanged(f"the load of {topic.id.text} was ended")
            holes = list(unknown_keys(self._store, topic.id, since=load.epoch))
            if not holes:
                return
            self._progress.note(f"{len(holes)} rows of {topic.id.text} are read again by key")
            worker.read_keys(holes)

    def _reader(self, topic: ChunkedTopic, throttle: Throttle, halt: threading.Event) -> ChunkReader:
        return ChunkReader(self._task, self._publication, self._applier, topic, throttle, halt)
