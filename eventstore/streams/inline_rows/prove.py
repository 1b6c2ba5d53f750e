"""Are the rows of an inline projection what their events make? And, if somebody asks, make them so."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.database import table_rows
from tailrace.eventstore.streams.database.connection import Ask, ask_of
from tailrace.eventstore.streams.database.source import SourceStreams, unpruned
from tailrace.eventstore.streams.inline_rows.projection import InlineProjection, Row
from tailrace.eventstore.streams.models.event_types import event_type_of
from tailrace.eventstore.streams.models.upcasters import names_of_code
from tailrace.eventstore.streams.outcomes import Expected
from tailrace.eventstore.streams.recorded import recorded
from tailrace.eventstore.streams.rows import Part
from tailrace.eventstore.streams.rows import Row as StoredRow
from tailrace.eventstore.streams.stream import Stream

_TRIES: Final = 10
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Of so many streams; the keys of rows that are not what their events make, and of rows that no stream has."""

    streams: int
    different: tuple[str, ...]
    extra: tuple[str, ...]


def check_rows(
    connection: psycopg.Connection[Any], projection: InlineProjection, *, rebuild: bool = False
) -> CheckedRows:
    """Compare all rows with their events, beside services that append; with ``rebuild`` write what differs, each row in
    a transaction of its own, and delete what no stream has. The connection commits by itself (autocommit).

    Raises OperatorError without the table, and what ``load`` raises.
    """
    ask = ask_of(connection)
    streams, different, expected = 0, list[str](), set[str]()
    for stream, events in _streams(ask, projection):
        streams += 1
        row, written = projection.follow(events, None)
        same = finish(table_rows.holds_row(ask, projection.table, projection.key, stream.id, written))
        if not same and _differs(connection, ask, projection, stream, rebuild=rebuild):
            different.append(stream.id)
        if row is not None:
            expected.add(stream.id)
    keys = finish(table_rows.keys_of(ask, projection.table, projection.key))
    extra = [key for key in keys if key not in expected and not _has_row_now(ask, projection, key)]
    for key in extra if rebuild else ():
        finish(table_rows.delete_row(ask, projection.table, projection.key, key))
    return CheckedRows(streams, tuple(different), tuple(sorted(set(extra) - set(different))))


def _streams(ask: Ask, projection: InlineProjection) -> Iterator[tuple[Stream, list[object]]]:
    """Stream after stream, with the events that it follows."""
    rows = _scan(SourceStreams(ask), projection.category)
    for id, found in itertools.groupby(rows, lambda each: each[0]):
        stream = Stream(projection.category, id)
        yield stream, _followed(projection, stream, unpruned(stream, [row for _, row in found], 1))


def _scan(streams: SourceStreams, category: str) -> Iterator[tuple[str, StoredRow]]:
    after = ("", 0)
    while rows := finish(streams.scan(category, "", after, _PAGE)):
        yield from rows
        after = (rows[-1][0], rows[-1][1].version)


def _followed(projection: InlineProjection, stream: Stream, rows: Iterable[StoredRow]) -> list[object]:
    """Others need not be declared."""
    names = {event_type_of(model).name for model in projection.models} | names_of_code()
    return [each.data for row in rows if row.type in names for each in recorded(stream, row)]


def _differs(
    connection: psycopg.Connection[Any],
    ask: Ask,
    projection: InlineProjection,
    stream: Stream,
    *,
    rebuild: bool,
) -> bool:
    """Whether it still does while nobody else appends to the stream."""
    streams = SourceStreams(ask)
    for _ in range(_TRIES):
        with connection.transaction():
            rows = finish(streams.read(stream, 1))
            failed, _ = finish(streams.write_all([Part(stream, rows[-1].version, ())], "{}"))
            if failed:
                continue
            row, written = projection.follow(_followed(projection, stream, rows), None)
            at = projection.table, projection.key, stream.id
            if finish(table_rows.holds_row(ask, *at, written)):
                return False
            if rebuild:
                finish(_replace_row(ask, projection, stream, row, written))
            return True
    return False  # it is appended to all the time: the next look is


async def write_row(ask: Ask, projection: InlineProjection, stream: Stream) -> None:
    """Make the row of a stream what its events say now, inside a transaction."""
    streams = SourceStreams(ask)
    await streams.write_all([Part(stream, Expected.ANY.value, ())], "{}")  # nobody appends meanwhile
    row, written = projection.follow(_followed(projection, stream, await streams.read(stream, 1)), None)
    await _replace_row(ask, projection, stream, row, written)


async def _replace_row(
    ask: Ask, projection: InlineProjection, stream: Stream, row: Row | None, written: Row | None
) -> None:
    at = projection.table, projection.key, stream.id
    await table_rows.delete_row(ask, *at)
    if row is not None:
        await table_rows.put_row(ask, *at, written or {})


def _has_row_now(ask: Ask, projection: InlineProjection, key: str) -> bool:
    """Whether a stream came meanwhile that has it."""
    if not key:
        return False
    stream = Stream(projection.category, key)
    row, _ = projection.follow(
        _followed(projection, stream, finish(SourceStreams(ask).read(stream, 1))), None
    )
    return row is not None
