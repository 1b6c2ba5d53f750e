"""The append side of a session: blocks in, epochs out. One thread, the only one that writes to the source's topics.

Rows of a transaction that is larger than memory come in parts: they are written to files as they come and become
visible, all of them, with the block that holds its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tailrace.cdc.columnar.decode import BlockDecoder, DecodedEpoch, error_text
from tailrace.cdc.columnar.schema_change import ChangeKind, SchemaChange
from tailrace.cdc.recording.recorder import Recorder
from tailrace.cdc.snapshot.added_tables import AddedTablesLoad
from tailrace.cdc.snapshot.chunk_apply import Woven
from tailrace.cdc.snapshot.chunk_load import ChunkedLoad
from tailrace.cdc.status import Progress
from tailrace.cdc.stream.queue import Handover, Item, Through
from tailrace.cdc.stream.redecode import Redecoding
from tailrace.cdc.topics import Topics, TopicsChanged
from tailrace.cdc.wire import ddl_message
from tailrace.cdc.wire.block import FrameBlock, PartialBlock
from tailrace.eventstore import failpoints
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.epoch import EpochBatch, QuarantinedTopic, TopicRows, UndecodedFrames
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.store import Store

_POLL_SECONDS = 0.25
# After these, rows that the stream said nothing about may be different: the topic is read again.
_READ_AGAIN = {
    ChangeKind.RETYPED: "a column's type changed",
    ChangeKind.REKEYED: "its key changed",
    ChangeKind.REPLACED: "another table took its name",
    ChangeKind.PROTECTED: "the policy of a column changed",
    ChangeKind.REWRITTEN: "its rows were rewritten",
    ChangeKind.REPARTITIONED: "a partition was attached or detached",
    ChangeKind.REVALUED: "an enum label or a composite type that its values have was changed",
    ChangeKind.UNTOLD: "its columns changed before the DDL trigger was installed",
}


@dataclass(slots=True)
class _Spilled:
    """What was written of the open transaction that is larger than memory."""

    files: list[PreparedSegment] = field(default_factory=list)
    changes: int = 0
    suspends: list[tuple[TopicId, str]] = field(default_factory=list)
    told: list[tuple[TopicId, int]] = field(default_factory=list)
    set_aside: list[QuarantinedTopic] = field(default_factory=list)
    kept: list[UndecodedFrames] = field(default_factory=list)


class Appender:
    """Runs until the hand-over is closed. Rows of topics that are incomplete go to their load: to ``chunked``, which
    has them appended once it has begun, or to ``load``, which keeps them aside; or to nobody when their load is still
    to come and will hold them.

    ``doubtful`` tells whether an added column's default may have filled existing rows unseen.
    """

    def __init__(
        self,
        store: Store,
        writer: SourceWriter,
        decoder: BlockDecoder,
        handover: Handover,
        progress: Progress,
        topics: Topics,
        load: AddedTablesLoad | None,
        doubtful: Callable[[int, int], bool],
        chunked: ChunkedLoad | None = None,
        again: Redecoding | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._store = store
        self._writer = writer
        self._decoder = decoder
        self._handover = handover
        self._progress = progress
        self._incomplete = set(topics.incomplete)
        self._load = load
        self._chunked = chunked
        self._weaver = None if chunked is None else chunked.weaver
        self._again = again
        self._recorder = recorder
        self._keeping = {topic: aside.keeps for topic, aside in topics.aside.items()}
        self._doubtful = doubtful
        self._minted: dict[tuple[TopicId, int], TopicSchema] = {}
        self._waiting: list[tuple[TopicId, TopicSchema]] = []  # told of, of topics that are being loaded
        self._spilled = _Spilled()
        self._inside = False  # a transaction, of which a part has come

    def run(self) -> None:
        """Raises Fenced, TransientError, ProtocolError …: nothing of the block at hand is visible then."""
        while not self._handover.closed:
            item = self._handover.get(_POLL_SECONDS)
            self.take(item)
            if item is not None:
                self._handover.done(self._writer.state.end_lsn)

    def take(self, item: Item | None) -> None:
        """One turn: append what came (None: nothing did), and complete the load when the log has come far enough."""
        if isinstance(item, FrameBlock):
            self._append(item)
        elif isinstance(item, PartialBlock):
            self._spill(item)
        elif isinstance(item, Through):
            self._writer.advance(item.lsn, item.lsn)
        if not isinstance(item, Through | None):
            self._inside = isinstance(item, PartialBlock)
        self._finish_load()
        if self._again is not None and not self._inside:
            self._again.turn(self._reason)

    def _append(self, block: FrameBlock) -> None:
        decoded = self._decode(block)
        suspends = [*self._spilled.suspends, *self._to_read_again(decoded.changes)]
        told = [*self._spilled.told, *self._told(decoded.changes)]
        doubted = {topic for topic, _ in suspends}  # read again in any case
        set_aside = [*self._spilled.set_aside, *self._newly_aside(decoded)]
        set_aside = [each for each in set_aside if each.topic not in doubted]
        kept = [*self._spilled.kept, *self._kept(decoded)]
        woven = self._woven(decoded)
        rows = [rows for rows in woven.rows if not self._set_aside(rows)]
        changes = self._spilled.changes + sum(part.rows.num_rows for part in rows)
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
                files=self._spilled.files,
                new_schemas=self._needed(
                    [*((file.topic, file.version) for file in self._spilled.files)],
                    [(part.topic, part.version) for part in rows],
                    told,
                ),
                suspends=suspends,
                load_begins=woven.begins,
                published=woven.published,
                load_steps=woven.steps,
                quarantined=set_aside,
                undecoded=[each for each in kept if self._keeping[each.topic] and each.topic not in doubted],
            )
        )
        woven.durable()
        self._spilled = _Spilled()
        self._progress.appended(
            epochs=int(info is not None),
            transactions=block.transactions,
            changes=changes,
            commit_ts=block.commit_ts,
        )
        if suspends:
            raise TopicsChanged(f"{', '.join(topic.text for topic, _ in suspends)} must be read again")
        if set_aside:
            raise TopicsChanged(f"{', '.join(each.topic.text for each in set_aside)} set aside")

    def _spill(self, block: PartialBlock) -> None:
        decoded = self._decode(block)
        self._spilled.suspends += self._to_read_again(decoded.changes)
        self._spilled.told += self._told(decoded.changes)
        self._spilled.set_aside += self._newly_aside(decoded)
        self._spilled.kept += self._kept(decoded, as_files=True)
        for rows in decoded.rows:
            schema = self._minted.get((rows.topic, rows.version))
            if schema is not None and schema.kind is not TopicKind.TABLE:
                register_topic(
                    self._store, rows.topic, schema, reason=""
                )  # a file can only name a known topic
            if self._is_appended(rows):
                file = self._writer.prepare(rows.topic, rows.version, rows.rows)
                self._spilled.files.append(file)
                self._spilled.changes += file.rows

    def _decode(self, block: FrameBlock | PartialBlock) -> DecodedEpoch:
        if self._recorder is not None:
            self._recorder.block(block)
        decoded = self._decoder.decode_or_set_aside(block)
        block.release()
        failpoints.hit("epoch_decoded")
        self._minted.update({(topic, schema.version): schema for topic, schema in decoded.new_schemas})
        self._progress.ignored(decoded.ignored)
        for change in decoded.changes:
            self._progress.tell(_said(change))
        for message in decoded.control:
            if message.prefix == ddl_message.PREFIX and (error := ddl_message.parse(message.content).error):
                self._progress.tell(
                    f"the DDL trigger could not tell of a command: {error}; compare with `tailrace verify --source`"
                )
        return decoded

    def _newly_aside(self, decoded: DecodedEpoch) -> list[QuarantinedTopic]:
        """Of one whose load is not whole, what comes is of no use: it must be read again."""
        found = []
        for failure in decoded.undecodable:
            keeps = failure.topic not in self._incomplete and failure.topic not in decoded.unkept
            self._keeping[failure.topic] = keeps
            error = error_text(failure.cause)
            found.append(QuarantinedTopic(failure.topic, error, failure.lsn, failure.frame, keeps))
            self._tell_aside(failure.topic, error, keeps=keeps)
        for topic in decoded.unkept:
            if self._keeping[topic]:
                self._keeping[topic] = False
                error = "a row or a change of its columns cannot be kept without plain values"
                found.append(QuarantinedTopic(topic, error, self._writer.state.commit_lsn, None, keeps=False))
                self._tell_aside(topic, error, keeps=False)
        return found

    def _tell_aside(self, topic: TopicId, error: str, *, keeps: bool) -> None:
        retry = f"when the cause is mended `tailrace source retry {topic.text}`, or " if keeps else ""
        self._progress.tell(
            f"{topic.text} is set aside, the others go on: {error}; {retry}`tailrace source snapshot {topic.text}`",
            again=True,
        )

    def _kept(self, decoded: DecodedEpoch, *, as_files: bool = False) -> list[UndecodedFrames]:
        return [
            self._writer.store_undecoded(topic, kept.pack(), kept.frames, as_file=as_files)
            for topic, kept in decoded.kept.items()
            if self._keeping[topic]
        ]

    def _woven(self, decoded: DecodedEpoch) -> Woven:
        if self._weaver is None:
            return Woven(decoded.rows)
        return self._weaver.weave(decoded.rows, decoded.control)

    def _set_aside(self, rows: TopicRows) -> bool:
        """Whether rows are not to be appended now. What ``chunked`` has let through is."""
        if rows.topic not in self._incomplete or (self._weaver is not None and rows.topic in self._weaver):
            return False
        if self._load is not None and rows.topic in self._load:
            self._load.keep(rows)
        return True

    def _is_appended(self, rows: TopicRows) -> bool:
        """Of a part of a transaction that has not committed yet."""
        if self._weaver is not None and rows.topic in self._weaver:
            return self._weaver.part(rows)
        return not self._set_aside(rows)

    def _needed(self, *named: Iterable[tuple[TopicId, int]]) -> list[tuple[TopicId, TopicSchema]]:
        """Of the versions seen in the stream, those named (used by rows, told of): they start with this epoch."""
        used = dict.fromkeys(key for keys in named for key in keys if key in self._minted)
        return [(topic, self._minted.pop((topic, version))) for topic, version in used]

    def _told(self, changes: Iterable[SchemaChange]) -> list[tuple[TopicId, int]]:
        """Versions that hold from their DDL on, whether or not rows follow. Those of a topic that is read in one
        snapshot wait: the snapshot may be later than they are."""
        found = []
        for change in changes:
            if change.told and change.is_version:
                begun = self._weaver is not None and self._weaver.begun(change.topic)
                if change.topic not in self._incomplete or begun:
                    found.append((change.topic, change.current.version))
                elif self._load is not None and change.topic in self._load:
                    self._waiting.append((change.topic, change.current))
        return found

    def _to_read_again(self, changes: Iterable[SchemaChange]) -> list[tuple[TopicId, str]]:
        found = []
        for change in changes:
            reason = self._reason(change)
            if not reason:
                continue
            begun = self._weaver is not None and self._weaver.begun(change.topic)
            if change.topic not in self._incomplete or begun:
                found.append((change.topic, reason))
            elif self._load is not None and change.topic in self._load:
                self._load.doubt(change.topic, change.lsn)
        return found

    def _reason(self, change: SchemaChange) -> str:
        """Why a topic's state is not known after a change, or nothing."""
        if change.previous is None:
            return ""
        if ChangeKind.GONE in change.kinds:
            return "its table was dropped"
        kinds = set(change.kinds)
        if change.told and not _retyped_values(change.previous, change.current):
            kinds.discard(ChangeKind.RETYPED)
        reasons = [text for kind, text in _READ_AGAIN.items() if kind in kinds]
        if not change.told and {ChangeKind.ADDED, ChangeKind.DROPPED} <= kinds:
            # For a while the one may have borne the other's name, and the stream have shown no difference.
            reasons.append("a column was dropped and another added")
        held = {column.id for column in change.previous.columns}
        if not change.told and any(
            column.id not in held
            and column.fill is None
            and (column.id in change.guessed or self._doubtful(change.current.relid, column.id))
            for column in change.current.columns
        ):
            reasons.append("a column was added with a default that may have changed its rows")
        return f"read again: {' and '.join(reasons)}" if reasons else ""

    def _finish_load(self) -> None:
        """Complete the topics being loaded, between two transactions, as soon as the log has come far enough."""
        if self._chunked is not None and not self._inside:
            self._complete(self._chunked.finished())
        if self._load is None or self._inside or not self._load.ready(self._writer.state.through_lsn):
            return
        batch = self._load.batch(self._writer.state, self._minted)
        batch = replace(batch, new_schemas=[*batch.new_schemas, *self._waited(self._load.point, batch)])
        info = self._writer.append(batch)
        for topic, schema in batch.new_schemas:
            self._minted.pop((topic, schema.version), None)
        self._load = None
        self._incomplete -= set(batch.completes)
        self._progress.loading(())
        self._progress.appended(
            epochs=int(info is not None),
            transactions=0,
            changes=sum(file.rows for file in batch.files),
            commit_ts=None,
        )
        self._progress.note(f"{', '.join(topic.text for topic in batch.completes)} complete")

    def _complete(self, topics: Sequence[TopicId]) -> None:
        """Topics whose rows are all in the log already."""
        if not topics:
            return
        state = self._writer.state
        info = self._writer.append(
            EpochBatch(state.name, state.commit_lsn, state.end_lsn, state.through_lsn, completes=topics)
        )
        self._incomplete -= set(topics)
        self._progress.loading(())
        self._progress.appended(epochs=int(info is not None), transactions=0, changes=0, commit_ts=None)
        self._progress.note(f"{', '.join(topic.text for topic in topics)} complete")

    def _waited(self, point: int, batch: EpochBatch) -> list[tuple[TopicId, TopicSchema]]:
        """Versions told of that came after what the load has read."""
        waiting, self._waiting = self._waiting, []
        brought = {(topic, schema.version) for topic, schema in batch.new_schemas}
        return [
            (topic, schema)
            for topic, schema in waiting
            if topic in batch.completes
            and schema.from_lsn >= point
            and (topic, schema.version) not in brought
        ]


def _said(change: SchemaChange) -> str:
    kinds = ", ".join(sorted(kind.value for kind in change.kinds))
    if change.is_version:
        return f"{change.topic.text} has schema version {change.current.version}: {kinds}"
    return f"{change.topic.text}: {kinds} ({'.'.join(change.table)})"


def _retyped_values(previous: TopicSchema, current: TopicSchema) -> bool:
    before = {column.id: column for column in previous.columns}
    return any(
        column.id in before and not ddl_message.keeps_values(before[column.id], column)
        for column in current.columns
    )
