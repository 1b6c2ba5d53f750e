"""``tailrace events``, as somebody who deploys sees it."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pydantic import BaseModel

from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.schema import EVENT_SCHEMA
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import Decider, Every, Stream, event, handle, load
from tailrace.eventstore.streams.database.event_tables import install
from tests.eventstore.shop import at, writer
from tests.eventstore.subscriptions.test_domain_events import events
from tests.tailrace.conftest import Project

MODULE = """
from pydantic import BaseModel
from tailrace import event, upcast

@event("paid")
class Paid(BaseModel):
    amount: int

@event("opened", version=2)
class Opened(BaseModel):
    owner: str

upcast("opened", 1, rename={"name": "owner"})
"""


class Paid(BaseModel):
    amount: int


class Sent(BaseModel):
    """Nobody declares it."""

    parcel: str


@event("events_counted")
class Counted(BaseModel, frozen=True):
    by: int


counting: Decider[int, int, Counted] = Decider(
    "events_counting",
    0,
    lambda by, total: [Counted(by=by)],
    lambda total, counted: total + counted.by,
    snapshot=Every(events=10),
)


@pytest.fixture
def checked(project: Project, database: str) -> Project:
    """A project whose source has events of two types, and whose log has one."""
    project.configure(f'[sources.shop]\ndsn = "{database}"\n')
    (project.folder / "shop_events.py").write_text(MODULE)
    install(database)
    store_event(database, 1, "opened", 1, {"name": "Ada"})
    store_event(database, 2, "opened", 2, {"owner": "Ada"})
    store_event(database, 3, "paid", 1, {"amount": 5})
    with closing(Store.open(StoreSettings(), create=True, root=project.folder)) as store:
        capture = writer(store)
        topic = TopicId.events("shop", "account")
        register_topic(store, topic, EVENT_SCHEMA, reason="")
        capture.append(
            EpochBatch("shop", 1, 2, 2, at(1), 1, [TopicRows(topic, 1, events(1, "1", Paid(amount=5)))])
        )
    return project


def store_event(dsn: str, version: int, name: str, schema_version: int, data: object) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO tailrace.events VALUES ('account', '1', %s, %s, %s, %s, '{}', gen_random_uuid(), now())",
            [version, name, schema_version, Jsonb(data)],
        )


def test_commands_find_the_events_of_a_source_in_the_schema_that_it_names(
    project: Project, database: str
) -> None:
    project.configure(f'[sources.shop]\ndsn = "{database}"\nevents_schema = "shop_tables"\n')
    (project.folder / "shop_events.py").write_text(MODULE)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        made = project.ok("init", "--no-ddl", "--events").out
        assert "domain events (schema shop_tables)" in made and '"shop_tables"."events"' in made
        connection.execute(
            "INSERT INTO shop_tables.events VALUES"
            " ('account', '1', 1, 'paid', 1, '{\"amount\": 5}', '{}', gen_random_uuid(), now())"
        )
        project.ok("capture", "--once")
        done = project.ok("events", "check", "shop_events")
        assert done.out.splitlines() == ["log: paid version 1, 1: read", "shop: paid version 1, 1: read"]
        assert "made events_first, events_rest" in project.ok("events", "partition").out


@pytest.mark.parametrize(
    "how",
    [(), *(pytest.param(each, marks=pytest.mark.slow) for each in [("--all",), ("--source", "shop")])],
)
def test_events_that_todays_code_reads_pass(checked: Project, how: tuple[str, ...]) -> None:
    done = checked.ok("events", "check", "shop_events", *how)
    assert done.out.splitlines() == [
        "log: paid version 1, 1: read",
        "shop: opened version 1, 1: read",
        "shop: opened version 2, 1: read",
        "shop: paid version 1, 1: read",
    ]


def test_events_that_it_cannot_read_fail_the_deployment_and_are_named(
    checked: Project, database: str
) -> None:
    store_event(database, 4, "paid", 1, {"amount": "much"})
    store_event(database, 5, "paid", 1, {})
    store_event(database, 6, "sent", 1, {"parcel": "p"})
    done = checked.run("--json", "events", "check", "shop_events")
    assert done.code == 4
    found = {(each["where"], each["type"]): each for each in done.documents if each["failed"]}
    assert found.keys() == {("shop", "paid"), ("shop", "sent")}
    assert (found["shop", "paid"]["read"], found["shop", "paid"]["failed"]) == (3, 2)
    assert "of account/1 (id " in found["shop", "paid"]["error"]
    assert "no model is declared for event 'sent' version 1" in found["shop", "sent"]["error"]
    said = checked.run("events", "check", "shop_events")
    assert said.code == 4 and "shop: paid version 1, 3: 2 of them cannot be read: event " in said.out


@pytest.mark.slow
def test_a_sample_is_of_each_type(checked: Project, database: str) -> None:
    for version in range(4, 14):
        store_event(database, version, "paid", 1, {"amount": 1})
    documents = checked.ok("--json", "events", "check", "shop_events", "--sample", "2").documents
    assert {(each["type"], each["version"], each["read"]) for each in documents if each["where"] == "shop"} == {
        ("opened", 1, 1), ("opened", 2, 1), ("paid", 1, 2),
    }  # fmt: skip


def test_schemas_are_printed_and_compared(checked: Project) -> None:
    printed = checked.ok("events", "schema", "shop_events").out
    schemas = json.loads(printed)
    assert list(schemas) == ["opened", "paid"] and list(schemas["opened"]) == ["2"]
    assert schemas["paid"]["1"]["properties"]["amount"]["type"] == "integer"
    assert checked.ok("--json", "events", "schema", "shop_events").documents == [schemas]
    file = Path(checked.folder) / "schemas.json"
    file.write_text(printed)
    checked.ok("events", "schema", "shop_events", "--against", str(file))
    schemas["paid"]["1"]["properties"]["amount"]["type"] = "string"
    schemas["opened"]["1"] = {}  # an upcaster leads on
    file.write_text(json.dumps(schemas))
    done = checked.run("events", "schema", "shop_events", "--against", str(file))
    assert (done.code, done.out) == (4, "paid version 1: amount was string and is integer\n")
    documents = checked.run("--json", "events", "schema", "shop_events", "--against", str(file)).documents
    assert documents == [{"problem": "paid version 1: amount was string and is integer"}]


@pytest.mark.slow
def test_mistakes_are_said(checked: Project) -> None:
    done = checked.run("events", "check", "no_such_module")
    assert done.code == 2 and "module 'no_such_module' does not import" in done.err
    (checked.folder / "schemas.json").write_text("[]")
    done = checked.run("events", "schema", "shop_events", "--against", str(checked.folder / "schemas.json"))
    assert done.code == 2 and "holds no schemas of events" in done.err


INLINE = """
from pydantic import BaseModel
from tailrace import event, inline

@event("paid")
class Paid(BaseModel):
    amount: int

@inline("totals", "account", Paid, key="account")
def totals(change, row):
    return {"paid": (row["paid"] if row else 0) + change.amount}
"""


def test_rows_of_inline_projections_are_compared_and_written_again(checked: Project, database: str) -> None:
    (checked.folder / "shop_inline.py").write_text(INLINE)
    says = checked.run("events", "inline", "shop_events")
    assert says.code == 2 and "no inline projection is declared by shop_events" in says.err
    says = checked.run("events", "inline", "shop_inline")
    assert says.code == 7 and "table public.totals of an inline projection is not there" in says.err
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE totals (account text PRIMARY KEY, paid bigint)")
        connection.execute("DELETE FROM tailrace.events WHERE type = 'opened'")
        connection.execute("UPDATE tailrace.events SET version = 1")
        connection.execute("INSERT INTO tailrace.streams VALUES ('account', '1', 1)")
    says = checked.run("events", "inline", "shop_inline")
    assert says.code == 4 and "shop: public.totals of 1 streams of account: 1 rows differ: 1" in says.out
    assert "1 rows written again: 1" in checked.ok("events", "inline", "shop_inline", "--rebuild").out
    (document,) = checked.ok("--json", "events", "inline", "shop_inline").documents
    assert document["different"] == document["extra"] == [] and document["streams"] == 1
    assert "equal" in checked.ok("events", "inline", "shop_inline").out


@pytest.mark.slow
def test_events_are_pruned_once_the_log_has_them(project: Project, database: str) -> None:
    name = database.rpartition("_")[2]
    project.configure(f'store.name = "t{name}"\n[sources.shop]\ndsn = "{database}"\n')
    project.ok("init", "--no-ddl", "--events")
    capture = project.start("capture")
    with psycopg.connect(database, autocommit=True) as connection:
        for _ in range(25):
            handle(connection, counting, "a", 1)
        done = project.ok("events", "prune", "events_counting", "--before", "2100-01-01")
        assert "shop: 20 events of events_counting were removed; the log has them" in done.out
        left = connection.execute("SELECT count(*) FROM tailrace.events").fetchone()
        assert left == (5,)
        assert handle(connection, counting, "a", 1).state == 26
    project.end(capture, signal.SIGTERM)
    with closing(Store.open(StoreSettings(name=f"t{name}"), root=project.folder)) as store:
        assert len(load(store.streams("shop"), Stream("events_counting", "a"))) >= 25
    done = project.run("events", "prune", "events_counting", "--before", "tomorrow")
    assert done.code == 2 and "--before" in done.err
