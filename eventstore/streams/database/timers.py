"""The timers of processes in a source, on the caller's connection."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from tailrace.eventstore.streams.database.connection import Ask

# psycopg gives what a statement returns, so each returns something.
_PUT: Final = """
INSERT INTO tailrace.timers (process, instance, name, due_at, try_at)
VALUES (%(process)s, %(instance)s, %(name)s, CAST(%(at)s AS timestamptz), CAST(%(at)s AS timestamptz))
ON CONFLICT (process, instance, name) DO UPDATE
SET id = gen_random_uuid(), due_at = EXCLUDED.due_at, try_at = EXCLUDED.try_at, tries = 0, error = NULL
RETURNING id
"""
_CANCEL: Final = """
DELETE FROM tailrace.timers WHERE process = %(process)s AND instance = %(instance)s AND name = %(name)s RETURNING id
"""
_END: Final = """
DELETE FROM tailrace.timers WHERE process = %(process)s AND instance = %(instance)s RETURNING id
"""
# By the server's clock, whoever asks. Others take others meanwhile.
_TAKE: Final = """
DELETE FROM tailrace.timers
WHERE id = (SELECT id FROM tailrace.timers WHERE process = %(process)s AND try_at <= clock_timestamp()
            ORDER BY try_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, instance, name, due_at, tries
"""
_FAIL: Final = """
UPDATE tailrace.timers
SET tries = tries + 1, error = %(error)s,
    try_at = CASE WHEN tries + 1 >= CAST(%(attempts)s AS integer) THEN 'infinity'
             ELSE clock_timestamp() + make_interval(secs => CAST(%(pause)s AS double precision)) END
WHERE id = CAST(%(id)s AS uuid) RETURNING id
"""


class DueTimer(NamedTuple):
    """One that was taken: it is gone when the caller's transaction commits."""

    id: UUID
    instance: str
    name: str
    at: datetime
    tries: int


class Timers:
    """Those of one process."""

    def __init__(self, ask: Ask, process: str) -> None:
        self._ask = ask
        self._process = process

    async def put(self, instance: str, name: str, at: datetime) -> None:
        await self._ask(_PUT, {"process": self._process, "instance": instance, "name": name, "at": at})

    async def cancel(self, instance: str, name: str) -> None:
        await self._ask(_CANCEL, {"process": self._process, "instance": instance, "name": name})

    async def end(self, instance: str) -> None:
        await self._ask(_END, {"process": self._process, "instance": instance})

    async def take(self) -> DueTimer | None:
        """The one that is due for longest, that nobody else has taken."""
        for id, *rest in await self._ask(_TAKE, {"process": self._process}):
            return DueTimer(id if isinstance(id, UUID) else UUID(id), *rest)
        return None

    async def failed(self, timer: UUID, error: str, attempts: int, pause: float) -> None:
        """It is tried again after so many seconds, or, after so many attempts, when somebody asks for it."""
        values = {"id": str(timer), "error": error, "attempts": attempts, "pause": pause}
        await self._ask(_FAIL, values)
