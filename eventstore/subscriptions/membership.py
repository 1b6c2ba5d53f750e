"""Who is in a group and who has which of its partitions: rows, and the one transaction that keeps them right.

Every member runs ``share_out`` every few seconds; there is no coordinator. A member is alive while its ``beat`` counts,
which the others observe by clocks of their own that only go forward: no clock is ever compared with another, so clock
steps change nothing. A member that finds another one silent for a lease removes it; its partitions get other owners
at once, under a higher generation, which refuses whatever the silent one may still commit. A live owner is asked to
give up a partition (``wanted``) and hands it over between two batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from tailrace.eventstore.catalog import group_tables
from tailrace.eventstore.errors import Fenced, UsageError
from tailrace.eventstore.model.time import now_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.subscriptions.assignment import Slot, assign


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a group begins in a partition: the next offset, and an epoch before which nothing is left to read."""

    next_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """A partition as its owner has it. ``wanted``: the member to whom it shall be given."""

    slot: Slot
    next_offset: int
    epoch: int
    generation: int
    reset_generation: int
    wanted: str | None


@dataclass(frozen=True, slots=True)
class MemberId:
    """A process that takes part in a group: ``token`` distinguishes it from others of the same name."""

    group: str
    member: str
    token: str


@dataclass
class BeatWatch:
    """What one member has seen of the others' beats. ``lease`` in seconds of its own monotonic clock."""

    lease: float
    _seen: dict[str, tuple[str, int, float]] = field(default_factory=dict)

    def silent_members(self, beats: Mapping[str, tuple[str, int]], now: float) -> dict[str, int]:
        """Members whose beat has not changed for a lease, with that beat."""
        found: dict[str, int] = {}
        seen = self._seen
        self._seen = {}
        for member, (token, beat) in beats.items():
            before = seen.get(member)
            since = before[2] if before is not None and before[:2] == (token, beat) else now
            self._seen[member] = (token, beat, since)
            if now - since > self.lease:
                found[member] = beat
        return found


def join(connection: Connection, me: MemberId) -> None:
    """Become the member. Another process that has the name is out: what it owns gets a new generation."""
    lock(connection, me.group)
    table = group_tables.members
    mine = (table.c.group_name == me.group, table.c.member == me.member)
    taken = connection.execute(update(table).where(*mine).values(token=me.token, beat=table.c.beat + 1))
    if taken.rowcount:
        _raise_generation(connection, me.group, me.member, me.member)
    else:
        identity = {"group_name": me.group, "member": me.member, "token": me.token}
        connection.execute(insert(table).values(**identity, beat=0, joined_at=now_micros()))


def leave(connection: Connection, me: MemberId) -> None:
    """Give everything back. Nothing happens when the name is another's by now."""
    lock(connection, me.group)
    left = connection.execute(delete(group_tables.members).where(*_row_of(me)))
    if left.rowcount:
        _raise_generation(connection, me.group, me.member, None)


def beat(connection: Connection, me: MemberId) -> None:
    """Raises Fenced when this process is not the member any more."""
    table = group_tables.members
    if connection.execute(update(table).where(*_row_of(me)).values(beat=table.c.beat + 1)).rowcount != 1:
        raise Fenced(
            f"{me.member!r} of group {me.group!r} is another process now, or was silent for too long",
            hint="other members have its partitions, and nothing was committed; join again",
        )


def share_out(
    connection: Connection,
    me: MemberId,
    starts: Mapping[Slot, StartPosition],
    closed: Mapping[Slot, int],
    watch: BeatWatch,
    now: float,
) -> list[HeldSlot]:
    """Beat, remove silent members, add partitions that are new, and give every partition its owner. Gives this member's
    partitions. ``closed``: the ends of partitions that get no more rows; those that are done need no owner."""
    group = me.group
    lock(connection, group)
    beat(connection, me)
    _remove_silent(connection, group, watch, now)
    known = _owners(connection, group)
    for slot in starts.keys() - known.keys():
        _add(connection, group, slot, starts[slot])
        known[slot] = None
    for slot in finished_slots(connection, group, closed):
        del known[slot]
    table = group_tables.members
    alive = set(connection.scalars(select(table.c.member).where(table.c.group_name == group)))
    for slot, owner in assign(known, alive).items():
        current = known[slot]
        if current not in alive:
            _hand_over(connection, group, slot, owner)
        else:
            _want(connection, group, slot, owner if owner != current else None)
    return holdings(connection, group, me.member)


def _row_of(me: MemberId) -> tuple[ColumnElement[bool], ...]:
    table = group_tables.members
    return table.c.group_name == me.group, table.c.member == me.member, table.c.token == me.token


def holdings(connection: Connection, group: str, member: str) -> list[HeldSlot]:
    table = group_tables.partitions
    query = select(table).where(table.c.group_name == group, table.c.owner == member)
    return [
        HeldSlot(
            Slot(TopicId.parse(row.topic), row.partition),
            row.next_offset,
            row.epoch,
            row.generation,
            row.reset_generation,
            row.wanted,
        )
        for row in connection.execute(query.order_by(table.c.topic, table.c.partition))
    ]


def finished_slots(connection: Connection, group: str, closed: Mapping[Slot, int]) -> set[Slot]:
    """The closed partitions that the group is done with: at their end, and given back by the member that reached it."""
    table = group_tables.partitions
    query = select(table.c.topic, table.c.partition, table.c.next_offset).where(
        table.c.group_name == group,
        table.c.topic.in_({slot.topic.text for slot in closed}),
        table.c.owner.is_(None),
    )
    rows = connection.execute(query) if closed else ()
    given_back = {Slot(TopicId.parse(row.topic), row.partition): row.next_offset for row in rows}
    return {slot for slot, offset in given_back.items() if slot in closed and offset >= closed[slot]}


def finish(connection: Connection, group: str, member: str, holding: HeldSlot, end: StartPosition) -> None:
    """Give back a closed partition whose end was reached. Nothing when it is not ours any more."""
    report(connection, group, member, holding, end)
    table = group_tables.partitions
    connection.execute(
        update(table)
        .where(slot_condition(group, holding.slot), table.c.owner == member)
        .where(table.c.generation == holding.generation)
        .values(owner=None, wanted=None, generation=table.c.generation + 1)
    )


def give_up(connection: Connection, group: str, member: str, holding: HeldSlot) -> None:
    """Hand a partition to the member that it is wanted for. Nothing when it is not ours any more."""
    table = group_tables.partitions
    connection.execute(
        update(table)
        .where(slot_condition(group, holding.slot), table.c.owner == member)
        .where(table.c.generation == holding.generation, table.c.wanted.is_not(None))
        .values(owner=table.c.wanted, wanted=None, generation=table.c.generation + 1)
    )


def commit(
    connection: Connection,
    group: str,
    member: str,
    holding: HeldSlot,
    previous: int,
    following: StartPosition,
) -> None:
    """Move a partition's position, by compare-and-set. Raises Fenced when it is not ours any more."""
    table = group_tables.partitions
    moved = connection.execute(
        update(table)
        .where(slot_condition(group, holding.slot), table.c.owner == member)
        .where(table.c.generation == holding.generation, table.c.next_offset == previous)
        .values(next_offset=following.next_offset, epoch=following.epoch, committed_at=now_micros())
    )
    if moved.rowcount != 1:
        raise stale_error(group, holding.slot)


def require(connection: Connection, group: str, member: str, holding: HeldSlot) -> None:
    """Raises Fenced unless the partition is ours, until this transaction ends."""
    table = group_tables.partitions
    held = connection.execute(
        update(table)
        .where(slot_condition(group, holding.slot), table.c.owner == member)
        .where(table.c.generation == holding.generation)
        .values(generation=holding.generation)
    )
    if held.rowcount != 1:
        raise stale_error(group, holding.slot)


def report(
    connection: Connection, group: str, member: str, holding: HeldSlot, reached: StartPosition
) -> None:
    """Write down a position that the consumer's own database holds. Nothing when the partition is not ours any more."""
    table = group_tables.partitions
    connection.execute(
        update(table)
        .where(slot_condition(group, holding.slot), table.c.owner == member)
        .where(table.c.generation == holding.generation)
        .values(next_offset=reached.next_offset, epoch=reached.epoch, committed_at=now_micros())
    )


def set_positions(
    connection: Connection,
    group: str,
    starts: Mapping[Slot, StartPosition],
    wanted: Mapping[Slot, StartPosition],
) -> None:
    """Positions by an operator's word: who owned those partitions has lost them. They begin a generation that is later
    than any which consumers' databases have seen, also when this one was restored from a backup: generations rise by
    one, so the number of microseconds since 1970 is one."""
    known = _owners(connection, group)
    table = group_tables.partitions
    last = connection.scalar(select(func.max(table.c.generation)).where(table.c.group_name == group)) or 0
    generation = max(last + 1, now_micros())
    for slot, start in wanted.items():
        if slot not in known:
            _add(connection, group, slot, starts[slot])
        connection.execute(
            update(table)
            .where(slot_condition(group, slot))
            .values(
                next_offset=start.next_offset,
                epoch=start.epoch,
                owner=None,
                wanted=None,
                generation=generation,
                reset_generation=generation,
            )
        )


def add_positions(connection: Connection, group: str, starts: Mapping[Slot, StartPosition]) -> None:
    """Store where the group begins in partitions that have no position yet."""
    known = _owners(connection, group)
    for slot in starts.keys() - known.keys():
        _add(connection, group, slot, starts[slot])


def stale_error(group: str, slot: Slot) -> Fenced:
    return Fenced(
        f"{slot} of group {group!r} has another owner now; this batch was not committed",
        hint="the new owner gets its events again; roll back the effects of this batch",
    )


def lock(connection: Connection, group: str) -> None:
    """One change of a group at a time (Postgres; SQLite has one writer anyway). Raises UsageError: no such group."""
    table = group_tables.groups
    query = select(table.c.name).where(table.c.name == group).with_for_update()
    if connection.scalar(query) is None:
        raise UsageError(f"there is no group {group!r}", hint="`tailrace group list` shows those there are")


def slot_condition(group: str, slot: Slot) -> ColumnElement[bool]:
    table = group_tables.partitions
    return and_(
        table.c.group_name == group,
        table.c.topic == slot.topic.text,
        table.c.partition == slot.partition,
    )


def _owners(connection: Connection, group: str) -> dict[Slot, str | None]:
    table = group_tables.partitions
    query = select(table.c.topic, table.c.partition, table.c.owner).where(table.c.group_name == group)
    return {Slot(TopicId.parse(row.topic), row.partition): row.owner for row in connection.execute(query)}


def _remove_silent(connection: Connection, group: str, watch: BeatWatch, now: float) -> None:
    table = group_tables.members
    rows = connection.execute(select(table).where(table.c.group_name == group)).all()
    for member, seen in watch.silent_members(
        {row.member: (row.token, row.beat) for row in rows}, now
    ).items():
        gone = connection.execute(
            delete(table).where(table.c.group_name == group, table.c.member == member, table.c.beat == seen)
        )
        if gone.rowcount:
            _raise_generation(connection, group, member, None)


def _raise_generation(connection: Connection, group: str, member: str, owner: str | None) -> None:
    table = group_tables.partitions
    connection.execute(
        update(table)
        .where(table.c.group_name == group, table.c.owner == member)
        .values(owner=owner, wanted=None, generation=table.c.generation + 1)
    )


def _hand_over(connection: Connection, group: str, slot: Slot, owner: str) -> None:
    table = group_tables.partitions
    connection.execute(
        update(table)
        .where(slot_condition(group, slot))
        .values(owner=owner, wanted=None, generation=table.c.generation + 1)
    )


def _want(connection: Connection, group: str, slot: Slot, owner: str | None) -> None:
    table = group_tables.partitions
    differs = table.c.wanted.is_not(None) if owner is None else table.c.wanted.is_distinct_from(owner)
    connection.execute(update(table).where(slot_condition(group, slot), differs).values(wanted=owner))


def _add(connection: Connection, group: str, slot: Slot, start: StartPosition) -> None:
    connection.execute(
        insert(group_tables.partitions).values(
            group_name=group,
            topic=slot.topic.text,
            partition=slot.partition,
            next_offset=start.next_offset,
            epoch=start.epoch,
            generation=0,
            reset_generation=0,
        )
    )
