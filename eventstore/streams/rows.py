"""What is written to a stream and read from it, before it is typed; and what keeps streams: a connection, or memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from tailrace.eventstore.streams.personal.keys import KeyStore
from tailrace.eventstore.streams.stream import Stream


class EventType(NamedTuple):
    """The stored name of an event model. A model that is changed incompatibly gets a new version, not a new name."""

    name: str
    version: int


class NewRow(NamedTuple):
    """An event to be written; ``data`` is JSON, whose personal values are encrypted with the ``keys`` of these ids."""

    type: EventType
    event_id: UUID
    data: str
    tags: tuple[str, ...] = ()
    keys: frozenset[str] = frozenset()


class Row(NamedTuple):
    """An event as it is stored; ``data`` and ``metadata`` are JSON. Personal values were decrypted with the ``keys`` of
    these ids."""

    version: int
    type: str
    schema_version: int
    data: str
    metadata: str
    event_id: UUID
    recorded_at: datetime
    keys: frozenset[str] = frozenset()
    erased: bool = False
    """Whether it has a personal value that was forgotten."""


class Part(NamedTuple):
    """What is appended to one stream; without rows the stream is only looked at."""

    stream: Stream
    expected: int
    rows: Sequence[NewRow]


class Asked(NamedTuple):
    """Events of one ``tag`` that were read up to its ``version``: with these stored ``names`` (none: all) and all of
    these ``tags``, the one among them."""

    tag: str
    version: int
    names: tuple[str, ...]
    tags: tuple[str, ...]


class TaggedRow(NamedTuple):
    """An event as it was found by a ``tag``, of whose events it is number ``version``."""

    tag: str
    version: int
    stream: Stream
    row: Row


class Snapshot(NamedTuple):
    """A state as JSON, after the stream's ``version``. It follows from personal values of these ``keys``: who does not
    have them all cannot read it."""

    version: int
    state: str
    keys: frozenset[str] = frozenset()


Outcome = Literal["appended", "repeated", "conflict", "reused"]


@runtime_checkable
class Keeper(Protocol):
    """Keeps streams, within a transaction of its own or the caller's. ``expected`` is a version, or a value of
    ``Expected``. One that blocks never waits in its coroutines. Rows that are written have personal values encrypted;
    rows that are read have them as they were, with keys of ``keys``, or erased."""

    @property
    def keys(self) -> KeyStore: ...

    async def write(self, stream: Stream, expected: int, rows: Sequence[NewRow], metadata: str) -> int:
        """Append rows with new ids. Above 0: the version of the last one. Otherwise nothing was written, and the stream
        is at minus the result."""

    async def write_once(
        self, stream: Stream, expected: int, rows: Sequence[NewRow], metadata: str
    ) -> tuple[Outcome, int]:
        """Append rows unless these very ones, by their ids, are there. With the version of the last one, or where the
        stream is."""

    async def write_all(
        self, parts: Sequence[Part], metadata: str, asked: Sequence[Asked] = ()
    ) -> tuple[int, list[int]]:
        """Append to several streams, all or nothing. With 0 and the versions of each; or with the number of a part,
        counted from 1, whose stream is not where it was expected, and where it is; or, counted on, with that of one
        that was ``asked`` for and has another event by now, and where its tag is."""

    async def read_tagged(self, asked: Sequence[Asked]) -> tuple[Mapping[str, int], Sequence[TaggedRow]]:
        """The versions of the tags, and the events of them that are asked for, whatever their version, each at least
        once: all as they are at one moment."""

    async def read(self, stream: Stream, from_version: int, to_version: int | None = None) -> Sequence[Row]:
        """The stream's rows from a version on, up to another, in order."""

    async def read_tail(self, stream: Stream, code: str) -> tuple[Snapshot | None, Sequence[Row]]:
        """The snapshot of this code, and the rows behind it; without one all."""

    async def write_snapshot(self, stream: Stream, snapshot: Snapshot, code: str) -> None:
        """Take the place of the stream's snapshot, unless that is of the same code and later."""

    def as_one(self) -> AbstractAsyncContextManager[None]:
        """What is written inside is written together, or not at all."""

    async def read_row(self, table: str, key: str, value: str) -> Mapping[str, Any] | None:
        """The row of a service's own table, by its key, until the transaction ends nobody else's to change."""

    async def put_row(self, table: str, key: str, value: str, row: Mapping[str, Any]) -> None:
        """Write columns of it; make it if it is not there."""

    async def delete_row(self, table: str, key: str, value: str) -> None:
        """Delete it, if it is there."""

    async def scan(
        self, category: str, prefix: str, after: tuple[str, int], limit: int
    ) -> Sequence[tuple[str, Row]]:
        """Rows of the category's streams whose ids begin with ``prefix``, behind a stream's version: with the streams'
        ids, by stream and version, at most ``limit``."""
