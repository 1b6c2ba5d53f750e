"""Instances of a process as an operator sees them: timers that wait for somebody, and the end of one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import uuid4

from tailrace.eventstore.errors import TransientError, UsageError
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.database.connection import Ask, DatabaseConnection, ask_of, in_transaction
from tailrace.eventstore.streams.database.source import SourceStreams
from tailrace.eventstore.streams.database.timers import Timers
from tailrace.eventstore.streams.reacting.react import Reacted, has_ended
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.streams.writing.append import new_rows

_TRIES: Final = 10
_LIST: Final = """
SELECT instance, name, due_at, tries, coalesce(error, ''), try_at = 'infinity' FROM tailrace.timers
WHERE process = %(process)s ORDER BY try_at = 'infinity' DESC, due_at, instance, name
"""
_RETRY: Final = """
UPDATE tailrace.timers SET tries = 0, try_at = due_at
WHERE process = %(process)s AND tries > 0
    AND (CAST(%(instance)s AS text) IS NULL OR instance = CAST(%(instance)s AS text)) RETURNING id
"""


@dataclass(frozen=True, slots=True)
class ShownTimer:
    """A timer of an instance; ``parked``: it failed too often, and waits until somebody has it tried again."""

    instance: str
    name: str
    due_at: datetime
    tries: int
    error: str
    parked: bool


def timers_of(connection: DatabaseConnection, process: str) -> list[ShownTimer]:
    """All timers of a process that are set, those that are parked first."""
    return [ShownTimer(*row) for row in finish(ask_of(connection)(_LIST, {"process": process}))]


def retry_timers(connection: DatabaseConnection, process: str, instance: str | None = None) -> int:
    """Have timers that failed tried again at once: of one instance, or of all. Gives how many."""
    return len(finish(ask_of(connection)(_RETRY, {"process": process, "instance": instance})))


def end_instance(connection: DatabaseConnection, process: str, instance: str) -> bool:
    """End an instance: its timers go, and nothing that comes is reacted to. Whether it had not ended before. Raises
    UsageError for one that nothing ever came for."""

    async def work() -> bool:
        async with in_transaction(connection):
            return await _end(ask_of(connection), Stream(process, instance))

    return finish(work())


async def _end(ask: Ask, stream: Stream) -> bool:
    streams = SourceStreams(ask)
    ended = Reacted(kind="ended", data={}, did=("end",), ended=True)
    for _ in range(_TRIES):
        rows = await streams.read(stream, 1)
        if not rows:
            raise UsageError(
                f"process {stream.category} has no instance {stream.id!r}",
                hint=f"tailrace group timers process-{stream.category} shows those with timers",
            )
        if has_ended(rows):
            return False
        new = await new_rows(streams.keys, [ended], [uuid4()])
        if await streams.write(stream, rows[-1].version, new, "{}") > 0:
            await Timers(ask, stream.category).end(stream.id)
            return True
    raise TransientError(f"{stream} changed at each of {_TRIES} tries to end it", hint="try again")
