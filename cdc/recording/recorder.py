"""``capture --record``: blocks on their way to the decoder, written to a recording under the column policies.

What a row's columns are, the recorder finds out as the decoder does, with relations of its own: it writes a block
before the decoder sees it, so that a block that cannot be decoded is in the recording."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tailrace.cdc.columnar.protect import protect, without_defaults
from tailrace.cdc.columnar.relations import Describe, IgnoredRoute, Relations, SchemaConflict, TableRoute
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.recording.file import (
    DESCRIPTION,
    FRAME,
    SESSION,
    WITHHELD,
    RecordingHeader,
    RecordingWriter,
)
from tailrace.cdc.status import CaptureProgress
from tailrace.cdc.topics import Topics
from tailrace.cdc.wire import ddl_message, pgoutput
from tailrace.cdc.wire.block import FrameBlock, PartialBlock
from tailrace.eventstore.errors import ProtocolError
from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.time import now_micros
from tailrace.eventstore.model.topic import TopicId

_ROWS = (b"I", b"U", b"D")


class _NotCaptured(Exception):
    """A row of a table that is not captured: it is no part of the recording either."""


class Recorder:
    """One recording of one source, over all sessions of a capture. Used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        state: SourceState,
        policies: Policies,
        progress: CaptureProgress,
        events_schema: str = EVENTS_SCHEMA,
    ) -> None:
        """Raises UsageError when the file exists, OperatorError when it cannot be written."""
        rules = tuple((text, policy) for text, _, policy in policies.rules)
        self._file = RecordingWriter(
            path, RecordingHeader(state.name, state.system_id, state.publication, rules, events_schema)
        )
        self._progress, self._events_schema = progress, events_schema
        self._relations = Relations(state.name, {}, lambda relation: None, policies)
        self._quarantined: Container[TopicId] = ()
        self._columns: dict[int, Sequence[Column] | Exception] = {}

    def begin(
        self,
        state: SourceState,
        topics: Topics,
        policies: Policies,
        describe: Describe,
        ordinary: Container[int],
    ) -> None:
        """A session begins at the log's position, with these topics and policies. ``describe`` and ``ordinary``: as for
        the decoder's ``Relations``."""
        self._quarantined, self._columns = topics.quarantined, {}
        self._relations = Relations(
            state.name, topics.latest, describe, policies, self._quarantined, ordinary, self._events_schema
        )
        document = {
            "commit_lsn": state.commit_lsn,
            "end_lsn": state.end_lsn,
            "through_lsn": state.through_lsn,
            "topics": [[topic.text, schema.to_json()] for topic, schema in topics.latest.items()],
            "protected": policies.history.to_json(),
        }
        self._add(SESSION, document)
        self._file.flush()

    def block(self, block: FrameBlock | PartialBlock) -> None:
        """Raises what ``describe`` raises."""
        at, start = now_micros(), 0
        for end in block.ends:
            self._message(at, bytes(block.data[start:end]))
            start = end
        self._relations.changes.clear()
        self._file.flush()

    def record_answers(self, describe: Describe) -> Describe:
        """The same ``describe``, whose answers are recorded."""

        def recorded(relation: pgoutput.Relation) -> TopicSchema | None:
            found = describe(relation)
            shown = None if found is None else self._without_fills(relation, found)
            document = {
                "relation": as_json(relation),
                "schema": None if shown is None else shown.to_json(),
            }
            self._add(DESCRIPTION, document)
            self._file.flush()
            return found

        return recorded

    def close(self) -> None:
        self._file.flush()
        self._file.close()

    def _message(self, at: int, message: bytes) -> None:
        tag = message[:1]
        relid = int.from_bytes(message[1:5], "big")
        try:
            if tag == b"R":
                self._announce(message)
            elif tag == b"T":
                self._relations.forget_partitions()
            elif tag in _ROWS:
                message = self._protect(relid, message)
            elif tag == b"M":
                message = self._take_message(message)
        except _NotCaptured:
            return
        except ProtocolError:
            if tag != b"R":
                self._withhold(at, relid)
                return
        self._file.add(FRAME, at, message)

    def _announce(self, message: bytes) -> None:
        relation = pgoutput.decode(message)
        assert isinstance(relation, pgoutput.Relation)
        self._relations.announce(relation)
        self._columns.pop(relation.relid, None)

    def _protect(self, relid: int, message: bytes) -> bytes:
        """Raises ProtocolError when a row of protected columns cannot be taken apart."""
        if relid not in self._columns:
            try:
                self._columns[relid] = self._columns_of(relid)
            except (_NotCaptured, ProtocolError) as error:  # so is each row until the next announcement
                self._columns[relid] = error
        columns = self._columns[relid]
        if isinstance(columns, Exception):
            raise columns
        return protect(message, columns, self._relations.policies) if columns else message

    def _columns_of(self, relid: int) -> Sequence[Column]:
        """The columns of a table's rows, place by place, () when nothing of them is protected. Raises ProtocolError
        when nobody knows which of them are."""
        topic = self._relations.topic(relid)
        try:
            route = self._relations.resolve(relid, 0) if topic not in self._quarantined else None
        except SchemaConflict:
            route = None
        match route:
            case TableRoute():
                sent = route.schema.sent
                return sent if any(column.policy for column in sent) else ()
            case IgnoredRoute():
                raise _NotCaptured
            case None if topic is not None:
                columns = self._relations.undecoded_columns(relid, topic)
                if columns is None:
                    raise ProtocolError(f"a protected column of {topic} may have another name")
                return columns
            case _:
                return ()

    def _take_message(self, message: bytes) -> bytes:
        parsed = pgoutput.decode(message)
        assert isinstance(parsed, pgoutput.Message)
        if parsed.prefix != ddl_message.PREFIX or not parsed.transactional:
            return message
        with suppress(SchemaConflict):  # the decoder puts that table in quarantine
            self._relations.apply_ddl(ddl_message.parse(parsed.content), 0)
        self._columns.clear()
        return without_defaults(message, parsed) if self._protects() else message

    def _protects(self) -> bool:
        """Whether any column of the source is, or is to be, protected: then no default of a column is recorded."""
        policies = self._relations.policies
        return bool(policies.rules or policies.history.columns or policies.history.names)

    def _without_fills(self, relation: pgoutput.Relation, schema: TopicSchema) -> TopicSchema:
        if not self._protects():
            return schema
        return replace(schema, columns=tuple(replace(column, fill=None) for column in schema.columns))

    def _withhold(self, at: int, relid: int) -> None:
        self._file.add(WITHHELD, at, json.dumps({"relid": relid}).encode())
        self._progress.report(
            f"messages of table oid {relid} are left out of the recording: their values cannot be protected"
        )

    def _add(self, kind: bytes, document: object) -> None:
        self._file.add(kind, now_micros(), json.dumps(document).encode())


def as_json(relation: pgoutput.Relation) -> list[object]:
    """A relation as JSON compares it."""
    columns = [[each.name, each.type_oid, each.typmod, each.is_key] for each in relation.columns]
    return [relation.relid, relation.schema, relation.table, relation.identity, columns]
