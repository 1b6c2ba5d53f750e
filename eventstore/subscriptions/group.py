"""A consumer group: what it reads, from where; joining it; how far it is; and setting it back."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Self, get_args

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore.catalog import group_tables as group_tables
from tailrace.eventstore.errors import HistoryGone, UsageError
from tailrace.eventstore.metadata import topics as registry
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.time import from_micros, now_micros
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.subscriptions import dead_letters, membership
from tailrace.eventstore.subscriptions import offsets as positions
from tailrace.eventstore.subscriptions.assignment import Slot
from tailrace.eventstore.subscriptions.cursor import BATCH_ROWS
from tailrace.eventstore.subscriptions.dead_letters import Parked
from tailrace.eventstore.subscriptions.effects import Effects
from tailrace.eventstore.subscriptions.filter import Filter, check_topics, matches, matching
from tailrace.eventstore.subscriptions.member import Member, Options
from tailrace.eventstore.subscriptions.membership import Start
from tailrace.eventstore.subscriptions.tail import check_offsets, offsets_in

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tailrace.eventstore.catalog.database import Catalog
    from tailrace.eventstore.log.log import Log

AsOf = str | int | datetime
Delivery = Literal["at least once", "at most once"]
Slow = Literal["block", "buffer", "drop"]


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
    """Of one topic, at one moment. ``offsets``: of every partition the first one that readers can get, and the next."""

    partitioning: Partitioning
    offsets: tuple[tuple[int, int], ...]

    @property
    def ends(self) -> dict[int, int]:
        """Where partitions that get no more rows end."""
        return {number: self.offsets[number][1] for number in self.partitioning.closed}


@dataclass(frozen=True, slots=True)
class Need:
    """Of a topic, rows up to ``epoch`` are done; ``why`` later ones must stay, for people."""

    epoch: int
    why: str


class Group:
    """Made by ``Store.group``. Safe to share between threads."""

    def __init__(self, log: Log, database: Catalog, name: str, patterns: Sequence[str], start: Cut) -> None:
        self.log = log
        self.name = name
        self.patterns = tuple(patterns)
        self.start = start
        self._database = database
        self._starts: dict[Slot, Start] = {}
        self._known: dict[TopicId, int] = {}  # how many partitions of a topic have a start
        self.clock: Callable[[], float] = time.monotonic
        """Seconds; it may begin anywhere, never goes back, and is not compared with that of any other process."""

    @classmethod
    def open(
        cls, log: Log, name: str, topics: Sequence[str] | None = None, start: AsOf | None = None
    ) -> Self:
        """The group called ``name``, made when ``topics`` are given and it is not there.

        Raises UsageError for a group that is not there, or is there and reads other topics, and for a name that is no
        topic.
        """
        database = log.groups_database
        found = _row(database, name)
        if found is None:
            if not topics:
                raise UsageError(
                    f"there is no group {name!r}", hint="give the topics that a new group shall read"
                )
            if not name or len(name) > 200 or "\0" in name:
                raise UsageError(f"{name!r} cannot be the name of a group", hint="1 to 200 characters")
            check_topics(log, topics)
            found = _make(log, database, name, topics, start)
        patterns = tuple(json.loads(found[0]))
        if topics is not None and tuple(topics) != patterns:
            raise UsageError(
                f"group {name!r} reads {', '.join(patterns)}, not {', '.join(topics)}",
                hint="choose another name, or delete the group with `tailrace group delete`",
            )
        return cls(log, database, name, patterns, _cut_from(found[1]))

    def join(
        self,
        member: str | None = None,
        *,
        effects: Engine | None = None,
        delivery: Delivery = "at least once",
        slow: Slow = "block",
        drop_beyond: int = 100_000,
        buffer_bytes: int = 64 << 20,
        ops: Collection[Op | str] | None = None,
        keys: Collection[tuple[str, ...] | str] | None = None,
        since: datetime | None = None,
        batch_rows: int = BATCH_ROWS,
        lease: float = 30.0,
        patience: float = 300.0,
    ) -> Member:
        """Take part: a context manager that gives batches.

        ``member`` names it; a process that joins under a name that is taken replaces the one that had it, at once
        (static membership: a pod that restarts keeps its partitions). Without a name it gets one of its own.
        ``effects`` is the database where ``batch.commit(session)`` makes effects and position one transaction.
        ``delivery``: "at most once" commits before it gives. ``slow`` says what becomes of rows that wait for the
        consumer: "block": they are read when it comes for them; "buffer": up to ``buffer_bytes`` of them are read
        ahead, beside it; "drop": the oldest of more than ``drop_beyond`` in a partition are left out, and counted.
        ``ops``, ``keys`` (texts) and ``since`` filter.
        ``lease``: seconds of silence after which others take its partitions; ``patience``: the longest that
        processing one batch may take.
        """
        if lease <= 0 or patience <= 0 or min(batch_rows, drop_beyond, buffer_bytes) < 1:
            raise UsageError("lease, patience, batch_rows, drop_beyond and buffer_bytes are greater than 0")
        for option, given, known in (("delivery", delivery, Delivery), ("slow", slow, Slow)):
            if given not in get_args(known):
                raise UsageError(f"{option}={given!r} is none of {', '.join(map(repr, get_args(known)))}")
        if effects is not None and delivery != "at least once":
            raise UsageError("effects= makes them exactly once; it cannot be combined with delivery=")
        options = Options(
            lease=lease,
            patience=patience,
            at_most_once=delivery == "at most once",
            batch_rows=batch_rows,
            drop_beyond=drop_beyond if slow == "drop" else None,
            buffer_bytes=buffer_bytes if slow == "buffer" else None,
            filter=Filter.of(ops, keys, since),
        )
        token = uuid.uuid4().hex
        name = member or f"{socket.gethostname()}-{os.getpid()}-{token[:6]}"
        joined = Member(self, self._database, name, token, options)
        return joined if effects is None else joined.with_effects(Effects(effects, self.name))

    # what it reads

    def topics(self) -> list[TopicId]:
        """The topics of the log that match its patterns now."""
        return [info.id for info in matching(self.log, self.patterns)]

    def starts(self) -> dict[Slot, Start]:
        """Where the group begins in each partition there is."""
        for info in matching(self.log, self.patterns):
            known = self._known.get(info.id, 0)
            if info.partitioning.total > known:
                found = self._behind(info, self.start)
                self._starts |= {slot: at for slot, at in found.items() if slot.partition >= known}
                self._known[info.id] = info.partitioning.total
        return self._starts

    def _behind(self, info: TopicInfo, cut: Cut) -> dict[Slot, Start]:
        """Where to go on behind a cut, in each partition. One that came later has no row of an earlier epoch."""
        offsets = positions.offsets_at(self.log, info.id, cut)
        return {
            Slot(info.id, number): Start(offsets[number], max(cut.epoch, each.behind))
            for each in info.partitioning.incarnations
            for number in each.numbers
        }

    def bounds(self, topics: Collection[TopicId]) -> dict[TopicId, Bounds]:
        """What there is of the topics' partitions for readers to get."""
        with self.log.catalog.read() as connection:
            found = registry.offset_bounds(connection, topics)
        return {topic: Bounds(*each) for topic, each in found.items()}

    def closed(self) -> dict[Slot, int]:
        """Where partitions end that get no more rows, because their topic was repartitioned."""
        found = self.bounds(self.topics())
        return {
            Slot(topic, number): end for topic, each in found.items() for number, end in each.ends.items()
        }

    def knows(self, bounds: Mapping[TopicId, Bounds]) -> bool:
        """Whether all of these partitions have a start."""
        return all(each.partitioning.total <= self._known.get(topic, 0) for topic, each in bounds.items())

    def need(self, topic: TopicId) -> Need | None:
        """What of a topic must stay for this group; None when it reads another one, or is done with all of it. What is
        gone already it is told at its next poll: that does not hold the rest."""
        if not matches(topic, self.patterns):
            return None
        bounds = self.bounds([topic])[topic]
        starts, rows = self.starts(), self._positions()
        needs = []
        for partition, (first, end) in enumerate(bounds.offsets):
            slot = Slot(topic, partition)
            at = rows.get(slot) or starts[slot]
            if first <= at.next_offset < end:
                needs.append(Need(at.epoch - 1, f"it is at offset {at.next_offset} of partition {partition}"))
        needs += [
            Need(each.epoch - 1, f"offset {each.offset} of {each.slot} is parked")
            for each in self.parked()
            if each.slot.topic == topic and each.offset >= bounds.offsets[each.slot.partition][0]
        ]
        return min(needs, key=lambda need: need.epoch, default=None)

    def leave_behind(self, connection: Connection, topic: TopicId) -> None:
        """Inside a transaction on the groups' database, before retention passes the group: positions that were never
        stored are, so that the next poll finds them before the log's start."""
        membership.lock(connection, self.name)
        membership.add_positions(
            connection, self.name, {slot: at for slot, at in self.starts().items() if slot.topic == topic}
        )

    def passed(self, slot: Slot, next_offset: int, first: int) -> HistoryGone:
        """What a member is told whose position lies before the first row there is: retention was forced past it."""
        return HistoryGone(
            f"group {self.name!r} was passed by retention: it is at offset {next_offset} of {slot}, which begins at "
            f"{first} now; {first - next_offset:,} rows are gone that it did not get",
            hint=f"tailrace group reset {self.name} --to earliest --topic {slot.topic} goes on with what is left",
        )

    # how far it is

    def _positions(self) -> dict[Slot, Start]:
        """Stored positions; partitions that nobody has joined for yet have none."""
        table = group_tables.partitions
        query = select(table).where(table.c.group_name == self.name)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return {
            Slot(TopicId.parse(row.topic), row.partition): Start(row.next_offset, row.epoch) for row in rows
        }

    def members(self) -> list[str]:
        table = group_tables.members
        query = select(table.c.member).where(table.c.group_name == self.name).order_by(table.c.member)
        with self._database.read() as connection:
            return list(connection.scalars(query))

    def progress(self) -> list[PartitionProgress]:
        """Every partition, in order, without those that get no more rows and are done; those that nobody has joined for
        yet begin at the start."""
        bounds = self.bounds(self.topics())
        table = group_tables.partitions
        with self._database.read() as connection:
            rows = connection.execute(select(table).where(table.c.group_name == self.name)).all()
        found = {Slot(TopicId.parse(row.topic), row.partition): row for row in rows}
        starts = self.starts()
        row_bytes = {topic: positions.bytes_per_row(self.log, topic) for topic in bounds}
        progress = []
        slots = [Slot(topic, number) for topic, each in bounds.items() for number in range(len(each.offsets))]
        for slot in sorted(slots):
            row = found.get(slot)
            at = starts[slot] if row is None else Start(row.next_offset, row.epoch)
            _, end = bounds[slot.topic].offsets[slot.partition]
            if slot.partition in bounds[slot.topic].partitioning.closed and at.next_offset >= end:
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
        waiting = positions.first_commit_after(self.log, topic, epoch)
        return 0.0 if waiting is None else max((now_micros() - waiting) / 1e6, 0.0)

    # what is parked

    def parked(self) -> list[Parked]:
        """Events that were put aside, oldest first per partition."""
        return dead_letters.parked(self._database, self.name)

    def replay(self, ids: Collection[int] | None = None) -> int:
        """Ask the members to try parked events again: these with all of their keys, or all. Gives how many."""
        return dead_letters.ask_replay(self._database, self.name, ids)

    def discard(self, ids: Collection[int]) -> int:
        """Forget parked events for good. Gives how many."""
        return dead_letters.discard(self._database, self.name, ids)

    # upkeep

    def reset(
        self, to: AsOf | Literal["earliest"], topics: Sequence[str] | None = None, *, force: bool = False
    ) -> None:
        """Set the group back, or forward, to a position; of topics matching patterns, or of all. Offsets
        ("2:1500,3:20") set those partitions of one topic.

        Raises UsageError while it has members, unless ``force``: then what they are at is refused when they commit.
        """
        if self.members() and not force:
            raise UsageError(
                f"group {self.name!r} has members: {', '.join(self.members())}",
                hint="stop them first; --force takes their partitions from them",
            )
        chosen = [topic for topic in self.topics() if topics is None or matches(topic, topics)]
        if not chosen:
            raise UsageError("no topic of the group matches", hint=f"it reads {', '.join(self.patterns)}")
        offsets = offsets_in(to)
        wanted = self._at(chosen, to) if offsets is None else self._at_offsets(chosen, offsets)
        starts = self.starts()
        with self._database.write() as connection:
            membership.lock(connection, self.name)
            membership.set_positions(connection, self.name, starts, wanted)

    def _at(self, topics: Sequence[TopicId], to: AsOf) -> dict[Slot, Start]:
        cut = _resolve(self.log, to)
        if to != "earliest":
            for topic in topics:
                self.log.require_history(topic, cut)
        found: dict[Slot, Start] = {}
        for topic in topics:
            found |= self._behind(self.log.topic(topic), cut)
        return found

    def _at_offsets(self, topics: Sequence[TopicId], offsets: Mapping[int, int]) -> dict[Slot, Start]:
        if len(topics) != 1:
            raise UsageError(
                f"offsets are those of one topic's partitions, but {len(topics)} topics of the group match",
                hint=f"name the topic: --topic {topics[0].text}",
            )
        check_offsets(self.log, self.log.topic(topics[0]), offsets)
        return {
            Slot(topics[0], partition): Start(
                offset, positions.epoch_of(self.log, topics[0], partition, offset)
            )
            for partition, offset in offsets.items()
        }

    def delete(self, *, force: bool = False) -> None:
        """Forget the group, its positions and what it parked. Raises UsageError while it has members."""
        if self.members() and not force:
            raise UsageError(f"group {self.name!r} has members", hint="stop them first, or use --force")
        with self._database.write() as connection:
            membership.lock(connection, self.name)
            for table in (group_tables.parked, group_tables.partitions, group_tables.members):
                connection.execute(delete(table).where(table.c.group_name == self.name))
            connection.execute(delete(group_tables.groups).where(group_tables.groups.c.name == self.name))


def all_groups(log: Log) -> list[Group]:
    """All groups of a store, by name."""
    table = group_tables.groups
    with log.groups_database.read() as connection:
        names = list(connection.scalars(select(table.c.name).order_by(table.c.name)))
    return [Group.open(log, name) for name in names]


def _row(database: Catalog, name: str) -> tuple[str, str] | None:
    table = group_tables.groups
    query = select(table.c.topics, table.c.start_cut).where(table.c.name == name)
    with database.read() as connection:
        row = connection.execute(query).one_or_none()
    return None if row is None else (row.topics, row.start_cut)


def _make(
    log: Log, database: Catalog, name: str, topics: Sequence[str], start: AsOf | None
) -> tuple[str, str]:
    cut = _resolve(log, "latest" if start is None else start)
    if start != "earliest":
        for info in matching(log, topics):
            log.require_history(info.id, cut)
    values = {
        "name": name,
        "topics": json.dumps(list(topics), ensure_ascii=False),
        "start": "latest" if start is None else str(start),
        "start_cut": _cut_to(cut),
        "created_at": now_micros(),
    }
    try:
        with database.write() as connection:
            connection.execute(insert(group_tables.groups).values(values))
    except Duplicate:  # another member made it at the same moment; where it begins counts
        pass
    found = _row(database, name)
    assert found is not None
    return found


def _resolve(log: Log, start: AsOf) -> Cut:
    if start == "earliest":
        return Cut(0)
    return log.cut(None if start == "latest" else start)


def _cut_to(cut: Cut) -> str:
    return json.dumps({"epoch": cut.epoch, "below_lsn": dict(cut.below_lsn), "inside": dict(cut.inside)})


def _cut_from(text: str) -> Cut:
    data = json.loads(text)
    return Cut(data["epoch"], data["below_lsn"], None, data["inside"])
