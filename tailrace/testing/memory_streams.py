"""Streams in memory, for tests of what appends, loads and handles commands, without a database."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from tailrace.eventstore.streams.outcomes import Expected
from tailrace.eventstore.streams.rows import Asked, NewRow, Outcome, Part, Row, Snapshot, TaggedRow
from tailrace.eventstore.streams.stream import Stream


class MemoryStreams:
    """Takes the place of a connection in ``append``, ``append_all``, ``load`` and ``handle``.

    It does what a database does of which every statement is a transaction of its own: what is written stays, threads
    may share it, and events go through JSON. It has no transactions and rolls nothing back.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._streams: dict[Stream, list[Row]] = {}
        self._tagged: dict[str, list[tuple[Stream, Row, tuple[str, ...]]]] = {}
        self._snapshots: dict[Stream, tuple[Snapshot, str]] = {}
        self.tables: dict[str, dict[str, dict[str, Any]]] = {}
        """Rows of inline projections, by table and key."""

    async def write(self, stream: Stream, expected: int, rows: Sequence[NewRow], metadata: str) -> int:
        failed, (version,) = await self.write_all([Part(stream, expected, rows)], metadata)
        return -version if failed else version

    async def write_once(
        self, stream: Stream, expected: int, rows: Sequence[NewRow], metadata: str
    ) -> tuple[Outcome, int]:
        ids = [row.event_id for row in rows]
        with self._lock:
            there = self._streams.get(stream, [])
            found = [row.version for row in there if row.event_id in set(ids)]
            if found and [row.event_id for row in there[found[0] - 1 : found[-1]]] == ids:
                return "repeated", found[-1]
            if any(row.event_id in set(ids) for others in self._streams.values() for row in others):
                return "reused", len(there)
            reached = await self.write(stream, expected, rows, metadata)
        return ("appended", reached) if reached > 0 else ("conflict", -reached)

    async def write_all(
        self, parts: Sequence[Part], metadata: str, asked: Sequence[Asked] = ()
    ) -> tuple[int, list[int]]:
        with self._lock:
            for number, (stream, expected, _) in enumerate(parts, 1):
                version = len(self._streams.get(stream, []))
                if not _is_where(version, expected):
                    return number, [version]
            for number, each in enumerate(asked, len(parts) + 1):
                there = self._tagged.get(each.tag, [])
                if any(_is_asked(each, row, tags) for _, row, tags in there[each.version :]):
                    return number, [len(there)]
            for stream, _, rows in parts:
                kept = self._streams.setdefault(stream, [])
                for kind, event_id, data, tags in rows:
                    json.loads(data)
                    now = datetime.now(UTC)
                    kept.append(Row(len(kept) + 1, kind.name, kind.version, data, metadata, event_id, now))
                    for tag in tags:
                        self._tagged.setdefault(tag, []).append((stream, kept[-1], tags))
            return 0, [len(self._streams[part.stream]) for part in parts]

    async def read_tagged(self, asked: Sequence[Asked]) -> tuple[Mapping[str, int], list[TaggedRow]]:
        with self._lock:
            rows = [
                TaggedRow(each.tag, version, stream, row)
                for each in asked
                for version, (stream, row, tags) in enumerate(self._tagged.get(each.tag, []), 1)
                if _is_asked(each, row, tags)
            ]
            return {each.tag: len(self._tagged.get(each.tag, [])) for each in asked}, rows

    async def read(self, stream: Stream, from_version: int, to_version: int | None = None) -> list[Row]:
        with self._lock:
            return self._streams.get(stream, [])[max(0, from_version - 1) : to_version]

    async def read_tail(self, stream: Stream, code: str) -> tuple[Snapshot | None, list[Row]]:
        with self._lock:
            snapshot, whose = self._snapshots.get(stream, (None, ""))
            if snapshot is None or whose != code:
                return None, await self.read(stream, 1)
            return snapshot, await self.read(stream, snapshot.version + 1)

    async def write_snapshot(self, stream: Stream, snapshot: Snapshot, code: str) -> None:
        with self._lock:
            before, whose = self._snapshots.get(stream, (None, ""))
            if before is None or whose != code or before.version < snapshot.version:
                self._snapshots[stream] = (snapshot, code)

    @asynccontextmanager
    async def as_one(self) -> AsyncIterator[None]:
        with self._lock:
            yield

    async def read_row(self, table: str, key: str, value: str) -> Mapping[str, Any] | None:
        with self._lock:
            return self.tables.get(table, {}).get(value)

    async def put_row(self, table: str, key: str, value: str, row: Mapping[str, Any]) -> None:
        with self._lock:
            rows = self.tables.setdefault(table, {})
            rows[value] = {**rows.get(value, {key: value}), **row}

    async def delete_row(self, table: str, key: str, value: str) -> None:
        with self._lock:
            self.tables.get(table, {}).pop(value, None)

    async def scan(
        self, category: str, prefix: str, after: tuple[str, int], limit: int
    ) -> list[tuple[str, Row]]:
        with self._lock:
            rows = [
                (stream.id, row)
                for stream in sorted(self._streams)
                if stream.category == category and stream.id.startswith(prefix)
                for row in self._streams[stream]
                if (stream.id, row.version) > after
            ]
        return rows[:limit]


def _is_asked(asked: Asked, row: Row, tags: Sequence[str]) -> bool:
    return (not asked.names or row.type in asked.names) and set(asked.tags) <= set(tags)


def _is_where(version: int, expected: int) -> bool:
    if expected == Expected.STREAM_EXISTS.value:
        return version > 0
    return expected == Expected.ANY.value or version == expected
