"""One contract for what keeps streams: the database on connections of both libraries, and the memory that tests get."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from uuid import uuid4

import pytest

from tailrace.eventstore.errors import TransientError, UsageError
from tailrace.eventstore.streams import (
    ANY,
    NO_STREAM,
    STREAM_EXISTS,
    Appended,
    AppendTo,
    Conflict,
    EventType,
    Expected,
    Rejected,
    Stream,
    append,
    append_all,
    handle,
    load,
)
from tailrace.eventstore.streams.database.source import AnyConnection
from tailrace.eventstore.streams.rows import Keeper
from tailrace.testing import MemoryStreams
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

A, B, C = (Stream("account", id) for id in "abc")


def paid(*amounts: int) -> list[Deposited]:
    return [Deposited(amount=Decimal(amount)) for amount in amounts]


def test_events_come_back_in_order_with_what_belongs_to_them(connection: AnyConnection) -> None:
    first = append(connection, A, paid(1, 2), NO_STREAM, {"by": "ü"})
    second = append(connection, A, [Withdrawn(amount=Decimal(3))], 2)
    assert isinstance(first, Appended) and isinstance(second, Appended)
    found = load(connection, A)
    assert [(each.version, each.data, each.metadata) for each in found] == [
        (1, Deposited(amount=Decimal(1)), {"by": "ü"}),
        (2, Deposited(amount=Decimal(2)), {"by": "ü"}),
        (3, Withdrawn(amount=Decimal(3)), {}),
    ]
    assert [each.event_id for each in found] == [*first.event_ids, *second.event_ids]
    assert found[2].type == EventType("bank_withdrawn", 1) and found[2].recorded_at.tzinfo is not None
    assert load(connection, A, 3) == found[2:] and load(connection, A, 4) == load(connection, B) == []


@pytest.mark.parametrize(
    ("expected", "when_empty", "when_at_2"),
    [(NO_STREAM, True, False), (0, True, False), (ANY, True, True), (STREAM_EXISTS, False, True), (2, False, True),
     (1, False, False), (3, False, False)],
)  # fmt: skip
@pytest.mark.parametrize("way", ["new ids", "given ids", "several"])
def test_expectations(
    connection: AnyConnection, expected: int | Expected, when_empty: bool, when_at_2: bool, way: str
) -> None:
    def attempt(stream: Stream) -> bool:
        if way == "several":
            return isinstance(append_all(connection, [AppendTo(stream, paid(1), expected)]), tuple)
        ids = [uuid4()] if way == "given ids" else None
        done = append(connection, stream, paid(1), expected, None, ids)
        at_2 = stream == A
        assert isinstance(done, Appended) or done == Conflict(2 if at_2 else 0, expected)
        return isinstance(done, Appended)

    append(connection, A, paid(1, 2))
    assert (attempt(B), attempt(A)) == (when_empty, when_at_2)
    assert (len(load(connection, B)), len(load(connection, A))) == (int(when_empty), 2 + int(when_at_2))


def test_the_same_ids_again_write_nothing_and_other_events_ids_are_refused(connection: AnyConnection) -> None:
    ids = [uuid4() for _ in range(3)]
    append(connection, A, paid(0))
    first = append(connection, A, paid(1, 2), 1, None, ids[:2])
    append(connection, A, paid(3))
    assert append(connection, A, paid(1, 2), 1, None, ids[:2]) == replace_repeated(first)
    for stream, picked in ((A, ids[1::-1]), (A, ids[1:]), (A, [ids[2], ids[0]]), (B, ids[:1])):
        with pytest.raises(UsageError, match="belong to other events"):
            append(connection, stream, paid(*range(len(picked))), ANY, None, picked)
    assert len(load(connection, A)) == 4 and load(connection, B) == []


def replace_repeated(done: Appended | Conflict) -> Appended:
    assert isinstance(done, Appended)
    return replace(done, repeated=True)


def test_several_streams_are_all_or_nothing(connection: AnyConnection) -> None:
    append(connection, A, paid(1))
    refused = append_all(connection, [AppendTo(B, paid(2)), AppendTo(A, paid(2), 0)])
    assert refused == Conflict(1, 0) and isinstance(refused, Conflict) and refused.stream == A
    refused = append_all(connection, [AppendTo(B, paid(2))], {C: STREAM_EXISTS})
    assert refused == Conflict(0, STREAM_EXISTS) and isinstance(refused, Conflict) and refused.stream == C
    assert load(connection, B) == []
    done = append_all(connection, [AppendTo(B, paid(2, 3)), AppendTo(A, paid(2), 1)], {C: NO_STREAM})
    assert isinstance(done, tuple) and [each.version for each in done] == [2, 2]
    assert load(connection, C) == []


def test_commands_are_decided_on_what_is_there(connection: AnyConnection) -> None:
    assert handle(connection, account, "a", Deposit(5)).state == Account(5)
    with pytest.raises(Rejected):
        handle(connection, account, "a", Withdraw(6))
    done = handle(connection, account, "a", Withdraw(5), metadata={"by": "ada"})
    assert (done.state, done.version) == (Account(0), 2)
    assert load(connection, A)[1].metadata == {"by": "ada"}
    assert handle(connection, Purse, "p", lambda purse: purse.put(3)).state.balance == 3


def test_a_command_that_somebody_else_always_overtakes_is_given_up() -> None:
    memory = MemoryStreams()

    def decide_late(command: Deposit | Withdraw, state: Account) -> list[Deposited | Withdrawn]:
        append(memory, A, paid(1))
        return decide(command, state)

    with pytest.raises(TransientError, match="account/a changed at each of 10 tries"):
        handle(memory, replace(account, decide=decide_late), "a", Deposit(1))
    assert len(load(memory, A)) == 10


def test_threads_share_the_memory() -> None:
    memory = MemoryStreams()
    assert isinstance(memory, Keeper)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: append(memory, A, paid(number, number)), range(200)))
    found = load(memory, A)
    assert [each.version for each in found] == list(range(1, 401))
    assert all(a.data == b.data for a, b in zip(found[::2], found[1::2], strict=True))
