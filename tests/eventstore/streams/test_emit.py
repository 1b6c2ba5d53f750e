"""Events without a table: in the log as all others, in the caller's transaction, and nobody else can make them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from pydantic import BaseModel

from tailrace.cdc.wire import authentic, emitted
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.metadata.refused_messages import refused_messages
from tailrace.eventstore.model.redacted import ERASED
from tailrace.eventstore.streams import Personal, Stream, aio, append, context, emit, event, forget
from tailrace.eventstore.streams.database.connection import EMIT_GRANT
from tailrace.eventstore.streams.database.event_tables import downgrade, install
from tailrace.testing.plugin import SOURCE, FollowingLog


@event("emit_wanted")
class Wanted(BaseModel, frozen=True):
    number: int
    text: str = ""


@event("emit_noted")
class Noted(BaseModel, frozen=True):
    person: str
    text: Annotated[str, Personal(subject="person")]


A, B = Stream("emitted", "a"), Stream("emitted", "b")


@pytest.fixture
def log(database: str, tmp_path: Path) -> Iterator[FollowingLog]:
    install(database)
    following = FollowingLog(database, tmp_path)
    following.catch_up()
    yield following
    following.close()


def told(log: FollowingLog, topic: str = "emitted") -> list[Any]:
    log.catch_up()
    if all(info.id.text != f"{SOURCE}.{topic}" for info in log.store.topics()):
        return []
    batches = log.store.tail([f"{SOURCE}.{topic}"], start="earliest", timeout=0)
    return sorted((each for batch in batches for each in batch.events()), key=lambda each: each.version)


def test_what_is_emitted_comes_in_order_with_what_belongs_to_it(log: FollowingLog) -> None:
    with psycopg.connect(log.dsn) as connection, context(actor="u7"):
        ids = emit(connection, A, [Wanted(number=1), Wanted(number=2)])
        ids += emit(connection, B, [Wanted(number=3)], {"why": "ü"})
        append(connection, Stream("emit_stream", "s"), [Wanted(number=4)])
        connection.commit()
        emit(connection, A, [Wanted(number=5)])
        connection.rollback()
    found = told(log)
    assert [(each.stream, each.data.number, each.metadata) for each in found] == [
        (A, 1, {"actor": "u7"}),
        (A, 2, {"actor": "u7"}),
        (B, 3, {"actor": "u7", "why": "ü"}),
    ]
    assert tuple(each.event_id for each in found) == ids
    assert found[0].version < found[1].version < found[2].version <= found[2].lsn
    assert [each.data.number for each in told(log, "emit_stream")] == [4]
    with psycopg.connect(log.dsn) as connection:
        assert connection.execute(
            "SELECT count(*) FROM tailrace.events WHERE category = 'emitted'"
        ).fetchone() == (0,)


@pytest.mark.slow
def test_they_are_emitted_for_asyncio_too_and_may_be_about_somebody(log: FollowingLog) -> None:
    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(log.dsn, autocommit=True) as connection:
            await aio.emit(connection, A, [Noted(person="p1", text="Ada")])

    asyncio.run(work())
    assert [each.data.text for each in told(log)] == ["Ada"]
    with psycopg.connect(log.dsn) as connection:
        forget(connection, "p1")
    assert [each.data.text for each in told(log)] == [ERASED]


def test_nobody_without_the_right_can_make_one(log: FollowingLog) -> None:
    role = f"hostile_{uuid4().hex[:8]}"
    with psycopg.connect(log.dsn, autocommit=True) as owner:
        emit(owner, A, [Wanted(number=1)])
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        try:
            owner.execute(sql.SQL("GRANT USAGE ON SCHEMA tailrace TO {}").format(sql.Identifier(role)))
            with psycopg.connect(log.dsn, user=role, autocommit=True) as hostile:
                with pytest.raises(OperatorError) as failed:
                    emit(hostile, A, [Wanted(number=2)])
                assert EMIT_GRANT.format(role="APPLICATION") in str(failed.value.hint)
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    hostile.execute("SELECT secret FROM tailrace.emit_secret")
                for content in (b"{}", authentic.sign(bytes(32), emitted.PREFIX, 1, 1, b"{}")):
                    hostile.execute(
                        "SELECT pg_logical_emit_message(true, %s, %s::bytea)", [emitted.PREFIX, content]
                    )
        finally:
            owner.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))
        emit(owner, A, [Wanted(number=3)])
    assert [each.data.number for each in told(log)] == [1, 3]
    refused = refused_messages(log.store.catalog, SOURCE)
    assert "emitted events without a valid signature" in str(refused)


def test_a_category_of_streams_and_what_is_too_large_are_refused(log: FollowingLog) -> None:
    with psycopg.connect(log.dsn, autocommit=True) as connection:
        append(connection, Stream("emit_stream", "s"), [Wanted(number=1)])
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is a category of streams"):
            emit(connection, Stream("emit_stream", "x"), [Wanted(number=2)])
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="bytes cannot be emitted"):
            emit(connection, A, [Wanted(number=3, text="x" * 4_200_000)])
        # Streams of a category that was emitted to before share its topic, in the order of the commits.
        emit(connection, A, [Wanted(number=1)])
        with connection.transaction():
            emit_second = emit(connection, A, [Wanted(number=2)])
            append(connection, A, [Wanted(number=3)])
    log.catch_up()
    batches = log.store.tail([f"{SOURCE}.emitted"], start="earliest", timeout=0)
    assert [each.data.number for batch in batches for each in batch.events()] == [1, 2, 3] and emit_second


@pytest.mark.slow
def test_capture_goes_on_beside_an_earlier_release(log: FollowingLog) -> None:
    with psycopg.connect(log.dsn) as connection:
        emit(connection, A, [Wanted(number=1)])
        connection.commit()
        downgrade(connection, 9)
        connection.commit()
        with pytest.raises(OperatorError, match="those of an earlier release"):
            emit(connection, A, [Wanted(number=2)])
    install(log.dsn)
    with psycopg.connect(log.dsn, autocommit=True) as connection:
        emit(connection, A, [Wanted(number=3)])  # another secret
    assert 3 in [each.data.number for each in told(log)]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"\xff", b'{"topic": 1}', b'{"topic": "", "stream": "a", "type": "t", "data": "{}"}'],
)
def test_a_body_that_the_function_would_not_make_is_none(content: bytes) -> None:
    assert emitted.parse(content, 1) is None
