"""Snapshots shorten what is read and never change what is decided; states of other moments are read from the events."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams import (
    Decider,
    Every,
    Handled,
    Stream,
    append,
    handle,
    load,
    load_all,
    state_of,
)
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.eventstore.streams.database.source import AnyConnection
from tests.eventstore.streams.bank import (
    Account,
    Deposit,
    Deposited,
    Purse,
    Withdraw,
    Withdrawn,
    account,
    decide,
    evolve,
)
from tests.eventstore.streams.test_keepers import paid


class Counting:
    """The account with snapshots; counts the events that are folded."""

    def __init__(self, every: Every) -> None:
        self.folded = 0
        self.decider = Decider("account", Account(), decide, self._evolve, snapshot=every)

    def _evolve(self, state: Account, event: Deposited | Withdrawn) -> Account:
        self.folded += 1
        return evolve(state, event)

    def deposit(self, connection: AnyConnection) -> tuple[int, int, int]:
        """Deposit 1: the balance and version after it, and how many events were folded for it."""
        self.folded = 0
        done = handle(connection, self.decider, "a", Deposit(1))
        return done.state.balance, done.version, self.folded


def test_only_events_behind_the_snapshot_are_read(connection: AnyConnection) -> None:
    counting = Counting(Every(events=3))
    assert [counting.deposit(connection) for _ in range(8)] == [
        (1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 1), (5, 5, 2), (6, 6, 3), (7, 7, 1), (8, 8, 2),
    ]  # fmt: skip
    assert state_of(connection, counting.decider, "a") == Handled(Account(8), (), 8)


def test_bytes_are_counted_too(connection: AnyConnection) -> None:
    size = len('{"amount":"1"}')
    counting = Counting(Every(bytes=2 * size, events=100))
    assert [counting.deposit(connection)[2] for _ in range(5)] == [1, 2, 1, 2, 1]


def test_a_snapshot_of_other_code_is_passed_over_and_made_anew(connection: AnyConnection) -> None:
    before = Counting(Every(events=2))
    for _ in range(2):
        before.deposit(connection)
    after = Counting(Every(events=2, version=2))
    assert [after.deposit(connection) for _ in range(2)] == [(3, 3, 3), (4, 4, 1)]
    assert before.deposit(connection) == (5, 5, 5)

    @dataclass(frozen=True)
    class Wider:
        balance: int = 0
        note: str = ""

    wider: Decider[Deposit | Withdraw, Wider, Any] = Decider(
        "account",
        Wider(),
        lambda command, state: decide(command, Account(state.balance)),
        lambda state, event: replace(state, balance=state.balance + 1),
        snapshot=Every(events=2),
    )
    assert wider.snapshots is not None and before.decider.snapshots is not None
    assert wider.snapshots.code != before.decider.snapshots.code
    assert handle(connection, wider, "a", Deposit(1)).state == Wider(6)


@pytest.fixture
def database_connection(database: str) -> psycopg.Connection[Any]:
    install(database)
    return psycopg.connect(database)


def test_a_snapshot_that_cannot_be_read_is_passed_over_and_made_anew(
    database_connection: psycopg.Connection[Any],
) -> None:
    with database_connection as connection:
        counting = Counting(Every(events=2))
        for _ in range(2):
            counting.deposit(connection)
        connection.execute("UPDATE tailrace.snapshots SET state = '7'")
        assert counting.deposit(connection) == (3, 3, 3)
        assert counting.deposit(connection) == (4, 4, 1)


def test_a_snapshot_is_part_of_the_transaction(database_connection: psycopg.Connection[Any]) -> None:
    with database_connection as connection:
        counting = Counting(Every(events=2))
        counting.deposit(connection)
        connection.commit()
        counting.deposit(connection)
        connection.rollback()
        assert connection.execute("SELECT FROM tailrace.snapshots").fetchall() == []
        assert counting.deposit(connection) == (2, 2, 2)


def test_a_snapshot_that_is_late_does_not_take_the_place_of_a_newer_one(
    database_connection: psycopg.Connection[Any],
) -> None:
    with database_connection as connection:
        put = "SELECT tailrace.put_snapshot('account', 'a', %s, %s, %s)"
        for version, code, state in ((3, "x", "3"), (2, "x", "2"), (1, "y", "1"), (5, "y", "5")):
            connection.execute(put, [version, code, state])
            kept = connection.execute("SELECT version, code, state FROM tailrace.snapshots").fetchall()
            assert kept == [(3, "x", 3)] if code == "x" else kept == [(version, code, int(state))]


@pytest.mark.parametrize(
    ("initial", "every"),
    [
        (object(), Every(events=1)),
        (frozenset({("a", "b")}), Every(events=1)),  # its type does not say what is in it
        (float("nan"), Every(events=1)),
        ("a\0b", Every(events=1)),
    ],
)
def test_that_states_can_have_no_snapshot_is_said_when_the_decider_is_made(
    initial: Any, every: Every
) -> None:
    with pytest.raises(UsageError, match="a state of 'odd' does not survive as JSON"):
        Decider("odd", initial, lambda command, state: [], lambda state, event: state, snapshot=every)


def test_the_type_of_states_can_be_named() -> None:
    every = Every(events=1, state=frozenset[tuple[str, str]])
    decider: Decider[None, frozenset[tuple[str, str]], Any] = Decider(
        "pairs",
        frozenset({("a", "b")}),
        lambda command, state: [],
        lambda state, event: state,
        snapshot=every,
    )
    assert decider.snapshots is not None
    assert decider.snapshots.load(decider.snapshots.dump(decider.initial_state)) == decider.initial_state


@pytest.mark.parametrize("limits", [{}, {"events": 0}, {"bytes": 0}, {"events": 5, "bytes": -1}])
def test_a_snapshot_needs_a_limit(limits: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="no snapshot can be taken every"):
        Every(**limits)


def test_states_of_other_moments_are_read_from_the_events(connection: AnyConnection) -> None:
    counting = Counting(Every(events=2))
    for _ in range(5):
        counting.deposit(connection)
    times = [each.recorded_at for each in load(connection, Stream("account", "a"))]
    decider = counting.decider
    assert [state_of(connection, decider, "a", version=n).state.balance for n in (0, 1, 4, 9)] == [0, 1, 4, 5]
    assert [state_of(connection, decider, "a", at=at).version for at in times] == [1, 2, 3, 4, 5]
    assert state_of(connection, decider, "a", at=times[0] - timedelta(seconds=1)) == Handled(Account(), (), 0)
    assert state_of(connection, decider, "a", version=2, at=datetime(9000, 1, 1, tzinfo=UTC)).version == 2
    assert state_of(connection, account, "nobody") == Handled(Account(), (), 0)
    handle(connection, Purse, "p", lambda purse: purse.put(3))
    assert state_of(connection, Purse, "p").state.balance == 3


def test_a_stream_is_loaded_up_to_a_version_or_a_time(connection: AnyConnection) -> None:
    stream = Stream("account", "a")
    append(connection, stream, paid(1, 2))
    append(connection, stream, paid(3))
    whole = load(connection, stream)
    assert load(connection, stream, 2, 2) == whole[1:2]
    assert load(connection, stream, until=whole[1].recorded_at) == whole[:2]
    assert load(connection, stream, until=whole[0].recorded_at - timedelta(seconds=1)) == []


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_a_category_is_loaded_stream_after_stream(connection: AnyConnection, page: int) -> None:
    for id in ("b", "a2", "a1"):
        append(connection, Stream("account", id), paid(1, 2, 3))
    append(connection, Stream("other", "a1"), paid(4))
    append(connection, Stream("account", "a1"), [Withdrawn(amount=Decimal(5))])
    found = [(each.stream.id, each.version) for each in load_all(connection, "account", page=page)]
    in_a1 = [("a1", version) for version in (1, 2, 3, 4)]
    in_a2 = [("a2", version) for version in (1, 2, 3)]
    assert found == [*in_a1, *in_a2, ("b", 1), ("b", 2), ("b", 3)]
    assert [(each.stream.id, each.version) for each in load_all(connection, "account", "a2", page)] == in_a2
    assert list(load_all(connection, "account", "%", page)) == []
