"""Logical messages with a prefix of ours that were not believed: how many of each kind, and when the last came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.model.time import moment_of, now_micros


@dataclass(frozen=True, slots=True)
class RefusedMessages:
    """``number`` counts arrivals: a message that the server sends again counts again."""

    kind: str
    number: int
    last_at: datetime


def add(catalog: Catalog, source: str, counts: Mapping[str, int]) -> None:
    """Counted apart from epochs: most of them make none. A source has one writer, so nobody else adds."""
    if not counts:
        return
    table, moment = tables.refused, now_micros()
    with catalog.write() as connection:
        for kind, number in counts.items():
            row = (table.c.source == source, table.c.kind == kind)
            grown = update(table).where(*row).values(number=table.c.number + number, last_at=moment)
            if connection.execute(grown).rowcount == 0:
                values = {"source": source, "kind": kind, "number": number, "last_at": moment}
                connection.execute(insert(table).values(values))


def refused_messages(catalog: Catalog, source: str) -> list[RefusedMessages]:
    """Most frequent first."""
    table = tables.refused
    query = select(table).where(table.c.source == source).order_by(table.c.number.desc(), table.c.kind)
    with catalog.read() as connection:
        return [
            RefusedMessages(row.kind, row.number, moment_of(row.last_at)) for row in connection.execute(query)
        ]
