"""Loads: all rows of tables as one slot-exported snapshot has them, as unregistered files of one epoch.

A first load has the source's own slot; a load of tables added later has a temporary one and runs while the stream
goes on. Either way everything that commits below the consistent point is in the files and everything else streamed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import Connection

from tailrace.cdc.columnar.values import LoadStamp, loaded_rows
from tailrace.cdc.context import Task, lock_wait
from tailrace.cdc.postgres.connect import translate_errors
from tailrace.cdc.postgres.publication import read_publication
from tailrace.cdc.postgres.slot import ExportedSnapshot
from tailrace.cdc.postgres.tables import Table
from tailrace.cdc.snapshot.copy import (
    CopyForm,
    CopyUnit,
    copy_chunks,
    lock_tables,
    plan_copies,
    read_with_fallback,
    share_locks,
    snapshot_session,
)
from tailrace.cdc.topics import TopicsChanged, changed_schema, is_events
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import EVENT_SCHEMA, TopicSchema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.time import to_micros
from tailrace.eventstore.model.topic import TopicId

Row = tuple[object, ...]
_REPORT_SECONDS = 0.5
_EVENT_COLUMNS = tuple(column.name for column in EVENT_SCHEMA.columns)


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Where loaded rows go: ``prepare`` writes a file; ``register`` creates a topic, so that a file may name it."""

    prepare: Callable[[TopicId, int, pa.Table], PreparedSegment]
    register: Callable[[TopicId, TopicSchema], object]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a snapshot held. ``schemas``: the topic version each table was written in; ``published``: how each table was
    published (``tailrace.cdc.postgres.publication``)."""

    files: tuple[PreparedSegment, ...]
    schemas: Mapping[TopicId, TopicSchema]
    rows: int
    commit_ts: datetime
    published: Mapping[TopicId, str] = field(default_factory=dict)


class SnapshotLoad:
    """Reads tables in an exported snapshot, with several connections at once. The caller keeps it exported."""

    def __init__(
        self,
        task: Task,
        exported: ExportedSnapshot,
        publication: str,
        target: LoadTarget,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._task = task
        self._address = task.address
        self._snapshot = exported.snapshot
        self._publication = publication
        self._lsn = exported.consistent_point - 1
        self._target = target
        self._workers = task.settings.load_workers
        self._progress = task.progress
        self._tick = tick
        self._lock = threading.Lock()
        self._halt = threading.Event()
        self._rows = self._ordinal = 0
        self._commit_ts = 0
        self._topics: dict[int, tuple[TopicId, TopicSchema]] = {}
        self._files: dict[tuple[int, int], PreparedSegment] = {}

    def run(self, topics: Mapping[TopicId, TopicSchema], events: int | None) -> LoadResult:
        """Load topics (each with the latest version the log has) and the events table with oid ``events``.

        Raises TableChanged or another TransientError (try again with a new snapshot), TopicsChanged when a table was
        dropped since the publication was read, OperatorError (privileges).
        """
        names = {schema.relid: topic for topic, schema in topics.items()}
        with snapshot_session(self._address, self._snapshot) as coordinator:
            relids = [*names, *([events] if events else [])]
            publication = read_publication(coordinator, self._publication, self._address)
            tables = lock_tables(
                coordinator, self._address, relids, publication, waiting=lock_wait(self._task)
            )
            _require_all(tables, names)
            entries = publication.entries if publication else {}
            published = {
                topic: entries[relid].identity.to_json() for relid, topic in names.items() if relid in entries
            }
            for table in tables:
                if table.relid in names:
                    topic = names[table.relid]
                    self._topics[table.relid] = topic, self._schema(table, topics[topic])
            units = [unit for table in tables for unit in self._units(coordinator, table)]
            commit_ts, expected = self._estimate(coordinator, [table.relid for table in tables])
            self._commit_ts = to_micros(commit_ts) or 0
            self._read_all(units, tables, expected)
        files = tuple(self._files[place] for place in sorted(self._files))
        return LoadResult(files, dict(self._topics.values()), self._rows, commit_ts, published)

    def _schema(self, table: Table, latest: TopicSchema) -> TopicSchema:
        return changed_schema(table, latest, self._task.policies) or latest

    def _units(self, coordinator: Connection[Row], table: Table) -> list[CopyUnit]:
        if is_events(table, self._task.settings.events_schema):
            return [  # the order of events is part of what they say: one reader, sorted
                CopyUnit(table, *table.label, order=' ORDER BY "stream", "version"', only=table.kind != "p")
            ]
        return plan_copies(coordinator, self._address, table, self._workers)

    def _estimate(self, coordinator: Connection[Row], relids: list[int]) -> tuple[datetime, int]:
        """The load's time (later than that of every commit in it, by the server's clock) and about how many rows."""
        with translate_errors("estimating the load", self._address):
            row = coordinator.execute(
                "WITH given AS (SELECT unnest(%s::bigint[]::oid[]) AS oid)"
                " SELECT pg_catalog.clock_timestamp(), coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint"
                " FROM (SELECT oid FROM given UNION SELECT t.relid FROM given g,"
                " pg_catalog.pg_partition_tree(g.oid) t) r JOIN pg_catalog.pg_class c ON c.oid = r.oid"
                " WHERE c.relkind = 'r'",
                [relids],
            ).fetchone()
        assert row is not None and isinstance(row[0], datetime) and isinstance(row[1], int)
        return row[0].astimezone(UTC), row[1]

    def _read_all(self, units: list[CopyUnit], tables: list[Table], expected: int) -> None:
        """Files are sorted by the place of their unit: the order of domain events matters."""
        todo = iter(sorted(enumerate(units), key=lambda numbered: -numbered[1].table.blocks))
        workers = min(self._workers, len(units))
        if not workers:
            return
        with ThreadPoolExecutor(workers, "tailrace-load") as pool:
            running = [pool.submit(self._work, todo, tables) for _ in range(workers)]
            try:
                self._watch(running, expected)
            finally:
                self._halt.set()

    def _work(self, todo: Iterator[tuple[int, CopyUnit]], tables: list[Table]) -> None:
        with snapshot_session(self._address, self._snapshot) as connection:
            share_locks(connection, self._address, tables)
            while not self._halt.is_set():
                with self._lock:
                    number, unit = next(todo, (-1, None))
                if unit is None:
                    return
                read_with_fallback(partial(self._read, connection, number, unit))

    def _read(self, connection: Connection[Row], number: int, unit: CopyUnit, form: CopyForm) -> None:
        self._forget(number)
        for count, (topic, schema, texts) in enumerate(self._chunks(connection, unit, form)):
            file = self._write(topic, schema, texts)
            with self._lock:
                self._files[number, count] = file
            if self._halt.is_set():
                return

    def _forget(self, number: int) -> None:
        """Drop what was read of a unit in the other form. Its ordinals stay unused, its files become orphans."""
        with self._lock:
            for place in [place for place in self._files if place[0] == number]:
                self._rows -= self._files.pop(place).rows

    def _chunks(
        self, connection: Connection[Row], unit: CopyUnit, form: CopyForm
    ) -> Iterator[tuple[TopicId, TopicSchema, list[pa.Array]]]:
        """A unit's rows as texts: of one topic, or of one per category of the events table."""
        if not is_events(unit.table, self._task.settings.events_schema):
            topic, schema = self._topics[unit.table.relid]
            names = [column.name for column in schema.columns]
            for texts in copy_chunks(connection, self._address, unit, names, form):
                yield topic, schema, texts
            return
        names = ["category", *_EVENT_COLUMNS]
        for category, *texts in copy_chunks(connection, self._address, unit, names, form):
            for name in pc.unique(category).to_pylist():
                topic = TopicId.events(self._task.name, str(name))
                self._target.register(topic, EVENT_SCHEMA)
                mask = pc.equal(category, name)
                yield topic, EVENT_SCHEMA, [cells.filter(mask) for cells in texts]

    def _write(self, topic: TopicId, schema: TopicSchema, texts: list[pa.Array]) -> PreparedSegment:
        rows = len(texts[0])
        with self._lock:
            first = self._ordinal
            self._ordinal += rows
            self._rows += rows
        table = loaded_rows(
            texts,
            schema,
            self._task.policies,
            LoadStamp(lsn=self._lsn, commit_ts=self._commit_ts, first_ordinal=first),
        )
        return self._target.prepare(topic, schema.version, table)

    def _watch(self, running: list[Future[None]], expected: int) -> None:
        """Wait for the workers and report; raise what one of them raised, or Stopped."""
        started = time.monotonic()
        names = [topic.text for topic, _ in self._topics.values()]
        pending = set(running)
        self._progress.set_load(names, 0, expected, 0.0)
        while pending:
            done, pending = wait(pending, _REPORT_SECONDS, FIRST_EXCEPTION)
            for future in done:
                future.result()
            rate = self._rows / max(time.monotonic() - started, 1e-3)
            self._progress.set_load(names, self._rows, max(expected, self._rows), rate)
            self._tick()
            if pending:
                self._task.require_going()


def _require_all(tables: list[Table], names: Mapping[int, TopicId]) -> None:
    found = {table.relid for table in tables}
    gone = [topic.text for relid, topic in names.items() if relid not in found]
    if gone:
        raise TopicsChanged(f"no table is left for {', '.join(gone)}")
    unreadable = [table.text for table in tables if not table.readable]
    if unreadable:
        raise OperatorError(
            f"the source's user may not read {', '.join(unreadable)}",
            hint="GRANT USAGE ON the SCHEMA and SELECT ON the tables to it (first loads and verify read them)",
        )
