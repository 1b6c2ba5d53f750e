"""Events appended in the caller's transaction: without gaps, without lost conflicts, all or nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from pydantic import BaseModel, SecretStr
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from tailrace.eventstore.errors import IntegrityError, OperatorError, UsageError
from tailrace.eventstore.streams import (
    ANY,
    NO_STREAM,
    STREAM_EXISTS,
    Appended,
    Conflict,
    EventType,
    Expected,
    Stream,
    append,
    event,
    load,
    model_of,
)
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.database.event_tables import install, migrations
from tailrace.eventstore.streams.database.source import AnyConnection
from tailrace.eventstore.streams.writing.append import EVENTS_MAX, new_rows
from tailrace.testing import MemoryStreams
from tests.support import REPOSITORY


@event("deposited")
class Deposited(BaseModel):
    amount: Decimal
    at: datetime | None = None
    notes: list[str] = []


@event("withdrawn", version=2)
class Withdrawn(BaseModel):
    amount: Decimal


ACCOUNT = Stream("account", "42")
Connect = Callable[[], Any]


def deposits(*amounts: int) -> list[Deposited]:
    return [Deposited(amount=Decimal(amount)) for amount in amounts]


def amounts(connection: AnyConnection, stream: Stream = ACCOUNT) -> list[int]:
    return [int(recorded.data.model_dump()["amount"]) for recorded in load(connection, stream)]


@pytest.fixture
def dsn(database: str) -> str:
    install(database)
    return database


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


@pytest.fixture(params=["psycopg", "psycopg dict rows", "SQLAlchemy connection", "SQLAlchemy session"])
def connect(request: pytest.FixtureRequest, dsn: str, engine: Engine) -> Connect:
    """Opens a connection of each library; leaving its block commits or rolls back as the library does."""
    if request.param == "psycopg":
        return lambda: psycopg.connect(dsn)
    if request.param == "psycopg dict rows":
        return lambda: psycopg.connect(dsn, row_factory=dict_row)
    if request.param == "SQLAlchemy connection":
        return engine.begin

    @contextmanager
    def session() -> Iterator[Session]:
        with Session(engine) as opened, opened.begin():
            yield opened

    return session


def test_events_are_loaded_in_the_order_they_were_appended(connect: Connect) -> None:
    with connect() as connection:
        first = append(connection, ACCOUNT, deposits(1, 2), expected=NO_STREAM)
        second = append(
            connection, ACCOUNT, [Withdrawn(amount=Decimal(3))], expected=2, metadata={"by": "ü\\u0000"}
        )
        append(connection, Stream("account", "43"), deposits(9))
    assert isinstance(first, Appended) and isinstance(second, Appended)
    assert (first.version, second.version) == (2, 3)
    with connect() as connection:
        found = load(connection, ACCOUNT)
        assert load(connection, ACCOUNT, from_version=3) == found[2:]
        assert load(connection, Stream("account", "nobody")) == []
    assert [recorded.version for recorded in found] == [1, 2, 3]
    assert [recorded.event_id for recorded in found] == [*first.event_ids, *second.event_ids]
    assert [recorded.data for recorded in found] == [*deposits(1, 2), Withdrawn(amount=Decimal(3))]
    assert found[2].type == EventType("withdrawn", 2)
    assert found[2].metadata == {"by": "ü\\u0000"}
    assert found[0].recorded_at.tzinfo is not None


def test_a_conflict_is_returned_and_the_transaction_goes_on(connect: Connect) -> None:
    with connect() as connection:
        append(connection, ACCOUNT, deposits(1))
        assert append(connection, ACCOUNT, deposits(2), expected=NO_STREAM) == Conflict(1, NO_STREAM)
        assert append(connection, ACCOUNT, deposits(2), expected=5) == Conflict(1, 5)
        assert append(connection, Stream("account", "new"), deposits(2), expected=3) == Conflict(0, 3)
        append(connection, ACCOUNT, deposits(3), expected=1)
    with connect() as connection:
        assert amounts(connection) == [1, 3]


@pytest.mark.parametrize(
    ("expected", "when_empty", "when_at_2"),
    [
        (NO_STREAM, True, False),
        (0, True, False),
        (ANY, True, True),
        (STREAM_EXISTS, False, True),
        (2, False, True),
        (1, False, False),
        (3, False, False),
    ],
)
def test_expectations(dsn: str, expected: int | Expected, when_empty: bool, when_at_2: bool) -> None:
    with psycopg.connect(dsn) as connection:
        outcome = append(connection, Stream("account", "empty"), deposits(1), expected=expected)
        assert isinstance(outcome, Appended) is when_empty
        append(connection, ACCOUNT, deposits(1, 2))
        outcome = append(connection, ACCOUNT, deposits(3), expected=expected)
        assert isinstance(outcome, Appended) is when_at_2


def test_a_rollback_leaves_nothing(connect: Connect) -> None:
    class Regret(Exception):
        pass

    def changes_its_mind() -> None:
        with connect() as connection:
            append(connection, ACCOUNT, deposits(1, 2))
            raise Regret

    with pytest.raises(Regret):
        changes_its_mind()
    with connect() as connection:
        assert load(connection, ACCOUNT) == []
        assert append(connection, ACCOUNT, deposits(3), expected=NO_STREAM) != Conflict(2, NO_STREAM)
        assert amounts(connection) == [3]


def test_concurrent_appends_leave_no_gap_and_lose_nothing(dsn: str) -> None:
    def work(worker: int) -> None:
        with psycopg.connect(dsn) as connection:
            for step in range(20):
                append(connection, ACCOUNT, deposits(worker, step))
                if step % 5 == 4:
                    connection.rollback()
                else:
                    connection.commit()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    with psycopg.connect(dsn) as connection:
        found = load(connection, ACCOUNT)
        head = connection.execute("SELECT version FROM tailrace.streams").fetchall()
    assert [recorded.version for recorded in found] == list(range(1, 6 * 16 * 2 + 1))
    assert head == [(len(found),)]
    pairs = [(int(a.data.amount), int(b.data.amount)) for a, b in zip(found[::2], found[1::2], strict=True)]
    assert sorted(pairs) == [(worker, step) for worker in range(6) for step in range(20) if step % 5 != 4]


def test_of_those_that_expect_one_version_exactly_one_wins(dsn: str) -> None:
    def work(worker: int) -> Appended | Conflict:
        with psycopg.connect(dsn) as connection:
            return append(connection, ACCOUNT, deposits(worker), expected=NO_STREAM)

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(work, range(8)))
    assert sum(isinstance(outcome, Appended) for outcome in outcomes) == 1
    assert outcomes.count(Conflict(1, NO_STREAM)) == 7


def test_a_retry_with_the_same_ids_returns_the_same_outcome_and_writes_nothing(connect: Connect) -> None:
    ids = [uuid4(), uuid4()]
    with connect() as connection:
        append(connection, ACCOUNT, deposits(0))
        first = append(connection, ACCOUNT, deposits(1, 2), expected=1, event_ids=ids)
        append(connection, ACCOUNT, deposits(3))
    with connect() as connection:
        assert first == Appended(3, tuple(ids))
        assert append(connection, ACCOUNT, deposits(1, 2), expected=1, event_ids=ids) == Appended(
            3, tuple(ids), repeated=True
        )
        assert amounts(connection) == [0, 1, 2, 3]


def test_retries_at_the_same_time_write_once(dsn: str) -> None:
    ids = [uuid4() for _ in range(3)]

    def work(_: int) -> Appended | Conflict:
        with psycopg.connect(dsn) as connection:
            return append(connection, ACCOUNT, deposits(1, 2, 3), expected=NO_STREAM, event_ids=ids)

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(work, range(6)))
    assert {outcome.version for outcome in outcomes if isinstance(outcome, Appended)} == {3}
    assert sum(isinstance(outcome, Appended) and outcome.repeated for outcome in outcomes) == 5
    with psycopg.connect(dsn) as connection:
        assert amounts(connection) == [1, 2, 3]


@pytest.mark.parametrize("pick", [[0], [1, 0], [1, 2], [2, 1]])
def test_ids_of_other_events_are_refused_and_the_transaction_goes_on(dsn: str, pick: list[int]) -> None:
    ids = [uuid4() for _ in range(3)]
    with psycopg.connect(dsn) as connection:
        append(connection, ACCOUNT, deposits(1, 2), event_ids=ids[:2])
        stream = Stream("account", "other") if pick == [0] else ACCOUNT
        with pytest.raises(UsageError, match="belong to other events"):
            append(connection, stream, deposits(*pick), event_ids=[ids[at] for at in pick])
        append(connection, Stream("account", "other"), deposits(5), expected=NO_STREAM)
        assert amounts(connection) == [1, 2]


def test_events_read_back_as_they_were(dsn: str) -> None:
    rich = Deposited(
        amount=Decimal("12345678901234567890.0010"), at=datetime(2026, 1, 2, tzinfo=UTC), notes=['"', "é", ""]
    )
    with psycopg.connect(dsn) as connection:
        append(connection, ACCOUNT, [rich])
        (recorded,) = load(connection, ACCOUNT)
    assert recorded.data == rich
    assert isinstance(recorded.data, Deposited) and str(recorded.data.amount) == "12345678901234567890.0010"


@event("odd")
class Odd(BaseModel):
    number: float = 0
    secret: SecretStr = SecretStr("")
    name: str = ""


@pytest.mark.parametrize(
    "odd", [Odd(number=float("nan")), Odd(secret=SecretStr("x")), Odd(name="a\0b"), Odd(number=float("inf"))]
)
def test_an_event_that_would_change_on_its_way_is_refused(dsn: str, odd: Odd) -> None:
    with psycopg.connect(dsn) as connection, pytest.raises(UsageError, match="'odd' does not survive"):
        append(connection, ACCOUNT, [odd])


def test_undeclared_models_names_and_versions_say_what_to_do(dsn: str) -> None:
    class Unknown(BaseModel):
        pass

    with psycopg.connect(dsn) as connection:
        with pytest.raises(UsageError, match=r"Unknown is not declared[\s\S]*@event"):
            append(connection, ACCOUNT, [Unknown()])
        append(connection, ACCOUNT, deposits(1))
        connection.execute("UPDATE tailrace.events SET type = 'depositd'")
        with pytest.raises(UsageError, match=r"'depositd' version 1[\s\S]*did you mean deposited\b"):
            load(connection, ACCOUNT)
        connection.execute("UPDATE tailrace.events SET type = 'deposited', data = '{}'")
        with pytest.raises(IntegrityError, match="does not fit"):
            load(connection, ACCOUNT)
    with pytest.raises(UsageError, match="declared are versions 2"):
        model_of("withdrawn", 1)
    with pytest.raises(UsageError, match=r"is .*Deposited and cannot be .*Unknown too"):
        event("deposited")(Unknown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"events": []}, "0 events"),
        ({"events": deposits(1), "expected": -3}, "never at version -3"),
        ({"events": deposits(1), "metadata": {"x": object()}}, "metadata is not JSON"),
        ({"events": deposits(1), "metadata": {"x": float("nan")}}, "metadata is not JSON"),
        ({"events": deposits(1) * (EVENTS_MAX + 1)}, "10001 events cannot be appended at once"),
        ({"events": deposits(1), "metadata": {"x": "\0"}}, "NUL"),
        ({"events": deposits(1, 2), "event_ids": [UUID(int=1)] * 2}, "1 different ids"),
    ],
)
def test_wrong_arguments_are_refused_before_the_server_sees_them(
    arguments: dict[str, Any], message: str
) -> None:
    no_connection: Any = None
    with pytest.raises(UsageError, match=message):
        append(no_connection, ACCOUNT, **arguments)


def test_as_many_events_as_the_limit_are_appended_at_once() -> None:
    rows = finish(new_rows(MemoryStreams().keys, deposits(1) * EVENTS_MAX))
    assert len({row.event_id for row in rows}) == EVENTS_MAX


@pytest.mark.parametrize(
    ("category", "id_"), [("", "1"), ("account", ""), ("a" * 201, "1"), ("account", "\0")]
)
def test_streams_have_names(category: str, id_: str) -> None:
    with pytest.raises(UsageError, match="of a stream"):
        Stream(category, id_)


def test_a_database_without_the_tables_says_how_to_get_them(database: str) -> None:
    with (
        psycopg.connect(database) as connection,
        pytest.raises(OperatorError, match="tailrace init --events"),
    ):
        append(connection, ACCOUNT, deposits(1))
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    with (
        engine.connect() as connection_of_engine,
        pytest.raises(OperatorError, match="tailrace init --events"),
    ):
        load(connection_of_engine, ACCOUNT)
    engine.dispose()


def test_other_databases_are_refused() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(UsageError, match="this connection is to sqlite"):
        append(connection, ACCOUNT, deposits(1))
    engine.dispose()


def test_sqlalchemys_mappers_are_not_imported_for_who_does_not_use_them(database: str) -> None:
    """While they are, threads that use SQLAlchemy otherwise fail in it."""
    install(database)
    program = """
import sys
from sqlalchemy import create_engine
from tailrace import Stream, load
with create_engine(sys.argv[1]).connect() as connection:
    assert load(connection, Stream("account", "none")) == []
assert "sqlalchemy.orm" not in sys.modules
"""
    url = database.replace("postgresql://", "postgresql+psycopg://")
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, url], check=True, timeout=60)


def script_of_the_page(first: str) -> str:
    """The first SQL script that begins so on the page of setting up a source, below "The tables of domain events"."""
    page = (REPOSITORY / "docs" / "capture" / "setting-up-a-source.md").read_text()
    scripts = re.findall(r"```sql\n(.*?)```", page.partition("## The tables of domain events")[2], re.DOTALL)
    return next(script for script in map(str, scripts) if script.startswith(first))


def test_an_application_needs_no_right_to_write_the_tables(dsn: str) -> None:
    role = f"app_{uuid4().hex[:8]}"
    script = script_of_the_page("GRANT").replace("TO app;", f"TO {role};")
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        try:
            with (
                psycopg.connect(dsn, user=role) as app,
                pytest.raises(OperatorError, match="may not use domain events") as refused,
            ):
                append(app, ACCOUNT, deposits(1))
            assert refused.value.hint.replace("APPLICATION;", f"{role};").endswith(" ".join(script.split()))
            owner.execute(script.encode())
            with psycopg.connect(dsn, user=role) as app:
                append(app, ACCOUNT, deposits(1))
                assert amounts(app) == [1]
                for statement in ("DELETE FROM tailrace.events", "UPDATE tailrace.streams SET version = 9"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege), app.transaction():
                        app.execute(statement.encode())
        finally:
            owner.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


def test_installing_again_and_at_the_same_time_does_it_once(database: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: install(database), range(4)))
    assert sorted(map(len, done)) == [0, 0, 0, len(migrations())]
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO tailrace.migrations (number, name) VALUES (9999, 'later')")
    with pytest.raises(OperatorError, match="9999"):
        install(database)


def test_an_unreachable_server_and_a_wrong_dsn_are_reported(database: str) -> None:
    with pytest.raises(OperatorError, match="cannot be made"):
        _install_as_nobody(database)
    with pytest.raises(UsageError, match="dsn"):
        install("nonsense=1")


def _install_as_nobody(database: str) -> None:
    role = f"nobody_{uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        try:
            install(database.replace("postgres@", f"{role}@"))
        finally:
            owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_the_script_that_removes_the_tables_leaves_nothing(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(script_of_the_page("BEGIN").encode())
        assert connection.execute("SELECT to_regnamespace('tailrace')").fetchone() == (None,)
    assert len(install(dsn)) == len(migrations())


def test_a_row_change_and_its_event_are_one_transaction(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (id int PRIMARY KEY, balance numeric)"))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO accounts VALUES (42, 5)"))
        append(connection, ACCOUNT, deposits(5))
    with engine.begin() as connection:
        same = connection.execute(
            text("SELECT a.xmin = e.xmin FROM accounts a, tailrace.events e")
        ).scalar_one()
    assert same is True
