"""The append side of a session: blocks in, epochs out. One thread, the only one that writes to the source's topics.

A block of whole transactions becomes one epoch. A transaction larger than memory comes in parts: what it brings is
written to files as it comes and becomes visible, all of it, in the epoch of the block that holds its commit. Between
two transactions loads are completed and frames in quarantine are decoded again. A topic that must be read again, or
that newly is in quarantine, ends the session once its epoch is in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tailrace.cdc.columnar.decode import BlockDecoder, DecodedEpoch, error_text
from tailrace.cdc.columnar.schema_change import ChangeKind, SchemaChange
from tailrace.cdc.recording.recorder import Recorder
from tailrace.cdc.snapshot.topic_load import LoadOutput, TopicLoad
from tailrace.cdc.status import CaptureProgress
from tailrace.cdc.stream.own_messages import MARKS, OUTSIDE, OwnMessages
from tailrace.cdc.stream.queue import ForgedMessages, Handover, Item, ThroughPosition
from tailrace.cdc.stream.redecode import Redecoding
from tailrace.cdc.stream.reload_reason import reload_reason
from tailrace.cdc.topics import Topics, TopicsChanged
from tailrace.cdc.wire import ddl_message
from tailrace.cdc.wire.block import FrameBlock, PartialBlock
from tailrace.eventstore import failpoints
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.maintenance.retention.holds import registered_readers
from tailrace.eventstore.metadata import refused_messages
from tailrace.eventstore.model.epoch import EpochBatch, QuarantinedTopic, TopicRows, UndecodedFrames
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.store import Store

_POLL_SECONDS = 0.25


class TopicState(Enum):
    """What happens to the changes of a topic. A topic that has no state is LIVE."""

    LIVE = "its rows are appended"
    LOADING = "its load takes its rows; a load that is still to come will read them"
    QUARANTINED = "its frames are stored undecoded, to be decoded later"
    LOST = "nothing is stored: it must be read again"


@dataclass(frozen=True, slots=True)
class AppendContext:
    """What the append side of one session works with. ``loads`` are the loads beside the stream, ``redecoding`` the
    decoding of frames in quarantine. ``filled_unseen``: whether an added column's default (oid of the table, attnum)
    may have filled existing rows without an event. ``own_messages`` lets only messages pass that are ours."""

    store: Store
    writer: SourceWriter
    decoder: BlockDecoder
    progress: CaptureProgress
    topics: Topics
    own_messages: OwnMessages
    filled_unseen: Callable[[int, int], bool]
    loads: Sequence[TopicLoad] = ()
    redecoding: Redecoding | None = None
    recorder: Recorder | None = None


@dataclass(slots=True)
class _PendingEpoch:
    """What the next epoch brings so far, from parts of a transaction and from the block with its commit."""

    files: list[PreparedSegment] = field(default_factory=list)
    changes: int = 0
    suspends: list[tuple[TopicId, str]] = field(default_factory=list)
    versions: list[tuple[TopicId, int]] = field(default_factory=list)  # that begin with their DDL
    quarantined: list[QuarantinedTopic] = field(default_factory=list)
    undecoded: list[UndecodedFrames] = field(default_factory=list)


class Appender:
    """Runs until the hand-over is closed."""

    def __init__(self, context: AppendContext, handover: Handover) -> None:
        self._store = context.store
        self._writer = context.writer
        self._decoder = context.decoder
        self._own_messages = context.own_messages
        self._handover = handover
        self._progress = context.progress
        self._recorder = context.recorder
        self._redecoding = context.redecoding
        self._filled_unseen = context.filled_unseen
        self._loads = list(context.loads)
        self._load_of = {topic: load for load in context.loads for topic in load.topics}
        self._states = dict.fromkeys(context.topics.incomplete, TopicState.LOADING)
        for topic, entry in context.topics.quarantined.items():
            self._states[topic] = TopicState.QUARANTINED if entry.keeps else TopicState.LOST
        self._unstored: dict[tuple[TopicId, int], TopicSchema] = {}  # versions that no epoch has yet
        self._pending = _PendingEpoch()
        self._inside = False  # a transaction, of which a part has come

    def run(self) -> None:
        """Raises Fenced, TransientError, ProtocolError …: nothing of the block at hand is visible then."""
        while not self._handover.closed:
            item = self._handover.get(_POLL_SECONDS)
            self.take(item)
            if item is not None:
                self._handover.task_done(self._writer.state.end_lsn)

    def take(self, item: Item | None) -> None:
        """One turn: append what came (None: nothing did), then complete loads and decode frames in quarantine."""
        if isinstance(item, FrameBlock):
            self._append(item)
        elif isinstance(item, PartialBlock):
            self._spill(item)
        elif isinstance(item, ThroughPosition):
            self._writer.advance(item.lsn, item.lsn)
        elif isinstance(item, ForgedMessages):
            self._count_refused(Counter({OUTSIDE: item.number}))
        if isinstance(item, FrameBlock | PartialBlock):
            self._inside = isinstance(item, PartialBlock)
        if self._inside:
            return
        for load in self._loads:
            if load.ready(self._writer.state.through_lsn):
                self._complete(load)
        self._loads = [load for load in self._loads if load.topics]
        if self._redecoding is not None:
            self._redecoding.turn(self._reload_reason)

    # one block

    def _append(self, block: FrameBlock) -> None:
        decoded = self._decode(block)
        self._collect(decoded)
        if not block.transactions:
            return
        pending, output = self._pending, LoadOutput()
        rows = [part for part in decoded.rows if self._state(part.topic) is TopicState.LIVE]
        for load in self._loads:
            load.take(decoded.rows, decoded.control, output)
        rows += output.rows
        suspended = {topic for topic, _ in pending.suspends}  # these are read again in any case
        quarantined = [each for each in pending.quarantined if each.topic not in suspended]
        state = self._writer.state
        info = self._writer.append(
            EpochBatch(
                source=state.name,
                commit_lsn=block.commit_lsn,
                end_lsn=block.end_lsn,
                through_lsn=max(block.end_lsn, state.through_lsn),
                commit_ts=block.commit_ts,
                transactions=block.transactions,
                rows=rows,
                files=pending.files,
                new_schemas=self._pop_versions(
                    [
                        *((file.topic, file.version) for file in pending.files),
                        *((part.topic, part.version) for part in rows),
                        *pending.versions,
                    ]
                ),
                suspends=pending.suspends,
                load_begins=output.begins,
                published=output.published,
                load_steps=output.steps,
                quarantined=quarantined,
                undecoded=[
                    each
                    for each in pending.undecoded
                    if self._state(each.topic) is TopicState.QUARANTINED and each.topic not in suspended
                ],
            )
        )
        for notify in output.after_commit:
            notify()
        self._pending = _PendingEpoch()
        self._progress.add_epochs(
            epochs=int(info is not None),
            transactions=block.transactions,
            changes=pending.changes + sum(part.rows.num_rows for part in rows),
            commit_ts=block.commit_ts,
        )
        if pending.suspends:
            raise TopicsChanged(
                f"{', '.join(topic.text for topic, _ in pending.suspends)} must be read again"
            )
        if quarantined:
            raise TopicsChanged(f"{', '.join(each.topic.text for each in quarantined)} put in quarantine")

    def _spill(self, block: PartialBlock) -> None:
        decoded = self._decode(block)
        self._collect(decoded, as_files=True)
        for part in decoded.rows:
            schema = self._unstored.get((part.topic, part.version))
            if schema is not None and schema.kind is not TopicKind.TABLE:
                register_topic(
                    self._store, part.topic, schema, reason=""
                )  # a file can only name a known topic
            if self._takes_part(part):
                file = self._writer.prepare(part.topic, part.version, part.rows)
                self._pending.files.append(file)
                self._pending.changes += file.rows

    def _takes_part(self, part: TopicRows) -> bool:
        load = self._load_of.get(part.topic)
        return self._state(part.topic) is TopicState.LIVE if load is None else load.take_part(part)

    def _count_refused(self, counts: Counter[str]) -> None:
        self._progress.add_refused(counts, quiet=MARKS)
        refused_messages.add(self._store.catalog, self._writer.state.name, counts)

    def _decode(self, block: FrameBlock | PartialBlock) -> DecodedEpoch:
        block, refused = self._own_messages.filter(block)
        self._count_refused(refused)
        if self._recorder is not None:
            self._recorder.block(block)
        decoded = self._decoder.decode_or_quarantine(block)
        block.release()
        failpoints.hit("epoch_decoded")
        self._unstored.update({(topic, schema.version): schema for topic, schema in decoded.new_schemas})
        self._progress.add_ignored(decoded.ignored)
        for change in decoded.changes:
            self._progress.report(_describe(change, _readers(self._store, change)))
        for message in decoded.control:
            if message.prefix == ddl_message.PREFIX and (error := ddl_message.parse(message.content).error):
                self._progress.report(
                    f"the DDL trigger could not describe a command: {error}; compare with `tailrace verify --source`"
                )
        return decoded

    def _collect(self, decoded: DecodedEpoch, *, as_files: bool = False) -> None:
        """Add to the pending epoch what is not rows."""
        for change in decoded.changes:
            self._collect_change(change)
        self._quarantine(decoded)
        self._pending.undecoded += [
            self._writer.store_undecoded(topic, frames.pack(), frames.frames, as_file=as_files)
            for topic, frames in decoded.undecoded.items()
            if self._state(topic) is TopicState.QUARANTINED
        ]

    def _collect_change(self, change: SchemaChange) -> None:
        """A change of a topic whose rows are appended may suspend it; a version that the trigger described begins with
        its DDL, whether or not rows follow. A load that does not append yet decides later."""
        topic, load = change.topic, self._load_of.get(change.topic)
        appends = self._state(topic) is TopicState.LIVE or (load is not None and load.appends(topic))
        if reason := self._reload_reason(change):
            if appends:
                self._pending.suspends.append((topic, reason))
            elif load is not None:
                load.doubt(topic, change.lsn)
        if change.by_trigger and change.is_version:
            if appends:
                self._pending.versions.append((topic, change.current.version))
            elif load is not None:
                load.keep_version(topic, change.current)

    def _quarantine(self, decoded: DecodedEpoch) -> None:
        """Put tables that cannot be decoded in quarantine. When a topic was not complete, or its frames cannot be
        stored, it is lost: what comes for it is of no use."""
        for failure in decoded.undecodable:
            keeps = self._state(failure.topic) is TopicState.LIVE and failure.topic not in decoded.unstorable
            error = error_text(failure.cause)
            self._enter_quarantine(QuarantinedTopic(failure.topic, error, failure.lsn, failure.frame, keeps))
        for topic in decoded.unstorable:
            if self._state(topic) is TopicState.QUARANTINED:
                error = "a row or a change of its columns cannot be kept without plain values"
                lsn = self._writer.state.commit_lsn
                self._enter_quarantine(QuarantinedTopic(topic, error, lsn, None, keeps=False))

    def _enter_quarantine(self, entry: QuarantinedTopic) -> None:
        name = entry.topic.text
        self._states[entry.topic] = TopicState.QUARANTINED if entry.keeps else TopicState.LOST
        self._pending.quarantined.append(entry)
        retry = f"when the cause is gone `tailrace source retry {name}`, or " if entry.keeps else ""
        self._progress.report(
            f"{name} is in quarantine, the others go on: {entry.error}; {retry}`tailrace source snapshot {name}`",
            again=True,
        )

    # topics and versions

    def _state(self, topic: TopicId) -> TopicState:
        return self._states.get(topic, TopicState.LIVE)

    def _pop_versions(self, named: Iterable[tuple[TopicId, int]]) -> list[tuple[TopicId, TopicSchema]]:
        """Those of the named versions that no epoch has yet: they start with this one."""
        used = dict.fromkeys(key for key in named if key in self._unstored)
        return [(topic, self._unstored.pop((topic, version))) for topic, version in used]

    def _reload_reason(self, change: SchemaChange) -> str:
        return reload_reason(change, self._filled_unseen)

    def _complete(self, load: TopicLoad) -> None:
        """Append the epoch that completes topics of a load."""
        batch = load.batch(self._writer.state, self._unstored)
        info = self._writer.append(batch)
        for topic, schema in batch.new_schemas:
            self._unstored.pop((topic, schema.version), None)
        for topic in batch.completes:
            self._states.pop(topic, None)
            self._load_of.pop(topic, None)
        self._progress.set_load(())
        self._progress.add_epochs(
            epochs=int(info is not None),
            transactions=0,
            changes=sum(file.rows for file in batch.files),
            commit_ts=None,
        )
        self._progress.note(f"{', '.join(topic.text for topic in batch.completes)} complete")


_NAMED_OTHERWISE = frozenset({ChangeKind.RENAMED, ChangeKind.DROPPED, ChangeKind.RETYPED, ChangeKind.GONE})
"""Changes after which what reads a topic may name what is no longer there."""


def _readers(store: Store, change: SchemaChange) -> list[str]:
    """The projections and groups that a change may concern."""
    if change.kinds.isdisjoint(_NAMED_OTHERWISE):
        return []
    return sorted({reader.label for reader in registered_readers(store, change.topic)})


def _describe(change: SchemaChange, readers: Sequence[str]) -> str:
    kinds = ", ".join(sorted(kind.value for kind in change.kinds))
    before = {column.id: column.name for column in change.previous.columns} if change.previous else {}
    renames = [
        f"{before[column.id]} is {column.name} now"
        for column in change.current.columns
        if before.get(column.id, column.name) != column.name
    ]
    names = f" ({', '.join(renames)})" if renames and ChangeKind.RENAMED in change.kinds else ""
    read = f"; it is read by {', '.join(readers)}" if readers else ""
    if change.is_version:
        return f"{change.topic.text} has schema version {change.current.version}: {kinds}{names}{read}"
    return f"{change.topic.text}: {kinds} ({'.'.join(change.table)}){read}"
