"""An event as it was stored, with its place."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final, Generic
from uuid import UUID

from tailrace.eventstore.model.time import moment_of
from tailrace.eventstore.streams.models.event_types import Model
from tailrace.eventstore.streams.models.upcasters import Place, read_events
from tailrace.eventstore.streams.rows import EventType, Row
from tailrace.eventstore.streams.stream import Stream


class Recorded(Generic[Model]):
    """One stored event. ``version`` is its place in the ``stream``, from 1; ``data`` an instance of the declared model,
    and ``type`` that model's. Where an upcaster split the stored event, each has a ``part``, from 0. ``recorded_at`` is
    the server's time. ``lsn``, of those that the log gives, is that of the commit: all that it did with them is
    ``Store.transaction(source, lsn)``."""

    # What most consumers do not look at is kept as it was stored: making it takes longer than the data.
    __slots__ = (
        "_event_id",
        "_metadata",
        "_recorded_at",
        "_stream",
        "data",
        "lsn",
        "part",
        "type",
        "version",
    )
    __match_args__ = ("stream", "version", "type", "data")

    def __init__(
        self,
        stream: Stream | tuple[str, str],
        version: int,
        type: EventType,
        data: Model,
        metadata: dict[str, Any] | str,
        event_id: UUID | str,
        recorded_at: datetime | int,
        part: int = 0,
        lsn: int | None = None,
    ) -> None:
        """The category and id of a stream, JSON, the text of an id and µs since 1970 UTC are taken for what they say.
        They are as the log or the database has them: not checked."""
        self._stream = stream
        self.version: Final = version
        self.type: Final = type
        self.data: Final = data
        self._metadata = metadata
        self._event_id = event_id
        self._recorded_at = recorded_at
        self.part: Final = part
        self.lsn: Final = lsn

    @property
    def stream(self) -> Stream:
        if isinstance(self._stream, tuple):
            self._stream = Stream(*self._stream)
        return self._stream

    @property
    def metadata(self) -> dict[str, Any]:
        if isinstance(self._metadata, str):
            self._metadata = dict[str, Any](json.loads(self._metadata))
        return self._metadata

    @property
    def event_id(self) -> UUID:
        if isinstance(self._event_id, str):
            self._event_id = UUID(self._event_id)
        return self._event_id

    @property
    def recorded_at(self) -> datetime:
        if isinstance(self._recorded_at, int):
            self._recorded_at = moment_of(self._recorded_at)
        return self._recorded_at

    def _values(self) -> tuple[Any, ...]:
        return (
            *(self.stream, self.version, self.type, self.data),
            *(self.metadata, self.event_id, self.recorded_at, self.part),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recorded) and self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # metadata has none

    def __repr__(self) -> str:
        part = f", part {self.part}" if self.part else ""
        return f"Recorded({self.data!r}, event {self.version} of {self.stream}{part}, id {self.event_id})"


def recorded(stream: Stream, row: Row) -> list[Recorded[Any]]:
    """A stored row as today's code has it: mostly one event."""
    found = read_events(
        EventType(row.type, row.schema_version), row.data, Place(stream, row.version, row.event_id)
    )
    return [
        Recorded(stream, row.version, kind, data, row.metadata, row.event_id, row.recorded_at, part)
        for part, (kind, data) in enumerate(found)
    ]
