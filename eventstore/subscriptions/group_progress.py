"""A group's partitions: where it begins in each, which rows of each can be read, and where a closed one ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from tailrace.eventstore.catalog import group_tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import HistoryGone
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.time import from_micros, now_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.subscriptions import offsets
from tailrace.eventstore.subscriptions.assignment import Slot
from tailrace.eventstore.subscriptions.filter import matching_topics
from tailrace.eventstore.subscriptions.membership import StartPosition


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How far a group is in one partition. ``lag_bytes`` is an estimate: the topic's average row times the events."""

    slot: Slot
    next_offset: int
    end_offset: int
    owner: str | None
    lag_bytes: int
    lag_seconds: float
    committed_at: datetime | None

    @property
    def lag(self) -> int:
        """Events that the group has not done yet."""
        return self.end_offset - self.next_offset


@dataclass(frozen=True, slots=True)
class Bounds:
    """One topic's offsets at one moment: by partition the first that can be read, and the next to be written."""

    partitioning: Partitioning
    offsets: tuple[tuple[int, int], ...]

    @property
    def ends(self) -> dict[int, int]:
        """Where partitions that get no more rows end."""
        return {number: self.offsets[number][1] for number in self.partitioning.closed_partitions}


@dataclass(frozen=True, slots=True)
class GroupNeed:
    """A group is done with a topic's rows up to ``epoch``; ``why`` tells people why later ones must stay."""

    epoch: int
    why: str


class GroupPartitions:
    """The partitions of the topics that a group reads. A member works with this part of its group."""

    def __init__(self, log: Log, database: Catalog, name: str, patterns: Sequence[str], start: Cut) -> None:
        self.log = log
        self.database = database
        self.name = name
        self.patterns = tuple(patterns)
        self.start = start
        self._starts: dict[Slot, StartPosition] = {}
        self._partitions_with_start: dict[TopicId, int] = {}
        self.clock: Callable[[], float] = time.monotonic
        """Seconds; it may begin anywhere, never goes back, and is not compared with that of any other process."""

    def topics(self) -> list[TopicId]:
        """The topics of the log that match the group's patterns now."""
        return [info.id for info in matching_topics(self.log, self.patterns)]

    def starts(self) -> dict[Slot, StartPosition]:
        """Where the group begins in each partition there is."""
        for info in matching_topics(self.log, self.patterns):
            known = self._partitions_with_start.get(info.id, 0)
            if info.partitioning.total > known:
                starts = self.starts_after(info, self.start)
                self._starts |= {slot: at for slot, at in starts.items() if slot.partition >= known}
                self._partitions_with_start[info.id] = info.partitioning.total
        return self._starts

    def starts_after(self, info: TopicInfo, cut: Cut) -> dict[Slot, StartPosition]:
        """Where to go on behind a cut, in each partition. One that came later has no row of an earlier epoch."""
        following = offsets.offsets_at(self.log, info.id, cut)
        return {
            Slot(info.id, number): StartPosition(following[number], max(cut.epoch, each.behind))
            for each in info.partitioning.incarnations
            for number in each.numbers
        }

    def bounds(self, of: Collection[TopicId]) -> dict[TopicId, Bounds]:
        """Which offsets of these topics can be read now."""
        with self.log.catalog.read() as connection:
            found = topics.offset_bounds(connection, of)
        return {topic: Bounds(*each) for topic, each in found.items()}

    def closed_ends(self) -> dict[Slot, int]:
        """Where partitions end that get no more rows, because their topic was repartitioned."""
        return {
            Slot(topic, number): end
            for topic, each in self.bounds(self.topics()).items()
            for number, end in each.ends.items()
        }

    def has_starts(self, bounds: Mapping[TopicId, Bounds]) -> bool:
        """Whether all of these partitions have a start."""
        known = self._partitions_with_start
        return all(each.partitioning.total <= known.get(topic, 0) for topic, each in bounds.items())

    def positions(self) -> dict[Slot, StartPosition]:
        """Stored positions; partitions that nobody has joined for yet have none."""
        table = group_tables.partitions
        query = select(table).where(table.c.group_name == self.name)
        with self.database.read() as connection:
            rows = connection.execute(query).all()
        return {
            Slot(TopicId.parse(row.topic), row.partition): StartPosition(row.next_offset, row.epoch)
            for row in rows
        }

    def progress(self) -> list[PartitionProgress]:
        """How far the group is in every partition, in order. Closed partitions that are done are left out; a partition
        that no member has had yet begins at its start."""
        bounds = self.bounds(self.topics())
        table = group_tables.partitions
        with self.database.read() as connection:
            rows = connection.execute(select(table).where(table.c.group_name == self.name)).all()
        found = {Slot(TopicId.parse(row.topic), row.partition): row for row in rows}
        starts = self.starts()
        row_bytes = {topic: offsets.bytes_per_row(self.log, topic) for topic in bounds}
        progress = []
        slots = [Slot(topic, number) for topic, each in bounds.items() for number in range(len(each.offsets))]
        for slot in sorted(slots):
            row = found.get(slot)
            at = starts[slot] if row is None else StartPosition(row.next_offset, row.epoch)
            _, end = bounds[slot.topic].offsets[slot.partition]
            if slot.partition in bounds[slot.topic].partitioning.closed_partitions and at.next_offset >= end:
                continue
            progress.append(
                PartitionProgress(
                    slot=slot,
                    next_offset=at.next_offset,
                    end_offset=end,
                    owner=None if row is None else row.owner,
                    lag_bytes=round((end - at.next_offset) * row_bytes[slot.topic]),
                    lag_seconds=self._seconds(slot.topic, at.epoch) if end > at.next_offset else 0.0,
                    committed_at=None if row is None else from_micros(row.committed_at),
                )
            )
        return progress

    def _seconds(self, topic: TopicId, epoch: int) -> float:
        waiting = offsets.first_commit_after(self.log, topic, epoch)
        return 0.0 if waiting is None else max((now_micros() - waiting) / 1e6, 0.0)

    def history_gone(self, slot: Slot, next_offset: int, first: int) -> HistoryGone:
        """The error for a member whose position lies before the first row there is."""
        return HistoryGone(
            f"group {self.name!r} was passed by retention: it is at offset {next_offset} of {slot}, which begins at "
            f"{first} now; {first - next_offset:,} rows that it did not get are gone",
            hint=f"tailrace group reset {self.name} --to earliest --topic {slot.topic} goes on with what is left",
        )
