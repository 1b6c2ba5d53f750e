"""Can today's code read the events that are stored? Reads them through upcasters and models, and counts by type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa

from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.log.personal_values import opened
from tailrace.eventstore.model.event_schema import chosen_schema, in_schema
from tailrace.eventstore.model.topic import Op, TopicKind
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.database.connection import ask_of
from tailrace.eventstore.streams.database.personal_rows import opened_rows
from tailrace.eventstore.streams.database.source import SourceStreams
from tailrace.eventstore.streams.recorded import recorded
from tailrace.eventstore.streams.rows import EventType, Row
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.subscriptions.rows.events import EventReader, event_rows

_IS_THERE = "SELECT to_regclass('tailrace.events') IS NOT NULL"
_ROWS = """
SELECT category, stream, version, type, schema_version, CAST(data AS text), CAST(metadata AS text), event_id,
    recorded_at
FROM tailrace.events
"""
_SAMPLE = """
SELECT category, stream, version, type, schema_version, CAST(data AS text), CAST(metadata AS text), event_id,
    recorded_at
FROM (SELECT *, row_number() OVER (PARTITION BY type, schema_version ORDER BY md5(event_id::text)) AS place
      FROM tailrace.events) AS numbered
WHERE place <= %s
"""
_FETCH_ROWS = 1000


@dataclass(slots=True)
class CheckedType:
    """Events of one stored type: how many were read, how many of them cannot be, and why the first cannot."""

    where: str
    type: EventType
    read: int = 0
    failed: int = 0
    error: TailraceError | None = None

    def note(self, error: TailraceError | None) -> None:
        self.read += 1
        if error is not None:
            self.failed += 1
            self.error = self.error or error


def check_source(
    connection: psycopg.Connection[Any], name: str, sample: int | None
) -> list[CheckedType] | None:
    """The events in a source: of each type a ``sample`` chosen by their ids, or all. None where it has no tables of
    domain events."""
    schema = chosen_schema()
    if connection.execute(in_schema(_IS_THERE, schema)).fetchone() != (True,):
        return None
    found: dict[EventType, CheckedType] = {}
    with connection.transaction(), connection.cursor(name="tailrace_event_check") as cursor:
        cursor.itersize = _FETCH_ROWS
        if sample is None:
            cursor.execute(in_schema(_ROWS, schema))
        else:
            cursor.execute(in_schema(_SAMPLE, schema), [sample])
        keys = SourceStreams(ask_of(connection)).keys
        for category, stream, *columns in cursor:
            (row,) = finish(opened_rows(keys, [Row(*columns)]))
            kind = EventType(row.type, row.schema_version)
            read = partial(recorded, Stream(category, stream), row)
            found.setdefault(kind, CheckedType(name, kind)).note(_error(read))
    return list(found.values())


def check_log(log: Log, sample: int | None) -> list[CheckedType]:
    """The events in the log: of each type the first ``sample``, or all. Those that were erased are passed over."""
    found: dict[EventType, CheckedType] = {}
    for topic in log.topics():
        if topic.kind is not TopicKind.EVENTS:
            continue
        reader = EventReader(topic.id)
        for rows in log.read(topic.id, columns=["_op", "_lsn", "_raw", "after"]):
            for row in event_rows(opened(pa.Table.from_batches([rows]), log.keys_of(topic.id.source))):
                if row.op not in (Op.CREATE, Op.READ):
                    continue
                kind = EventType(row.type, row.schema_version)
                checked = found.setdefault(kind, CheckedType("log", kind))
                if sample is None or checked.read < sample:
                    checked.note(_error(partial(reader.read, row)))
    return list(found.values())


def _error(read: Callable[[], object]) -> TailraceError | None:
    try:
        read()
    except TailraceError as error:
        return error
    return None
