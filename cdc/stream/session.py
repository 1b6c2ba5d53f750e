"""One connection's life: take-over, load of added tables, receive, append; whatever ends it is raised.

How rows are asked for is the session's ``Way``. A row whose text the server cannot send ends a session in text mode;
the next one takes that row's transaction in binary and ends, too. Protocol 2 gives way to protocol 1 before that: then
what the server stops at is the next transaction in commit order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from enum import Enum

from tailrace.cdc.columnar.decode import BlockDecoder, prepare
from tailrace.cdc.columnar.relations import Describe
from tailrace.cdc.context import Task
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres.check import read_server
from tailrace.cdc.postgres.connect import Lines, connect
from tailrace.cdc.postgres.ddl_trigger import Trigger, read_trigger
from tailrace.cdc.postgres.publication import Publication, read_publication
from tailrace.cdc.postgres.replication import ReplicationStream
from tailrace.cdc.postgres.tables import Table, as_published, read_tables
from tailrace.cdc.postgres.value_text import Renderer
from tailrace.cdc.recording.recorder import Recorder
from tailrace.cdc.setup.table_changes import (
    LEFT,
    loadable_tables,
    lost_topics,
    reidentified_topics,
    republished_topics,
)
from tailrace.cdc.snapshot.added_tables import AddedTablesLoad
from tailrace.cdc.snapshot.chunk_load import ChunkedLoad
from tailrace.cdc.status import Phase
from tailrace.cdc.stream import requests as asked
from tailrace.cdc.stream.append import Appender
from tailrace.cdc.stream.binary_mode import TextStream
from tailrace.cdc.stream.queue import Handover
from tailrace.cdc.stream.receive import Receiver
from tailrace.cdc.stream.redecode import Redecoding
from tailrace.cdc.stream.spool import Frames, SpooledStream
from tailrace.cdc.stream.watch import Watcher
from tailrace.cdc.topics import Describer, Topics, TopicsChanged, changed
from tailrace.eventstore.catalog.requests import RequestState
from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId

Row = tuple[object, ...]
_START_SECONDS = 30.0  # for what is asked before the stream runs: a few reads of the catalog


class Way(Enum):
    """How a session asks for rows."""

    AS_SET = "as the settings say"
    WHOLE = "as text, whole transactions"
    BINARY = "one transaction in binary"

    def after_too_large(self, protocol: int) -> Way | None:
        """The way to try next when the server cannot send a row; None when there is none left."""
        if self is Way.BINARY:
            return None
        return Way.WHOLE if self is Way.AS_SET and protocol > 1 else Way.BINARY


class Session:
    """Streams until its task is stopped or, in binary, one transaction is taken (returns), or something ends it
    (raises)."""

    def __init__(
        self,
        task: Task,
        tick: Callable[[], None],
        way: Way = Way.AS_SET,
        recorder: Recorder | None = None,
    ) -> None:
        self._way = way
        self._lines = Lines()
        self._task = task.with_lines(self._lines)
        self._store = task.store
        self._name = task.name
        self._settings = task.settings
        self._policies = task.policies
        self._address = self._task.address
        self._progress = task.progress
        self._tick = tick
        self._taken = threading.Event()
        self._recorder = recorder
        self.term = 0
        """The writer's term, once this session has taken over."""

    def run(self, state: SourceState, publication: Publication | None) -> None:
        prepare()
        with self._open(state) as stream:
            writer = self._store.take_over(self._name)
            self.term = writer.term
            self._progress.phase(Phase.STREAMING)
            self._progress.position(durable=writer.state.through_lsn, confirmed=state.end_lsn)
            with self._lines.within(_START_SECONDS):
                self._suspend_unknown(writer, publication)
                self._suspend_asked(writer, publication)
                topics = self._current_topics(writer, publication)
                retried = asked.to_decode_again(self._store, self._name, topics)
            self._stream(stream, writer, topics, retried)

    @contextmanager
    def _open(self, state: SourceState) -> Iterator[Frames]:
        """The frames of the session's way, as protocol 1 has them in text."""
        protocol = self._settings.protocol if self._way is Way.AS_SET else 1
        binary = self._way is Way.BINARY
        stream = ReplicationStream.open(
            self._address, state.slot, state.end_lsn, state.publication, protocol=protocol, binary=binary
        )
        with closing(stream):
            if binary:
                with Renderer(self._address) as renderer:
                    text = TextStream(stream, renderer, state.slot, state.commit_lsn)
                    self._taken = text.taken
                    yield text
            elif protocol == 2:
                with closing(SpooledStream(stream, self._store.spool)) as spool:
                    yield spool
            else:
                yield stream

    def _stopped(self) -> bool:
        return self._task.stop.is_set() or self._taken.is_set()

    def _suspend_unknown(self, writer: SourceWriter, publication: Publication | None) -> None:
        """Topics whose table is not published any more, or lost values unseen: their state is unknown from here on."""
        topics = Topics.read(self._store, self._name)
        with connect(self._address, "tailrace capture") as connection:
            tables = as_published(read_tables(connection, self._address), publication)
            writer.on_timeline(read_server(connection, self._address).timeline)
            told = read_trigger(connection, self._address) is Trigger.ACTIVE
        again = [] if told else reidentified_topics(topics, tables)  # the stream says it where it happened
        reasons = lost_topics(topics, publication) | dict.fromkeys(
            again, "read again: its columns or its key were replaced"
        )
        for reason in sorted(set(reasons.values())):
            names = ", ".join(topic.text for topic in reasons if reasons[topic] == reason)
            mend = "; once `tailrace init` has published it, it is read again" if reason == LEFT else ""
            self._progress.tell(f"{names}: {reason}{mend}", again=True)
        republished = republished_topics(topics, publication)
        if reasons or republished:
            _append_position(writer, suspends=list(reasons.items()), published=list(republished.items()))
        self._suspend_changed_policies(writer, topics, tables, known=list(reasons))
        if publication is None:
            raise OperatorError(
                f"there is no publication {writer.state.publication} in {self._address.text} any more",
                hint="run `tailrace init`, which makes it again; all topics are then read again",
            )

    def _suspend_asked(self, writer: SourceWriter, publication: Publication | None) -> None:
        """Topics that somebody asked to be read again: this session loads them."""
        published = publication.tables if publication else {}
        known = Topics.read(self._store, self._name)
        topics, requests = asked.to_read_again(self._store, self._name, known, published)
        if topics:
            _append_position(writer, suspends=[(topic, "read again: asked for") for topic in topics])
        self._store.requests.answer([request.id for request in requests], RequestState.RUNNING, "")

    def _suspend_changed_policies(
        self, writer: SourceWriter, topics: Topics, tables: Sequence[Table], known: Sequence[TopicId]
    ) -> None:
        """Values under two policies must not stand side by side: such a topic is read again under the new one."""
        suspends = []
        for table in tables:
            topic, schema = topics.schemas.get(table.relid, (None, None))
            if topic is None or schema is None:
                continue
            kept = self._policies.kept(table.label, schema)
            if kept:
                self._progress.tell(
                    f"{topic.text}: {', '.join(kept)} stay protected as they were, though the configuration does"
                    ' not name them any more; "plain" in [sources.NAME.columns] would lift it'
                )
            changes = self._policies.changed(table.label, schema)
            if changes and topic not in known and topics.follows(topic):
                self._progress.tell(
                    f"{topic.text} is read again, as column policies changed ({'; '.join(changes)});"
                    " what the log holds from before stays as it was written"
                )
                suspends.append((topic, "read again: column policies changed"))
        if suspends:
            _append_position(writer, suspends=suspends)

    def _current_topics(self, writer: SourceWriter, publication: Publication | None) -> Topics:
        """The topics; those that will be loaded in the version that their tables have now."""
        topics = Topics.read(self._store, self._name)
        if not topics.incomplete:
            return topics
        with connect(self._address, "tailrace capture") as connection:
            tables = as_published(read_tables(connection, self._address), publication)
        relids = loadable_tables(topics, publication, tables)
        newer: list[tuple[TopicId, TopicSchema]] = []
        for table in tables:
            topic = relids.get(table.relid)
            schema = changed(table, topics.schema(topic), self._policies) if topic else None
            if topic is not None and schema is not None:
                newer.append((topic, schema))
        if not newer:
            return topics
        _append_position(writer, new_schemas=newer)
        return Topics.read(self._store, self._name)

    def _stream(
        self, stream: Frames, writer: SourceWriter, topics: Topics, retried: Sequence[TopicId]
    ) -> None:
        handover = Handover(self._settings.queue_bytes)
        with self._lines.within(_START_SECONDS):
            load, chunked = self._loads(writer, topics)
        describer = Describer(self._store, writer.state, topics, self._address)

        describe: Describe = describer
        if self._recorder is not None:
            self._recorder.begin(writer.state, topics)
            describe = self._recorder.describing(describer)

        def decoder(policies: Policies, aside: Collection[TopicId]) -> BlockDecoder:
            return BlockDecoder(
                self._name, topics.schemas, describe, policies, known=topics.others, aside=aside
            )

        again = None
        if retried:
            applied = self._policies.as_applied()
            again = Redecoding(self._store, writer, retried, lambda: decoder(applied, ()), self._progress)
        appender = Appender(
            self._store,
            writer,
            decoder(self._policies, topics.aside),
            handover,
            self._progress,
            topics,
            load,
            describer.is_doubtful,
            chunked,
            again,
            self._recorder,
        )
        receiver = Receiver(
            stream,
            handover,
            self._settings,
            self._progress,
            self._stopped,
            skip_through=writer.state.commit_lsn,
            confirmed=writer.state.end_lsn,
            tick=self._tick,
        )
        loads = [each for each in (load, chunked) if each is not None]
        watcher = Watcher(self._task, [topic for each in loads for topic in each.topics])
        ended = threading.Event()
        try:
            self._run_parts(receiver, appender, watcher, handover, loads, ended)
        finally:
            handover.release()

    def _run_parts(
        self,
        receiver: Receiver,
        appender: Appender,
        watcher: Watcher,
        handover: Handover,
        loads: Sequence[AddedTablesLoad | ChunkedLoad],
        ended: threading.Event,
    ) -> None:
        with ThreadPoolExecutor(2, "tailrace-capture") as pool:
            try:
                for load in loads:
                    load.start()
                for part in (pool.submit(appender.run), pool.submit(watcher.run, ended)):
                    part.add_done_callback(lambda future: _end(handover, future))
                receiver.run()
            except TopicsChanged:
                raise
            except TransientError:
                self._lines.cut()  # the server may be gone: nobody must wait for its answer
                raise
            finally:
                ended.set()
                handover.close()
                for load in loads:
                    load.close()

    def _loads(
        self, writer: SourceWriter, topics: Topics
    ) -> tuple[AddedTablesLoad | None, ChunkedLoad | None]:
        """What loads the incomplete topics: chunks walk along a key; a table without one is read in one snapshot."""
        if not topics.incomplete:
            return None, None
        name = writer.state.publication
        with connect(self._address, "tailrace capture") as connection:
            publication = read_publication(connection, name, self._address)
            tables = read_tables(connection, self._address)
        loadable = loadable_tables(topics, publication, tables)
        wanted = {
            topic: topics.schema(topic) for relid, topic in loadable.items() if topics.relid(topic) == relid
        }
        keyed = {table.relid for table in tables if table.key and not table.bag}
        # The catalog keeps how far chunks have come as keys in plain text: not of a key that is protected.
        keyed -= {schema.relid for schema in wanted.values() if any(each.policy for each in schema.key)}
        whole = {topic: schema for topic, schema in wanted.items() if schema.relid not in keyed}
        pieces = {topic: schema for topic, schema in wanted.items() if schema.relid in keyed}
        load = chunked = None
        if whole:
            load = AddedTablesLoad(self._task, writer, whole)
        if pieces:
            chunked = ChunkedLoad(self._task, name, pieces, asked.rates(self._store, self._name))
        return load, chunked


def _append_position(
    writer: SourceWriter,
    *,
    new_schemas: list[tuple[TopicId, TopicSchema]] | None = None,
    suspends: list[tuple[TopicId, str]] | None = None,
    published: list[tuple[TopicId, str]] | None = None,
) -> None:
    """An epoch without rows, at the position the log has."""
    state = writer.state
    writer.append(
        EpochBatch(
            source=state.name,
            commit_lsn=state.commit_lsn,
            end_lsn=state.end_lsn,
            through_lsn=state.through_lsn,
            new_schemas=new_schemas or [],
            suspends=suspends or [],
            published=published or [],
        )
    )


def _end(handover: Handover, future: Future[None]) -> None:
    """A thread of the session ended: with an error, so does the session."""
    error = future.exception()
    if error is not None:
        handover.close(error)
