"""Streams as the log has them: also what their table in the source no longer has.

state_of(store.streams("shop"), account, "42", at=last_year)
load(store.streams("shop"), Stream("account", "42"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Never, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.time import moment_of
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.streams.database.key_places import no_keys
from tailrace.eventstore.streams.database.personal_rows import opened_row
from tailrace.eventstore.streams.personal.keys import KeyStore
from tailrace.eventstore.streams.personal.sealing import key_ids
from tailrace.eventstore.streams.rows import Asked, NewRow, Outcome, Part, Row, Snapshot, TaggedRow
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.subscriptions.rows.events import EventRow, event_rows

_COLUMNS = ["_hash", "_op", "_lsn", "_raw", "after"]


class LogStreams:
    """``Keeper`` of the streams of a source, to read from. It has no transactions: each look sees the log as it is by
    then. Only the partition of a stream is read, all of it."""

    def __init__(self, log: Log, source: str) -> None:
        self._log = log
        self._source = source
        self.keys = cast("KeyStore", _NoKeys())

    async def read(self, stream: Stream, from_version: int, to_version: int | None = None) -> Sequence[Row]:
        """Raises OperatorError for an event whose data were erased, HistoryGone for those that retention removed, and
        UsageError for a category that the log does not have."""
        info = self._log.topic(TopicId.events(self._source, stream.category))
        hash = hash_texts([stream.id])
        found: dict[int, Row] = {}
        for batch in self._log.read(
            info.id, partitions=info.partitioning.partitions_of_key(hash), columns=_COLUMNS
        ):
            rows = pa.Table.from_batches([batch])
            for row in event_rows(rows.filter(pc.equal(rows["_hash"], hash))):
                appended = row.op in (Op.CREATE, Op.READ) and row.stream == stream.id
                if appended and from_version <= row.version <= (to_version or row.version):
                    found.setdefault(row.version, _row(stream, row))  # a later load reads them again
        return self._opened([found[version] for version in sorted(found)])

    def _opened(self, rows: Sequence[Row]) -> Sequence[Row]:
        ids = key_ids(row.data for row in rows)
        if not ids:
            return rows
        place = self._log.keys_of(self._source)
        if place is None:
            raise no_keys(self._source)
        keys = place.open_keys(ids)
        return [opened_row(row, keys) for row in rows]

    async def read_tail(self, stream: Stream, code: str) -> tuple[Snapshot | None, Sequence[Row]]:
        """Without a snapshot: these are the service's."""
        return None, await self.read(stream, 1)

    async def scan(
        self, category: str, prefix: str, after: tuple[str, int], limit: int
    ) -> Sequence[tuple[str, Row]]:
        raise UsageError(
            "the log has a category in the order of its commits, not stream after stream",
            hint=f'store.tail(["{self._source}.{category}"], start="earliest", timeout=0) gives its events',
        )

    async def read_tagged(self, asked: Sequence[Asked]) -> tuple[Mapping[str, int], Sequence[TaggedRow]]:
        raise UsageError(
            "the log keeps no boundaries", hint="store.tail(…, events=Query(…)) gives the events of a query"
        )

    async def write(self, stream: Stream, expected: int, rows: Sequence[NewRow], metadata: str) -> int:
        _refuse()

    async def write_once(
        self, stream: Stream, expected: int, rows: Sequence[NewRow], metadata: str
    ) -> tuple[Outcome, int]:
        _refuse()

    async def write_all(
        self, parts: Sequence[Part], metadata: str, asked: Sequence[Asked] = ()
    ) -> tuple[int, list[int]]:
        _refuse()

    async def write_snapshot(self, stream: Stream, snapshot: Snapshot, code: str) -> None:
        _refuse()

    def as_one(self) -> AbstractAsyncContextManager[None]:
        _refuse()

    async def read_row(self, table: str, key: str, value: str) -> Mapping[str, Any] | None:
        _refuse()

    async def put_row(self, table: str, key: str, value: str, row: Mapping[str, Any]) -> None:
        _refuse()

    async def delete_row(self, table: str, key: str, value: str) -> None:
        _refuse()


class _NoKeys:
    """Nothing is encrypted for the log here."""

    def __getattr__(self, name: str) -> Any:
        _refuse()


def _row(stream: Stream, row: EventRow) -> Row:
    if row.data is None:
        raise OperatorError(
            f"event {row.version} of {stream} was erased: what followed from it cannot be computed any more",
            hint="read the events behind it, from_version=…, or the consumers' way, which gives it as Erased",
        )
    at = moment_of(row.recorded_at)
    return Row(
        row.version, row.type, row.schema_version, row.data, row.metadata or "{}", UUID(row.event_id), at
    )


def _refuse() -> Never:
    raise UsageError(
        "the log is written by capture alone", hint="append on a connection to the source: the log follows"
    )
