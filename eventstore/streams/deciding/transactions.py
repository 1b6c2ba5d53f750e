"""Transactions of our own, on an engine or a pool: begun, committed, tried again, and where in the log they end."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

import psycopg
from psycopg.pq import TransactionStatus

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.connection import DatabaseConnection, run

if TYPE_CHECKING:
    from sqlalchemy import Engine

TRIES: Final = 20
_AGAIN: Final = frozenset(
    {"40001", "40P01"}
)  # serialization failure, deadlock: the same transaction may succeed now
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
# What is committed without waiting for the disk lies behind what has been flushed.
_POSITION: Final = """
SELECT CAST(CASE current_setting('synchronous_commit') WHEN 'off' THEN pg_current_wal_insert_lsn()
            ELSE pg_current_wal_flush_lsn() END AS text)
"""
Result = TypeVar("Result")


@runtime_checkable
class ConnectionPool(Protocol):
    """What psycopg_pool's ``ConnectionPool`` is: lends connections of psycopg."""

    def connection(self, timeout: float | None = None) -> AbstractContextManager[psycopg.Connection[Any]]: ...

    def getconn(self, timeout: float | None = None) -> psycopg.Connection[Any]: ...


TransactionOwner: TypeAlias = "Engine | ConnectionPool"


def owns_transactions(target: object) -> TypeGuard[TransactionOwner]:
    """Whether transactions can be begun on it: a SQLAlchemy engine, or a pool of psycopg's connections."""
    if isinstance(target, psycopg.Connection):  # most calls
        return False
    if "sqlalchemy" in sys.modules:
        from sqlalchemy import Engine

        if isinstance(target, Engine):
            return True
    return isinstance(target, ConnectionPool)


def commit(owner: TransactionOwner, work: Callable[[DatabaseConnection], Result]) -> tuple[Result, str]:
    """Run ``work`` in a transaction and commit it; again after a serialization failure or a deadlock. With the position
    of the log at which everybody sees it."""
    for number in range(TRIES):
        try:
            with _lend(owner) as connection:
                with _transaction(connection):
                    result = work(connection)
                return result, position(connection)
        except Exception as error:
            if _sqlstate(error) not in _AGAIN or number == TRIES - 1:
                raise
        time.sleep(min(_FIRST_PAUSE * 2**number, _LONGEST_PAUSE) * random.uniform(0.5, 1))
    raise AssertionError("the last try returns or raises")


def position(connection: DatabaseConnection) -> str:
    """A position of the log behind everything that was committed so far, for ``wait_for`` and ``Store``: the token to
    read one's own writes with.

    Raises UsageError inside a transaction: what it writes is in the log only when it has committed.
    """
    if _in_transaction(connection):
        raise UsageError(
            "inside a transaction there is no position behind it",
            hint="commit first, then ask for the position",
        )
    ((found,),) = run(connection, _POSITION, {})
    if _in_transaction(connection):  # the query began one
        connection.rollback()
    return str(found)


def _in_transaction(connection: DatabaseConnection) -> bool:
    if isinstance(connection, psycopg.Connection):
        return connection.info.transaction_status is not TransactionStatus.IDLE
    return connection.in_transaction()


@contextmanager
def _lend(owner: TransactionOwner) -> Iterator[DatabaseConnection]:
    with owner.connection() if isinstance(owner, ConnectionPool) else owner.connect() as connection:
        yield connection


def _transaction(connection: DatabaseConnection) -> AbstractContextManager[object]:
    return connection.transaction() if isinstance(connection, psycopg.Connection) else connection.begin()


def _sqlstate(error: BaseException) -> str | None:
    """The server's code, of psycopg's exceptions and of SQLAlchemy's around them."""
    return getattr(error, "sqlstate", None) or getattr(getattr(error, "orig", None), "sqlstate", None)
