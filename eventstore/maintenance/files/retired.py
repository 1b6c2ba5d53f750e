"""Retired files: replaced in the catalog, kept until no reader can still want them.

Two kinds of readers may still refer to them: short ones, which a period of grace is for, and those with a lease
(``leases.reader_lease``), however long it lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import leases, tables, terms
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.files.owner import require_own_segments
from tailrace.eventstore.metadata import named_files, topics
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment.segment import folder_of


def retire(connection: Connection, files: Sequence[tuple[str, int]]) -> None:
    """Retire files (path, bytes), inside the transaction that takes them out of the catalog."""
    last = terms.advance(connection, terms.RETIRED, len(files))
    now = leases.now(connection)
    rows = [
        {"number": last - len(files) + 1 + at, "path": path, "bytes": size, "retired_at": now}
        for at, (path, size) in enumerate(files)
    ]
    connection.execute(insert(tables.retired), rows)


def retired_files(log: Log, topic: TopicId) -> list[Row[*tuple[Any, ...]]]:
    """A condition on ``retired``: files that held rows of a topic."""
    table = tables.retired
    with log.catalog.read() as connection:
        topic_id = topics.topic_ids(connection, [topic])[topic]
        mine = table.c.path.startswith(f"{folder_of(topic, topic_id)}/", autoescape=True)
        return list(connection.execute(select(table).where(mine).order_by(table.c.number)))


def remove(log: Log, files: Sequence[Row[*tuple[Any, ...]]]) -> None:
    """Remove retired files even if a reader still wants them: it fails with MissingFile, and finds the rows
    elsewhere when it begins again. May be killed at any point. Raises IntegrityError, and removes none, when the log
    still names one of them; OperatorError when they are another catalog's."""
    if files:
        require_own_segments(log)
    named_files.require_replaced(log.catalog, {row.path: f"retired: number {row.number}" for row in files})
    for row in files:
        log.storage.delete(row.path)
        failpoints.hit("retired_removed")
    if files:
        with log.catalog.write() as connection:
            gone = delete(tables.retired).where(tables.retired.c.number == bindparam("gone"))
            connection.execute(gone, [{"gone": row.number} for row in files])


def collect_retired(log: Log, grace_seconds: float) -> tuple[int, int]:
    """Remove the files that no reader can want any more; gives their number and bytes. Raises as ``remove``.
    May be killed at any point."""
    table = tables.retired
    with log.catalog.write() as connection:
        leases.forget_expired(connection)
        needed = leases.oldest_need(connection)
        now = leases.now(connection)
        # Before the clock was set back: their grace begins now, or they would stay until it comes round again.
        connection.execute(update(table).where(table.c.retired_at > now).values(retired_at=now))
        query = select(table).where(table.c.retired_at <= now - int(grace_seconds * 1e6))
        if needed is not None:
            query = query.where(table.c.number <= needed)
        due = connection.execute(query.order_by(table.c.number)).all()
    remove(log, due)
    return len(due), sum(row.bytes for row in due)
