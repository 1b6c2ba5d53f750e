"""A recording decoded into a log of its own, without a server: the same decoder, the same writer.

What the log holds afterwards are the recorded changes; rows from before the recording are not known, so its topics stay
incomplete: they can be read, and have no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from tailrace.cdc.columnar.decode import BlockDecoder, DecodedEpoch
from tailrace.cdc.recording.file import DESCRIPTION, FRAME, SESSION, WITHHELD, Record, Recording
from tailrace.cdc.recording.recorder import as_json
from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.wire.block import FrameBlock, PartialBlock
from tailrace.cdc.wire.pgoutput import Relation
from tailrace.eventstore.errors import ProtocolError
from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.settings import SourceSettings
from tailrace.eventstore.store import Store

REASON = "from a recording: rows from before it are not known"
_LIMITS = SourceSettings(dsn="")


@dataclass(slots=True)
class Played:
    """What came of a recording."""

    source: str
    transactions: int = 0
    changes: int = 0
    epochs: int = 0
    withheld: int = 0
    topics: set[TopicId] = field(default_factory=set)


def play(recording: Recording, store: Store) -> Played:
    """Decode a recording into a store that does not have its source. Raises ProtocolError on a message that cannot be
    decoded, with its place in the WAL."""
    return _Player(recording, store).run()


class _Ended(Exception):
    """The recording ends in front of what the source's catalog said of a relation: so does what can be decoded."""


class _Player:
    def __init__(self, recording: Recording, store: Store) -> None:
        self._recording = recording
        self._store = store
        header = recording.header
        self._played = Played(header.source)
        self._policies = header.policies
        state = register_source(
            store.catalog, header.source, slot="", publication=header.publication, system_id=header.system_id
        )
        self._writer: SourceWriter = store.take_over(state.name)
        self._descriptions = self._read_descriptions()
        self._assembler: Assembler | None = None
        self._decoder: BlockDecoder | None = None
        self._files: list[PreparedSegment] = []
        self._minted: dict[tuple[TopicId, int], TopicSchema] = {}
        self._told: set[tuple[TopicId, int]] = set()

    def run(self) -> Played:
        with suppress(_Ended):
            self._records()
        return self._played

    def _records(self) -> None:
        for record in self._recording.records():
            if record.kind == SESSION:
                self._cut()
                self._begin(record)
            elif record.kind == FRAME:
                self._feed(record.data)
            elif record.kind == WITHHELD:
                self._played.withheld += 1
        self._cut()

    def _read_descriptions(self) -> dict[str, TopicSchema | None]:
        """By relation: a catalog was asked when the relation was new, and its answer follows its block."""
        found = {}
        for record in self._recording.records():
            if record.kind == DESCRIPTION:
                document = record.document
                text = document["schema"]
                found[str(document["relation"])] = None if text is None else TopicSchema.from_json(text)
        return found

    def _describe(self, relation: Relation) -> TopicSchema | None:
        key = str(as_json(relation))
        if key not in self._descriptions:
            raise _Ended
        return self._descriptions[key]

    def _begin(self, record: Record) -> None:
        document = record.document
        schemas: dict[int, tuple[TopicId, TopicSchema]] = {}
        newer: list[tuple[TopicId, TopicSchema]] = []
        for name, text in document["topics"]:
            topic, schema = TopicId.parse(name), TopicSchema.from_json(text)
            schemas[schema.relid] = topic, schema
            register_topic(self._store, topic, schema, reason=REASON)
            if all(known.version != schema.version for known in self._store.schemas(topic)):
                newer.append((topic, schema))
        state = self._writer.state
        self._writer.append(
            EpochBatch(
                state.name,
                max(state.commit_lsn, document["commit_lsn"]),
                max(state.end_lsn, document["end_lsn"]),
                max(state.through_lsn, document["through_lsn"]),
                new_schemas=newer,
            )
        )
        self._minted.clear()
        self._told.clear()
        self._files.clear()
        self._decoder = BlockDecoder(state.name, schemas, self._describe, self._policies)
        self._assembler = Assembler(
            _LIMITS.epoch_bytes, _LIMITS.epoch_changes, skip_through=self._writer.state.commit_lsn
        )

    def _feed(self, message: bytes) -> None:
        if self._assembler is None:
            raise ProtocolError("a recording that does not begin with a session", hint="it is damaged")
        if self._assembler.feed(message):
            self._cut()
            if self._assembler.oversized:
                self._spill(self._assembler.spill())

    def _cut(self) -> None:
        block = self._assembler.cut() if self._assembler is not None else None
        if block is None:
            return
        decoded = self._decoded(block)
        named = [(rows.topic, rows.version) for rows in decoded.rows]
        named += [(file.topic, file.version) for file in self._files]
        info = self._writer.append(
            EpochBatch(
                source=self._writer.state.name,
                commit_lsn=block.commit_lsn,
                end_lsn=block.end_lsn,
                through_lsn=block.end_lsn,
                commit_ts=block.commit_ts,
                transactions=block.transactions,
                rows=decoded.rows,
                files=list(self._files),
                new_schemas=self._needed([*named, *self._told]),
            )
        )
        self._files.clear()
        self._told.clear()
        self._played.epochs += info is not None
        self._played.transactions += block.transactions
        self._count((rows.topic, rows.rows.num_rows) for rows in decoded.rows)

    def _spill(self, block: PartialBlock) -> None:
        for rows in self._decoded(block).rows:
            schema = self._minted.get((rows.topic, rows.version))
            if schema is not None and schema.kind is not TopicKind.TABLE:
                register_topic(self._store, rows.topic, schema, reason="")
            self._files.append(self._writer.prepare(rows.topic, rows.version, rows.rows))
            self._count([(rows.topic, rows.rows.num_rows)])

    def _decoded(self, block: FrameBlock | PartialBlock) -> DecodedEpoch:
        assert self._decoder is not None
        try:
            decoded = self._decoder.decode(block)
        except ProtocolError as error:
            raise ProtocolError(
                f"in transactions up to {format_lsn(block.commit_lsn)}: {error.message}", hint=error.hint
            ) from error
        self._minted.update({(topic, schema.version): schema for topic, schema in decoded.new_schemas})
        self._told |= {
            (change.topic, change.current.version)
            for change in decoded.changes
            if change.by_trigger and change.is_version
        }
        return decoded

    def _needed(self, named: Iterable[tuple[TopicId, int]]) -> list[tuple[TopicId, TopicSchema]]:
        used = [key for key in dict.fromkeys(named) if key in self._minted]
        return [(topic, self._minted.pop((topic, version))) for topic, version in used]

    def _count(self, counted: Iterable[tuple[TopicId, int]]) -> None:
        for topic, rows in counted:
            self._played.topics.add(topic)
            self._played.changes += rows
