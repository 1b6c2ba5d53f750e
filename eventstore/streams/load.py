"""Read a stream back from where it was appended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.database.source import AnyConnection, keeper_of
from tailrace.eventstore.streams.recorded import Recorded, recorded
from tailrace.eventstore.streams.rows import Keeper, Row
from tailrace.eventstore.streams.stream import Stream


def load(
    connection: AnyConnection,
    stream: Stream,
    from_version: int = 1,
    to_version: int | None = None,
    until: datetime | None = None,
) -> list[Recorded[Any]]:
    """The stream's events from ``from_version`` on, in order; empty when it has none. Up to ``to_version``, and up to
    the last one that was recorded at ``until`` or before.

    Sees what the caller's transaction sees, its own appends included. Raises UsageError when an event's name is not
    declared, IntegrityError when its data do not fit the model, OperatorError when the tables are missing.
    """
    return finish(loading(keeper_of(connection), stream, from_version, to_version, until))


async def loading(
    keeper: Keeper,
    stream: Stream,
    from_version: int = 1,
    to_version: int | None = None,
    until: datetime | None = None,
) -> list[Recorded[Any]]:
    """``load``, where something keeps the streams."""
    rows = await keeper.read(stream, from_version, to_version)
    return [each for row in up_to(rows, until) for each in recorded(stream, row)]


def load_all(
    connection: AnyConnection, category: str, prefix: str = "", page: int = 1000
) -> Iterator[Recorded[Any]]:
    """The events of a category's streams, or of those whose ids begin with ``prefix``: stream after stream, each in
    order. ``page`` rows are in memory at a time.

    Each page is a statement of its own: under READ COMMITTED later ones see what was appended meanwhile. Raises what
    ``load`` raises.
    """
    keeper = keeper_of(connection)
    after = ("", 0)
    while rows := finish(keeper.scan(category, prefix, after, page)):
        yield from _recorded_page(category, rows)
        after = (rows[-1][0], rows[-1][1].version)


async def loading_all(
    keeper: Keeper, category: str, prefix: str = "", page: int = 1000
) -> AsyncIterator[Recorded[Any]]:
    """``load_all``, where something keeps the streams."""
    after = ("", 0)
    while rows := await keeper.scan(category, prefix, after, page):
        for each in _recorded_page(category, rows):
            yield each
        after = (rows[-1][0], rows[-1][1].version)


def _recorded_page(category: str, rows: Sequence[tuple[str, Row]]) -> Iterator[Recorded[Any]]:
    for id, row in rows:
        yield from recorded(Stream(category, id), row)


def up_to(rows: Iterable[Row], until: datetime | None) -> Iterable[Row]:
    """Those before the first that was recorded later."""
    return rows if until is None else takewhile(lambda row: row.recorded_at <= until, rows)
