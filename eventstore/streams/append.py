"""Append events to a stream in the caller's own transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal
from uuid import UUID, uuid4

from pydantic import BaseModel

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.connection import AnyConnection, run
from tailrace.eventstore.streams.event_types import encode, event_type_of, has_nul
from tailrace.eventstore.streams.stream import Stream

# One call is one statement whose argument the server holds in memory several times over.
EVENTS_MAX = 10_000

_APPEND = """
SELECT outcome, stream_version
FROM tailrace.append_events(%(category)s, %(stream)s, CAST(%(expected)s AS bigint), CAST(%(events)s AS jsonb))
"""


class Expected(Enum):
    """Where the caller expects the stream, when it is not a version; values as ``append_events.sql`` takes them."""

    NO_STREAM = 0  # it has no event yet
    ANY = -1  # wherever it is
    STREAM_EXISTS = -2  # it has an event


NO_STREAM: Final = Expected.NO_STREAM
ANY: Final = Expected.ANY
STREAM_EXISTS: Final = Expected.STREAM_EXISTS


@dataclass(frozen=True, slots=True)
class Appended:
    """The events are in the stream, once the transaction commits. ``version`` is that of the last one; ``repeated``:
    an earlier call with the same ids had written them."""

    version: int
    event_ids: tuple[UUID, ...]
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """Nothing was written: the stream is at version ``actual`` (0: it has no event). The transaction goes on."""

    actual: int
    expected: int | Expected


def append(
    connection: AnyConnection,
    stream: Stream,
    events: Sequence[BaseModel],
    expected: int | Expected = ANY,
    metadata: Mapping[str, Any] | None = None,
    event_ids: Sequence[UUID] | None = None,
) -> Appended | Conflict:
    """Append ``events`` to ``stream`` if it is where it is ``expected``: a version, or one of ``NO_STREAM``,
    ``STREAM_EXISTS``, ``ANY``.

    Runs in the transaction that ``connection`` is in and becomes visible with its commit; streams of one transaction
    are best taken in one order everywhere, since each is locked until then. A conflict is returned, not raised, and
    leaves the transaction usable. ``event_ids`` make a retry safe: a second call with the same ids returns the outcome
    of the first. ``metadata`` (JSON) is stored with each event.

    Raises UsageError for undeclared models, events that JSON cannot hold, no events, or ids of other events;
    OperatorError when schema tailrace is missing. Other errors of the server are those of the caller's library.
    """
    ids = _ids(events, event_ids)
    wanted = _expected_number(expected)
    arguments = {
        "category": stream.category,
        "stream": stream.id,
        "expected": wanted,
        "events": _document(events, ids, metadata or {}),
    }
    ((outcome, version),) = run(connection, _APPEND, arguments)
    return _result(stream, outcome, version, expected, ids)


def _result(
    stream: Stream,
    outcome: Literal["appended", "repeated", "conflict", "reused"],
    version: int,
    expected: int | Expected,
    ids: tuple[UUID, ...],
) -> Appended | Conflict:
    if outcome == "conflict":
        return Conflict(version, expected)
    if outcome == "reused":
        raise UsageError(
            f"some of the event ids given for {stream} belong to other events; nothing was appended",
            hint="give each event an id of its own, and the same ids in the same order to a retry",
        )
    return Appended(version, ids, repeated=outcome == "repeated")


def _ids(events: Sequence[BaseModel], given: Sequence[UUID] | None) -> tuple[UUID, ...]:
    if not 0 < len(events) <= EVENTS_MAX:
        raise UsageError(f"{len(events)} events cannot be appended at once", hint=f"1 to {EVENTS_MAX:,}")
    if given is None:
        return tuple(uuid4() for _ in events)
    if len(given) != len(events) or len(set(given)) != len(given):
        raise UsageError(
            f"{len(set(given))} different ids were given for {len(events)} events",
            hint="one id for each event",
        )
    return tuple(given)


def _expected_number(expected: int | Expected) -> int:
    if isinstance(expected, Expected):
        return expected.value
    if expected < 0:
        raise UsageError(f"a stream is never at version {expected}", hint="NO_STREAM, ANY or STREAM_EXISTS")
    return expected


def _document(events: Sequence[BaseModel], ids: Sequence[UUID], metadata: Mapping[str, Any]) -> str:
    """The function's argument. Events are spliced in as the text they were checked as."""
    try:
        about = json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the metadata is not JSON: {error}", hint="use plain JSON values") from None
    if has_nul(dict(metadata)):
        raise UsageError("the metadata holds a NUL character", hint="Postgres cannot store it")
    parts = []
    for event, event_id in zip(events, ids, strict=True):
        kind = event_type_of(type(event))
        head = json.dumps({"type": kind.name, "schema_version": kind.version, "event_id": str(event_id)})
        parts.append(f'{head[:-1]}, "data": {encode(event)}, "metadata": {about}}}')
    return f"[{', '.join(parts)}]"
