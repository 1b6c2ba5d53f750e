"""The schema of domain events goes up and down with the events in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from pydantic import BaseModel

from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.streams import (
    NO_STREAM,
    Appended,
    Conflict,
    Decider,
    Every,
    Query,
    Stream,
    Tag,
    append,
    event,
    handle,
    load,
    load_boundary,
)
from tailrace.eventstore.streams.database.event_tables import downgrade, install, migrations, upgrade
from tailrace.eventstore.streams.reacting.instances import timers_of

Connection = psycopg.Connection[tuple[object, ...]]
GOLDEN = Path(__file__).parent / "golden"
BEFORE = 2  # the migration that the golden events were written under
LATEST = migrations()[-1].number
_FUNCTIONS = (
    "SELECT pg_get_functiondef(p.oid), p.proacl::text FROM pg_proc p"
    " WHERE pronamespace = 'tailrace'::regnamespace ORDER BY p.proname"
)
_TABLES = (
    "SELECT c.relname, a.attname, a.atttypid::regtype::text, a.attnotnull, c.relacl::text FROM pg_class c"
    " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
    " WHERE relnamespace = 'tailrace'::regnamespace ORDER BY 1, 2"
)


@event("golden_deposited")
class Deposited(BaseModel):
    amount: Decimal
    at: datetime | None = None
    notes: list[str] = []


@event("golden_withdrawn", version=2)
class Withdrawn(BaseModel):
    amount: Decimal


@event("golden_counted")
class Counted(BaseModel):
    by: int


@event("golden_enrolled")
class Enrolled(BaseModel):
    course: Annotated[str, Tag()]
    student: Annotated[str, Tag()]


def evolve(total: int, counted: Counted) -> int:
    """The total of what the snapshot in the golden files is of."""
    return total + counted.by


counting: Decider[int, int, Counted] = Decider(
    "golden_count", 0, lambda by, total: [Counted(by=by)], evolve, snapshot=Every(events=10)
)


def made(connection: Connection) -> tuple[list[tuple[object, ...]], ...]:
    return connection.execute(_FUNCTIONS).fetchall(), connection.execute(_TABLES).fetchall()


@contextmanager
def of_before(dsn: str) -> Iterator[Connection]:
    """A database as the release before migration 3 left it, with its events."""
    install(dsn)
    with psycopg.connect(dsn) as connection:
        downgrade(connection, BEFORE)
        connection.execute((GOLDEN / "0002.sql").read_bytes())
        connection.commit()
        yield connection


def assert_readable(connection: Connection) -> None:
    found = load(connection, Stream("account", "42"))
    assert [(each.version, each.data, each.metadata) for each in found] == [
        (1, Deposited(amount=Decimal("12345678901234567890.0010"), at=datetime(2026, 1, 2, tzinfo=UTC),
                      notes=['"', "é", ""]), {}),
        (2, Deposited(amount=Decimal(1)), {}),
        (3, Withdrawn(amount=Decimal(3)), {"by": "ü"}),
    ]  # fmt: skip
    assert found[2].event_id == UUID(int=3) and found[0].recorded_at.year == 2026


def test_a_way_back_gives_what_the_migrations_before_it_made(database: str) -> None:
    with psycopg.connect(database) as connection:
        upgrade(connection)
        downgrade(connection, BEFORE)
        went_back = made(connection)
        connection.rollback()
        upgrade(connection)
        connection.execute("DROP SCHEMA tailrace CASCADE; CREATE SCHEMA tailrace")
        connection.execute("CREATE TABLE tailrace.migrations (number integer PRIMARY KEY, name text NOT NULL,"
                           " applied_at timestamptz NOT NULL DEFAULT now())")  # fmt: skip
        for each in migrations()[:BEFORE]:
            connection.execute(each.sql, prepare=False)
        assert went_back == made(connection)


def test_events_of_before_are_read_and_appended_to_after_each_way(database: str) -> None:
    with of_before(database) as connection:
        assert upgrade(connection) == [each.name for each in migrations()[BEFORE:]]
        assert_readable(connection)
        more = [Deposited(amount=Decimal(9))]
        assert append(connection, Stream("account", "42"), more, expected=2) == Conflict(3, 2)
        assert append(connection, Stream("account", "42"), more, NO_STREAM) == Conflict(3, NO_STREAM)
        assert isinstance(append(connection, Stream("account", "42"), more, expected=3), Appended)
        # A head without an event, which a refused append left.
        assert isinstance(append(connection, Stream("account", "refused"), more, NO_STREAM), Appended)
        repeated = append(connection, Stream("account", "it's"), more, NO_STREAM, None, [UUID(int=4)])
        assert isinstance(repeated, Appended) and repeated.repeated
        assert len(downgrade(connection, BEFORE)) == LATEST - BEFORE
        kept = "SELECT version FROM tailrace.events WHERE stream = '42' ORDER BY 1"
        assert connection.execute(kept).fetchall() == [(1,), (2,), (3,), (4,)]
        assert as_before(connection, 4) == ("appended", 5)
        connection.commit()
        for call in (
            lambda: append(connection, Stream("account", "42"), more),
            lambda: append(connection, Stream("account", "42"), more, event_ids=[uuid4()]),
            lambda: load(connection, Stream("a", "b")),
        ):
            with pytest.raises(OperatorError, match=r"of an earlier release[\s\S]*tailrace init --events"):
                call()
            connection.rollback()
        upgrade(connection)
        assert len(load(connection, Stream("account", "42"))) == 5
        assert append(connection, Stream("account", "42"), more, expected=5) != Conflict(5, 5)


@pytest.mark.parametrize("generation", sorted(int(file.stem) for file in GOLDEN.glob("*.sql")))
def test_what_each_generation_of_the_schema_wrote_is_read_by_the_latest(
    database: str, generation: int
) -> None:
    install(database)
    with psycopg.connect(database, autocommit=True) as connection:
        with connection.transaction():
            downgrade(connection, generation)
        connection.execute((GOLDEN / f"{generation:04}.sql").read_bytes())
        with connection.transaction():
            assert upgrade(connection) == [each.name for each in migrations()[generation:]]
        assert_readable(connection)
        if generation >= 6:  # snapshots
            connection.execute(
                "UPDATE tailrace.events SET data = '{\"by\": 100}' WHERE category = 'golden_count' AND version <= 10"
            )
            assert handle(connection, counting, "c1", 1).state == 13, "it was not read"
        if generation >= 8:  # tags and timers
            boundary = load_boundary(connection, Query(Enrolled, course="m"))
            assert [each.data.student for each in boundary.events] == ["Ada", "Bo"]
            new = [Enrolled(course="m", student="Eve")]
            assert isinstance(
                append(connection, Stream("golden_course", "m"), new, boundary=boundary), Appended
            )
            (timer,) = timers_of(connection, "golden_process")
            assert (timer.instance, timer.name, timer.due_at) == (
                "a",
                "ask",
                datetime(2026, 1, 2, tzinfo=UTC),
            )


def as_before(connection: Connection, expected: int) -> tuple[object, ...] | None:
    """An append of the release before migration 3."""
    return connection.execute(
        "SELECT outcome, stream_version FROM tailrace.append_events('account', '42', %s, jsonb_build_array("
        "jsonb_build_object('type', 'golden_deposited', 'schema_version', 1, 'data', '{\"amount\": \"1\"}'::jsonb,"
        " 'metadata', '{}'::jsonb, 'event_id', %s::text)))",
        [expected, str(uuid4())],
    ).fetchone()


def test_an_earlier_release_goes_on_appending_after_the_migration(database: str) -> None:
    install(database)
    with psycopg.connect(database) as connection:
        assert as_before(connection, 0) == ("appended", 1)
        part = f'[["account", "42", 1, [["golden_deposited", 1, "{uuid4()}", {{"amount": "1"}}]]]]'
        found = connection.execute("SELECT failed, versions FROM tailrace.append_streams(%s, '{}')", [part])
        assert found.fetchone() == (0, [2])
        assert len(load(connection, Stream("account", "42"))) == 2


@pytest.mark.parametrize("number", [0, 1, LATEST, LATEST + 1])
def test_there_is_no_way_back_over_what_made_the_tables(database: str, number: int) -> None:
    with psycopg.connect(database) as connection:
        upgrade(connection)
        before = made(connection)
        with pytest.raises(UsageError, match=f"cannot be taken back to migration {number}"):
            downgrade(connection, number)
        assert made(connection) == before


def test_whoever_could_append_can_after_the_migration_and_nobody_else(database: str) -> None:
    writer, reader = (f"{name}_{uuid4().hex[:8]}" for name in ("writer", "reader"))
    with of_before(database) as owner:
        for role in (writer, reader):
            owner.execute(sql.SQL("CREATE ROLE {0} LOGIN; GRANT USAGE ON SCHEMA tailrace TO {0}").format(
                sql.Identifier(role)))  # fmt: skip
        owner.execute(
            sql.SQL("GRANT EXECUTE ON FUNCTION tailrace.append_events TO {}").format(sql.Identifier(writer))
        )
        upgrade(owner)
        owner.commit()
        try:
            several = [Deposited(amount=Decimal(1))] * 2
            with psycopg.connect(database, user=writer) as connection:
                assert isinstance(append(connection, Stream("account", "42"), several, 3), Appended)
                assert isinstance(append(connection, Stream("account", "42"), several[:1], 5), Appended)
            with (
                psycopg.connect(database, user=reader) as connection,
                pytest.raises(OperatorError, match=r"GRANT EXECUTE ON FUNCTION tailrace\.append_one"),
            ):
                append(connection, Stream("account", "42"), several[:1])
        finally:
            for role in (writer, reader):
                owner.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))
            owner.commit()
