"""The load of tables without a usable key that came later or must be read again, beside a running stream.

A temporary slot gives a snapshot and its consistent point. Meanwhile the tables' streamed rows are held back
(``tailrace.cdc.snapshot.held_back``). When everything that commits below the point is in the log, the loaded rows and
the rows that follow them become one epoch, which completes the topics. The stream of all other topics never waits."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from tailrace.cdc.columnar.decode import ControlMessage
from tailrace.cdc.columnar.rows import truncate_row
from tailrace.cdc.context import Stopped, Task, transaction_wait
from tailrace.cdc.postgres.connect import connect, connect_replication
from tailrace.cdc.postgres.slot import ExportedSnapshot, create_exported
from tailrace.cdc.snapshot.copy import TableChanged
from tailrace.cdc.snapshot.held_back import HeldBackRows
from tailrace.cdc.snapshot.load import LoadResult, LoadTarget, SnapshotLoad
from tailrace.cdc.snapshot.topic_load import LoadOutput, Versions
from tailrace.cdc.topics import TopicsChanged
from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.metadata.topics import had_rows
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId

_AGAIN_SECONDS = 10.0
_HELD_BYTES = 64 << 20  # rows in memory, of all topics together


class AddedTablesLoad:
    """Loads ``topics`` (with their latest versions) until it succeeds or ``close`` is called."""

    def __init__(self, task: Task, writer: SourceWriter, topics: Mapping[TopicId, TopicSchema]) -> None:
        self._task = replace(task, stop=threading.Event())  # it ends with its session, whatever ends that
        self._store = task.store
        self._writer = writer
        self._address = task.address
        self._topics = topics
        self._stop = self._task.stop
        self._held_back = {topic: HeldBackRows(topic, writer.prepare, task.store.storage) for topic in topics}
        self._versions: list[tuple[TopicId, TopicSchema]] = []
        self._doubts: dict[TopicId, int] = {}
        self._result: tuple[ExportedSnapshot, LoadResult] | None = None
        self._completed = False
        self._point = 0  # everything that commits below it is in what was read; 0 while that is not known
        self._pool = ThreadPoolExecutor(1, "tailrace-added")
        self._future: Future[None] | None = None

    @property
    def topics(self) -> Collection[TopicId]:
        return () if self._completed else self._topics.keys()

    def start(self) -> None:
        self._future = self._pool.submit(self._run)

    def close(self) -> None:
        self._stop.set()
        self._pool.shutdown()

    # the append thread's side

    def waits_for(self, mark: bytes) -> bool:
        return False

    def appends(self, topic: TopicId) -> bool:
        return False

    def take(self, rows: Sequence[TopicRows], control: Sequence[ControlMessage], output: LoadOutput) -> None:
        for part in rows:
            if part.topic in self._held_back:
                self._hold_back(part)

    def take_part(self, rows: TopicRows) -> bool:
        self._hold_back(rows)
        return False

    def _hold_back(self, rows: TopicRows) -> None:
        held = self._held_back.values()
        self._held_back[rows.topic].add(rows)
        if sum(each.bytes for each in held) > _HELD_BYTES:
            max(held, key=lambda each: each.bytes).flush()

    def keep_version(self, topic: TopicId, schema: TopicSchema) -> None:
        """The snapshot may be earlier than the version: ``batch`` decides."""
        self._versions.append((topic, schema))

    def doubt(self, topic: TopicId, lsn: int) -> None:
        self._doubts[topic] = lsn

    def ready(self, through_lsn: int) -> bool:
        if self._future is not None and self._future.done():
            self._future.result()
        if self._point:
            for held in self._held_back.values():
                held.forget_below(self._point)
        return self._result is not None and through_lsn >= self._result[0].consistent_point

    def batch(self, state: SourceState, unstored: Versions) -> EpochBatch:
        assert self._result is not None
        exported, loaded = self._result
        point = exported.consistent_point
        stale = [topic.text for topic, lsn in self._doubts.items() if lsn >= point]
        if stale:
            raise TopicsChanged(f"{', '.join(stale)} changed while being loaded and must be read again")
        files: list[PreparedSegment] = []
        versions: dict[tuple[TopicId, int], TopicSchema] = {}
        for topic in self._topics:
            schemas = {schema.version: schema for schema in self._store.schemas(topic)}
            schemas |= {version: schema for (other, version), schema in unstored.items() if other == topic}
            following = self._held_back[topic].take(point, schemas)
            files += self._truncate(topic, exported, loaded)
            files += [file for file in loaded.files if file.topic == topic]
            files += following
            for file in following:
                if (topic, file.version) in unstored:
                    versions[topic, file.version] = unstored[topic, file.version]
        for topic, schema in self._versions:
            if schema.from_lsn >= point:
                versions.setdefault((topic, schema.version), schema)
        self._completed = True
        return EpochBatch(
            source=state.name,
            commit_lsn=state.commit_lsn,
            end_lsn=state.end_lsn,
            through_lsn=state.through_lsn,
            commit_ts=loaded.commit_ts,
            files=files,
            new_schemas=[(topic, schema) for (topic, _), schema in versions.items()],
            completes=list(self._topics),
            published=list(loaded.published.items()),
        )

    def _truncate(
        self, topic: TopicId, exported: ExportedSnapshot, loaded: LoadResult
    ) -> Iterable[PreparedSegment]:
        """A truncate in front of rows that are read again: the rows before it no longer count."""
        if not had_rows(self._store.catalog, topic):
            return ()
        schema = loaded.schemas[topic]
        rows = truncate_row(schema, exported.consistent_point - 1, loaded.commit_ts)
        return (self._writer.prepare(topic, schema.version, rows),)

    # the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._result = self._load()
                self._task.progress.note(f"loaded {self._result[1].rows} rows of {self._names}")
                return
            except Stopped:
                return
            except TopicsChanged:
                raise
            except TableChanged as error:
                self._point = 0
                self._task.progress.note(error.message)
            except (TransientError, OperatorError) as error:
                self._point = 0
                self._task.progress.report(
                    f"the load of {self._names} is tried again: {error.message}; {error.hint}"
                )
                self._stop.wait(_AGAIN_SECONDS)

    @property
    def _names(self) -> str:
        return ", ".join(topic.text for topic in self._topics)

    def _load(self) -> tuple[ExportedSnapshot, LoadResult]:
        slot = f"{self._writer.state.slot[:40]}_load_{self._writer.term}"
        with connect(self._address, "tailrace load") as control:
            replication = connect_replication(self._address, f"tailrace {slot}")
            try:
                exported = create_exported(
                    replication,
                    slot,
                    self._address,
                    waiting=transaction_wait(self._task, control),
                    temporary=True,
                )
                self._point = exported.consistent_point
                loaded = self._read(exported)
            finally:
                replication.finish()
        return exported, loaded

    def _read(self, exported: ExportedSnapshot) -> LoadResult:
        target = LoadTarget(self._writer.prepare, lambda topic, schema: None)
        load = SnapshotLoad(self._task, exported, self._writer.state.publication, target)
        loaded = load.run(self._topics, events=None)
        differing = [
            topic.text
            for topic, schema in loaded.schemas.items()
            if schema.version != self._topics[topic].version
        ]
        if differing:  # altered since the session began: the next session brings the new version first
            raise TopicsChanged(f"the columns of {', '.join(differing)} changed before they were loaded")
        return loaded
