"""Streams in memory, for tests of what appends, loads and handles commands, without a database."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from tailrace.eventstore.streams.database.personal_rows import opened_rows, opened_snapshot, sealed_snapshot
from tailrace.eventstore.streams.outcomes import Expected
from tailrace.eventstore.streams.personal.keys import KeyStore, chosen_keys
from tailrace.eventstore.streams.personal.sealing import Key, new_secret
from tailrace.eventstore.streams.rows import Asked, NewRow, Outcome, Part, Row, Snapshot, TaggedRow
from tailrace.eventstore.streams.stream import Stream


class MemoryKeys:
    """``KeyStore`` in memory."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[str, bytes | None]] = {}
        self._current: dict[str, str] = {}
        self._secret = new_secret()

    async def seal_keys(self, subjects: Sequence[str]) -> dict[str, Key]:
        for each in subjects:
            if each not in self._current:
                await self._new(each)
        return {each: (await self.keys_of(each))[0] for each in subjects}

    async def open_keys(self, ids: Sequence[str]) -> dict[str, bytes | None]:
        return {id: self._keys[id][1] for id in ids if id in self._keys}

    async def tag_secret(self) -> bytes:
        return self._secret

    async def rotate(self, subject: str) -> Key | None:
        return await self._new(subject) if subject in self._current else None

    async def keys_of(self, subject: str) -> list[Key]:
        found = [Key(id, key) for id, (whose, key) in self._keys.items() if whose == subject and key]
        return sorted(found, key=lambda each: each.id != self._current[subject])

    async def forget(self, ids: Iterable[str]) -> list[str]:
        gone = [id for id in ids if self._keys.get(id, ("", None))[1]]
        for id in gone:
            subject, _ = self._keys[id]
            self._keys[id] = ("", None)
            self._current.pop(subject, None)
        return gone

    async def _new(self, subject: str) -> Key:
        key = Key(str(uuid4()), new_secret())
        self._keys[key.id] = (subject, key.secret)
        self._current[subject] = key.id
        return key


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
        self.keys: KeyStore = chosen_keys() or MemoryKeys()
        """Keys of the subjects of personal values."""
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
                for kind, event_id, data, tags, _ in rows:
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
            opened = await opened_rows(self.keys, [each.row for each in rows])
            rows = [each._replace(row=row) for each, row in zip(rows, opened, strict=True)]
            return {each.tag: len(self._tagged.get(each.tag, [])) for each in asked}, rows

    async def read(self, stream: Stream, from_version: int, to_version: int | None = None) -> list[Row]:
        with self._lock:
            rows = self._streams.get(stream, [])[max(0, from_version - 1) : to_version]
            return list(await opened_rows(self.keys, rows))

    async def read_tail(self, stream: Stream, code: str) -> tuple[Snapshot | None, list[Row]]:
        with self._lock:
            snapshot, whose = self._snapshots.get(stream, (None, ""))
            if snapshot is not None and whose == code:
                snapshot = await opened_snapshot(self.keys, snapshot)
            if snapshot is None or whose != code:
                return None, await self.read(stream, 1)
            return snapshot, await self.read(stream, snapshot.version + 1)

    async def write_snapshot(self, stream: Stream, snapshot: Snapshot, code: str) -> None:
        with self._lock:
            before, whose = self._snapshots.get(stream, (None, ""))
            sealed = await sealed_snapshot(self.keys, snapshot)
            if sealed and (before is None or whose != code or before.version < snapshot.version):
                self._snapshots[stream] = (sealed, code)

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
            opened = await opened_rows(self.keys, [row for _, row in rows[:limit]])
        return [(id, row) for (id, _), row in zip(rows, opened, strict=False)]


def _is_asked(asked: Asked, row: Row, tags: Sequence[str]) -> bool:
    return (not asked.names or row.type in asked.names) and set(asked.tags) <= set(tags)


def _is_where(version: int, expected: int) -> bool:
    if expected == Expected.STREAM_EXISTS.value:
        return version > 0
    return expected == Expected.ANY.value or version == expected
