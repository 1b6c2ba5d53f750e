"""Several streams in one call, with guards: all or nothing, never half, never against a guard."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams import (
    ANY,
    NO_STREAM,
    STREAM_EXISTS,
    Appended,
    AppendTo,
    Conflict,
    Expected,
    Stream,
    append,
    append_all,
    load,
)
from tailrace.eventstore.streams.database.event_tables import install
from tests.eventstore.streams.bank import Deposited, Withdrawn

A, B, C, D = (Stream("account", id) for id in "abcd")


@pytest.fixture
def dsn(database: str) -> str:
    install(database)
    return database


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as opened:
        yield opened


def paid(*amounts: int) -> list[Deposited]:
    return [Deposited(amount=Decimal(amount)) for amount in amounts]


def amounts(connection: psycopg.Connection[Any], stream: Stream) -> list[int]:
    return [int(each.data.amount) for each in load(connection, stream)]


def heads(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Of streams with events."""
    rows = connection.execute("SELECT stream, version FROM tailrace.streams WHERE version > 0").fetchall()
    return dict(rows)


def test_all_are_appended_in_order_with_their_own_versions(connection: psycopg.Connection[Any]) -> None:
    append(connection, A, paid(1))
    done = append_all(
        connection,
        [
            AppendTo(B, paid(2, 3), NO_STREAM),
            AppendTo(A, [Withdrawn(amount=Decimal(4))], 1),
            AppendTo(C, paid(5)),
        ],
        metadata={"by": "test"},
    )
    assert isinstance(done, tuple) and [each.version for each in done] == [2, 2, 1]
    assert (amounts(connection, A), amounts(connection, B), amounts(connection, C)) == ([1, 4], [2, 3], [5])
    assert [each.event_id for each in load(connection, B)] == list(done[0].event_ids)
    assert load(connection, B)[1].metadata == {"by": "test"}
    assert heads(connection) == {"a": 2, "b": 2, "c": 1}


@pytest.mark.parametrize(
    ("expected", "guards", "conflict"),
    [
        ({A: 1, B: NO_STREAM}, {C: 2}, None),
        ({A: 1, B: NO_STREAM}, {C: STREAM_EXISTS}, None),
        ({A: 1, C: 2}, {B: NO_STREAM}, None),
        ({A: ANY, B: ANY}, {C: ANY}, None),
        ({A: 0, B: NO_STREAM}, {}, (A, 1)),
        ({A: 1, B: 1}, {}, (B, 0)),
        ({A: 1, B: STREAM_EXISTS}, {}, (B, 0)),
        ({B: ANY, C: 1}, {}, (C, 2)),
        ({A: 1, B: NO_STREAM}, {C: 1}, (C, 2)),
        ({A: 1}, {B: STREAM_EXISTS}, (B, 0)),
        ({C: 2}, {A: NO_STREAM}, (A, 1)),
    ],
)
def test_a_stream_or_guard_that_is_elsewhere_writes_nothing_and_is_named(
    connection: psycopg.Connection[Any],
    expected: dict[Stream, int | Expected],
    guards: dict[Stream, int | Expected],
    conflict: tuple[Stream, int] | None,
) -> None:
    append(connection, A, paid(1))
    append(connection, C, paid(1, 2))
    before = heads(connection)
    done = append_all(
        connection, [AppendTo(stream, paid(8, 9), at) for stream, at in expected.items()], guards
    )
    if conflict is None:
        assert isinstance(done, tuple) and len(done) == len(expected)
        assert heads(connection) == before | {s.id: before.get(s.id, 0) + 2 for s in expected}
    else:
        assert isinstance(done, Conflict)
        assert (done.stream, done.actual) == conflict
        assert done.expected == (expected | guards)[conflict[0]]
        assert heads(connection) == before
        assert sum(len(load(connection, stream)) for stream in (A, B, C)) == 3
        assert isinstance(append(connection, A, paid(5), 1), Appended)  # the transaction goes on


def test_a_guarded_stream_stays_where_it_is_until_the_transaction_ends(
    connection: psycopg.Connection[Any], dsn: str
) -> None:
    append(connection, B, paid(1))
    connection.commit()
    assert isinstance(append_all(connection, [AppendTo(A, paid(1))], {B: 1, D: NO_STREAM}), tuple)
    with psycopg.connect(dsn) as other:
        other.execute("SET lock_timeout = '50ms'")
        other.commit()
        assert isinstance(append_all(other, [AppendTo(C, paid(1))], {B: 1}), tuple)  # guards do not wait
        other.commit()
        for stream in (B, D):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                append(other, stream, paid(1))
            other.rollback()
        connection.commit()
        append(other, D, paid(1))
        append(other, B, paid(1))


def test_transfers_in_all_directions_lose_nothing_and_do_not_wait_for_each_other(dsn: str) -> None:
    def work(number: int) -> int:
        streams = [A, B, C][number % 3 :] + [A, B, C][: number % 3]
        with psycopg.connect(dsn, autocommit=True) as connection:
            for _ in range(15):
                append_all(connection, [AppendTo(stream, paid(number)) for stream in streams])
        return number

    with ThreadPoolExecutor(6) as pool:
        assert len(list(pool.map(work, range(6)))) == 6
    with psycopg.connect(dsn) as connection:
        found = [amounts(connection, stream) for stream in (A, B, C)]
        assert found[0] == found[1] == found[2] and len(found[0]) == 90
        assert heads(connection) == {"a": 90, "b": 90, "c": 90}


def test_wrong_calls_are_refused_before_the_server_sees_them() -> None:
    nobody: Any = None
    with pytest.raises(UsageError, match="account/a is named twice"):
        append_all(nobody, [AppendTo(A, paid(1)), AppendTo(A, paid(2))])
    with pytest.raises(UsageError, match="account/a is named twice"):
        append_all(nobody, [AppendTo(A, paid(1))], {A: 1})
    with pytest.raises(UsageError, match="0 events of 0 streams, with 1 guards"):
        append_all(nobody, [], {A: 1})
    with pytest.raises(UsageError, match="0 events cannot"):
        append_all(nobody, [AppendTo(A, [])])
    with pytest.raises(UsageError, match="1001 events of 1001 streams"):
        append_all(nobody, [AppendTo(Stream("account", str(number)), paid(1)) for number in range(1001)])
    with pytest.raises(UsageError, match="10002 events of 2 streams"):
        append_all(nobody, [AppendTo(A, paid(1) * 5001), AppendTo(B, paid(1) * 5001)])
