"""Rows that follow their events in the same transaction, whoever appends how; what differs is found and mended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.streams import (
    NO_STREAM,
    AppendTo,
    Conflict,
    Decider,
    Query,
    Stream,
    Tag,
    aio,
    append,
    append_all,
    event,
    handle,
    inline,
    load,
    load_boundary,
)
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.eventstore.streams.inline_rows.prove import CheckedRows, check_rows
from tailrace.testing import MemoryStreams


@event("inline_moved")
class Moved(BaseModel, frozen=True):
    amount: Decimal


@event("inline_closed")
class Closed(BaseModel, frozen=True):
    why: Annotated[str, Tag()] = ""


@event("inline_noted")
class Noted(BaseModel, frozen=True):
    text: str


@inline("inline_balances", "inline_account", Moved, Closed, key="account")
def balances(change: Moved | Closed, row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if isinstance(change, Closed):
        return None
    return {
        "balance": (row["balance"] if row else 0) + change.amount,
        "moves": (row["moves"] if row else 0) + 1,
    }


TABLE = """
CREATE TABLE inline_balances (
    account text PRIMARY KEY, balance numeric NOT NULL, moves bigint NOT NULL, note text DEFAULT 'none')
"""


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    install(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)
        yield connection


def account(number: str) -> Stream:
    return Stream("inline_account", number)


def moved(amount: str) -> Moved:
    return Moved(amount=Decimal(amount))


def rows(connection: psycopg.Connection[Any]) -> dict[str, tuple[Decimal, int]]:
    found = connection.execute("SELECT account, balance, moves FROM inline_balances").fetchall()
    return {number: (balance, moves) for number, balance, moves in found}


decider: Decider[str, int, Moved] = Decider(
    "inline_account", 0, lambda amount, count: [moved(amount)], lambda count, change: count + 1
)
bounded: Decider[str, int, Moved | Closed] = Decider(
    "inline_account", 0, lambda amount, count: [moved(amount)], lambda count, change: count,
    boundary=lambda amount: Query(Closed, why="late"),
)  # fmt: skip


def by_append(connection: Any, number: str, amount: str) -> None:
    append(connection, account(number), [moved(amount)])


def by_append_once(connection: Any, number: str, amount: str) -> None:
    for _ in range(2):
        append(
            connection,
            account(number),
            [moved(amount)],
            event_ids=[UUID(int=hash((number, amount)) % (1 << 64))],
        )


def by_append_all(connection: Any, number: str, amount: str) -> None:
    append_all(connection, [AppendTo(account(number), [moved(amount)])])


def by_boundary(connection: Any, number: str, amount: str) -> None:
    boundary = load_boundary(connection, Query(Closed, why="late"))
    append(connection, account(number), [moved(amount)], boundary=boundary)


WAYS: list[Callable[[Any, str, str], object]] = [
    by_append,
    by_append_once,
    by_append_all,
    by_boundary,
    lambda connection, number, amount: handle(connection, decider, number, amount),
    lambda connection, number, amount: handle(connection, bounded, number, amount),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_row_follows_its_events_however_they_are_appended(
    connection: psycopg.Connection[Any], way: Callable[[Any, str, str], object]
) -> None:
    way(connection, "a", "5.50")
    way(connection, "a", "-2")
    assert rows(connection) == {"a": (Decimal("3.50"), 2)}
    connection.execute("UPDATE inline_balances SET note = 'kept'")
    way(connection, "a", "1")
    append(connection, account("a"), [Noted(text="no move")])
    assert connection.execute("SELECT note FROM inline_balances").fetchall() == [("kept",)]
    append(connection, account("a"), [moved("1"), Closed()])
    assert rows(connection) == {}
    memory = MemoryStreams()
    way(memory, "a", "5.50")
    way(memory, "a", "-2")
    assert memory.tables["public.inline_balances"]["a"] == {
        "account": "a",
        "balance": Decimal("3.50"),
        "moves": 2,
    }


def test_row_and_events_are_one_transaction(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction(force_rollback=True):
        append(connection, account("a"), [moved("5")])
        assert rows(connection) == {"a": (Decimal(5), 1)}
    assert rows(connection) == {}
    connection.execute("ALTER TABLE inline_balances ADD CHECK (balance < 100)")
    with pytest.raises(psycopg.errors.CheckViolation):
        append(connection, account("a"), [moved("500")])
    assert load(connection, account("a")) == []
    append(connection, account("a"), [moved("5")])
    assert isinstance(append(connection, account("a"), [moved("9")], expected=NO_STREAM), Conflict)
    assert rows(connection) == {"a": (Decimal(5), 1)}


def test_many_writers_lose_nothing(database: str, connection: psycopg.Connection[Any]) -> None:
    def write(_: int) -> None:
        with psycopg.connect(database, autocommit=True) as own:
            for number in range(20):
                append(own, account(str(number % 2)), [moved("1")])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    assert rows(connection) == {"0": (Decimal(60), 60), "1": (Decimal(60), 60)}
    assert check_rows(connection, balances) == CheckedRows(2, (), ())


def test_rows_that_differ_are_found_and_written_again(connection: psycopg.Connection[Any]) -> None:
    for number in ("a", "b", "c", "d"):
        append(connection, account(number), [moved("5"), moved("1")])
    append(connection, account("d"), [Closed()])
    connection.execute("UPDATE inline_balances SET balance = 7 WHERE account = 'a'")
    connection.execute("DELETE FROM inline_balances WHERE account = 'b'")
    connection.execute("INSERT INTO inline_balances VALUES ('d', 1, 1), ('nobody', 1, 1)")
    wrong = CheckedRows(4, ("a", "b", "d"), ("nobody",))
    assert check_rows(connection, balances) == wrong
    assert check_rows(connection, balances, rebuild=True) == wrong
    assert check_rows(connection, balances) == CheckedRows(4, (), ())
    assert rows(connection) == dict.fromkeys(("a", "b", "c"), (Decimal(6), 2))


def test_a_table_that_is_not_there_is_said(connection: psycopg.Connection[Any]) -> None:
    connection.execute("DROP TABLE inline_balances")
    with pytest.raises(
        OperatorError, match=r"table public\.inline_balances of an inline projection is not there"
    ):
        append(connection, account("a"), [moved("5")])


def other(change: object, row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return None


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: inline("a b", "x", Moved)(other), "is no table"),
        (lambda: inline("a.b.c", "x", Moved)(other), "is no table"),
        (lambda: inline("t", "x", Moved, key='i"d')(other), "is no table"),
        (lambda: inline("t", "x")(other), "follows no events"),
        (lambda: inline("t", "x", BaseModel)(other), "not declared as an event"),
        (lambda: inline("inline_balances", "inline_account", Moved)(other), "is kept by"),
        (lambda: inline("t", "", Moved)(other), "category of a stream"),
    ],
)
def test_what_cannot_be_declared_is_refused(declare: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        declare()


def test_what_is_no_row_is_refused() -> None:
    @inline("inline_wrong", "inline_wrong", Moved)
    def wrong(change: object, row: Mapping[str, Any] | None) -> Any:
        return {"a b": 1}

    with pytest.raises(UsageError, match="inline_wrong gave"):
        append(MemoryStreams(), Stream("inline_wrong", "1"), [moved("1")])


def test_a_connection_of_sqlalchemy_that_commits_each_statement_is_refused(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    engine = create_engine(make_url(database).set(drivername="postgresql+psycopg"))
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as own,
        pytest.raises(UsageError, match="commits each statement"),
    ):
        append(own, account("a"), [moved("5")])
    with engine.begin() as own:
        append(own, account("a"), [moved("5")])
    with Session(engine) as session, session.begin():
        append(session, account("a"), [moved("5")])
    handle(engine, decider, "a", "1")
    engine.dispose()
    assert rows(connection) == {"a": (Decimal(11), 3)}


def test_rows_follow_awaited_appends_too(database: str, connection: psycopg.Connection[Any]) -> None:
    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as own:
            await aio.append(own, account("a"), [moved("5")])
            await aio.handle(own, decider, "a", "1")
        engine = create_async_engine(make_url(database).set(drivername="postgresql+psycopg"))
        async with engine.begin() as connected:
            await aio.append(connected, account("a"), [moved("1")])
        async with AsyncSession(engine) as session, session.begin():
            await aio.append(session, account("a"), [moved("1")])
        await aio.handle(engine, decider, "a", "1")
        await engine.dispose()

    asyncio.run(work())
    assert rows(connection) == {"a": (Decimal(9), 5)}
