"""One connection's life.

opening      connect to the slot in the session's transfer mode
taking over  become the source's writer under a new term
starting     suspend the topics that must be read again, plan their loads (``tailrace.cdc.stream.start``)
streaming    the receiver (in this thread), the appender, the watcher and the loads run beside each other
ended        the task was stopped or, in binary, one transaction was taken: ``run`` returns. Anything else that ends
             a part of the session ends the others and is raised
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from enum import Enum

from tailrace.cdc.columnar.decode import BlockDecoder, prepare
from tailrace.cdc.columnar.relations import Describe
from tailrace.cdc.context import Task
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres import inbox
from tailrace.cdc.postgres.connect import Lines
from tailrace.cdc.postgres.message_secrets import secrets_reader
from tailrace.cdc.postgres.publication import Publication
from tailrace.cdc.postgres.replication import ReplicationStream
from tailrace.cdc.postgres.value_text import Renderer
from tailrace.cdc.recording.recorder import Recorder
from tailrace.cdc.setup.adopted import unconfirmed
from tailrace.cdc.snapshot.topic_load import TopicLoad
from tailrace.cdc.status import CapturePhase
from tailrace.cdc.stream import requests
from tailrace.cdc.stream.append import AppendContext, Appender
from tailrace.cdc.stream.binary_mode import TextStream
from tailrace.cdc.stream.describe import Describer
from tailrace.cdc.stream.own_messages import OwnMessages
from tailrace.cdc.stream.queue import Handover
from tailrace.cdc.stream.receive import Receiver
from tailrace.cdc.stream.redecode import Redecoding
from tailrace.cdc.stream.spool import Frames, SpooledStream
from tailrace.cdc.stream.start import SessionStart
from tailrace.cdc.stream.watch import Watcher
from tailrace.cdc.topics import Topics, TopicsChanged
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.topic import TopicId

_START_SECONDS = 30.0  # for what is read before the stream runs: a few queries of the catalog


class TransferMode(Enum):
    """How a session has rows sent. A row whose text the server cannot send ends a session in text; the next one takes
    that row's transaction in binary, and ends too. Protocol 2 gives way to protocol 1 before that, with which the
    server stops at the next transaction in commit order."""

    CONFIGURED = "as text, in the configured protocol"
    WHOLE = "as text, whole transactions (protocol 1)"
    BINARY = "one transaction in binary"

    def after_too_large(self, protocol: int) -> TransferMode | None:
        """The mode to try next when the server cannot send a row; None when there is none left."""
        if self is TransferMode.BINARY:
            return None
        if self is TransferMode.CONFIGURED and protocol > 1:
            return TransferMode.WHOLE
        return TransferMode.BINARY


class Session:
    """Streams once, from taking over to whatever ends it."""

    def __init__(
        self,
        task: Task,
        tick: Callable[[], None],
        mode: TransferMode = TransferMode.CONFIGURED,
        recorder: Recorder | None = None,
    ) -> None:
        self._mode = mode
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
        inbox.prepare()
        with self._open(state) as stream:
            writer = self._store.take_over(self._name, confirmed=state.end_lsn)
            self.term = writer.term
            self._task = self._task.with_history()
            self._policies = self._task.policies
            self._progress.set_phase(CapturePhase.STREAMING)
            self._progress.set_position(durable=writer.state.through_lsn, confirmed=state.end_lsn)
            start = SessionStart(self._task, writer, publication)
            with self._lines.timeout(_START_SECONDS):
                topics = start.topics()
                retried = requests.topics_to_decode(self._store, self._name, topics)
            with self._lines.timeout(_START_SECONDS):
                loads = start.loads(topics)
            self._stream(stream, self._append_context(writer, topics, loads, retried))

    @contextmanager
    def _open(self, state: SourceState) -> Iterator[Frames]:
        """The session's frames, as protocol 1 has them in text."""
        protocol = self._settings.protocol if self._mode is TransferMode.CONFIGURED else 1
        binary = self._mode is TransferMode.BINARY
        stream = ReplicationStream.open(
            self._address, state.slot, state.end_lsn, state.publication, protocol=protocol, binary=binary,
            message_bytes=self._settings.message_bytes, skipped=self._skip_messages,
        )  # fmt: skip
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

    def _skip_messages(self, number: int) -> None:
        """Also those of ours, whoever sent them: the trigger's are shorter."""
        self._progress.add_ignored(Counter({"logical message longer than message_bytes": number}))

    def _is_stopped(self) -> bool:
        return self._task.stop.is_set() or self._taken.is_set()

    def _append_context(
        self, writer: SourceWriter, topics: Topics, loads: Sequence[TopicLoad], retried: Sequence[TopicId]
    ) -> AppendContext:
        describer = Describer(self._store, writer.state, topics, self._address)
        describe: Describe = describer
        ordinary = describer.ordinary_tables()
        if self._recorder is not None:
            self._recorder.begin(writer.state, topics, self._policies, describer, ordinary)
            describe = self._recorder.record_answers(describer)

        events_schema = self._task.settings.events_schema

        def decoder(policies: Policies, quarantined: Collection[TopicId]) -> BlockDecoder:
            return BlockDecoder(
                self._name,
                topics.latest,
                describe,
                policies,
                known=topics.others,
                quarantined=quarantined,
                ordinary=ordinary,
                events_schema=events_schema,
            )

        redecoding = None
        if retried:
            applied = self._policies.as_applied()
            redecoding = Redecoding(
                self._store, writer, retried, lambda: decoder(applied, ()), self._progress
            )
        return AppendContext(
            store=self._store,
            writer=writer,
            decoder=decoder(self._policies, topics.quarantined),
            progress=self._progress,
            topics=topics,
            own_messages=OwnMessages(
                secrets_reader(self._address, events_schema),
                lambda content: any(load.waits_for(content) for load in loads),
            ),
            filled_unseen=describer.may_be_filled,
            loads=loads,
            redecoding=redecoding,
            recorder=self._recorder,
        )

    def _stream(self, stream: Frames, context: AppendContext) -> None:
        handover = Handover(self._settings.queue_bytes)
        state = context.writer.state
        adoption = unconfirmed(self._store, state)
        if adoption is not None:
            self._progress.report(
                f"slot {state.slot} keeps all WAL since {format_lsn(adoption.lsn)}, so that Debezium can be started "
                f"again, until `tailrace adopt {self._name} --confirm`"
            )
        receiver = Receiver(
            stream, handover, self._task, state, self._is_stopped, self._tick, confirms=adoption is None
        )
        loading = [topic for load in context.loads for topic in load.topics]
        watcher = Watcher(self._task, loading, unconfirmed=adoption is not None)
        try:
            self._run_parts(receiver, Appender(context, handover), watcher, handover, context.loads)
        finally:
            handover.release()

    def _run_parts(
        self,
        receiver: Receiver,
        appender: Appender,
        watcher: Watcher,
        handover: Handover,
        loads: Sequence[TopicLoad],
    ) -> None:
        ended = threading.Event()
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


def _end(handover: Handover, future: Future[None]) -> None:
    """A thread of the session ended: with an error, so does the session."""
    error = future.exception()
    if error is not None:
        handover.close(error)
