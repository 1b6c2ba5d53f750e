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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from tailrace.cdc.context import Stopped, Task, lock_wait, transaction_wait
from tailrace.cdc.postgres.check import read_server
from tailrace.cdc.postgres.connect import Address, connect, connect_replication, translate_errors
from tailrace.cdc.postgres.errors import SlotLost
from tailrace.cdc.postgres.ownership import mark, require_own
from tailrace.cdc.postgres.publication import Publication, create_statement, read_publication
from tailrace.cdc.postgres.slot import ExportedSnapshot, create_exported, drop_slot, read_slot, require_idle
from tailrace.cdc.repair.events import EventsRepair
from tailrace.cdc.repair.report import TopicCorrections, TopicRepair
from tailrace.cdc.repair.table import RepairContext, TableRepair
from tailrace.cdc.setup.continuity import Mismatch, check_start, require_source
from tailrace.cdc.snapshot.copy import TableChanged, lock_tables, snapshot_session
from tailrace.cdc.snapshot.first_load import only_one, require_slot_unmoved
from tailrace.cdc.status import CaptureProgress
from tailrace.cdc.topics import Topics, is_events
from tailrace.eventstore import failpoints
from tailrace.eventstore.compiled.compiler import load_compiler
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.epoch import EpochBatch, Incarnation
from tailrace.eventstore.model.time import now_micros, to_micros
from tailrace.eventstore.settings import PostgresSourceSettings
from tailrace.eventstore.store import Store

_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RepairResult:
    """A repair that is in the log. ``lsn`` is the position that the stream goes on from, ``reason`` what was wrong."""

    source: str
    incarnation: int
    lsn: int
    epoch: int
    reason: str
    topics: tuple[TopicRepair, ...]


def stream_problem(store: Store, name: str, address: Address) -> str:
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
    settings: PostgresSourceSettings,
    *,
    progress: CaptureProgress | None = None,
    stop: threading.Event | None = None,
    tick: Callable[[str], None] = lambda text: None,
) -> RepairResult | None:
    """Compare every topic of a source with its tables and go on from there; None when nothing is wrong with its stream.

    Raises SlotActive when a capture runs, NotOwner, OperatorError (no publication, privileges, no free slot),
    TransientError, Fenced.
    """
    task = Task.of(store, name, settings, progress=progress, stop=stop).with_history()
    reason = stream_problem(store, name, task.address)
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

    def run(self, reason: str) -> RepairResult:
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
            require_own(
                publication,
                slot,
                self._store.log_id,
                self._address,
                database=server.database,
                loaded=state.loaded,
            )
            if slot is not None:
                require_idle(slot, self._address)
            mark(control, publication, self._store.log_id, self._address)
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
                    waiting=transaction_wait(self.task, control),
                )
                found, moment = self._compare(writer, exported, topics, publication)
            finally:
                replication.finish()
            require_slot_unmoved(control, exported, self._address)
            incarnation = Incarnation(state.incarnation + 1, server.system_id, server.timeline)
            failpoints.hit("repair_compared")
            info = writer.append(self._epoch(exported, found, moment, incarnation, topics))
        assert info is not None
        self._store.collect_orphans()
        repaired = tuple(each.repair for each in found)
        return RepairResult(
            self._name, incarnation.number, exported.consistent_point, info.epoch, reason, repaired
        )

    def _epoch(
        self,
        exported: ExportedSnapshot,
        corrections: Sequence[TopicCorrections],
        moment: datetime,
        incarnation: Incarnation,
        topics: Topics,
    ) -> EpochBatch:
        skipped = [each.repair for each in corrections if each.repair.skipped]
        incomplete = set(topics.incomplete)
        return EpochBatch(
            source=self._name,
            commit_lsn=exported.consistent_point - 1,
            end_lsn=exported.consistent_point,
            through_lsn=exported.consistent_point,
            commit_ts=moment,
            files=[file for each in corrections for file in each.files],
            new_schemas=[(each.repair.topic, each.schema) for each in corrections if each.schema is not None],
            completes=[
                each.repair.topic
                for each in corrections
                if each.repair.topic in incomplete and not each.repair.skipped
            ],
            suspends=[(each.topic, each.skipped) for each in skipped],
            published=[(each.repair.topic, each.published) for each in corrections if each.published],
            incarnation=incarnation,
        )

    def _compare(
        self, writer: SourceWriter, exported: ExportedSnapshot, topics: Topics, publication: Publication
    ) -> tuple[list[TopicCorrections], datetime]:
        with snapshot_session(self._address, exported.snapshot) as coordinator:
            publication = read_publication(coordinator, publication.name, self._address) or publication
            locked = {
                table.label: table
                for table in lock_tables(
                    coordinator,
                    self._address,
                    sorted(publication.tables),
                    publication,
                    waiting=lock_wait(self.task),
                )
            }
            with translate_errors("reading the clock", self._address):
                row = coordinator.execute("SELECT pg_catalog.clock_timestamp()").fetchone()
            assert row is not None and isinstance(row[0], datetime)
            micros = to_micros(row[0]) or now_micros()
            context = RepairContext(self.task, self.tick, writer, exported, topics, micros)
            work = [
                TableRepair(context, topic, locked.get((topic.parts[1], topic.parts[2])))
                for topic in topics.tables
            ]
            load_compiler()
            with ThreadPoolExecutor(self.task.settings.load_workers, "tailrace-repair") as pool:
                found = list(pool.map(lambda each: each.run(), work))
            for each in found:
                table = locked.get((each.repair.topic.parts[1], each.repair.topic.parts[2]))
                if table is not None:
                    each.published = publication.entries[table.relid].identity.to_json()
            schema = self.task.settings.events_schema
            events = next((table for table in locked.values() if is_events(table, schema)), None)
            if events is not None:
                found += EventsRepair(context, events).run()
        return found, row[0]
