"""Decode a recording into a log of its own, without a server, by the same decoder and the same writer.

The log then holds the recorded changes. Rows from before the recording are not known, so its topics stay incomplete:
they can be read, and have no state."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tailrace.cdc.columnar.decode import BlockDecoder, DecodedEpoch
from tailrace.cdc.policy.history import History
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
from tailrace.eventstore.settings import PostgresSourceSettings
from tailrace.eventstore.store import Store

REASON = "from a recording: rows from before it are not known"
_LIMITS = PostgresSourceSettings(dsn="")


@dataclass(slots=True)
class ReplayResult:
    """What was decoded from a recording."""

    source: str
    transactions: int = 0
    changes: int = 0
    epochs: int = 0
    withheld: int = 0
    topics: set[TopicId] = field(default_factory=set)


def replay(recording: Recording, store: Store) -> ReplayResult:
    """Decode a recording into a store that does not have its source. Raises ProtocolError on a message that cannot be
    decoded, with its place in the WAL."""
    return _Replay(recording, store).run()


class _DescriptionMissing(Exception):
    """The recording ends before the catalog's description of a relation, so the rest cannot be decoded."""


class _Replay:
    def __init__(self, recording: Recording, store: Store) -> None:
        self._recording = recording
        self._store = store
        header = recording.header
        self._result = ReplayResult(header.source)
        self._policies = header.policies
        state = register_source(
            store.catalog, header.source, slot="", publication=header.publication, system_id=header.system_id
        )
        self._writer: SourceWriter = store.take_over(state.name)
        self._descriptions = self._read_descriptions()
        self._assembler: Assembler | None = None
        self._decoder: BlockDecoder | None = None
        self._files: list[PreparedSegment] = []
        self._unstored: dict[tuple[TopicId, int], TopicSchema] = {}
        self._reported: set[tuple[TopicId, int]] = set()

    def run(self) -> ReplayResult:
        with suppress(_DescriptionMissing):
            self._records()
        return self._result

    def _records(self) -> None:
        for record in self._recording.records():
            if record.kind == SESSION:
                self._cut()
                self._begin(record)
            elif record.kind == FRAME:
                self._feed(record.data)
            elif record.kind == WITHHELD:
                self._result.withheld += 1
        self._cut()

    def _read_descriptions(self) -> dict[str, TopicSchema | None]:
        """The catalog's descriptions by relation. Each was read when the relation was new, and follows its block."""
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
            raise _DescriptionMissing
        return self._descriptions[key]

    def _begin(self, record: Record) -> None:
        document = record.document
        latest: dict[TopicId, TopicSchema] = {}
        newer: list[tuple[TopicId, TopicSchema]] = []
        for name, text in document["topics"]:
            topic, schema = TopicId.parse(name), TopicSchema.from_json(text)
            latest[topic] = schema
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
        self._unstored.clear()
        self._reported.clear()
        self._files.clear()
        policies = self._policies.remembering(_history(document.get("protected")))
        self._decoder = BlockDecoder(
            state.name, latest, self._describe, policies, events_schema=self._recording.header.events_schema
        )
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
        decoded = self._decode(block)
        if not block.transactions:
            return
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
                new_schemas=self._pop_versions([*named, *self._reported]),
            )
        )
        self._files.clear()
        self._reported.clear()
        self._result.epochs += info is not None
        self._result.transactions += block.transactions
        self._count((rows.topic, rows.rows.num_rows) for rows in decoded.rows)

    def _spill(self, block: PartialBlock) -> None:
        for rows in self._decode(block).rows:
            schema = self._unstored.get((rows.topic, rows.version))
            if schema is not None and schema.kind is not TopicKind.TABLE:
                register_topic(self._store, rows.topic, schema, reason="")
            self._files.append(self._writer.prepare(rows.topic, rows.version, rows.rows))
            self._count([(rows.topic, rows.rows.num_rows)])

    def _decode(self, block: FrameBlock | PartialBlock) -> DecodedEpoch:
        assert self._decoder is not None
        try:
            decoded = self._decoder.decode(block)
        except ProtocolError as error:
            raise ProtocolError(
                f"in transactions up to {format_lsn(block.commit_lsn)}: {error.message}", hint=error.hint
            ) from error
        self._unstored.update({(topic, schema.version): schema for topic, schema in decoded.new_schemas})
        self._reported |= {
            (change.topic, change.current.version)
            for change in decoded.changes
            if change.by_trigger and change.is_version
        }
        return decoded

    def _pop_versions(self, named: Iterable[tuple[TopicId, int]]) -> list[tuple[TopicId, TopicSchema]]:
        used = [key for key in dict.fromkeys(named) if key in self._unstored]
        return [(topic, self._unstored.pop((topic, version))) for topic, version in used]

    def _count(self, counted: Iterable[tuple[TopicId, int]]) -> None:
        for topic, rows in counted:
            self._result.topics.add(topic)
            self._result.changes += rows


def _history(document: Any) -> History:
    """What a session knew of protected columns; recordings of before have nothing of it."""
    try:
        return History() if document is None else History.from_json(document)
    except (ValueError, TypeError, LookupError) as error:
        problem = f"a session of a recording cannot be read ({type(error).__name__})"
        raise ProtocolError(problem, hint="it is damaged") from None
