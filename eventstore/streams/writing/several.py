"""Append to several streams at once, guarded by others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.boundaries.boundary import Boundary
from tailrace.eventstore.streams.context import metadata_json
from tailrace.eventstore.streams.database.source import AnyConnection, keeper_of
from tailrace.eventstore.streams.inline_rows.apply import apply_inline, with_rows
from tailrace.eventstore.streams.outcomes import ANY, Appended, Conflict, Expected
from tailrace.eventstore.streams.rows import Keeper, Part
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.streams.writing.append import EVENTS_MAX, expected_number, new_rows

STREAMS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class AppendTo:
    """Events for one stream, and where it is expected."""

    stream: Stream
    events: Sequence[object]
    expected: int | Expected = ANY


def append_all(
    connection: AnyConnection,
    appends: Sequence[AppendTo],
    guards: Mapping[Stream, int | Expected] | None = None,
    metadata: Mapping[str, Any] | None = None,
    boundary: Boundary | None = None,
) -> tuple[Appended, ...] | Conflict:
    """Append to several streams if each of them is where it is expected, and so are those of ``guards``, to which
    nothing is appended; and if there is no event inside a ``boundary`` that it was not read with. All or nothing, and a
    conflict, which says its ``stream``, leaves the transaction usable.

    Runs in the transaction that ``connection`` is in. Until it ends nobody else appends to any of these streams, those
    of the guards included. Outcomes are in the order of ``appends``.

    Raises UsageError for a stream that is named twice, too many streams or events, and what ``append`` raises it for.
    """
    return finish(appending_all(keeper_of(connection), appends, guards, metadata, boundary))


async def appending_all(
    keeper: Keeper,
    appends: Sequence[AppendTo],
    guards: Mapping[Stream, int | Expected] | None = None,
    metadata: Mapping[str, Any] | None = None,
    boundary: Boundary | None = None,
) -> tuple[Appended, ...] | Conflict:
    """``append_all``, where something keeps the streams."""
    parts = [
        Part(each.stream, expected_number(each.expected), await new_rows(keeper.keys, each.events))
        for each in appends
    ]
    checks = [Part(stream, expected_number(expected), ()) for stream, expected in (guards or {}).items()]
    _check(parts, checks)
    asked = () if boundary is None else boundary.asked
    every = [*parts, *checks]
    async with with_rows(keeper, {each.stream.category for each in appends}):
        failed, versions = await keeper.write_all(every, metadata_json(metadata), asked)
        if boundary is not None and failed > len(every):
            return boundary.conflict(failed - len(every) - 1, versions[0])
        if failed:
            expectations = [*(each.expected for each in appends), *(guards or {}).values()]
            return Conflict(versions[0], expectations[failed - 1], every[failed - 1].stream)
        for each in appends:
            await apply_inline(keeper, each.stream, each.events)
        return tuple(
            Appended(version, tuple(row.event_id for row in part.rows))
            for part, version in zip(parts, versions[: len(parts)], strict=True)
        )


def _check(parts: Sequence[Part], checks: Sequence[Part]) -> None:
    streams = Counter(each.stream for each in (*parts, *checks))
    twice = sorted(stream for stream, times in streams.items() if times > 1)
    if twice:
        raise UsageError(
            f"{twice[0]} is named twice",
            hint="put all events of a stream together; a stream that is appended to needs no guard",
        )
    events = sum(len(each.rows) for each in parts)
    if not parts or len(streams) > STREAMS_MAX or events > EVENTS_MAX:
        raise UsageError(
            f"{events} events of {len(parts)} streams, with {len(checks)} guards, cannot be appended at once",
            hint=f"at least one stream; at most {STREAMS_MAX:,} streams and {EVENTS_MAX:,} events",
        )
