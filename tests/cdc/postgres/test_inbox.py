"""Messages of a COPY, many at once: the compiled way gives what psycopg gives, message by message."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from psycopg import pq

from tailrace.cdc.postgres.inbox import FillResult, Inbox, functions
from tailrace.cdc.wire.replication import without_long_message

WAYS = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "psycopg"])
# Rows of 1 to 60,000 bytes, and one that is larger than libpq's buffer and any room below.
SIZES = "SELECT repeat('x', (n % 7) * 10000 / (1 + n % 3) + n % 11) FROM generate_series(1, 400) n"
LARGE = f"{SIZES} UNION ALL SELECT repeat('y', 3000000) UNION ALL SELECT 'last'"


@contextmanager
def copy_out(database: str, query: str) -> Iterator[pq.abc.PGconn]:
    with psycopg.connect(database, autocommit=True) as connection:
        pgconn = connection.pgconn
        assert pgconn.exec_(f"COPY ({query}) TO STDOUT".encode()).status == pq.ExecStatus.COPY_OUT
        yield pgconn
        while pgconn.get_result() is not None:
            pass


def take_all(inbox: Inbox, pgconn: pq.abc.PGconn) -> Iterator[list[bytes]]:
    """What the inbox gives up to its end, one list per time it was full."""
    while (outcome := inbox.fill()) is not FillResult.END:
        if outcome is FillResult.FULL:
            yield list(inbox.take().each())
        else:
            select.select([pgconn.socket], [], [])
    yield list(inbox.take().each())


def test_libpq_is_found_where_psycopg_has_it() -> None:
    assert functions() is not None


@pytest.mark.parametrize(("room", "each"), [(1 << 20, 0), (100_000, 500), (1, 0)])
def test_both_ways_give_the_same_messages(database: str, room: int, each: int) -> None:
    given = []
    for compiled in (True, False):
        with (
            copy_out(database, LARGE) as pgconn,
            closing(Inbox(pgconn, room, each, compiled=compiled)) as inbox,
        ):
            given.append(list(take_all(inbox, pgconn)))
    assert given[0] == given[1]
    messages = [message for part in given[0] for message in part]
    with psycopg.connect(database) as connection:
        rows = [str(text).encode() + b"\n" for (text,) in connection.execute(LARGE)]
    assert messages == rows
    for *front, last in given[0]:  # no more than there is room for, or one alone
        before = sum(map(len, front)) + each * len(front)
        assert not front or (before < room and sum(map(len, front)) + len(last) <= room)


@WAYS
def test_nothing_is_kept_of_long_logical_messages_and_they_are_counted(database: str, compiled: bool) -> None:
    head = "w" + "x" * 24
    texts = [head + "M" + "y" * size for size in (10, 11, 100_000)]  # and their newline: one byte more
    texts += [head + "I" + "z" * 100_000, "v" + head[1:] + "M" + "z" * 100, "w" * 60]
    query = " UNION ALL ".join(f"SELECT '{text}'" for text in texts)
    frames = [text.encode() + b"\n" for text in texts]
    longest = len(frames[0])
    expected = [without_long_message(frame, longest) or frame for frame in frames]
    assert [len(each) for each in expected[:3]] == [longest, 44, 44]
    with (
        copy_out(database, query) as pgconn,
        closing(Inbox(pgconn, 1 << 20, longest=longest, compiled=compiled)) as inbox,
    ):
        assert [each for part in take_all(inbox, pgconn) for each in part] == expected
        assert [inbox.take_emptied(), inbox.take_emptied()] == [2, 0]


@WAYS
def test_memory_that_is_reused_has_what_came_last(database: str, compiled: bool) -> None:
    with (
        copy_out(database, LARGE) as pgconn,
        closing(Inbox(pgconn, 100_000, compiled=compiled)) as inbox,
    ):
        given: list[bytes] = []
        outcome = FillResult.WAIT
        while outcome is not FillResult.END:
            if (outcome := inbox.fill()) is FillResult.WAIT:
                select.select([pgconn.socket], [], [])
            given += inbox.take(reuse=True).each()
    with psycopg.connect(database) as connection:
        assert given == [str(text).encode() + b"\n" for (text,) in connection.execute(LARGE)]


@WAYS
def test_what_came_before_an_error_can_be_taken_and_the_error_asked_for(
    database: str, compiled: bool
) -> None:
    query = "SELECT 1 / (2000 - n) FROM generate_series(1, 3000) n"
    with copy_out(database, query) as pgconn, closing(Inbox(pgconn, 1 << 20, compiled=compiled)) as inbox:
        (rows,) = take_all(inbox, pgconn)
        assert rows == [f"{1 // (2000 - n)}\n".encode() for n in range(1, 2000)]
        result = pgconn.get_result()
        assert result is not None and result.error_field(pq.DiagnosticField.SQLSTATE) == b"22012"


@WAYS
def test_a_connection_that_is_gone_is_an_error(database: str, compiled: bool) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        pgconn = connection.pgconn
        pgconn.exec_(b"COPY (SELECT n FROM generate_series(1, 10000000) n) TO STDOUT")
        with closing(Inbox(pgconn, 1 << 20, compiled=compiled)) as inbox:
            with socket.socket(fileno=os.dup(pgconn.socket)) as line:
                line.shutdown(socket.SHUT_RDWR)
            with pytest.raises(psycopg.OperationalError, match="closed"):
                list(take_all(inbox, pgconn))
        pgconn.finish()
        with pytest.raises(psycopg.OperationalError):
            Inbox(pgconn, 1, compiled=compiled).fill()
