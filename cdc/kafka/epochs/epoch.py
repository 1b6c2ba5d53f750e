"""One epoch of a Kafka source: records of some partitions become rows, and say how far the partitions are. No broker.

The source's position is a counter of its epochs: each has the next number, as ``commit_lsn``, ``end_lsn`` and
``through_lsn``, and as ``_lsn`` of its rows. What comes together from several partitions has no order that Kafka knows,
so nothing lies between two of these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.epochs.snapshots import after_rows
from tailrace.cdc.kafka.parked.parking import parked_record
from tailrace.cdc.kafka.repeats.duplicates import RowIdentity, RowPosition, sift
from tailrace.cdc.kafka.repeats.event_ids import EventIds
from tailrace.cdc.kafka.repeats.positions import positions_row, positions_topic
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.kafka.records import RecordBatchRows
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.kafka import ParkedRecord, PartitionProgress, RecordPlace, SnapshotPhase
from tailrace.eventstore.model.schema import MESSAGE_SCHEMA, TopicSchema
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.settings import MIB

SNAPSHOT_RUNS = "Debezium takes a snapshot of the table again"
_NOT_FROM_FIRST = {SnapshotPhase.UNSEEN, SnapshotPhase.STREAMED}


class BadRecord(OperatorError):
    """A record cannot be read, and the source's settings say to stop at one."""


class WentBack(OperatorError):
    """Positions in Postgres went back to rows that the log does not have."""


class Unordered(OperatorError):
    """A truncate came in a topic with several partitions."""


class Decode(Protocol):
    """The records of one partition as rows."""

    def __call__(
        self, topic: TopicId, latest: TopicSchema | None, records: pa.Table, place: Place
    ) -> Decoded: ...


@dataclass(slots=True)
class Known:
    """What a session knows of its source, as of the last epoch. ``routes``: by Kafka topic the log's; ``plain``: those
    that are whole without a snapshot by Debezium. ``incomplete``: topics whose state is not known; ``targets``: offsets
    at which those will be whole whose snapshot is over; ``again``: rows that came again so far."""

    source: str
    position: int
    progress: dict[Partition, PartitionProgress]
    routes: Mapping[str, TopicId]
    latest: dict[TopicId, TopicSchema]
    incomplete: set[TopicId]
    plain: frozenset[str] = frozenset()
    targets: dict[str, dict[int, int]] = field(default_factory=dict)
    again: int = 0

    def after(self, batch: EpochBatch) -> None:
        """Take in what an epoch brought."""
        self.position = batch.commit_lsn
        self.progress |= {Partition(each.topic, each.partition): each for each in batch.progress}
        self.incomplete |= {topic for topic, _ in batch.new_schemas if topic not in self.latest}
        self.latest |= dict(batch.new_schemas)
        self.incomplete |= {topic for topic, _ in batch.suspends}
        self.incomplete -= set(batch.completes)

    def partitions_of(self, topic: str) -> list[PartitionProgress]:
        return [each for each in self.progress.values() if each.topic == topic]


@dataclass(slots=True)
class _Parts:
    rows: list[TopicRows] = field(default_factory=list)
    schemas: list[tuple[TopicId, TopicSchema]] = field(default_factory=list)
    parked: list[ParkedRecord] = field(default_factory=list)
    progress: dict[Partition, PartitionProgress] = field(default_factory=dict)
    suspended: set[str] = field(default_factory=set)
    transactions: set[int] = field(default_factory=set)
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class EpochBuilder:
    """``held``: which rows the log has of a topic, from a partition. ``ends``: where the partitions of a Kafka topic
    end now. ``parks``: a record that cannot be read does not stop. ``keeps``: such a record is kept as it came; where
    columns are protected it may hold their values, and only its place is; so it is with one of more than
    ``parked_bytes``. ``needs_snapshot``: a topic that begins without one is incomplete. ``events``: those of an outbox
    that are known."""

    known: Known
    decode: Decode
    held: Callable[[TopicId, Partition, Collection[RowIdentity], RowPosition], Collection[RowIdentity]]
    ends: Callable[[str], Mapping[int, int]]
    parks: bool
    needs_snapshot: bool
    keeps: bool = True
    parked_bytes: int = MIB
    events: EventIds | None = None

    def build(self, fetched: Sequence[RecordBatchRows]) -> EpochBatch:
        """Raises BadRecord, WentBack, Unordered."""
        known, parts = self.known, _Parts()
        lsn = known.position + 1
        for each in fetched:
            self._add(parts, each, lsn)
        for topic in parts.suspended:
            for one in known.partitions_of(topic):
                now = parts.progress.get(Partition(topic, one.partition), one)
                parts.progress[Partition(topic, one.partition)] = replace(now, snapshot=SnapshotPhase.RUNNING)
        moments = [moment for each in parts.rows if (moment := _latest(each.rows)) is not None]
        suspends = [(known.routes[topic], SNAPSHOT_RUNS) for topic in sorted(parts.suspended)]
        return EpochBatch(
            known.source,
            lsn,
            lsn,
            lsn,
            max(moments, default=None),
            len(parts.transactions) or int(bool(parts.rows)),
            rows=parts.rows,
            new_schemas=parts.schemas,
            completes=self._completed(parts),
            suspends=suspends,
            progress=list(parts.progress.values()),
            parked=parts.parked,
        )

    def _add(self, parts: _Parts, fetched: RecordBatchRows, lsn: int) -> None:
        known, partition = self.known, Partition(fetched.topic, fetched.partition)
        before = parts.progress.get(partition, known.progress[partition])
        after = replace(before, next_offset=fetched.next_offset)
        if fetched.table.num_rows and fetched.topic in known.routes:
            topic = known.routes[fetched.topic]
            latest = next(
                (schema for id, schema in reversed(parts.schemas) if id == topic), known.latest.get(topic)
            )
            decoded = self.decode(topic, latest, fetched.table, Place(lsn, parts.ordinal))
            parts.ordinal += sum(each.rows.num_rows for each in decoded.rows)
            parts.schemas += [(topic, schema) for schema in decoded.schemas]
            self._park(parts, fetched, decoded)
            after = self._add_rows(parts, topic, partition, decoded, after, first=before.next_offset == 0)
        parts.progress[partition] = after

    def _add_rows(
        self,
        parts: _Parts,
        topic: TopicId,
        partition: Partition,
        decoded: Decoded,
        progress: PartitionProgress,
        *,
        first: bool,
    ) -> PartitionProgress:
        """The rows but those that came before; gives how far the partition is."""
        held = partial(self.held, topic, partition)
        at, began = 0, False
        for each in decoded.rows:
            origins = decoded.origins.slice(at, each.rows.num_rows)
            self._require_order(partition.topic, each.rows)
            at += each.rows.num_rows
            sifted = sift(each.rows, origins, progress, held)
            if sifted.gone_back is not None:
                raise _went_back(partition, origins, sifted.gone_back)
            change = after_rows(
                progress.snapshot,
                pc.run_end_encode(origins["snapshot"].combine_chunks()).values.to_pylist(),
                from_beginning=first,
                needed=self.needs_snapshot,
            )
            first = False
            progress = replace(
                progress, commit_lsn=sifted.commit_lsn, row_lsn=sifted.row_lsn, snapshot=change.phase
            )
            began = began or change.began
            keep = sifted.keep
            if self.events is not None and topic.is_events:
                keep = keep & self.events.fresh(topic, each.rows)
            rows = each.rows
            if not keep.all():
                rows, origins = rows.filter(pa.array(keep)), origins.filter(pa.array(keep))
            self.known.again += each.rows.num_rows - rows.num_rows
            if rows.num_rows:
                parts.rows.append(replace(each, rows=rows))
                parts.transactions |= set(pc.unique(rows["_txn"]).to_pylist())
                self._add_positions(parts, partition, rows, origins)
        if began and progress.snapshot is SnapshotPhase.RUNNING and topic not in self.known.incomplete:
            parts.suspended.add(partition.topic)
        return progress

    def _require_order(self, topic: str, rows: pa.Table) -> None:
        """A truncate has a place among the rows of its partition alone."""
        if (
            len(self.known.partitions_of(topic)) > 1
            and Op.TRUNCATE.value in pc.unique(rows["_op"]).to_pylist()
        ):
            raise Unordered(
                f"topic {topic} of Kafka has several partitions, and one of them has a truncate, which has no place"
                " among the rows of the others",
                hint="let the connector leave truncates out (skipped.operations=t), or write to a topic of one"
                " partition; then let it take a snapshot, and read the topic again: `tailrace source reread`",
            )

    def _add_positions(self, parts: _Parts, partition: Partition, rows: pa.Table, origins: pa.Table) -> None:
        topic = positions_topic(self.known.source)
        if topic not in self.known.latest and topic not in {id for id, _ in parts.schemas}:
            parts.schemas.append((topic, MESSAGE_SCHEMA))
        parts.rows.append(positions_row(self.known.source, partition, rows, origins, parts.ordinal))
        parts.ordinal += 1

    def _park(self, parts: _Parts, fetched: RecordBatchRows, decoded: Decoded) -> None:
        if not decoded.parked:
            return
        for each in decoded.parked:
            place = RecordPlace(fetched.topic, fetched.partition, each.offset)
            record = fetched.table.filter(pc.equal(fetched.table["offset"], each.offset))
            parked = parked_record(place, each.reason, record, self.parked_bytes if self.keeps else -1)
            if not self.parks:
                raise BadRecord(
                    f"{place}: {parked.reason}",
                    hint='correct what the settings say of its topic, or go on with on_bad_record = "park":'
                    " tailrace source parked --retry reads it again",
                )
            parts.parked.append(parked)

    def _completed(self, parts: _Parts) -> list[TopicId]:
        """Topics whose snapshot is over and whose partitions were read up to where they ended then. A plain one has
        none: it is whole when all its partitions were read from their first record up to where they ended."""
        known, done = self.known, []
        touched = ({topic for topic, _ in parts.progress} | set(known.targets)) & set(known.routes)
        for name in sorted(touched - parts.suspended):
            topic = known.routes[name]
            there = topic in known.latest or topic in {id for id, _ in parts.schemas}
            if not there or (topic in known.latest and topic not in known.incomplete):
                continue
            progress = {each.partition: each for each in known.partitions_of(name)}
            progress |= {each.partition: each for each in parts.progress.values() if each.topic == name}
            plain, phases = name in known.plain, {each.snapshot for each in progress.values()}
            if SnapshotPhase.ENDED not in phases or (plain and phases & _NOT_FROM_FIRST):
                continue
            if plain or len(progress) > 1:
                targets = known.targets.setdefault(name, dict(self.ends(name)))
                if any(each.next_offset < targets.get(number, 0) for number, each in progress.items()):
                    continue
            known.targets.pop(name, None)
            done.append(topic)
        return done


def _latest(rows: pa.Table) -> datetime | None:
    moment: datetime | None = pc.max(rows["_commit_ts"]).as_py()
    return moment


def _went_back(partition: Partition, origins: pa.Table, at: int) -> WentBack:
    offset = origins["offset"][at].as_py()
    return WentBack(
        f"{RecordPlace(*partition, offset)}: its position in Postgres was passed, and the log does not have this row",
        hint="the database was restored, or the connector has another slot: let Debezium take a new snapshot, and have "
        "the topic read again from its beginning with `tailrace source reread`",
    )
