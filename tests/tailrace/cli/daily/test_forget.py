"""``tailrace forget``: nothing of a person is left in files, catalog, caches, indexes, tables or the source."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace import Stream, append, load, load_settings
from tailrace.embedded.redis import RedisServer
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.redacted import ERASED
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams.forget import keys_forgotten
from tests.tailrace.conftest import Project, files_with

MODULE = """
from typing import Annotated

from pydantic import BaseModel

from tailrace import Personal, event, inline


@event("forget_registered")
class Registered(BaseModel, frozen=True):
    person: str
    name: Annotated[str, Personal(subject="person")]
    city: str


@inline("people", "person", Registered)
def people(change, row):
    return {"name": str(change.name)}
"""
VIEWS = """
from pyspark.sql import DataFrame

from forget_events import Registered
from tailrace import Events, ParquetFolder, PostgresTable, RedisCache, SearchIndex, projection

PEOPLE = Events("shop.person", types=[Registered])


def named(events: DataFrame) -> DataFrame:
    return events.selectExpr("concat(stream, version) AS id", "forget_registered.name", "forget_registered.city")


@projection(key="id", sink=PostgresTable("mart", "names"), events=PEOPLE)
def names_table(events: DataFrame) -> DataFrame:
    return named(events)


@projection(key="id", sink=RedisCache("cache"), events=PEOPLE)
def names_cache(events: DataFrame) -> DataFrame:
    return named(events)


@projection(key="id", sink=SearchIndex("text", fields={"name": "text"}), events=PEOPLE)
def names_index(events: DataFrame) -> DataFrame:
    return named(events)
"""
ADA, BOB = "Augusta Ada Lovelace", "Robert Roe of Galway"


@pytest.fixture
def people(project: Project, database: str, redis_server: Any) -> Iterator[tuple[Project, RedisServer]]:
    """A captured source with events about two people, and three projections of them."""
    redis = redis_server()
    name = database.rpartition("_")[2]
    project.configure(
        f"""
        [store]
        name = "t{name}"
        upkeep.keep_seconds = 0
        keys.shop = "{database}"
        [sources.shop]
        dsn = "{database}"
        tables = ["public.customers"]
        [sources.shop.personal."public.customers"]
        subject = "person"
        columns = ["name"]
        [sinks.mart]
        kind = "postgres"
        dsn = "{database}"
        [sinks.cache]
        kind = "redis"
        url = "{redis.url}"
        [sinks.text]
        kind = "search"
        path = "index"
        [projections]
        modules = ["forget_views"]
        """
    )
    project.module("forget_events", MODULE)
    project.module("forget_views", VIEWS)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE people (id text PRIMARY KEY, name text)")
        connection.execute("CREATE TABLE customers (id int PRIMARY KEY, person text, name text, city text)")
        connection.execute("ALTER TABLE customers REPLICA IDENTITY FULL")
    project.ok("init", "--no-ddl", "--events")
    sys.path.insert(0, str(project.folder))
    try:
        events = importlib.import_module("forget_events")
        with psycopg.connect(database, autocommit=True) as connection:
            for number in range(1, 4):
                ada = events.Registered(person="p1", name=ADA, city=f"London {number}")
                append(connection, Stream("person", "a"), [ada])
            append(
                connection, Stream("person", "b"), [events.Registered(person="p2", name=BOB, city="Galway")]
            )
            for number, (person, name) in enumerate([("p1", ADA), ("p1", ADA), ("p2", BOB)]):
                row = number, person, name, f"city {number}"
                connection.execute("INSERT INTO customers VALUES (%s, %s, %s, %s)", row)
            project.ok("capture", "--once")
            connection.execute("UPDATE customers SET city = 'Ockham' WHERE id = 1")
        project.ok("capture", "--once")
        yield project, redis
    finally:
        sys.path.remove(str(project.folder))


def everything(connection: psycopg.Connection[Any]) -> str:
    tables = connection.execute(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    ).fetchall()
    rows = (connection.execute(f"SELECT t::text FROM {name} t").fetchall() for (name,) in tables)  # noqa: S608
    return "\n".join(text for found in rows for (text,) in found)


def test_of_somebody_forgotten_nothing_is_left_anywhere(
    people: tuple[Project, RedisServer], database: str
) -> None:
    project, redis = people
    project.ok("run", "--once")
    with psycopg.connect(database, autocommit=True) as connection:
        assert ADA in everything(connection) and ADA in dump_of(redis)
        assert sorted(events_of(project), key=str) == [ADA, ADA, ADA, BOB]

        done = project.ok("forget", "p1", "--module", "forget_events")
        assert "1 key deleted; 3 events of 1 stream had values" in done.out
        assert "rows written again in: public.people" in done.out
        assert "shop.person: 3 rows read as Erased" in done.out and "projection names_cache" in done.out
        assert ADA not in done.out + done.err
        assert "shop.public.customers: 3 rows read as Erased" in done.out
        assert "still has 2 rows of public.customers about them" in done.err
        connection.execute("DELETE FROM customers WHERE person = 'p1'")
        project.ok("capture", "--once")
        assert "still has" not in project.ok("forget", "p1", "--yes").err
        project.ok("store", "maintain")
        left = project.run("forget", "--verify")
        assert left.code == 4 and "projection names_table" in left.out and "tailrace run" in left.out

        names = "names_table", "names_cache", "names_index"
        collected = (("projection", "gc", name) for name in names)
        for each in project.together(("run", "--once"), ("verify", *names), *collected):
            assert each.code == 0, each.err + each.out
        assert "nothing is left of 1 key" in project.ok("forget", "--verify").out
        assert project.ok("log", "verify").code == 0
        assert "of somebody forgotten" in project.ok("log", "redactions").out

        text = everything(connection)
        assert ADA not in text and BOB in text and "London 3" in text
        assert ADA not in dump_of(redis) and BOB in dump_of(redis)
        assert not pages_with(connection, ADA) and pages_with(connection, BOB)
        holding = [str(file.relative_to(project.folder)) for file in files_with(project.folder, ADA)]
        assert not holding, " ".join(holding)
        found = sorted(events_of(project), key=str)
        assert found == [ERASED, ERASED, ERASED, BOB]
        assert [each.data.name for each in load(connection, Stream("person", "a"))] == [ERASED] * 3


@pytest.mark.slow
def test_after_a_restore_they_are_forgotten_again(people: tuple[Project, RedisServer], database: str) -> None:
    project, _ = people
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE backup AS SELECT * FROM tailrace.subject_keys")
        receipt = json.loads(project.ok("--json", "forget", "p1").out.splitlines()[0])
        (key,) = receipt["sources"][0]["keys"]
        project.ok("capture", "--once")
        connection.execute("INSERT INTO tailrace.subject_keys SELECT * FROM backup WHERE subject = 'p1'")
        assert events_of(project).count(ERASED) == 3  # the key is there, and that it was forgotten too
        # The whole database was restored to a time before: only the log knows.
        connection.execute("DELETE FROM tailrace.events WHERE category = 'tailrace_forgotten'")
        connection.execute("DELETE FROM tailrace.streams WHERE category = 'tailrace_forgotten'")
        assert events_of(project).count(ADA) == 3
        left = project.run("forget", "--verify", "--json")
        assert left.code == 4 and any("restored to a time before" in each["what"] for each in left.documents)
        project.ok("forget", "--again")
        assert events_of(project).count(ERASED) == 3
        assert connection.execute("SELECT subject FROM tailrace.subject_keys").fetchall() == [("p2",)]
        assert keys_forgotten(connection) == [key]
        project.ok("forget", "--again")  # as often as you like
        assert connection.execute(
            "SELECT count(*) FROM tailrace.events WHERE category = 'tailrace_forgotten'"
        ).fetchone() == (1,)


@pytest.mark.slow
def test_a_command_that_is_killed_half_way_is_finished_by_another(
    people: tuple[Project, RedisServer],
) -> None:
    project, _ = people
    killed = project.run("forget", "p1", environment={"TAILRACE_FAILPOINT": "forgotten_in_source"})
    assert killed.code == -9
    left = project.run("forget", "--verify")
    assert left.code == 4 and "topic shop.person: its readers were not told" in left.out
    assert "shop.person: 3 rows" in project.ok("forget", "--again").out
    assert "nothing is left of 1 key" in project.ok("forget", "--verify").out


@pytest.mark.slow
def test_who_has_no_keys_is_told_where_to_say_where_they_are(people: tuple[Project, RedisServer]) -> None:
    project, _ = people
    config = project.folder / "tailrace.toml"
    kept = [line for line in config.read_text().splitlines() if "keys.shop" not in line]
    project.configure("\n".join(kept))
    with pytest.raises(OperatorError, match="it is not known where their keys are") as failed:
        events_of(project)
    assert failed.value.hint and "[store.keys] shop" in failed.value.hint
    shown = project.ok("log", "show", "shop.person", "a")
    assert ADA not in shown.out


@pytest.mark.slow
def test_whom_to_forget_is_named_once(people: tuple[Project, RedisServer]) -> None:
    project, _ = people
    for words in ((), ("p1", "--again"), ("--key", "x", "--verify")):
        done = project.run("forget", *words)
        assert done.code == 2 and "name whom to forget" in done.err
    nobody = project.run("forget", "p3")
    assert nobody.code == 2 and "nothing is about this subject" in nobody.err


def pages_with(connection: psycopg.Connection[Any], text: str) -> list[str]:
    """Files of tables that hold a text, once Postgres has written them without rows that are not there any more. Not
    the statistics of tables with plain values: for the sake of capture's slot dead rows of the catalog stay a while."""
    connection.execute("VACUUM FULL")
    connection.execute("CHECKPOINT")
    place = connection.execute("SHOW data_directory").fetchone()
    oid = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
    assert place is not None and oid is not None
    folder = Path(place[0]) / "base" / str(oid[0])
    found = [file.name for file in folder.iterdir() if text.encode() in file.read_bytes()]
    names = "SELECT coalesce(CAST(pg_filenode_relation(0, %s) AS text), %s)"
    tables = [str(connection.execute(names, (name, name)).fetchone()) for name in found]
    return [table for table in tables if "pg_statistic" not in table]


def events_of(project: Project) -> list[Any]:
    """What a consumer of all events is given of their names."""
    settings = load_settings(project.folder / "tailrace.toml")
    with closing(Store.open(settings.store, root=project.folder)) as store:
        batches = store.tail(["shop.person"], start="earliest", timeout=0)
        return [each.data.name for batch in batches for each in batch.events()]


def dump_of(redis: RedisServer) -> str:
    """Its dump, with all keys and values as they are."""
    import redis as client

    with client.Redis.from_url(redis.url) as connection:
        connection.config_set("rdbcompression", "no")
        connection.save()
        folder: Any = connection.config_get("dir")
    return "".join(file.read_bytes().decode(errors="replace") for file in Path(folder["dir"]).glob("*.rdb"))
