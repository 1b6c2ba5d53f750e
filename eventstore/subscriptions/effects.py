"""Positions in the consumer's own database: a batch's effects and its offset are one transaction there.

Taking a partition raises its generation *there* first; a commit is ``UPDATE … WHERE generation = mine AND next_offset =
previous``. So a member that lost a partition, however late it wakes up, commits nothing, and nobody has effects twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    and_,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.subscriptions.assignment import Slot
from tailrace.eventstore.subscriptions.membership import HeldSlot, StartPosition, stale_error

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

metadata = MetaData()
offsets = Table(
    "tailrace_group_offsets",
    metadata,
    Column("group_name", Text, primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("generation", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
)


def restored_error(group: str, slot: Slot, here: str, there: str) -> OperatorError:
    return OperatorError(
        f"{offsets.name} in the consumer's database is {here} of {slot} for group {group!r}, and the log {there}: it "
        "was restored from a backup",
        hint="restore the consumer's database, too; or keep its effects and read on from the restored log's end: "
        f"tailrace group reset {group} --to latest, before new events are in the log",
    )


class Effects:
    """The offsets of one group in one database."""

    def __init__(self, engine: Engine, group: str) -> None:
        self._engine = engine
        self._group = group
        if not inspect(engine).has_table(offsets.name):
            metadata.create_all(engine)  # checks again: another member may be as early

    def take(self, holding: HeldSlot) -> StartPosition:
        """Refuse every earlier owner, and say where the last one came to. Raises Fenced when a later one was here."""
        with self._engine.begin() as connection:
            row = connection.execute(
                select(offsets).where(self._slot(holding)).with_for_update()
            ).one_or_none()
            given = StartPosition(holding.next_offset, holding.epoch)
            if row is not None and row.generation > holding.generation:
                raise stale_error(self._group, holding.slot)
            # What an operator set since counts; otherwise what was committed here.
            if row is None or row.generation < holding.reset_generation:
                start = given
            else:
                start = StartPosition(row.next_offset, row.epoch)
            values = {
                "generation": holding.generation,
                "next_offset": start.next_offset,
                "epoch": start.epoch,
            }
            if row is None:
                try:
                    connection.execute(insert(offsets).values(**self._name(holding), **values))
                except Duplicate:
                    raise stale_error(self._group, holding.slot) from None
            else:
                connection.execute(update(offsets).where(self._slot(holding)).values(values))
        return start

    def commit(
        self, connection: Connection | Session, holding: HeldSlot, previous: int, following: StartPosition
    ) -> None:
        """In the caller's transaction. Raises Fenced when the partition is in other hands: roll back."""
        moved = connection.execute(
            update(offsets)
            .where(self._slot(holding))
            .where(offsets.c.generation == holding.generation, offsets.c.next_offset == previous)
            .values(next_offset=following.next_offset, epoch=following.epoch)
        )
        if getattr(moved, "rowcount", -1) != 1:
            raise stale_error(self._group, holding.slot)

    def committed_position(self, holding: HeldSlot) -> StartPosition:
        """How far the partition is. Raises UsageError when somebody emptied the table."""
        with self._engine.connect() as connection:
            row = connection.execute(select(offsets).where(self._slot(holding))).one_or_none()
        if row is None:
            raise UsageError(
                f"{offsets.name} has no row for {holding.slot} of group {self._group!r} any more",
                hint="restore it; without it the group cannot know what its effects hold",
            )
        return StartPosition(row.next_offset, row.epoch)

    def _name(self, holding: HeldSlot) -> dict[str, object]:
        return {
            "group_name": self._group,
            "topic": holding.slot.topic.text,
            "partition": holding.slot.partition,
        }

    def _slot(self, holding: HeldSlot) -> ColumnElement[bool]:
        return and_(*(offsets.c[name] == value for name, value in self._name(holding).items()))
