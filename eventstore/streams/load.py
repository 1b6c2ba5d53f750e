"""Read a stream back from the database it was appended in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic
from uuid import UUID

from pydantic import BaseModel

from tailrace.eventstore.streams.connection import AnyConnection, run
from tailrace.eventstore.streams.event_types import EventType, Model, decode
from tailrace.eventstore.streams.stream import Stream

_LOAD = """
SELECT version, type, schema_version, CAST(data AS text), CAST(metadata AS text), event_id, recorded_at
FROM tailrace.events
WHERE category = %(category)s AND stream = %(stream)s AND version >= %(from_version)s
ORDER BY version
"""


@dataclass(frozen=True, slots=True)
class Recorded(Generic[Model]):
    """One stored event. ``version`` is its place in the stream, from 1; ``data`` an instance of the declared model."""

    stream: Stream
    version: int
    type: EventType
    data: Model
    metadata: dict[str, Any]
    event_id: UUID
    recorded_at: datetime


def load(connection: AnyConnection, stream: Stream, from_version: int = 1) -> list[Recorded[BaseModel]]:
    """The stream's events from ``from_version`` on, in order; empty when it has none.

    Sees what the caller's transaction sees, its own appends included. Raises UsageError when an event's name is not
    declared, IntegrityError when its data do not fit the model, OperatorError when schema tailrace is missing.
    """
    values = {"category": stream.category, "stream": stream.id, "from_version": from_version}
    return [
        Recorded(
            stream=stream,
            version=version,
            type=EventType(name, schema_version),
            data=decode(EventType(name, schema_version), data),
            metadata=json.loads(metadata),
            event_id=event_id if isinstance(event_id, UUID) else UUID(event_id),
            recorded_at=recorded_at,
        )
        for version, name, schema_version, data, metadata, event_id, recorded_at in run(
            connection, _LOAD, values
        )
    ]
