"""Append events to a stream in the caller's own transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.boundaries.boundary import Boundary
from tailrace.eventstore.streams.context import metadata_json
from tailrace.eventstore.streams.database.source import AnyConnection, keeper_of
from tailrace.eventstore.streams.inline_rows.apply import apply_inline, with_rows
from tailrace.eventstore.streams.models.event_types import codec_of
from tailrace.eventstore.streams.outcomes import ANY, Appended, Conflict, Expected
from tailrace.eventstore.streams.personal.fields import PersonalValue
from tailrace.eventstore.streams.personal.keys import KeyStore, hide_tags
from tailrace.eventstore.streams.personal.sealing import seal, seal_collected
from tailrace.eventstore.streams.rows import Keeper, NewRow, Part
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.streams.writing.event_ids import new_ids

# One call is one statement whose argument the server holds in memory several times over.
EVENTS_MAX: Final = 10_000


def append(
    connection: AnyConnection,
    stream: Stream,
    events: Sequence[object],
    expected: int | Expected = ANY,
    metadata: Mapping[str, Any] | None = None,
    event_ids: Sequence[UUID] | None = None,
    boundary: Boundary | None = None,
) -> Appended | Conflict:
    """Append ``events`` to ``stream`` if it is where it is ``expected``: a version, or one of ``NO_STREAM``,
    ``STREAM_EXISTS``, ``ANY``; and if there is no event inside a ``boundary`` that it was not read with.

    Runs in the transaction that ``connection`` is in and becomes visible with its commit; streams of one transaction
    are best taken in one order everywhere, since each is locked until then. A conflict is returned, not raised, and
    leaves the transaction usable. ``event_ids`` make a retry safe: a second call with the same ids returns the outcome
    of the first. ``metadata`` (JSON) is stored with each event, over that of ``context``.

    Raises UsageError for undeclared models, events that JSON cannot hold, values that cannot be tags, no events, ids of
    other events, or ids with a boundary;
    OperatorError when the tables are missing. Other errors of the server are those of the caller's library.
    """
    return finish(appending(keeper_of(connection), stream, events, expected, metadata, event_ids, boundary))


async def appending(
    keeper: Keeper,
    stream: Stream,
    events: Sequence[object],
    expected: int | Expected = ANY,
    metadata: Mapping[str, Any] | None = None,
    event_ids: Sequence[UUID] | None = None,
    boundary: Boundary | None = None,
) -> Appended | Conflict:
    """``append``, where something keeps the streams."""
    rows = await new_rows(keeper.keys, events, event_ids)
    number = expected_number(expected)
    about = metadata_json(metadata)
    ids = tuple(row.event_id for row in rows)
    async with with_rows(keeper, [stream.category]):
        if boundary is not None:
            if event_ids is not None:
                raise UsageError(
                    "event ids and a boundary cannot be given together",
                    hint="a retry finds its own events inside the boundary, when it is read again",
                )
            failed, (version,) = await keeper.write_all([Part(stream, number, rows)], about, boundary.asked)
            if failed > 1:
                return boundary.conflict(failed - 2, version)
            if failed:
                return Conflict(version, expected, stream)
            await apply_inline(keeper, stream, events)
            return Appended(version, ids)
        if event_ids is None:
            reached = await keeper.write(stream, number, rows, about)
            if reached <= 0:
                return Conflict(-reached, expected, stream)
            await apply_inline(keeper, stream, events)
            return Appended(reached, ids)
        outcome, version = await keeper.write_once(stream, number, rows, about)
        if outcome == "conflict":
            return Conflict(version, expected, stream)
        if outcome == "reused":
            raise UsageError(
                f"some of the event ids given for {stream} belong to other events; nothing was appended",
                hint="give each event an id of its own, and the same ids in the same order to a retry",
            )
        if outcome == "appended":
            await apply_inline(keeper, stream, events)
        return Appended(version, ids, repeated=outcome == "repeated")


async def new_rows(
    keys: KeyStore, events: Sequence[object], given: Sequence[UUID] | None = None
) -> list[NewRow]:
    """Events as they are written, with the given ids or new ones, personal values encrypted."""
    if not 0 < len(events) <= EVENTS_MAX:
        raise UsageError(f"{len(events)} events cannot be appended at once", hint=f"1 to {EVENTS_MAX:,}")
    if given is not None and (len(given) != len(events) or len(set(given)) != len(given)):
        raise UsageError(
            f"{len(set(given))} different ids were given for {len(events)} events",
            hint="one id for each event",
        )
    ids = new_ids(len(events)) if given is None else given
    rows, personal = [], {}
    for number, (event, event_id) in enumerate(zip(events, ids, strict=True)):
        codec = codec_of(type(event))
        tags = () if codec.tags is None else codec.tags(event)
        if codec.is_personal:
            text, personal[number] = codec.collect(event)
        else:
            text = codec.encode(event)
        rows.append(NewRow(codec.type, event_id, text, tags))
    return await _encrypted(keys, events, rows, personal) if personal else rows


async def _encrypted(
    store: KeyStore,
    events: Sequence[object],
    rows: list[NewRow],
    personal: Mapping[int, Sequence[PersonalValue]],
) -> list[NewRow]:
    """Rows with the personal values of some of them, by number, and their tags."""
    subjects = sorted({value.subject for values in personal.values() for value in values})
    keys = await store.seal_keys(subjects) if subjects else {}
    for number, values in personal.items():
        row, codec = rows[number], codec_of(type(events[number]))
        data = seal_collected(row.data, [seal(keys[value.subject], value.text) for value in values])
        tags = await hide_tags(store, row.tags, codec.hidden_tags)
        used = frozenset(keys[value.subject].id for value in values)
        rows[number] = row._replace(data=data, tags=tags, keys=used)
    return rows


def expected_number(expected: int | Expected) -> int:
    if isinstance(expected, Expected):
        return expected.value
    if expected < 0:
        raise UsageError(f"a stream is never at version {expected}", hint="NO_STREAM, ANY or STREAM_EXISTS")
    return expected
