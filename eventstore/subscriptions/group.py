"""A consumer group: what it reads, from where; joining it; how far it is; and setting it back."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal, Self, Unpack

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from sqlalchemy import Connection, Engine, delete, insert, select
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore.catalog import group_tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.time import now_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.subscriptions import dead_letters, membership
from tailrace.eventstore.subscriptions.assignment import Slot
from tailrace.eventstore.subscriptions.dead_letters import ParkedEvent
from tailrace.eventstore.subscriptions.effects import Effects
from tailrace.eventstore.subscriptions.filter import check_topics, matches, matching_topics
from tailrace.eventstore.subscriptions.group_progress import GroupNeed, GroupPartitions
from tailrace.eventstore.subscriptions.join_options import JoinOptions, Options
from tailrace.eventstore.subscriptions.member import Member
from tailrace.eventstore.subscriptions.membership import StartPosition
from tailrace.eventstore.subscriptions.offsets import epoch_of
from tailrace.eventstore.subscriptions.tail import check_offsets, offsets_in

AsOf = str | int | datetime


class _StoredCut(BaseModel):
    """A cut as a row of ``groups`` has it, in JSON."""

    model_config = ConfigDict(strict=True, extra="forbid")
    epoch: int
    below_lsn: dict[str, int]
    inside: dict[str, int]


_PATTERNS = TypeAdapter(tuple[str, ...])


class Group(GroupPartitions):
    """Made by ``Store.group``. Safe to share between threads."""

    @classmethod
    def open(
        cls,
        log: Log,
        name: str,
        topics: Sequence[str] | None = None,
        start: AsOf | None = None,
        *,
        may_come: bool = False,
    ) -> Self:
        """The group called ``name``, made when ``topics`` are given and it is not there. ``may_come``: they need not be
        in the log yet.

        Raises UsageError for a group that is not there, or is there and reads other topics, and for a name that is no
        topic.
        """
        database = log.groups_database
        row = _row(database, name)
        if row is None:
            if not topics:
                raise UsageError(
                    f"there is no group {name!r}", hint="give the topics that the new group is to read"
                )
            if not name or len(name) > 200 or "\0" in name:
                raise UsageError(f"{name!r} cannot be the name of a group", hint="1 to 200 characters")
            if not may_come:
                check_topics(log, topics)
            row = _make(log, database, name, topics, start)
        patterns, start_cut = row
        if topics is not None and tuple(topics) != patterns:
            raise UsageError(
                f"group {name!r} reads {', '.join(patterns)}, not {', '.join(topics)}",
                hint="choose another name, or delete the group with `tailrace group delete`",
            )
        return cls(log, database, name, patterns, start_cut)

    def join(
        self, member: str | None = None, *, effects: Engine | None = None, **options: Unpack[JoinOptions]
    ) -> Member:
        """Take part: a context manager that gives batches. ``options`` are those of ``JoinOptions``.

        ``member`` names it; a process that joins under a name that is taken replaces the one that had it, at once
        (static membership: a pod that restarts keeps its partitions). Without a name it gets one of its own.
        ``effects`` is the database where ``batch.commit(session)`` makes effects and position one transaction.
        """
        chosen = Options.of(options)
        if effects is not None and chosen.at_most_once:
            raise UsageError("effects= makes them exactly once; it cannot be combined with delivery=")
        token = uuid.uuid4().hex
        name = member or f"{socket.gethostname()}-{os.getpid()}-{token[:6]}"
        joined = Member(self, name, token, chosen)
        return joined if effects is None else joined.with_effects(Effects(effects, self.name))

    # what it needs

    def need(self, topic: TopicId) -> GroupNeed | None:
        """What of a topic must stay for this group; None when it reads another one, or is done with all of it. What is
        gone already it learns that at its next poll: the rest does not wait for it."""
        if not matches(topic, self.patterns):
            return None
        bounds = self.bounds([topic])[topic]
        starts, rows = self.starts(), self.positions()
        needs = []
        for partition, (first, end) in enumerate(bounds.offsets):
            slot = Slot(topic, partition)
            at = rows.get(slot) or starts[slot]
            if first <= at.next_offset < end:
                needs.append(
                    GroupNeed(at.epoch - 1, f"it is at offset {at.next_offset} of partition {partition}")
                )
        needs += [
            GroupNeed(each.epoch - 1, f"offset {each.offset} of {each.slot} is parked")
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

    # who takes part

    def members(self) -> list[str]:
        table = group_tables.members
        query = select(table.c.member).where(table.c.group_name == self.name).order_by(table.c.member)
        with self.database.read() as connection:
            return list(connection.scalars(query))

    # what is parked

    def parked(self) -> list[ParkedEvent]:
        """Parked events, oldest first per partition."""
        return dead_letters.parked_events(self.database, self.name)

    def replay(self, ids: Collection[int] | None = None) -> int:
        """Ask the members to try parked events again: these with all of their keys, or all. Gives how many."""
        return dead_letters.ask_replay(self.database, self.name, ids)

    def discard(self, ids: Collection[int]) -> int:
        """Forget parked events for good. Gives how many."""
        return dead_letters.discard(self.database, self.name, ids)

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
        reset_topics = [topic for topic in self.topics() if topics is None or matches(topic, topics)]
        if not reset_topics:
            raise UsageError("no topic of the group matches", hint=f"it reads {', '.join(self.patterns)}")
        offsets = offsets_in(to)
        wanted = (
            self._positions_at(reset_topics, to)
            if offsets is None
            else self._positions_at_offsets(reset_topics, offsets)
        )
        starts = self.starts()
        with self.database.write() as connection:
            membership.lock(connection, self.name)
            membership.set_positions(connection, self.name, starts, wanted)

    def _positions_at(self, topics: Sequence[TopicId], to: AsOf) -> dict[Slot, StartPosition]:
        cut = _resolve(self.log, to)
        if to != "earliest":
            for topic in topics:
                self.log.require_history(topic, cut)
        found: dict[Slot, StartPosition] = {}
        for topic in topics:
            found |= self.starts_after(self.log.topic(topic), cut)
        return found

    def _positions_at_offsets(
        self, topics: Sequence[TopicId], offsets: Mapping[int, int]
    ) -> dict[Slot, StartPosition]:
        if len(topics) != 1:
            raise UsageError(
                f"offsets are those of one topic's partitions, but {len(topics)} topics of the group match",
                hint=f"name the topic: --topic {topics[0].text}",
            )
        check_offsets(self.log, self.log.topic(topics[0]), offsets)
        return {
            Slot(topics[0], partition): StartPosition(
                offset, epoch_of(self.log, topics[0], partition, offset)
            )
            for partition, offset in offsets.items()
        }

    def delete(self, *, force: bool = False) -> None:
        """Forget the group, its positions and what it parked. Raises UsageError while it has members."""
        if self.members() and not force:
            raise UsageError(f"group {self.name!r} has members", hint="stop them first, or use --force")
        with self.database.write() as connection:
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


def _row(database: Catalog, name: str) -> tuple[tuple[str, ...], Cut] | None:
    """Patterns of topics, and where the group begins. Who may read the log may write this table: raises
    IntegrityError."""
    table = group_tables.groups
    query = select(table.c.topics, table.c.start_cut).where(table.c.name == name)
    with database.read() as connection:
        row = connection.execute(query).one_or_none()
    if row is None:
        return None
    try:
        cut = _StoredCut.model_validate_json(row.start_cut)
        return _PATTERNS.validate_json(row.topics), Cut(cut.epoch, cut.below_lsn, None, cut.inside)
    except ValidationError:
        raise IntegrityError(
            f"{database.label}: the row of group {name!r} in table groups is damaged: topics or start_cut is not"
            " what was written",
            hint="correct the row, or delete it and the group's other rows and make the group again",
        ) from None


def _make(
    log: Log, database: Catalog, name: str, topics: Sequence[str], start: AsOf | None
) -> tuple[tuple[str, ...], Cut]:
    cut = _resolve(log, "latest" if start is None else start)
    if start != "earliest":
        for info in matching_topics(log, topics):
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
