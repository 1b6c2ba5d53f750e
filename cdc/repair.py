"""Repair: a source whose stream cannot go on (slot lost, server restored or upgraded) is compared and corrected.

A new slot exports a snapshot at its consistent point. In it every table is compared row by row with the log's state;
what differs is appended, with the new position, as the one epoch that begins a new *incarnation* of the source: LSNs
from here on are not compared with those before. The log's state is then exactly the source's at the consistent point,
and what the log held before stays readable. What happened in between is not known, only what came of it.

Until that epoch is in the log, nothing is changed for readers. The source is marked meanwhile, so that no capture
takes the new slot for one that fits the log; after a crash the repair is simply begun again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import Connection

from cdc.columnar.values import table_rows
from cdc.corrections import Correction
from cdc.digests import DigestBuilder, Digests
from cdc.directory import Topics, changed, is_events
from cdc.first import Waiting, only_one, require_kept
from cdc.identity import Mismatch, check_start, require_source
from cdc.postgres.check import read_server
from cdc.postgres.chunk import Keyset, Piece, read_keyset
from cdc.postgres.connect import Address, connect, connect_replication, translated
from cdc.postgres.describe import Table
from cdc.postgres.problems import SlotLost
from cdc.postgres.publication import Publication, create_statement, read_publication
from cdc.postgres.slot import Exported, create_exported, drop_slot, read_slot, require_idle
from cdc.postgres.snapshot import (
    Form,
    TableChanged,
    Unit,
    copy_chunks,
    in_either_form,
    lock_tables,
    plan_units,
    share_locks,
    snapshot_session,
)
from cdc.status import Progress
from cdc.task import Stopped, Task
from eventstore import failpoints
from eventstore.errors import OperatorError, UsageError
from eventstore.log import Store
from eventstore.model import EpochBatch, Incarnation, Op, PreparedSegment, TopicId
from eventstore.schema import EVENT_SCHEMA, TopicSchema, change_schema
from eventstore.settings import SourceSettings
from eventstore.state import plan_state
from eventstore.state import state as state_of
from eventstore.times import now_micros, to_micros
from eventstore.writer import SourceWriter

Row = tuple[object, ...]
_KEYS_AT_ONCE = 500
_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class TopicRepair:
    """What was found of one topic. Rows ``added`` were missing in the log, ``changed`` differed, ``deleted`` were gone
    from the source. ``whole``: why it was read anew rather than compared; ``skipped``: why it was neither."""

    topic: TopicId
    rows: int = 0
    added: int = 0
    changed: int = 0
    deleted: int = 0
    whole: str = ""
    skipped: str = ""

    @property
    def equal(self) -> bool:
        return not (self.added or self.changed or self.deleted or self.whole or self.skipped)


@dataclass(frozen=True, slots=True)
class Repaired:
    """A repair that is in the log. ``lsn`` is the position that the stream goes on from, ``reason`` what was wrong."""

    source: str
    incarnation: int
    lsn: int
    epoch: int
    reason: str
    topics: tuple[TopicRepair, ...]


@dataclass(slots=True)
class _Found:
    """One topic's part of the repair."""

    repair: TopicRepair
    files: list[PreparedSegment] = field(default_factory=list)
    schema: TopicSchema | None = None
    """The version the rows are in, when it is a new one."""
    published: str = ""
    """How the snapshot has its table published (``cdc.postgres.identity``)."""


def what_is_wrong(store: Store, name: str, address: Address) -> str:
    """Why the stream cannot go on; "" when it can. Raises SlotActive, and what only the operator can mend."""
    try:
        state, _ = check_start(store, name, address)
    except (Mismatch, SlotLost) as error:
        return error.message
    if not state.loaded:
        raise UsageError(
            f"source {name} has not been loaded yet", hint="`tailrace capture` takes the first load"
        )
    return ""


def repair_source(
    store: Store,
    name: str,
    settings: SourceSettings,
    *,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    tick: Callable[[str], None] = lambda text: None,
) -> Repaired | None:
    """Compare every topic of a source with its tables and go on from there; None when nothing is wrong with its stream.

    Raises SlotActive when a capture runs, OperatorError (no publication, privileges, no free slot), TransientError,
    Fenced.
    """
    task = Task.of(store, name, settings, progress=progress, stop=stop)
    reason = what_is_wrong(store, name, task.address)
    if not reason:
        return None
    repair = _Repair(task, tick)
    while True:
        try:
            return repair.run(reason)
        except TableChanged:  # truncated or altered between the snapshot and our lock: a new snapshot
            if task.stop.wait(_AGAIN_SECONDS):
                raise Stopped from None


class _Repair:
    def __init__(self, task: Task, tick: Callable[[str], None]) -> None:
        self.task = task
        self.tick = tick
        self._store = task.store
        self._name = task.name
        self._address = task.address

    def run(self, reason: str) -> Repaired:
        state = require_source(self._store, self._name)
        with (
            connect(self._address, "tailrace repair") as control,
            only_one(control, state.slot, self._address),
        ):
            server = read_server(control, self._address)
            publication = read_publication(control, state.publication, self._address)
            topics = Topics.read(self._store, self._name)
            if publication is None:
                labels = [(topic.parts[1], topic.parts[2]) for topic in topics.tables]
                raise OperatorError(
                    f"there is no publication {state.publication} in {self._address.text}",
                    hint=f"make it again, then repair: {create_statement(state.publication, labels)}",
                )
            slot = read_slot(control, state.slot, self._address)
            if slot is not None:
                require_idle(slot, self._address)
            writer = self._store.take_over(self._name)
            writer.begin_repair()
            if slot is not None:
                drop_slot(control, state.slot, self._address)
            replication = connect_replication(self._address, f"tailrace {state.slot}")
            try:
                exported = create_exported(
                    replication,
                    state.slot,
                    self._address,
                    waiting=Waiting(self.task, control),
                )
                found, moment = self._compare(writer, exported, topics, publication)
            finally:
                replication.finish()
            require_kept(control, exported, self._address)
            incarnation = Incarnation(state.incarnation + 1, server.system_id, server.timeline)
            failpoints.hit("repair_compared")
            info = writer.append(self._epoch(exported, found, moment, incarnation, topics))
        assert info is not None
        self._store.collect_orphans()
        repaired = tuple(each.repair for each in found)
        return Repaired(
            self._name, incarnation.number, exported.consistent_point, info.epoch, reason, repaired
        )

    def _epoch(
        self,
        exported: Exported,
        found: Sequence[_Found],
        moment: datetime,
        incarnation: Incarnation,
        topics: Topics,
    ) -> EpochBatch:
        skipped = [each.repair for each in found if each.repair.skipped]
        incomplete = set(topics.incomplete)
        return EpochBatch(
            source=self._name,
            commit_lsn=exported.consistent_point - 1,
            end_lsn=exported.consistent_point,
            through_lsn=exported.consistent_point,
            commit_ts=moment,
            files=[file for each in found for file in each.files],
            new_schemas=[(each.repair.topic, each.schema) for each in found if each.schema is not None],
            completes=[
                each.repair.topic
                for each in found
                if each.repair.topic in incomplete and not each.repair.skipped
            ],
            suspends=[(each.topic, each.skipped) for each in skipped],
            published=[(each.repair.topic, each.published) for each in found if each.published],
            incarnation=incarnation,
        )

    def _compare(
        self, writer: SourceWriter, exported: Exported, topics: Topics, publication: Publication
    ) -> tuple[list[_Found], datetime]:
        with snapshot_session(self._address, exported.snapshot) as coordinator:
            publication = read_publication(coordinator, publication.name, self._address) or publication
            locked = {
                table.label: table
                for table in lock_tables(
                    coordinator,
                    self._address,
                    sorted(publication.tables),
                    publication,
                    waiting=self.task.require_going,
                )
            }
            with translated("reading the clock", self._address):
                row = coordinator.execute("SELECT pg_catalog.clock_timestamp()").fetchone()
            assert row is not None and isinstance(row[0], datetime)
            micros = to_micros(row[0]) or now_micros()
            work = [
                _TopicWork(
                    self,
                    writer,
                    exported,
                    topic,
                    topics,
                    locked.get((topic.parts[1], topic.parts[2])),
                    micros,
                )
                for topic in topics.tables
            ]
            with ThreadPoolExecutor(self.task.settings.load_workers, "tailrace-repair") as pool:
                found = list(pool.map(lambda each: each.run(), work))
            for each in found:
                table = locked.get((each.repair.topic.parts[1], each.repair.topic.parts[2]))
                if table is not None:
                    each.published = publication.entries[table.relid].identity.to_json()
            events = next((table for table in locked.values() if is_events(table)), None)
            if events is not None:
                found += _EventWork(self, writer, exported, events, micros).run()
        return found, row[0]


class _TopicWork:
    """One table's comparison, on a connection of its own."""

    def __init__(
        self,
        repair: _Repair,
        writer: SourceWriter,
        exported: Exported,
        topic: TopicId,
        topics: Topics,
        table: Table | None,
        micros: int,
    ) -> None:
        self._task = repair.task
        self._tick = repair.tick
        self._store = repair.task.store
        self._address = repair.task.address
        self._writer = writer
        self._exported = exported
        self._topic = topic
        self._table = table
        self._latest = topics.schema(topic)
        self._complete = topic not in topics.incomplete
        self._micros = micros
        self._lsn = exported.consistent_point - 1
        self._form = Form.TEXT

    def run(self) -> _Found:
        self._task.require_going()
        self._tick(f"comparing {self._topic.text}")
        if self._table is None:
            return _Found(TopicRepair(self._topic, skipped="no published table has its name"))
        if not self._table.readable:
            raise OperatorError(
                f"the source's user may not read {self._table.text}",
                hint="GRANT USAGE ON its SCHEMA and SELECT ON the table",
            )
        with snapshot_session(self._address, self._exported.snapshot) as connection:
            share_locks(connection, self._address, [self._table])
            schema = self._next_version(self._table)
            return in_either_form(partial(self._found, connection, self._table, schema))

    def _found(
        self, connection: Connection[Row], table: Table, schema: TopicSchema | None, form: Form
    ) -> _Found:
        self._form = form
        reason = self._why_whole(schema or self._latest)
        if reason:
            return self._whole(connection, table, schema, reason)
        return self._compared(connection, table, schema)

    def _next_version(self, table: Table) -> TopicSchema | None:
        """None when the table is what the log says. One of the same shape under another oid keeps what the log knows
        of its columns: a server that was loaded from a dump has forgotten what filled old rows."""
        schema = changed(table, self._latest, self._task.policies)
        if schema is None or _shape(schema) != _shape(self._latest):
            return schema
        if schema.relid == self._latest.relid:
            return None
        return replace(self._latest, version=schema.version, relid=schema.relid)

    def _why_whole(self, schema: TopicSchema) -> str:
        if not self._complete:
            return "it was incomplete"
        if self._latest.bag or schema.bag:
            return "it has no key"
        if any(column.policy for column in schema.key):
            return "its key is hashed, so no row of it can be looked up"
        held = plan_state(self._store, self._topic, self._store.cut()).target
        same = _shape(schema) == _shape(self._latest) == _shape(held)
        return "" if same else "its columns or its key are others now"

    def _whole(
        self, connection: Connection[Row], table: Table, schema: TopicSchema | None, reason: str
    ) -> _Found:
        """A truncate, then all rows."""
        current = schema or self._latest
        empty = dict.fromkeys(change_schema(current).names) | {
            "_hash": 0,
            "_op": Op.TRUNCATE.value,
            "_lsn": self._lsn,
            "_txn": 0,
            "_ordinal": 0,
            "_commit_ts": self._micros,
            "_before": "none",
        }
        emptied = pa.Table.from_pylist([empty], schema=change_schema(current))
        files = [self._prepare(current, emptied)]
        count = 0
        for texts in self._source_rows(connection, table, current):
            rows = table_rows(
                texts,
                current,
                self._task.policies,
                lsn=self._lsn,
                commit_ts=self._micros,
                first_ordinal=count + 1,
            )
            files.append(self._prepare(current, rows))
            count += rows.num_rows
        repair = TopicRepair(self._topic, rows=count, whole=reason)
        return _Found(repair, files, schema)

    def _compared(self, connection: Connection[Row], table: Table, schema: TopicSchema | None) -> _Found:
        current = schema or self._latest
        log = self._digests(current)
        if log is None:
            return self._whole(
                connection, table, schema, "the log's rows cannot be told apart by their hashes"
            )
        correction = Correction(
            self._topic, current, self._task.policies, log, lsn=self._lsn, commit_ts=self._micros
        )
        files = [
            self._prepare(current, rows)
            for texts in self._source_rows(connection, table, current)
            if (rows := correction.chunk(texts)) is not None
        ]
        keyset = read_keyset(connection, self._address, self._writer.state.publication, table.relid)
        assert keyset is not None
        gone = correction.superfluous(
            lambda: self._log_rows(current), lambda keys: self._existing(connection, keyset, keys)
        )
        files += [self._prepare(current, rows) for rows in gone]
        repair = TopicRepair(
            self._topic,
            rows=correction.rows,
            added=correction.added,
            changed=correction.changed,
            deleted=correction.deleted,
        )
        return _Found(repair, files, schema)

    def _digests(self, schema: TopicSchema) -> Digests | None:
        """Of the topic's rows in the log; None when two different keys have one hash."""
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
        for unit in plan_units(connection, self._address, table, 1):
            for texts in copy_chunks(
                connection, self._address, unit, [column.name for column in schema.columns], self._form
            ):
                self._task.require_going()
                yield texts

    def _existing(
        self, connection: Connection[Row], keyset: Keyset, keys: Sequence[tuple[str, ...]]
    ) -> set[tuple[str, ...]]:
        """Which of some keys the snapshot has."""
        names = [column.name for column in self._latest.columns if column.key]
        found: set[tuple[str, ...]] = set()
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            piece = Piece(keys=tuple(keys[start : start + _KEYS_AT_ONCE]))
            for texts in copy_chunks(connection, self._address, piece.unit(keyset), names):
                found.update(zip(*(cells.to_pylist() for cells in texts), strict=True))
        return found

    def _prepare(self, schema: TopicSchema, rows: pa.Table) -> PreparedSegment:
        return self._writer.prepare(self._topic, schema.version, rows)


def _shape(schema: TopicSchema) -> tuple[object, ...]:
    columns = [(c.id, c.name, c.type_oid, c.typmod, c.key, c.policy) for c in schema.columns]
    return schema.bag, columns


class _EventWork:
    """Domain events: what the log has stays, also what the source has not; what it misses is appended in order."""

    def __init__(
        self, repair: _Repair, writer: SourceWriter, exported: Exported, table: Table, micros: int
    ) -> None:
        self._task = repair.task
        self._store = repair.task.store
        self._writer = writer
        self._exported = exported
        self._table = table
        self._micros = micros
        self._known: dict[TopicId, set[str]] = {}
        self._counts: dict[TopicId, list[int]] = {}

    def run(self) -> list[_Found]:
        names = ["category", *(column.name for column in EVENT_SCHEMA.columns)]
        unit = Unit(
            self._table,
            *self._table.label,
            order=' ORDER BY "stream", "version"',
            only=self._table.kind != "p",
        )
        ordinal = 0
        files: dict[TopicId, list[PreparedSegment]] = {}
        with snapshot_session(self._task.address, self._exported.snapshot) as connection:
            share_locks(connection, self._task.address, [self._table])
            for category, *texts in copy_chunks(connection, self._task.address, unit, names):
                self._task.require_going()
                for name in pc.unique(category).to_pylist():
                    topic = TopicId.events(self._task.name, str(name))
                    cells = [each.filter(pc.equal(category, name)) for each in texts]
                    missing = self._missing(topic, cells)
                    counts = self._counts.setdefault(topic, [0, 0])
                    counts[0] += len(cells[0])
                    counts[1] += len(missing[0])
                    if len(missing[0]):
                        rows = table_rows(
                            missing,
                            EVENT_SCHEMA,
                            self._task.policies,
                            lsn=self._exported.consistent_point - 1,
                            commit_ts=self._micros,
                            first_ordinal=ordinal,
                        )
                        ordinal += rows.num_rows
                        file = self._writer.prepare(topic, EVENT_SCHEMA.version, rows)
                        files.setdefault(topic, []).append(file)
        return [
            _Found(TopicRepair(topic, rows=rows, added=added), files.get(topic, []))
            for topic, (rows, added) in self._counts.items()
        ]

    def _missing(self, topic: TopicId, cells: Sequence[pa.Array]) -> list[pa.Array]:
        at = [column.name for column in EVENT_SCHEMA.columns].index("event_id")
        known = self._ids(topic)
        mask = pa.array([text not in known for text in cells[at].to_pylist()], pa.bool_())
        return [each.filter(mask) for each in cells]

    def _ids(self, topic: TopicId) -> set[str]:
        if topic not in self._known:
            self._store.register_topic(topic, EVENT_SCHEMA, reason="")  # nothing to do when it is there
            ids: set[str] = set()
            for batch in self._store.read(topic, columns=["after"]):
                ids.update(batch.column("after").field("event_id").to_pylist())
            self._known[topic] = ids
        return self._known[topic]
