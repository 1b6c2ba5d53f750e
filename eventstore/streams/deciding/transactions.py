"""Transactions of our own, on an engine or a pool: begun, committed, tried again, and where in the log they end."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeGuard, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.database.connection import (
    AsyncDatabaseConnection,
    DatabaseConnection,
    run,
    run_async,
)

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

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


class ConnectionPool(Protocol):
    """What psycopg_pool's ``ConnectionPool`` is: lends connections of psycopg."""

    def connection(self, timeout: float | None = None) -> AbstractContextManager[psycopg.Connection[Any]]: ...

    def getconn(self, timeout: float | None = None) -> psycopg.Connection[Any]: ...


class AsyncConnectionPool(Protocol):
    """What psycopg_pool's ``AsyncConnectionPool`` is."""

    def connection(
        self, timeout: float | None = None
    ) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]: ...

    async def getconn(self, timeout: float | None = None) -> psycopg.AsyncConnection[Any]: ...


TransactionOwner: TypeAlias = "Engine | ConnectionPool"
AsyncTransactionOwner: TypeAlias = "AsyncEngine | AsyncConnectionPool"


def owns_transactions(target: object) -> TypeGuard[TransactionOwner]:
    """Whether transactions can be begun on it: a SQLAlchemy engine, or a pool of psycopg's connections."""
    if isinstance(target, psycopg.Connection):  # most calls
        return False
    if "sqlalchemy" in sys.modules:
        from sqlalchemy import Engine

        if isinstance(target, Engine):
            return True
    return _is_pool(target)


def owns_awaited_transactions(target: object) -> TypeGuard[AsyncTransactionOwner]:
    """The same of what is awaited."""
    if isinstance(target, psycopg.AsyncConnection):
        return False
    if "sqlalchemy.ext.asyncio" in sys.modules:
        from sqlalchemy.ext.asyncio import AsyncEngine

        if isinstance(target, AsyncEngine):
            return True
    return _is_pool(target)


def _is_pool(target: object) -> bool:
    """By its type alone: attributes of SQLAlchemy's connections raise errors of their own."""
    return hasattr(type(target), "getconn")


class Way(ABC):
    """How transactions are begun and ended: with calls that block, or that are awaited."""

    @abstractmethod
    async def enter(self, stack: AsyncExitStack, context: Any) -> Any: ...

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def position(self, connection: Any) -> str: ...


class _Blocking(Way):
    async def enter(self, stack: AsyncExitStack, context: Any) -> Any:
        return stack.enter_context(context)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def position(self, connection: Any) -> str:
        return position(connection)


class _Awaited(Way):
    async def enter(self, stack: AsyncExitStack, context: Any) -> Any:
        return await stack.enter_async_context(context)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def position(self, connection: Any) -> str:
        return await async_position(connection)


BLOCKING: Final = _Blocking()
AWAITED: Final = _Awaited()


async def committing(way: Way, owner: Any, work: Callable[[Any], Awaitable[Result]]) -> tuple[Result, str]:
    """Do ``work`` in a transaction on a connection that ``owner`` lends, and commit it; again after a serialization
    failure or a deadlock. With the position of the log at which everybody sees it."""
    for number in range(TRIES):
        try:
            async with AsyncExitStack() as lent:
                connection = await way.enter(lent, _lend(owner))
                async with AsyncExitStack() as begun:
                    await way.enter(begun, _transaction(connection))
                    result = await work(connection)
                return result, await way.position(connection)
        except Exception as error:
            if _sqlstate(error) not in _AGAIN or number == TRIES - 1:
                raise
        await way.sleep(min(_FIRST_PAUSE * 2**number, _LONGEST_PAUSE) * random.uniform(0.5, 1))
    raise AssertionError("the last try returns or raises")


def position(connection: DatabaseConnection) -> str:
    """A position of the log behind everything that was committed so far, for ``wait_for`` and ``Store``: the token to
    read one's own writes with.

    Raises UsageError inside a transaction: what it writes is in the log only when it has committed.
    """
    _require_outside(connection)
    ((found,),) = run(connection, _POSITION, {})
    if _in_transaction(connection):  # the query began one
        connection.rollback()
    return str(found)


async def async_position(connection: AsyncDatabaseConnection) -> str:
    """``position``, awaited."""
    _require_outside(connection)
    ((found,),) = await run_async(connection, _POSITION, {})
    if _in_transaction(connection):
        await connection.rollback()
    return str(found)


def _require_outside(connection: DatabaseConnection | AsyncDatabaseConnection) -> None:
    if _in_transaction(connection):
        raise UsageError(
            "inside a transaction there is no position behind it",
            hint="commit first, then ask for the position",
        )


def _in_transaction(connection: DatabaseConnection | AsyncDatabaseConnection) -> bool:
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        return connection.info.transaction_status is not TransactionStatus.IDLE
    return connection.in_transaction()


def _lend(owner: Any) -> Any:
    """A context that gives a connection: of a pool, or of an engine."""
    return owner.connection() if _is_pool(owner) else owner.connect()


def _transaction(connection: Any) -> Any:
    of_psycopg = isinstance(connection, psycopg.Connection | psycopg.AsyncConnection)
    return connection.transaction() if of_psycopg else connection.begin()


def _sqlstate(error: BaseException) -> str | None:
    """The server's code, of psycopg's exceptions and of SQLAlchemy's around them."""
    return getattr(error, "sqlstate", None) or getattr(getattr(error, "orig", None), "sqlstate", None)
