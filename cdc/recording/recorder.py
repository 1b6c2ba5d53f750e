"""``capture --record``: blocks on their way to the decoder, written to a recording under the column policies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tailrace.cdc.columnar.protect import is_protected, protect, protected_columns, without_defaults
from tailrace.cdc.columnar.relations import Describe
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
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.time import now_micros
from tailrace.eventstore.model.topic import TopicId

_ROWS = (b"I", b"U", b"D")
SECRET_TABLE = ("tailrace", "secret")  # a publication FOR ALL TABLES sends it, too


class Recorder:
    """One recording of one source, over all sessions of a capture. Used by one thread at a time."""

    def __init__(self, path: Path, state: SourceState, policies: Policies, progress: CaptureProgress) -> None:
        """Raises UsageError when the file exists, OperatorError when it cannot be written."""
        rules = tuple((text, policy) for text, _, policy in policies.rules)
        self._file = RecordingWriter(
            path, RecordingHeader(state.name, state.system_id, state.publication, rules)
        )
        self._policies = policies
        self._progress = progress
        self._schemas: dict[int, tuple[TopicId, TopicSchema]] = {}
        self._relations: dict[int, pgoutput.Relation] = {}

    def begin(self, state: SourceState, topics: Topics, policies: Policies) -> None:
        """A session begins at the log's position, with these topics and policies."""
        self._policies = policies
        self._schemas, self._relations = dict(topics.schemas), {}
        document = {
            "commit_lsn": state.commit_lsn,
            "end_lsn": state.end_lsn,
            "through_lsn": state.through_lsn,
            "topics": [[topic.text, schema.to_json()] for topic, schema in topics.schemas.values()],
        }
        self._add(SESSION, document)
        self._file.flush()

    def block(self, block: FrameBlock | PartialBlock) -> None:
        at, start = now_micros(), 0
        for end in block.ends:
            self._message(at, bytes(block.data[start:end]))
            start = end
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
                relation = pgoutput.decode(message)
                assert isinstance(relation, pgoutput.Relation)
                self._relations[relid] = relation
            elif tag in _ROWS:
                message = self._protect(relid, message)
            elif tag == b"M":
                message = self._without_defaults(message)
        except ProtocolError:
            if tag != b"R":
                self._withhold(at, relid)
                return
        self._file.add(FRAME, at, message)

    def _protect(self, relid: int, message: bytes) -> bytes:
        """Raises ProtocolError when a row of protected columns cannot be taken apart."""
        relation = self._relations.get(relid)
        if relation is None:
            raise ProtocolError(f"a row of table oid {relid}, which was not announced")
        if (relation.schema, relation.table) == SECRET_TABLE:
            raise ProtocolError("a row of the secret of the DDL trigger")
        schema = self._schema(relation)
        if not is_protected((relation.schema, relation.table), relation, schema, self._policies):
            return message
        columns = protected_columns(relation, schema, self._policies)
        if columns is None:
            raise ProtocolError(f"a protected column of {relation.schema}.{relation.table} has another name")
        return protect(message, columns, self._policies)

    def _schema(self, relation: pgoutput.Relation) -> TopicSchema:
        """The topic's, as the session knew it; that of no columns for a table nobody knew."""
        known = self._schemas.get(relation.relid)
        if known is not None:
            return known[1]
        by_name = (s for t, s in self._schemas.values() if t.parts[1:] == (relation.schema, relation.table))
        return next(by_name, TopicSchema(1, ()))

    def _without_defaults(self, message: bytes) -> bytes:
        parsed = pgoutput.decode(message)
        assert isinstance(parsed, pgoutput.Message)
        return (
            without_defaults(message, parsed)
            if parsed.prefix == ddl_message.PREFIX and self._protects()
            else message
        )

    def _protects(self) -> bool:
        """Whether any column of the source is, or is to be, protected: then no default of a column is recorded."""
        schemas = (schema for _, schema in self._schemas.values())
        return bool(self._policies.rules) or any(c.policy for schema in schemas for c in schema.sent)

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
