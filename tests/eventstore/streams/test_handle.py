"""Commands are decided on what is there: conflicts are decided again, refusals leave nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any, assert_type

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams import (
    Aggregate,
    Committed,
    Decider,
    Handled,
    Rejected,
    Stream,
    append,
    handle,
    load,
    position,
)
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.eventstore.streams.deciding.transactions import BLOCKING, committing
from tests.eventstore.streams.bank import (
    Account,
    Deposit,
    Deposited,
    Purse,
    Withdraw,
    Withdrawn,
    account,
    decide,
)

ADA = Stream("account", "ada")


@pytest.fixture
def dsn(database: str) -> str:
    install(database)
    return database


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as opened:
        yield opened


def disturbed(dsn: str, times: int) -> Decider[Deposit | Withdraw, Account, Deposited | Withdrawn]:
    """The account's decider, while somebody else deposits 1 during each of so many decisions."""
    left = iter(range(times))

    def decide_late(command: Deposit | Withdraw, state: Account) -> list[Deposited | Withdrawn]:
        if next(left, None) is not None:
            with psycopg.connect(dsn) as other:
                append(other, ADA, [Deposited(amount=Decimal(1))])
        return decide(command, state)

    return replace(account, decide=decide_late)


def test_a_command_is_decided_on_the_events_before_it(connection: psycopg.Connection[Any]) -> None:
    first = handle(connection, account, "ada", Deposit(5), metadata={"by": "counter"})
    assert_type(first, Handled[Account, Deposited | Withdrawn])
    second = handle(connection, account, "ada", Withdraw(2))
    assert (first.state, first.events, first.version) == (Account(5), (Deposited(amount=Decimal(5)),), 1)
    assert (second.state, second.events, second.version) == (Account(3), (Withdrawn(amount=Decimal(2)),), 2)
    assert [each.data for each in load(connection, ADA)] == [*first.events, *second.events]
    assert load(connection, ADA)[0].metadata == {"by": "counter"}


def test_a_command_that_changes_nothing_appends_nothing(connection: psycopg.Connection[Any]) -> None:
    handle(connection, account, "ada", Deposit(5))
    assert handle(connection, account, "ada", Deposit(0)) == Handled(Account(5), (), 1)
    assert handle(connection, account, "nobody", Deposit(0)) == Handled(Account(), (), 0)


def test_a_refusal_comes_out_and_the_transaction_goes_on(connection: psycopg.Connection[Any]) -> None:
    handle(connection, account, "ada", Deposit(5))
    with pytest.raises(Rejected, match="insufficient funds") as refused:
        handle(connection, account, "ada", Withdraw(6))
    assert refused.value.reason == "insufficient funds"
    assert handle(connection, account, "ada", Withdraw(5)).version == 2


def test_a_conflict_is_decided_again_in_the_callers_transaction(
    connection: psycopg.Connection[Any], dsn: str
) -> None:
    connection.execute("CREATE TABLE notes (note text)")
    connection.execute("INSERT INTO notes VALUES ('before')")
    handle(connection, account, "bo", Deposit(1))
    done = handle(connection, disturbed(dsn, 1), "ada", Deposit(3))
    assert done == Handled(Account(4), (Deposited(amount=Decimal(3)),), 2)
    connection.commit()
    assert connection.execute("SELECT note FROM notes").fetchall() == [("before",)]


def test_after_a_conflict_nobody_else_comes_first(connection: psycopg.Connection[Any], dsn: str) -> None:
    tries = 0

    def decide_late(command: Deposit | Withdraw, state: Account) -> list[Deposited | Withdrawn]:
        nonlocal tries
        tries += 1
        with psycopg.connect(dsn) as other:
            other.execute("SET lock_timeout = '50ms'")
            append(other, ADA, [Deposited(amount=Decimal(1))])
        return decide(command, state)

    with psycopg.connect(dsn) as other:
        append(other, ADA, [Deposited(amount=Decimal(1))])
    with pytest.raises(psycopg.errors.LockNotAvailable):
        handle(connection, replace(account, decide=decide_late), "ada", Deposit(7))
    assert tries == 2


def test_an_engine_commits_and_says_where(engine: Engine, dsn: str) -> None:
    done = handle(engine, account, "ada", Deposit(5))
    assert_type(done, Committed[Account, Deposited | Withdrawn])
    with pytest.raises(Rejected):
        handle(engine, account, "ada", Withdraw(6))
    with psycopg.connect(dsn) as connection:
        assert [each.data for each in load(connection, ADA)] == list(done.events)
        behind = (
            "SELECT %s::pg_lsn > (SELECT min(pg_current_wal_lsn() - %s::pg_lsn) * 0 + 0)::int::text::pg_lsn"
        )
        assert behind  # the position is a position of the WAL:
        assert connection.execute(
            "SELECT %s::pg_lsn <= pg_current_wal_flush_lsn()", [done.position]
        ).fetchone() == (True,)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_an_engine_tries_again_at_every_isolation_level(dsn: str, level: str) -> None:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"), isolation_level=level)
    handle(engine, account, "ada", Deposit(1))
    done = handle(engine, disturbed(dsn, 1), "ada", Withdraw(1))
    engine.dispose()
    assert (done.state, done.version) == (Account(1), 3)


def test_in_the_callers_transaction_a_serialization_failure_is_his(
    connection: psycopg.Connection[Any], dsn: str
) -> None:
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(psycopg.errors.SerializationFailure):
        handle(connection, disturbed(dsn, 1), "ada", Deposit(2))


def test_a_deadlock_is_tried_again(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE two (id int PRIMARY KEY, n int)"))
        connection.execute(text("INSERT INTO two VALUES (0, 0), (1, 0)"))
    both = threading.Barrier(2)
    tries: list[int] = []

    def work(first: int) -> None:
        async def update_both(connection: Any) -> None:
            is_first_try = first not in tries
            tries.append(first)
            for place in (first, 1 - first):
                connection.execute(text("UPDATE two SET n = n + 1 WHERE id = :id").bindparams(id=place))
                if is_first_try and place == first:
                    both.wait(30)

        finish(committing(BLOCKING, engine, update_both))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (0, 1)))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT n FROM two")).scalars().all() == [2, 2]
    assert len(tries) > 2


def test_an_error_that_trying_again_does_not_mend_comes_out_at_once(engine: Engine) -> None:
    tries: list[int] = []

    async def work(connection: Any) -> None:
        tries.append(1)
        connection.execute(text("SELECT 1 / 0"))

    with pytest.raises(Exception, match="division by zero"):
        finish(committing(BLOCKING, engine, work))
    assert len(tries) == 1


def test_many_at_once_lose_nothing(engine: Engine) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: handle(engine, account, "ada", Deposit(1)), range(60)))
    done = handle(engine, account, "ada", Withdraw(60))
    assert (done.state, done.version) == (Account(0), 61)


@pytest.mark.parametrize("durable", ["on", "off"])
def test_a_position_lies_behind_what_was_committed(dsn: str, durable: str) -> None:
    with psycopg.connect(dsn) as connection, psycopg.connect(dsn, autocommit=True) as slot:
        slot.execute("SELECT pg_create_logical_replication_slot('behind', 'test_decoding', true)")
        connection.execute(f"SET synchronous_commit = {durable}".encode())
        connection.commit()
        handle(connection, account, "ada", Deposit(1))
        with pytest.raises(UsageError, match="commit first"):
            position(connection)
        connection.commit()
        found = position(connection)
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        changes = "SELECT lsn, data FROM pg_logical_slot_get_changes('behind', NULL, NULL)"
        commits: list[str] = []
        while not commits:  # decoding waits until the WAL is on the disk
            commits += [lsn for lsn, data in slot.execute(changes).fetchall() if data.startswith("COMMIT")]
        behind = slot.execute("SELECT %s::pg_lsn >= %s::pg_lsn", [found, commits[-1]])
        assert behind.fetchone() == (True,)


def test_an_aggregate_decides_by_its_methods(connection: psycopg.Connection[Any], engine: Engine) -> None:
    done = handle(connection, Purse, "ada", lambda purse: purse.put(5))
    assert_type(done, Handled[Purse, Any])
    assert (done.state.balance, done.state.id, done.version) == (5, "ada", 1)

    def both(purse: Purse) -> None:
        purse.take(2)
        purse.put(1)

    done = handle(connection, Purse, "ada", both)
    assert (done.state.balance, len(done.events), done.version) == (4, 2, 3)
    with pytest.raises(Rejected):
        handle(connection, Purse, "ada", lambda purse: purse.take(5))
    assert handle(connection, Purse, "ada", lambda purse: None).version == 3
    connection.commit()
    assert_type(handle(engine, Purse, "ada", lambda purse: purse.put(1)), Committed[Purse, Any])


def test_an_aggregate_needs_a_category(connection: psycopg.Connection[Any]) -> None:
    class Nameless(Aggregate):
        pass

    with pytest.raises(UsageError, match="class Nameless"):
        handle(connection, Nameless, "1", lambda each: None)


def test_a_subclass_has_its_own_handlers_and_those_of_its_base(connection: psycopg.Connection[Any]) -> None:
    class Double(Purse, category="double"):
        def _deposited(self, event: Deposited) -> None:
            self.balance += 2 * int(event.amount)

    assert handle(connection, Double, "1", lambda purse: purse.put(2)).state.balance == 4
    assert handle(connection, Purse, "1", lambda purse: purse.put(2)).state.balance == 2
