"""Repair of one table: compare its rows in the source's snapshot with the topic's state in the log, by hashes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from psycopg import Connection

from tailrace.cdc.columnar.rows import truncate_row
from tailrace.cdc.columnar.values import LoadStamp, loaded_rows
from tailrace.cdc.context import Task
from tailrace.cdc.postgres.slot import ExportedSnapshot
from tailrace.cdc.postgres.tables import Table
from tailrace.cdc.repair.corrections import Correction
from tailrace.cdc.repair.digests import DigestBuilder, Digests
from tailrace.cdc.repair.redactions import ErasedCells
from tailrace.cdc.repair.report import TopicCorrections, TopicRepair
from tailrace.cdc.snapshot.chunk_query import ChunkBounds, KeyedTable, read_keyset
from tailrace.cdc.snapshot.copy import (
    CopyForm,
    copy_chunks,
    plan_copies,
    read_with_fallback,
    share_locks,
    snapshot_session,
)
from tailrace.cdc.topics import Topics, changed_schema
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.maintenance.redaction.receipts import receipts
from tailrace.eventstore.model.info import LEFT
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.state.input import plan_state
from tailrace.eventstore.state.state import state as state_of

Row = tuple[object, ...]
_KEYS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class RepairContext:
    """What the repairs of one source work with. ``micros``: the time of the repair's epoch in µs since 1970 UTC."""

    task: Task
    tick: Callable[[str], None]
    writer: SourceWriter
    exported: ExportedSnapshot
    topics: Topics
    micros: int

    @property
    def stamp(self) -> LoadStamp:
        """What the consistent point's snapshot shows was committed just below it."""
        return LoadStamp(self.exported.consistent_point - 1, self.micros)


class TableRepair:
    """One table's comparison, on a connection of its own. ``table``: None when none is published under its name."""

    def __init__(self, context: RepairContext, topic: TopicId, table: Table | None) -> None:
        self._task = context.task
        self._tick = context.tick
        self._store = context.task.store
        self._address = context.task.address
        self._writer = context.writer
        self._exported = context.exported
        self._topic = topic
        self._table = table
        self._latest = context.topics.schema(topic)
        self._complete = topic not in context.topics.incomplete
        self._stamp = context.stamp
        self._form = CopyForm.TEXT

    def run(self) -> TopicCorrections:
        self._task.require_going()
        self._tick(f"comparing {self._topic.text}")
        if self._table is None:
            return TopicCorrections(TopicRepair(self._topic, skipped=LEFT))
        if not self._table.readable:
            raise OperatorError(
                f"the source's user may not read {self._table.text}",
                hint="GRANT USAGE ON its SCHEMA and SELECT ON the table",
            )
        with snapshot_session(self._address, self._exported.snapshot) as connection:
            share_locks(connection, self._address, [self._table])
            schema = self._next_version(self._table)
            return read_with_fallback(partial(self._repair, connection, self._table, schema))

    def _repair(
        self, connection: Connection[Row], table: Table, schema: TopicSchema | None, form: CopyForm
    ) -> TopicCorrections:
        self._form = form
        reason = self._reload_reason(schema or self._latest)
        if reason:
            return self._reload(connection, table, schema, reason)
        return self._compare(connection, table, schema)

    def _next_version(self, table: Table) -> TopicSchema | None:
        """The table's version when it is not what the log says, else None. A table of the same shape under another oid
        keeps what the log knows of its columns: a server that was loaded from a dump has lost the fills of old rows."""
        schema = changed_schema(table, self._latest, self._task.policies)
        if schema is None or _shape(schema) != _shape(self._latest):
            return schema
        if schema.relid == self._latest.relid:
            return None
        return replace(self._latest, version=schema.version, relid=schema.relid)

    def _reload_reason(self, schema: TopicSchema) -> str:
        if not self._complete:
            return "it was incomplete"
        if self._latest.bag or schema.bag:
            return "it has no key"
        if any(column.policy for column in schema.key):
            return "its key is hashed, so no row of it can be looked up"
        held = plan_state(self._store, self._topic, self._store.cut()).target
        same = _shape(schema) == _shape(self._latest) == _shape(held)
        return "" if same else "its columns or its key are others now"

    def _reload(
        self, connection: Connection[Row], table: Table, schema: TopicSchema | None, reason: str
    ) -> TopicCorrections:
        """A truncate, then all rows."""
        current = schema or self._latest
        files = [self._prepare(current, truncate_row(current, self._stamp.lsn, self._stamp.commit_ts or 0))]
        count = 0
        erased = self._erased_cells(current)
        for texts in self._source_rows(connection, table, current):
            erased.hide(self._task.policies.texts(current.columns, texts))  # counts
            rows = loaded_rows(
                texts, current, self._task.policies, replace(self._stamp, first_ordinal=count + 1)
            )
            files.append(self._prepare(current, erased.erase(rows, current)))
            count += rows.num_rows
        if erased and [column.id for column in current.key] != [column.id for column in self._latest.key]:
            reason += " (what was erased of its rows is in the log again, under their new key)"
        repair = TopicRepair(self._topic, rows=count, erased=erased.held, whole=reason)
        return TopicCorrections(repair, files, schema)

    def _compare(
        self, connection: Connection[Row], table: Table, schema: TopicSchema | None
    ) -> TopicCorrections:
        current = schema or self._latest
        log = self._digests(current)
        if log is None:
            return self._reload(connection, table, schema, "two keys of the log have one hash")
        erased = self._erased_cells(current)
        correction = Correction(self._topic, current, self._task.policies, log, erased, self._stamp)
        files = [
            self._prepare(current, rows)
            for texts in self._source_rows(connection, table, current)
            if (rows := correction.chunk(texts)) is not None
        ]
        keyset = read_keyset(connection, self._address, self._writer.state.publication, table.relid)
        assert keyset is not None
        gone = correction.superfluous(
            lambda: self._log_rows(current), lambda keys: self._existing_keys(connection, keyset, keys)
        )
        files += [self._prepare(current, rows) for rows in gone]
        repair = TopicRepair(
            self._topic,
            rows=correction.rows,
            added=correction.added,
            changed=correction.changed,
            deleted=correction.deleted,
            erased=erased.held,
        )
        return TopicCorrections(repair, files, schema)

    def _erased_cells(self, schema: TopicSchema) -> ErasedCells:
        """The erased cells of the topic's rows, from its state. For keys without a row there, or when the state is not
        known, the receipts say it: a server that was restored may have such rows again."""
        erased = ErasedCells(schema.columns, [at for at, column in enumerate(schema.columns) if column.key])
        given = receipts(self._store, [self._topic])
        if not given:
            return erased
        columns = [column for version in self._store.schemas(self._topic) for column in version.columns]
        ids = {column.name: column.id for column in columns}
        living = self._learn_erased(erased, ids) if self._complete else frozenset()
        for receipt in given:
            gone = {column.id for column in columns if column.name in receipt.columns}
            for key_hash in map(hash_texts, receipt.keys):
                if key_hash not in living:
                    erased.add(key_hash, gone)
        return erased

    def _learn_erased(self, erased: ErasedCells, ids: Mapping[str, int]) -> Collection[int]:
        """Add the erased cells of the topic's state to ``erased``. Returns the hashes of its keys."""
        living: set[int] = set()
        for table in state_of(self._store, self._topic, self._store.cut(), on_unreadable="text"):
            key = [table[column.name].combine_chunks() for column in self._latest.key]
            erased.learn(key, table["_erased"].combine_chunks(), ids)
            living.update(table["_hash"].to_pylist())
        return living

    def _digests(self, schema: TopicSchema) -> Digests | None:
        """The topic's rows in the log; None when two different keys have one hash."""
        builder = DigestBuilder([at for at, column in enumerate(schema.columns) if column.key])
        for texts in self._log_rows(schema):
            builder.add(texts)
        digests = builder.finish()
        return None if (digests.key[1:] == digests.key[:-1]).any() else digests

    def _log_rows(self, schema: TopicSchema) -> Iterator[Sequence[pa.Array]]:
        for table in state_of(self._store, self._topic, self._store.cut(), on_unreadable="text"):
            names = {
                int(field.metadata[b"PARQUET:field_id"]): field.name
                for field in table.schema
                if field.metadata
            }
            yield [table[names[column.id]].combine_chunks() for column in schema.columns]

    def _source_rows(
        self, connection: Connection[Row], table: Table, schema: TopicSchema
    ) -> Iterator[Sequence[pa.Array]]:
        for unit in plan_copies(connection, self._address, table, 1):
            for texts in copy_chunks(
                connection, self._address, unit, [column.name for column in schema.columns], self._form
            ):
                self._task.require_going()
                yield texts

    def _existing_keys(
        self, connection: Connection[Row], keyset: KeyedTable, keys: Sequence[tuple[str, ...]]
    ) -> set[tuple[str, ...]]:
        """The keys, of those given, that the snapshot has."""
        names = [column.name for column in self._latest.columns if column.key]
        found: set[tuple[str, ...]] = set()
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            piece = ChunkBounds(keys=tuple(keys[start : start + _KEYS_AT_ONCE]))
            for texts in copy_chunks(connection, self._address, piece.unit(keyset), names):
                found.update(zip(*(cells.to_pylist() for cells in texts), strict=True))
        return found

    def _prepare(self, schema: TopicSchema, rows: pa.Table) -> PreparedSegment:
        return self._writer.prepare(self._topic, schema.version, rows)


def _shape(schema: TopicSchema) -> tuple[object, ...]:
    columns = [(c.id, c.name, c.type_oid, c.typmod, c.key, c.policy) for c in schema.columns]
    return schema.bag, columns
