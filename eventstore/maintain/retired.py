"""Retired files: replaced in the catalog, kept until no reader can still want them.

Two kinds of readers may hold a reference from before: short ones, for which a period of grace is kept, and those with a
lease (``leases.pinned``), however long it lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from eventstore import failpoints, tables
from eventstore.maintain import leases, terms

if TYPE_CHECKING:
    from eventstore.log import Store


def retire(connection: Connection, files: Sequence[tuple[str, int]]) -> None:
    """Inside the transaction that takes them (path, bytes) out of the catalog."""
    last = terms.advance(connection, terms.RETIRED, len(files))
    now = leases.now(connection)
    rows = [
        {"number": last - len(files) + 1 + at, "path": path, "bytes": size, "retired_at": now}
        for at, (path, size) in enumerate(files)
    ]
    connection.execute(insert(tables.retired), rows)


def collect_retired(store: Store, grace_seconds: float) -> tuple[int, int]:
    """Remove those that nobody can want any more; gives their number and bytes. May be killed at any point."""
    table = tables.retired
    with store.catalog.write() as connection:
        leases.forget_expired(connection)
        needed = leases.oldest_need(connection)
        now = leases.now(connection)
        # Before the clock was set back: their grace begins now, or they would stay until it comes round again.
        connection.execute(update(table).where(table.c.retired_at > now).values(retired_at=now))
        query = select(table).where(table.c.retired_at <= now - int(grace_seconds * 1e6))
        if needed is not None:
            query = query.where(table.c.number <= needed)
        due = connection.execute(query.order_by(table.c.number)).all()
    for row in due:
        store.storage.delete(row.path)
        failpoints.hit("retired_removed")
    if due:
        with store.catalog.write() as connection:
            gone = delete(table).where(table.c.number == bindparam("gone"))
            connection.execute(gone, [{"gone": row.number} for row in due])
    return len(due), sum(row.bytes for row in due)
