"""Repair of domain events: the log's events stay; missing ones are appended in the order of their streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.columnar.values import loaded_rows
from tailrace.cdc.postgres.tables import Table
from tailrace.cdc.repair.report import TopicCorrections, TopicRepair
from tailrace.cdc.repair.table import RepairContext
from tailrace.cdc.snapshot.copy import CopyUnit, copy_chunks, share_locks, snapshot_session
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.schema import EVENT_SCHEMA
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store


def retained_events(store: Store, topic: TopicId, recorded: pa.Array) -> pa.Array:
    """Which events, by the text of their ``recorded_at``, retention has not removed from the log. An event is recorded
    before it commits and removed by the time of its commit. So an event that was recorded later than the last removed
    one must still be there; an earlier one that is missing was removed."""
    removed = store.removed_until(topic)
    if removed is None:
        return pa.array([True] * len(recorded), pa.bool_())
    # Session settings print every time alike, in UTC: the order of texts is that of times.
    return pc.greater(recorded.cast(pa.string()), f"{removed:%Y-%m-%d %H:%M:%S.%f}")


class EventsRepair:
    """Appends the events that the log misses. Events that only the log has stay."""

    def __init__(self, context: RepairContext, table: Table) -> None:
        self._task = context.task
        self._store = context.task.store
        self._writer = context.writer
        self._exported = context.exported
        self._stamp = context.stamp
        self._table = table
        self._known: dict[TopicId, set[str]] = {}
        self._counts: dict[TopicId, list[int]] = {}

    def run(self) -> list[TopicCorrections]:
        names = ["category", *(column.name for column in EVENT_SCHEMA.columns)]
        unit = CopyUnit(
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
                    missing = self._missing_events(topic, cells)
                    counts = self._counts.setdefault(topic, [0, 0])
                    counts[0] += len(cells[0])
                    counts[1] += len(missing[0])
                    if len(missing[0]):
                        rows = loaded_rows(
                            missing,
                            EVENT_SCHEMA,
                            self._task.policies,
                            replace(self._stamp, first_ordinal=ordinal),
                        )
                        ordinal += rows.num_rows
                        file = self._writer.prepare(topic, EVENT_SCHEMA.version, rows)
                        files.setdefault(topic, []).append(file)
        return [
            TopicCorrections(TopicRepair(topic, rows=rows, added=added), files.get(topic, []))
            for topic, (rows, added) in self._counts.items()
        ]

    def _missing_events(self, topic: TopicId, cells: Sequence[pa.Array]) -> list[pa.Array]:
        names = [column.name for column in EVENT_SCHEMA.columns]
        known = self._ids(topic)
        missing = pa.array(
            [text not in known for text in cells[names.index("event_id")].to_pylist()], pa.bool_()
        )
        mask = pc.and_(missing, retained_events(self._store, topic, cells[names.index("recorded_at")]))
        return [each.filter(mask) for each in cells]

    def _ids(self, topic: TopicId) -> set[str]:
        if topic not in self._known:
            register_topic(self._store, topic, EVENT_SCHEMA, reason="")  # nothing to do when it is there
            ids: set[str] = set()
            for batch in self._store.read(topic, columns=["after"]):
                ids.update(batch.column("after").field("event_id").to_pylist())
            self._known[topic] = ids
        return self._known[topic]
