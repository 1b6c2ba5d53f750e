"""The streams of a source database, on the caller's connection: which statements write and read them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, TypeAlias
from uuid import UUID

import psycopg

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.streams.database import table_rows
from tailrace.eventstore.streams.database.connection import (
    Ask,
    AsyncDatabaseConnection,
    DatabaseConnection,
    ask_of,
    in_transaction,
    run_async,
)
from tailrace.eventstore.streams.database.personal_rows import opened_rows, opened_snapshot, sealed_snapshot
from tailrace.eventstore.streams.database.subject_keys import SourceKeys
from tailrace.eventstore.streams.database.tagging import TAGS, TAGS_AND_ASKED, tagging
from tailrace.eventstore.streams.personal.keys import KeyStore, chosen_keys
from tailrace.eventstore.streams.rows import (
    Asked,
    EventType,
    Keeper,
    NewRow,
    Outcome,
    Part,
    Row,
    Snapshot,
    TaggedRow,
)
from tailrace.eventstore.streams.stream import Stream

AnyConnection: TypeAlias = "DatabaseConnection | Keeper"
AnyAsyncConnection: TypeAlias = "AsyncDatabaseConnection | Keeper"

_WRITE_ONE: Final = """
SELECT tailrace.append_one(%(category)s, %(stream)s, CAST(%(expected)s AS bigint), %(type)s,
    CAST(%(schema_version)s AS integer), CAST(%(data)s AS jsonb), CAST(%(metadata)s AS jsonb), CAST(%(id)s AS uuid))
"""
_WRITE_MANY: Final = """
SELECT tailrace.append_many(%(category)s, %(stream)s, CAST(%(expected)s AS bigint), CAST(%(events)s AS jsonb),
    CAST(%(metadata)s AS jsonb))
"""
_WRITE_TAGGED: Final = f"""
SELECT failed, version
FROM tailrace.append_tagged(%(category)s, %(stream)s, CAST(%(expected)s AS bigint), CAST(%(events)s AS jsonb),
    CAST(%(metadata)s AS jsonb), {TAGS_AND_ASKED})
"""  # noqa: S608
# The one that looks for the ids: those that were given may have been used before.
_WRITE_ONCE: Final = f"""
SELECT outcome, stream_version
FROM tailrace.append_once(%(category)s, %(stream)s, CAST(%(expected)s AS bigint), CAST(%(events)s AS jsonb), {TAGS})
"""  # noqa: S608
_WRITE_ALL: Final = f"""
SELECT failed, versions
FROM tailrace.append_all(CAST(%(parts)s AS jsonb), CAST(%(metadata)s AS jsonb), {TAGS_AND_ASKED})
"""  # noqa: S608
_READ_TAGGED: Final = """
SELECT * FROM tailrace.load_tagged(CAST(%(asked)s AS jsonb))
"""
_READ: Final = """
SELECT * FROM tailrace.load_stream(%(category)s, %(stream)s, CAST(%(from_version)s AS bigint),
    CAST(%(to_version)s AS bigint))
"""
_READ_TAIL: Final = """
SELECT * FROM tailrace.load_tail(%(category)s, %(stream)s, %(code)s)
"""
_WRITE_SNAPSHOT: Final = """
SELECT tailrace.put_snapshot(%(category)s, %(stream)s, CAST(%(version)s AS bigint), %(code)s, CAST(%(state)s AS jsonb))
"""
_SCAN: Final = """
SELECT * FROM tailrace.load_category(%(category)s, %(prefix)s, %(stream)s, CAST(%(version)s AS bigint),
    CAST(%(limit)s AS bigint))
"""
_LAST: Final = (1 << 63) - 1


def keeper_of(connection: AnyConnection) -> Keeper:
    """What keeps the streams: a keeper itself, or those of the database that it is connected to."""
    if not isinstance(connection, psycopg.Connection) and isinstance(connection, Keeper):
        return connection
    return SourceStreams(ask_of(connection), functools.partial(in_transaction, connection))


def async_keeper_of(connection: AnyAsyncConnection) -> Keeper:
    """The same for a connection that is awaited."""
    if not isinstance(connection, psycopg.AsyncConnection) and isinstance(connection, Keeper):
        return connection
    return SourceStreams(
        functools.partial(run_async, connection), functools.partial(in_transaction, connection)
    )


class SourceStreams:
    """``Keeper`` in the tables of schema ``tailrace``."""

    __slots__ = ("_ask", "as_one", "keys")

    def __init__(
        self, ask: Ask, as_one: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    ) -> None:
        """``as_one`` begins a transaction where there is none; by default there is."""
        self._ask = ask
        self.as_one = as_one
        self.keys: KeyStore = chosen_keys() or SourceKeys(ask)

    async def write(self, stream: Stream, expected: int, rows: Sequence[NewRow], metadata: str) -> int:
        if any(row.tags for row in rows):
            failed, (version,) = await self.write_all([Part(stream, expected, rows)], metadata)
            return -version if failed else version
        values: dict[str, object] = {
            "category": stream.category,
            "stream": stream.id,
            "expected": expected,
            "metadata": metadata,
        }
        if len(rows) == 1:  # most appends: no array to take apart
            ((kind, event_id, data, *_),) = rows
            values |= {
                "type": kind.name,
                "schema_version": kind.version,
                "data": data,
                "id": str(event_id),
            }
            ((reached,),) = await self._ask(_WRITE_ONE, values)
        else:
            values["events"] = events_json(rows)
            ((reached,),) = await self._ask(_WRITE_MANY, values)
        return int(reached)

    async def write_once(
        self, stream: Stream, expected: int, rows: Sequence[NewRow], metadata: str
    ) -> tuple[Outcome, int]:
        parts = []
        for kind, event_id, data, *_ in rows:
            head = json.dumps({"type": kind.name, "schema_version": kind.version, "event_id": str(event_id)})
            parts.append(f'{head[:-1]}, "data": {data}, "metadata": {metadata}}}')
        values = {
            "category": stream.category,
            "stream": stream.id,
            "expected": expected,
            "events": f"[{', '.join(parts)}]",
            **tagging([Part(stream, expected, rows)]),
        }
        ((outcome, version),) = await self._ask(_WRITE_ONCE, values)
        return outcome, version

    async def write_all(
        self, parts: Sequence[Part], metadata: str, asked: Sequence[Asked] = ()
    ) -> tuple[int, list[int]]:
        if len(parts) == 1 and parts[0].rows:
            return await self._write_tagged(parts[0], metadata, asked)
        texts = [
            f"[{json.dumps([stream.category, stream.id, expected])[1:-1]},{events_json(rows)}]"
            for stream, expected, rows in parts
        ]
        values = {"parts": f"[{','.join(texts)}]", "metadata": metadata, **tagging(parts, asked)}
        ((failed, versions),) = await self._ask(_WRITE_ALL, values)
        return failed, versions

    async def _write_tagged(self, part: Part, metadata: str, asked: Sequence[Asked]) -> tuple[int, list[int]]:
        values = {
            "category": part.stream.category,
            "stream": part.stream.id,
            "expected": part.expected,
            "events": events_json(part.rows),
            "metadata": metadata,
            **tagging([part], asked),
        }
        ((failed, version),) = await self._ask(_WRITE_TAGGED, values)
        return failed, [version]

    async def read_tagged(self, asked: Sequence[Asked]) -> tuple[Mapping[str, int], Sequence[TaggedRow]]:
        items = json.dumps([[each.tag, each.names or None, each.tags] for each in asked])
        versions, rows = dict[str, int](), list[TaggedRow]()
        for tag, version, category, stream, *row in await self._ask(_READ_TAGGED, {"asked": items}):
            if stream is None:
                versions[tag] = version
            else:
                rows.append(TaggedRow(tag, version, Stream(category, stream), _row(tuple(row))))
        opened = await opened_rows(self.keys, [each.row for each in rows])
        return versions, [each._replace(row=row) for each, row in zip(rows, opened, strict=True)]

    async def read(self, stream: Stream, from_version: int, to_version: int | None = None) -> Sequence[Row]:
        values = {
            "category": stream.category,
            "stream": stream.id,
            "from_version": from_version,
            "to_version": _LAST if to_version is None else to_version,
        }
        rows = [_row(row) for row in await self._ask(_READ, values)]
        return await opened_rows(self.keys, unpruned(stream, rows, from_version))

    async def read_tail(self, stream: Stream, code: str) -> tuple[Snapshot | None, Sequence[Row]]:
        values = {"category": stream.category, "stream": stream.id, "code": code}
        rows = await self._ask(_READ_TAIL, values)
        if not rows or rows[0][1] is not None:
            return None, await opened_rows(self.keys, unpruned(stream, [_row(row) for row in rows], 1))
        snapshot = await opened_snapshot(self.keys, Snapshot(rows[0][0], rows[0][3]))
        if snapshot is None:
            return None, await self.read(stream, 1)
        return snapshot, await opened_rows(self.keys, [_row(row) for row in rows[1:]])

    async def write_snapshot(self, stream: Stream, snapshot: Snapshot, code: str) -> None:
        sealed = await sealed_snapshot(self.keys, snapshot)
        if sealed is None:
            return
        values = {
            "category": stream.category,
            "stream": stream.id,
            "version": sealed.version,
            "code": code,
            "state": sealed.state,
        }
        await self._ask(_WRITE_SNAPSHOT, values)

    async def read_row(self, table: str, key: str, value: str) -> Mapping[str, Any] | None:
        return await table_rows.read_row(self._ask, table, key, value)

    async def put_row(self, table: str, key: str, value: str, row: Mapping[str, Any]) -> None:
        await table_rows.put_row(self._ask, table, key, value, row)

    async def delete_row(self, table: str, key: str, value: str) -> None:
        await table_rows.delete_row(self._ask, table, key, value)

    async def scan(
        self, category: str, prefix: str, after: tuple[str, int], limit: int
    ) -> Sequence[tuple[str, Row]]:
        values = {
            "category": category,
            "prefix": prefix,
            "stream": after[0],
            "version": after[1],
            "limit": limit,
        }
        found = await self._ask(_SCAN, values)
        rows = await opened_rows(self.keys, [_row(row[1:]) for row in found])
        return [(stream, row) for (stream, *_), row in zip(found, rows, strict=True)]


def unpruned(stream: Stream, rows: Sequence[Row], first: int) -> Sequence[Row]:
    """Raises OperatorError when the first of them were pruned: a stream has all versions, and its last event stays."""
    if rows and rows[0].version > first:
        raise OperatorError(
            f"events {first} to {rows[0].version - 1} of {stream} were pruned, and no snapshot of this code is there",
            hint=f"load(…, from_version={rows[0].version}) reads what is left; store.streams(SOURCE), the log, has all;"
            " keep_snapshot(connection, decider, id, store.streams(SOURCE)) makes the snapshot",
        )
    return rows


def events_json(rows: Sequence[NewRow]) -> str:
    """An array of ``[type, schema version, id, data]`` for each."""
    texts = [f'[{_head(kind)},"{event_id}",{data}]' for kind, event_id, data, *_ in rows]
    return f"[{','.join(texts)}]"


def _row(row: tuple[Any, ...]) -> Row:
    found = Row(*row)
    return found if isinstance(found.event_id, UUID) else found._replace(event_id=UUID(found.event_id))


@functools.cache
def _head(kind: EventType) -> str:
    return json.dumps([kind.name, kind.version])[1:-1]
