"""The tables of domain events in a schema of a service's choice: all of them, with all that is done with them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine

from tailrace.cdc.repair.verify import verify_source
from tailrace.cdc.setup.prepare import prepare_source
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.model.event_schema import chosen_schema, schema_in_use
from tailrace.eventstore.model.redacted import ERASED
from tailrace.eventstore.settings import PostgresSourceSettings, StoreSettings
from tailrace.eventstore.streams import (
    Appended,
    Decider,
    Every,
    Personal,
    Query,
    Stream,
    Tag,
    aio,
    append,
    emit,
    event,
    forget,
    handle,
    load,
    load_boundary,
    use_schema,
)
from tailrace.eventstore.streams.database.event_partitions import partition_events
from tailrace.eventstore.streams.database.event_tables import downgrade, install, migrations, prune, upgrade
from tailrace.eventstore.streams.database.key_places import KeyPlace
from tailrace.eventstore.streams.reacting.instances import timers_of
from tailrace.testing.plugin import SOURCE, FollowingLog

SCHEMA = "shop_events"
A, B = Stream("apart", "a"), Stream("apart", "b")
Connection = psycopg.Connection[Any]


@event("apart_counted")
class Counted(BaseModel, frozen=True):
    by: int


@event("apart_noted")
class Noted(BaseModel, frozen=True):
    person: str
    room: Annotated[str, Tag()]
    text: Annotated[str, Personal(subject="person")]


counting: Decider[int, int, Counted] = Decider(
    "apart",
    0,
    lambda by, total: [Counted(by=by)],
    lambda total, each: total + each.by,
    snapshot=Every(events=2),
)


@pytest.fixture
def chosen() -> Iterator[None]:
    with schema_in_use(SCHEMA):
        yield


def objects(connection: Connection, schema: str) -> tuple[list[Any], list[Any]]:
    """Its functions and columns, with what may be done with them, as if it were schema tailrace."""
    functions = connection.execute(
        "SELECT pg_get_functiondef(p.oid), p.proacl::text FROM pg_proc p"
        " WHERE pronamespace = %s::regnamespace ORDER BY p.proname",
        [schema],
    ).fetchall()
    columns = connection.execute(
        "SELECT c.relname, a.attname, a.atttypid::regtype::text, a.attnotnull, c.relacl::text FROM pg_class c"
        " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 WHERE relnamespace = %s::regnamespace"
        " ORDER BY 1, 2",
        [schema],
    ).fetchall()
    own = re.compile(f'"?{schema}"?\\.')
    return [(own.sub("tailrace.", text), rights) for text, rights in functions], columns


def test_it_has_what_schema_tailrace_has_and_names_nothing_of_that(database: str, chosen: None) -> None:
    install(database)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT to_regnamespace('tailrace')").fetchone() == (None,)
        others = connection.execute(
            "SELECT p.proname FROM pg_proc p WHERE pronamespace = %s::regnamespace"
            r" AND p.prosrc ~ '\mtailrace\.(?!(forgetting|emit)\M)'",
            [SCHEMA],
        ).fetchall()
        assert not others
        upgrade(connection, "tailrace")
        assert objects(connection, SCHEMA) == objects(connection, "tailrace")


def test_two_services_of_a_database_have_streams_and_keys_of_their_own(database: str) -> None:
    install(database)
    install(database, SCHEMA)
    ada = Noted(person="p1", room="r", text="Ada")
    with psycopg.connect(database, autocommit=True) as connection:
        append(connection, A, [ada])
        with schema_in_use(SCHEMA):
            assert not load(connection, A)
            append(connection, A, [ada], 0)
            forget(connection, "p1")
            assert load(connection, A)[0].data.text == ERASED
        assert load(connection, A)[0].data == ada


def test_everything_goes_on_there_and_comes_into_the_log(database: str, tmp_path: Path, chosen: None) -> None:
    """Also beside the DDL trigger, which is in schema tailrace."""
    install(database)
    settings = PostgresSourceSettings(dsn=database, events_schema=SCHEMA)
    with psycopg.connect(database, autocommit=True) as connection:
        for number in range(3):
            handle(connection, counting, "a", number)
        log = FollowingLog(database, tmp_path)
        prepare_source(log.store, SOURCE, settings, ddl=True)
        log.catch_up()
        assert isinstance(append(connection, B, [Counted(by=7)]), Appended)
        append(connection, Stream("noted", "n"), [Noted(person="p1", room="r1", text="Ada")])
        emit(connection, Stream("told", "t"), [Counted(by=9)])
        assert [each.data.by for each in load(connection, A)] == [0, 1, 2]
        found = load_boundary(connection, Query(Noted, room="r1"))
        assert [each.data.text for each in found.events] == ["Ada"]
        log.catch_up()

        def told(topic: str) -> list[Any]:
            batches = log.store.tail([f"{SOURCE}.{topic}"], start="earliest", timeout=0)
            return [each.data for batch in batches for each in batch.events()]

        assert [each.by for each in told("apart")] == [0, 1, 2, 7]
        assert [each.by for each in told("told")] == [9]
        assert all(each.equal for each in verify_source(log.store, SOURCE, settings))
        assert forget(connection, "p1").events == 1
        assert load(connection, Stream("noted", "n"))[0].data.text == ERASED
        assert prune(connection, "apart", datetime.now(UTC) + timedelta(days=1)) > 0
        with connection.transaction():
            assert partition_events(connection)[:2] == ["events_first", "events_rest"]
        append(connection, B, [Counted(by=8)])
        log.catch_up()
        assert [each.by for each in told("apart")][-1] == 8
        shared = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'tailrace'::regnamespace"
        )
        assert "events" not in {name for (name,) in shared}
        log.close()


def test_timers_asyncio_and_sqlalchemy_find_it_too(database: str, chosen: None) -> None:
    install(database)

    async def count() -> int:
        connection = await psycopg.AsyncConnection.connect(database, autocommit=True)
        async with connection:
            await aio.append(connection, A, [Counted(by=1)])
            return len(await aio.load(connection, A))

    assert asyncio.run(count()) == 1
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as begun:
        append(begun, A, [Counted(by=2)])
        assert [each.data.by for each in load(begun, A)] == [1, 2]
        assert timers_of(begun, "nobody") == []
    engine.dispose()


def test_it_goes_up_and_down_with_the_events(database: str, chosen: None) -> None:
    with psycopg.connect(database) as connection:
        assert len(upgrade(connection)) == len(migrations())
        append(connection, A, [Counted(by=1)])
        downgrade(connection, 4)
        with pytest.raises(OperatorError, match="schema shop_events"), connection.transaction():
            load(connection, A)
        assert upgrade(connection) == [each.name for each in migrations()[4:]]
        assert [each.data.by for each in load(connection, A)] == [1]
        assert upgrade(connection) == []


@pytest.mark.parametrize("name", ["public", "pg_events", "Shop", "a b", 'x"; DROP', "", "information_schema"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no schema for domain events"):
        use_schema(name)
    assert chosen_schema() == "tailrace"
    with pytest.raises(ValueError, match="must be a schema of its own"):
        PostgresSourceSettings(dsn="postgresql://host/shop", events_schema=name)
    with pytest.raises(ValueError, match="no schema for domain events"):
        StoreSettings(keys={"shop": f"postgresql://host/shop?schema={name or ' '}"})


def test_a_schema_with_other_tables_is_refused(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int)")
        connection.commit()
        with pytest.raises(OperatorError, match="schema shop has table orders"):
            upgrade(connection, "shop")


def test_who_lacks_a_privilege_or_the_tables_is_told_with_its_name(database: str, chosen: None) -> None:
    role = f"apart_{uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as owner:
        with pytest.raises(OperatorError, match="schema shop_events") as missing:
            load(owner, A)
        assert "events_schema = 'shop_events'" in str(missing.value.hint)
        install(database)
        owner.execute(f"CREATE ROLE {role} LOGIN")
        try:
            with psycopg.connect(database, user=role, autocommit=True) as service:
                with pytest.raises(OperatorError) as refused:
                    append(service, A, [Counted(by=1)])
                grants = str(refused.value.hint).removeprefix("as the owner of the tables: ")
                owner.execute(grants.replace("APPLICATION", role))
                append(service, A, [Counted(by=1)])
                assert len(load(service, A)) == 1
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_readers_of_the_log_find_keys_there(database: str) -> None:
    install(database, SCHEMA)
    with psycopg.connect(database, autocommit=True) as connection, schema_in_use(SCHEMA):
        append(connection, A, [Noted(person="p1", room="r", text="Ada")])
        ((id,),) = connection.execute("SELECT id::text FROM shop_events.subject_keys").fetchall()
    mark = "&" if "?" in database else "?"
    assert KeyPlace(f"{database}{mark}schema={SCHEMA}").open_keys({id})[id]
    with pytest.raises(OperatorError):
        KeyPlace(database).open_keys({id})
