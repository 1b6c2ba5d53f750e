"""Lock several tables at once, without ever waiting for one while holding another.

A session that holds one table and waits for another is in a deadlock with a transaction that takes both the other way
round, and the server may end that one. And sessions that need the first table queue behind a wait they know nothing of.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

import psycopg
from psycopg import Connection, sql

from tailrace.cdc.postgres.connect import Address, translate_errors
from tailrace.eventstore.errors import TransientError

Row = tuple[object, ...]
_WAIT = "1500ms"  # longer than deadlock_timeout's default, after which the server ends an autovacuum that is in the way
_WAIT_HOLDING = "200ms"  # shorter than any sensible deadlock_timeout
POLL_SECONDS = 0.1  # no server tells when a lock is free, but to who waits for it in the queue
_PAUSE_SECONDS = 0.5  # in which those go on who queued behind the wait


@dataclass(frozen=True, slots=True)
class Lock:
    """A table's name and the mode, which is not taken of tables that inherit from it."""

    label: tuple[str, str]
    mode: LiteralString


def lock_together(
    connection: Connection[Row], address: Address, wanted: Sequence[Lock], seconds: float
) -> None:
    """Take all of these locks in the open transaction. Raises TransientError, holding none, when they could not be had
    together within ``seconds``.

    A table whose owner has taken the right to lock it from himself is left out: what follows in the transaction waits
    for no lock longer than a moment."""
    left = list(wanted)
    until = time.monotonic() + seconds
    while (refused := _refusal(connection, address, left)) is not None:
        lock, error = refused
        left.remove(lock)
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            continue
        left.insert(0, lock)
        if time.monotonic() > until:
            raise TransientError(
                f"table {'.'.join(lock.label)} is locked by another session",
                hint="nothing was changed: try again when that one has ended (pg_stat_activity)",
            )
        time.sleep(_PAUSE_SECONDS)
    _limit(connection, address, _WAIT_HOLDING)


def try_read_locks(connection: Connection[Row], names: sql.Composable, tries: int = 1) -> str:
    """Take the locks that reading takes, all of them or none, without waiting for one: "", or what the server said when
    somebody was in the way each time. ``names`` are those of the tables. Raises the driver's other errors."""
    said = ""
    for attempt in range(tries):
        if attempt:
            time.sleep(POLL_SECONDS)
        try:
            with connection.transaction():
                connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE NOWAIT").format(names))
            return ""
        except psycopg.errors.LockNotAvailable as error:
            said = str(error.diag.message_primary)
    return said


def _refusal(
    connection: Connection[Row], address: Address, wanted: Sequence[Lock]
) -> tuple[Lock, psycopg.Error] | None:
    """The lock that was refused. It waits for the first one only, for a moment."""
    _limit(connection, address, _WAIT)
    if _all_at_once(connection, address, wanted):
        return None
    with translate_errors("locking tables", address):
        try:
            with connection.transaction():
                for place, lock in enumerate(wanted):
                    connection.execute(_statement([lock], at_once=place > 0))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege) as error:
            return lock, error
    return None


def _all_at_once(connection: Connection[Row], address: Address, wanted: Sequence[Lock]) -> bool:
    """Take all locks by few statements, however many they are. False, holding none, when one was refused: the server
    does not say reliably which."""
    first, others = wanted[:1], wanted[1:]
    modes = dict.fromkeys(lock.mode for lock in others)
    with translate_errors("locking tables", address):
        try:
            with connection.transaction():
                for lock in first:
                    connection.execute(_statement([lock], at_once=False))
                for mode in modes:
                    connection.execute(
                        _statement([lock for lock in others if lock.mode == mode], at_once=True)
                    )
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
            return False
    return True


def _limit(connection: Connection[Row], address: Address, wait: str) -> None:
    with translate_errors("locking tables", address):
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(wait)))


def _statement(locks: Sequence[Lock], *, at_once: bool) -> sql.Composed:
    """LOCK TABLE for locks of one mode."""
    names = [sql.SQL("ONLY {}").format(sql.Identifier(*lock.label)) for lock in locks]
    return sql.SQL("LOCK TABLE {} IN {} MODE{}").format(
        sql.SQL(", ").join(names), sql.SQL(locks[0].mode), sql.SQL(" NOWAIT" if at_once else "")
    )
