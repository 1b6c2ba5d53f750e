"""What is awaited does what blocks does: on connections, sessions, engines and pools of both libraries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any, TypeVar

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tailrace import aio
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.streams import (
    ANY,
    NO_STREAM,
    Appended,
    AppendTo,
    Committed,
    Conflict,
    Every,
    Query,
    Rejected,
    Stream,
    append,
    context,
    load,
)
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.eventstore.streams.database.source import AnyAsyncConnection
from tailrace.testing import MemoryStreams
from tests.eventstore.streams.bank import Account, Deposit, Deposited, Purse, Withdraw, account
from tests.eventstore.streams.test_boundaries import Taken, seats

A, B = Stream("account", "a"), Stream("account", "b")
Result = TypeVar("Result")
Opened = Callable[[], AbstractAsyncContextManager[Any]]


def paid(*amounts: int) -> list[Deposited]:
    return [Deposited(amount=Decimal(amount)) for amount in amounts]


def engine_of(dsn: str) -> Any:
    return create_async_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))


@asynccontextmanager
async def memory() -> AsyncIterator[AnyAsyncConnection]:
    yield MemoryStreams()


@pytest.fixture(params=["memory", "psycopg", "SQLAlchemy", "a session of SQLAlchemy"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Opens a connection in a transaction."""
    if request.param == "memory":
        return memory
    dsn = request.getfixturevalue("database")
    install(dsn)

    @asynccontextmanager
    async def connected() -> AsyncIterator[AnyAsyncConnection]:
        if request.param == "psycopg":
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                yield connection
            return
        engine = engine_of(dsn)
        opens = engine.begin() if request.param == "SQLAlchemy" else AsyncSession(engine)
        async with opens as connection:
            yield connection
        await engine.dispose()

    return connected


def run(opened: Opened, work: Callable[[Any], Awaitable[Result]]) -> Result:
    async def inside() -> Result:
        async with opened() as connection:
            return await work(connection)

    return asyncio.run(inside())


def test_events_are_appended_and_loaded(opened: Opened) -> None:
    async def work(connection: AnyAsyncConnection) -> None:
        with context(actor="u7"):
            first = await aio.append(connection, A, paid(1, 2), NO_STREAM)
        assert isinstance(first, Appended) and first.version == 2
        assert await aio.append(connection, A, paid(1), NO_STREAM) == Conflict(2, NO_STREAM)
        again = await aio.append(connection, A, paid(1, 2), ANY, event_ids=first.event_ids)
        assert isinstance(again, Appended) and again.repeated
        both = await aio.append_all(connection, [AppendTo(A, paid(3), 2), AppendTo(B, paid(4))])
        assert isinstance(both, tuple) and [each.version for each in both] == [3, 1]
        assert await aio.append_all(connection, [AppendTo(B, paid(4))], {A: 2}) == Conflict(3, 2)
        found = await aio.load(connection, A, from_version=2)
        assert [(each.version, int(each.data.amount), each.metadata) for each in found] == [
            (2, 2, {"actor": "u7"}), (3, 3, {})
        ]  # fmt: skip
        streams = [each.stream.id async for each in aio.load_all(connection, "account", page=2)]
        assert streams == ["a", "a", "a", "b"]

    run(opened, work)


def test_commands_are_decided_and_states_read(opened: Opened) -> None:
    kept = replace(account, snapshot=Every(events=2))

    async def work(connection: AnyAsyncConnection) -> None:
        for _ in range(3):
            done = await aio.handle(connection, kept, "a", Deposit(5))
        assert (done.state, done.version) == (Account(balance=15), 3)
        with pytest.raises(Rejected, match="insufficient"):
            await aio.handle(connection, kept, "a", Withdraw(16))
        purse = await aio.handle(connection, Purse, "p", lambda purse: purse.put(3))
        assert purse.state.balance == 3
        assert (await aio.state_of(connection, kept, "a")).state == Account(balance=15)
        assert (await aio.state_of(connection, kept, "a", version=1)).state == Account(balance=5)
        assert (await aio.handle(connection, seats, "r", ("r", "a"))).version == 1
        boundary = await aio.load_boundary(connection, Query(Taken, room="r"))
        assert [each.data.person for each in boundary.events] == ["a"]
        seen = await aio.append(connection, A, [Taken(room="r", person="b")], boundary=boundary)
        stale = await aio.append(connection, A, [Taken(room="r", person="c")], boundary=boundary)
        assert isinstance(seen, Appended) and isinstance(stale, Conflict) and stale.tag == "room:r"

    run(opened, work)


class Pool:
    """The least that psycopg_pool's ``AsyncConnectionPool`` is."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    @asynccontextmanager
    async def connection(self, timeout: float | None = None) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with await self.getconn(timeout) as connection:
            yield connection

    async def getconn(self, timeout: float | None = None) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self._dsn)


@pytest.mark.parametrize("make", [Pool, engine_of])
def test_an_owner_of_transactions_commits_each_and_decides_again_beside_others(
    database: str, make: Callable[[str], Any]
) -> None:
    install(database)

    async def work() -> list[Committed[Account, Any]]:
        owner = make(database)
        try:
            return await asyncio.gather(*(aio.handle(owner, account, "a", Deposit(1)) for _ in range(8)))
        finally:
            if make is engine_of:
                await owner.dispose()

    done = asyncio.run(work())
    assert sorted(each.version for each in done) == [*range(1, 9)]
    assert all("/" in each.position for each in done)
    with psycopg.connect(database) as connection:
        assert len(load(connection, A)) == 8


def test_the_position_is_behind_what_was_committed(database: str) -> None:
    install(database)

    async def work() -> str:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            await aio.append(connection, A, paid(1))
            with pytest.raises(UsageError, match="commit first"):
                await aio.position(connection)
            await connection.commit()
            return await aio.position(connection)

    assert "/" in asyncio.run(work())


def test_a_connection_of_the_other_kind_is_told_apart(database: str) -> None:
    async def both() -> None:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            with pytest.raises(UsageError, match="not a connection that events can be appended on"):
                append(connection, A, paid(1))  # type: ignore[arg-type]
            with pytest.raises(OperatorError, match="tailrace init --events"):
                await aio.append(connection, A, paid(1))
        blocking: Any = psycopg.connect(database)
        with blocking, pytest.raises(UsageError, match="not a connection that is awaited"):
            await aio.append(blocking, A, paid(1))

    asyncio.run(both())
