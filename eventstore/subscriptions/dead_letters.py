"""Dead letters: events that a consumer could not process are parked with their error, so that the rest goes on.

By default the later events of the same key are parked behind a parked one, so that every key keeps its order; a
replay gives them again, oldest first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, insert, select, update

from tailrace.eventstore.catalog import group_tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.model.time import from_micros, now_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.subscriptions.assignment import Slot

_ERROR_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class ParkedEvent:
    """``attempts`` is 0 for an event that only waits behind an earlier one of its key. ``replay``: it was asked to be
    given again. ``epoch`` is the one that holds it."""

    id: int
    slot: Slot
    offset: int
    epoch: int
    key_hash: int
    key: str
    attempts: int
    error: str
    replay: bool
    parked_at: datetime


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """An event to be parked."""

    offset: int
    epoch: int
    key_hash: int
    key: str
    attempts: int
    error: str
    holds_key: bool


def park(connection: Connection, group: str, slot: Slot, failed: Sequence[FailedEvent]) -> None:
    """Add events of one partition. One that is parked already (it was given twice) stays as it is."""
    table = group_tables.parked
    offsets = [each.offset for each in failed]
    query = select(table.c.event_offset).where(
        _slot_condition(group, slot), table.c.event_offset.in_(offsets)
    )
    known = set(connection.scalars(query))
    rows = [
        {
            "group_name": group,
            "topic": slot.topic.text,
            "partition": slot.partition,
            "event_offset": each.offset,
            "epoch": each.epoch,
            "key_hash": each.key_hash,
            "key_text": each.key,
            "attempts": each.attempts,
            "error": each.error[:_ERROR_LENGTH],
            "holds_key": each.holds_key,
            "replay": False,
            "parked_at": now_micros(),
        }
        for each in failed
        if each.offset not in known
    ]
    if rows:
        connection.execute(insert(table), rows)


def held_keys(database: Catalog, group: str, topic: TopicId) -> set[int]:
    """Hashes of keys whose later events must wait, also in partitions that came after."""
    table = group_tables.parked
    query = select(table.c.key_hash).where(
        table.c.group_name == group, table.c.topic == topic.text, table.c.holds_key
    )
    with database.read() as connection:
        return set(connection.scalars(query))


def parked_events(database: Catalog, group: str, *, replay: bool | None = None) -> list[ParkedEvent]:
    """What is parked, oldest first per partition, and so per key."""
    table = group_tables.parked
    query = select(table).where(table.c.group_name == group)
    if replay is not None:
        query = query.where(table.c.replay == replay)
    with database.read() as connection:
        rows = connection.execute(query.order_by(table.c.topic, table.c.partition, table.c.event_offset))
        return [_parked_event(row) for row in rows]


def ask_replay(database: Catalog, group: str, ids: Collection[int] | None) -> int:
    """Ask for another try: of these, with what waits behind and before them, or of all. Gives how many events."""
    table = group_tables.parked
    with database.write() as connection:
        query = update(table).where(table.c.group_name == group)
        if ids is not None:
            chosen = select(table.c.topic, table.c.key_hash).where(
                table.c.group_name == group, table.c.id.in_(list(ids))
            )
            keys = {tuple(row) for row in connection.execute(chosen)}
            rows = connection.execute(select(table).where(table.c.group_name == group))
            same = [row.id for row in rows if (row.topic, row.key_hash) in keys]
            query = query.where(table.c.id.in_(same))
        return int(connection.execute(query.values(replay=True)).rowcount)


def discard(database: Catalog, group: str, ids: Collection[int]) -> int:
    """Forget events for good. Gives how many."""
    table = group_tables.parked
    with database.write() as connection:
        gone = connection.execute(delete(table).where(table.c.group_name == group, table.c.id.in_(list(ids))))
        return int(gone.rowcount)


def remove(connection: Connection, id_: int) -> None:
    connection.execute(delete(group_tables.parked).where(group_tables.parked.c.id == id_))


def record_failure(
    connection: Connection, ids: Collection[int], first: int, attempts: int, error: str
) -> None:
    """None of a key's events is given again before somebody asks; the first one says why."""
    table = group_tables.parked
    connection.execute(update(table).where(table.c.id.in_(list(ids))).values(replay=False))
    connection.execute(
        update(table)
        .where(table.c.id == first)
        .values(attempts=table.c.attempts + attempts, error=error[:_ERROR_LENGTH])
    )


def _slot_condition(group: str, slot: Slot) -> ColumnElement[bool]:
    table = group_tables.parked
    return and_(
        table.c.group_name == group,
        table.c.topic == slot.topic.text,
        table.c.partition == slot.partition,
    )


def _parked_event(row: Row[*tuple[Any, ...]]) -> ParkedEvent:
    parked_at = from_micros(row.parked_at)
    assert parked_at is not None
    return ParkedEvent(
        id=row.id,
        slot=Slot(TopicId.parse(row.topic), row.partition),
        offset=row.event_offset,
        epoch=row.epoch,
        key_hash=row.key_hash,
        key=row.key_text,
        attempts=row.attempts,
        error=row.error,
        replay=row.replay,
        parked_at=parked_at,
    )
