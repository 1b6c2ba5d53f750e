"""Archives by name: what the log knows to be in each, and forgetting one that is gone.

Copies in an archive out of reach can be neither removed nor taken for removed, so the log knows of them for ever,
unless somebody says that the archive is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, delete, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import OperatorError, TransientError, UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata.archived import require
from tailrace.eventstore.model.topic import TopicId


@dataclass(frozen=True, slots=True)
class KnownArchive:
    """``files`` were archived there, with so many rows and bytes; ``unfinished`` are copies that were begun."""

    place: str
    topics: tuple[str, ...]
    files: int
    rows: int
    bytes: int
    unfinished: int


def archives(log: Log, topics: Sequence[TopicId] = ()) -> list[KnownArchive]:
    """Archives that hold something of these topics, or of any, by the catalog alone."""
    with log.catalog.read() as connection:
        return _known_archives(connection, [topic.text for topic in topics])


def forget(log: Log, place: str) -> KnownArchive:
    """The log no longer knows of anything there. Raises UsageError: it knows of none by that name, or it is in reach
    and has files of it."""
    known = {each.place: each for each in archives(log)}
    if place not in known:
        raise UsageError(
            f"nothing was archived in {place!r}",
            hint=f"the log knows of: {', '.join(known)}" if known else "nothing was archived anywhere",
        )
    left = _remaining_files(log, place)
    if left:
        raise UsageError(
            f"archive {place} is not gone: it has {len(left)} of its files, {left[0]} among them",
            hint="remove them there first, or do not forget this archive",
        )
    with log.catalog.write() as connection:
        for table in (tables.archived, tables.archiving):
            connection.execute(delete(table).where(table.c.place == place))
    return known[place]


def _remaining_files(log: Log, place: str) -> list[str]:
    """Files of it that can be seen."""
    try:
        storage = log.archive(place)
        require(storage, log.log_id)
        with log.catalog.read() as connection:
            named = [
                path
                for table in (tables.archived, tables.archiving)
                for path in connection.scalars(select(table.c.path).where(table.c.place == place))
            ]
        return [storage.place(path) for path in named if storage.exists(path)]
    except (OperatorError, TransientError):  # out of reach, or something else is there by now
        return []


def _known_archives(connection: Connection, topics: Sequence[str]) -> list[KnownArchive]:
    names, whole, begun = tables.topics, tables.archived, tables.archiving
    wanted = [names.c.name.in_(topics)] if topics else []
    of_whole = (
        select(whole.c.place, names.c.name, whole.c.rows, whole.c.bytes)
        .join_from(whole, names)
        .where(*wanted)
    )
    of_begun = select(begun.c.place, names.c.name).join_from(begun, names).where(*wanted)
    archives_by_place: dict[str, KnownArchive] = {}

    def add(place: str, topic: str, **more: int) -> None:
        known = archives_by_place.get(place) or KnownArchive(place, (), 0, 0, 0, 0)
        counts = {name: getattr(known, name) + number for name, number in more.items()}
        archives_by_place[place] = replace(known, topics=tuple(sorted({*known.topics, topic})), **counts)

    for row in connection.execute(of_whole):
        add(row.place, row.name, files=1, rows=row.rows, bytes=row.bytes)
    for copy in connection.execute(of_begun):
        add(copy.place, copy.name, unfinished=1)
    return [archives_by_place[place] for place in sorted(archives_by_place)]
