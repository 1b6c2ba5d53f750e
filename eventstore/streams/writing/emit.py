"""Events without a table: they are in the log, and nowhere in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.context import metadata_json
from tailrace.eventstore.streams.database.connection import Ask, DatabaseConnection, ask_of
from tailrace.eventstore.streams.database.source import SourceStreams, events_json
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.streams.writing.append import new_rows

_EMIT: Final = """
SELECT tailrace.emit_events(%(topic)s, %(stream)s, CAST(%(events)s AS jsonb), CAST(%(metadata)s AS jsonb))
"""


def emit(
    connection: DatabaseConnection,
    stream: Stream,
    events: Sequence[object],
    metadata: Mapping[str, Any] | None = None,
) -> tuple[UUID, ...]:
    """Send events to the log alone, in the caller's transaction: an authenticated message of the write-ahead log for
    each. Nothing can be loaded or expected of them, and no version counted: ``stream`` is their topic,
    ``SOURCE.CATEGORY``, and the key by which they are ordered there. Gives the events' ids.

    Readers of the log get them like all others (``Events``, ``batch.events``); their ``version`` is the message's
    position in the write-ahead log. Tags and inline projections have no part in it. Raises UsageError for undeclared
    models and events that JSON cannot hold, OperatorError when the function is missing or may not be used. That the
    topic is a category of streams, or an event larger than 4 MB, is an error of the server.
    """
    return finish(emitting(ask_of(connection), stream, events, metadata))


async def emitting(
    ask: Ask, stream: Stream, events: Sequence[object], metadata: Mapping[str, Any] | None = None
) -> tuple[UUID, ...]:
    """``emit``, where statements run."""
    rows = await new_rows(SourceStreams(ask).keys, events)
    values = {
        "topic": stream.category,
        "stream": stream.id,
        "events": events_json(rows),
        "metadata": metadata_json(metadata),
    }
    await ask(_EMIT, values)
    return tuple(row.event_id for row in rows)
