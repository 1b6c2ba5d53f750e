"""No DDL lifts a column policy, from a real server into a real store."""

# ruff: noqa: S608 (statements of a test, about values of its own)

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.eventstore.metadata.partitions import known_partitions
from tests.support.capturing import RunningCapture, Site, execute, init_and_capture, table
from tests.support.plaintext import places_of

pytestmark = pytest.mark.timeout(600)

SECRET = "Zq7xVn2w"
POLICIES = {"public.people.phone": "drop", "public.people.email": "hash"}
TABLES = """
CREATE TABLE public.people (id int PRIMARY KEY, note text, phone text, email text, memo text);
CREATE TABLE public.spare (id int PRIMARY KEY, note text, phone text, email text, memo text);
"""
SEQUENCES = {
    "added under another name of the table": [
        "ALTER TABLE people DROP COLUMN phone",
        "INSERT INTO people (id) VALUES (1)",
        "ALTER TABLE people RENAME TO clients",
        "ALTER TABLE clients ADD COLUMN phone text",
        f"INSERT INTO clients (id, phone) VALUES (2, '{SECRET}')",
        "ALTER TABLE clients RENAME TO people",
    ],
    "swapped with another table": [
        "ALTER TABLE people RENAME TO x",
        "ALTER TABLE spare RENAME TO people",
        "ALTER TABLE x RENAME TO spare",
        f"INSERT INTO people (id, phone, email) VALUES (3, '{SECRET}', '{SECRET}')",
        f"INSERT INTO spare (id, phone, email) VALUES (3, '{SECRET}', '{SECRET}')",
    ],
    "names of columns exchanged and given back": [
        "ALTER TABLE people RENAME COLUMN note TO x",
        "ALTER TABLE people RENAME COLUMN phone TO note",
        "ALTER TABLE people RENAME COLUMN x TO phone",
        f"INSERT INTO people (id, note) VALUES (4, '{SECRET}')",
        "ALTER TABLE people RENAME COLUMN phone TO x",
        "ALTER TABLE people RENAME COLUMN note TO phone",
        "ALTER TABLE people RENAME COLUMN x TO note",
    ],
    "another dropped, so that the names have moved by one place": [
        "ALTER TABLE people DROP COLUMN note",
        "ALTER TABLE people RENAME COLUMN phone TO note",
        "ALTER TABLE people RENAME COLUMN email TO phone",
        "ALTER TABLE people RENAME COLUMN memo TO email",
        "ALTER TABLE people ADD COLUMN memo text",
        f"INSERT INTO people (id, note, phone) VALUES (5, '{SECRET}', '{SECRET}')",
    ],
    "under the name of a table that is gone": [
        "DROP TABLE spare",
        "ALTER TABLE people RENAME TO spare",
        f"INSERT INTO spare (id, phone, email) VALUES (6, '{SECRET}', '{SECRET}')",
    ],
    "in a table made anew under another name": [
        "DROP TABLE people",
        "CREATE TABLE x (id int PRIMARY KEY, phone text)",
        "ALTER PUBLICATION acme_shop ADD TABLE x",
        "ALTER TABLE x RENAME TO people",
        f"INSERT INTO people VALUES (7, '{SECRET}')",
    ],
    "in another schema": [
        "ALTER TABLE people DROP COLUMN email",
        "CREATE SCHEMA app",
        "ALTER TABLE people SET SCHEMA app",
        "ALTER TABLE app.people ADD COLUMN email text",
        f"INSERT INTO app.people (id, email) VALUES (8, '{SECRET}')",
    ],
}


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    execute(database, TABLES)
    return Site.at(store_dir, database, columns=POLICIES, hash_key="only the environment knows it")


def settle(capture: RunningCapture) -> None:
    """All that came is in the log, and no table that still exists waits for a load."""
    capture.catch_up()
    capture.catch_up()


def test_a_column_dropped_and_added_under_another_name_of_its_table_stays_protected(site: Site) -> None:
    assert_protected(site, "added under another name of the table", running=True)


@pytest.mark.slow
@pytest.mark.parametrize("trigger", [True, False], ids=["with the DDL trigger", "without it"])
@pytest.mark.parametrize("running", [True, False], ids=["while capture runs", "while it is stopped"])
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_no_sequence_of_ddl_lifts_a_policy(site: Site, sequence: str, running: bool, trigger: bool) -> None:
    site.init(ddl=trigger)
    assert_protected(site, sequence, running=running)


def assert_protected(site: Site, sequence: str, *, running: bool) -> None:
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            f"INSERT INTO people (id, phone, email) VALUES (0, '{SECRET}', '{SECRET}')",
            "INSERT INTO spare (id, note) VALUES (0, 'is found')",
        )
        settle(capture)
        if running:
            for statement in SEQUENCES[sequence]:
                execute(site.dsn, statement)
                if statement.startswith("INSERT"):
                    settle(capture)
    if not running:
        execute(site.dsn, *SEQUENCES[sequence])
    with RunningCapture(site) as capture:
        settle(capture)
        assert places_of(capture.store, site.root, SECRET) == []
        assert places_of(capture.store, site.root, "is found"), "what is there is found"
        assert capture.store.topic(table("people"))


PARTITIONED = """
CREATE TABLE public.everybody (id int PRIMARY KEY, note text, phone text, email text, memo text)
    PARTITION BY RANGE (id);
CREATE TABLE public.everybody_low PARTITION OF everybody FOR VALUES FROM (0) TO (100);
"""
ATTACH = "ALTER TABLE everybody ATTACH PARTITION people FOR VALUES FROM (100) TO (200)"
ROWS = [
    f"INSERT INTO everybody (id, phone, email) VALUES (101, '{SECRET}', '{SECRET}')",
    f"UPDATE everybody SET phone = '{SECRET}' || id",
]
RENAMED = [
    "ALTER TABLE people RENAME COLUMN note TO x",
    "ALTER TABLE people RENAME COLUMN phone TO note",
    "ALTER TABLE people RENAME COLUMN x TO phone",
    ATTACH,
    f"INSERT INTO everybody (id, note) VALUES (102, '{SECRET}')",
]


def test_a_protected_table_keeps_its_policies_as_a_partition_of_another(site: Site) -> None:
    execute(site.dsn, PARTITIONED)
    assert_protected_as_partition(site, [ATTACH, *ROWS], running=True)


@pytest.mark.slow
@pytest.mark.parametrize("trigger", [True, False], ids=["with the DDL trigger", "without it"])
@pytest.mark.parametrize("running", [True, False], ids=["while capture runs", "while it is stopped"])
@pytest.mark.parametrize("sequence", [[ATTACH, *ROWS], RENAMED], ids=["as it is", "its columns renamed"])
def test_no_attached_partition_lifts_a_policy(
    site: Site, sequence: list[str], running: bool, trigger: bool
) -> None:
    execute(site.dsn, PARTITIONED)
    site.init(ddl=trigger)
    assert_protected_as_partition(site, sequence, running=running)


def assert_protected_as_partition(site: Site, sequence: list[str], *, running: bool) -> None:
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            f"INSERT INTO people (id, phone, email) VALUES (100, '{SECRET}', '{SECRET}')",
            "INSERT INTO everybody (id, note) VALUES (0, 'is found')",
        )
        settle(capture)
        if running:
            execute(site.dsn, *sequence)
            settle(capture)
    if not running:
        execute(site.dsn, *sequence)
    with RunningCapture(site) as capture:
        settle(capture)
        assert places_of(capture.store, site.root, SECRET) == []
        assert places_of(capture.store, site.root, "is found"), "what is there is found"
        assert capture.store.topic(table("everybody"))


def test_a_detached_partition_keeps_its_roots_policies_when_it_is_captured_alone(site: Site) -> None:
    execute(site.dsn, PARTITIONED)
    root = {"public.everybody.phone": "drop", "public.everybody.email": "hash"}
    guarded = site.with_settings(columns=root, hash_key="only the environment knows it")
    later = "CREATE TABLE everybody_high PARTITION OF everybody FOR VALUES FROM (100) TO (200)"
    with init_and_capture(guarded) as capture:
        execute(site.dsn, later, *(insert_into("everybody", number) for number in (1, 101)))
        settle(capture)
        capture.wait_until(lambda: len(known_partitions(capture.store.catalog, "shop")) == 2)
    execute(
        site.dsn,
        *(f"ALTER TABLE everybody DETACH PARTITION everybody_{each}" for each in ("low", "high")),
        "ALTER TABLE everybody_low RENAME COLUMN phone TO note_of_before",
        "ALTER TABLE everybody_high RENAME TO people_of_before",
    )
    assert {topic.text for topic in guarded.init().new} == {
        "shop.public.everybody_low",
        "shop.public.people_of_before",
    }
    with RunningCapture(guarded) as capture:
        settle(capture)
        execute(
            site.dsn,
            insert_into("everybody_low", 2, phone="note_of_before"),
            insert_into("people_of_before", 102),
        )
        settle(capture)
        for name in ("everybody_low", "people_of_before"):
            capture.wait_until_complete(table(name))
            assert {"note"} <= {column.name for column in capture.store.schemas(table(name))[-1].columns}
        assert places_of(capture.store, site.root, SECRET) == []
        assert places_of(capture.store, site.root, "is found")


def insert_into(name: str, number: int, phone: str = "phone") -> str:
    return (
        f"INSERT INTO {name} (id, note, {phone}, email) VALUES ({number}, 'is found', '{SECRET}', '{SECRET}')"
    )


@pytest.mark.slow
def test_a_partition_that_comes_back_under_other_names_keeps_its_policies(site: Site) -> None:
    execute(site.dsn, PARTITIONED)
    guarded = site.with_settings(columns={"public.everybody.phone": "drop"}, hash_key=None)
    guarded.init(ddl=False)
    with init_and_capture(guarded) as capture:
        execute(
            site.dsn,
            "ALTER TABLE everybody DETACH PARTITION everybody_low",
            "ALTER TABLE everybody_low RENAME COLUMN phone TO x",
            "ALTER TABLE everybody_low RENAME COLUMN email TO phone",
            "ALTER TABLE everybody_low RENAME COLUMN x TO email",
            "ALTER TABLE everybody ATTACH PARTITION everybody_low FOR VALUES FROM (0) TO (100)",
            f"INSERT INTO everybody (id, note, email) VALUES (1, 'is found', '{SECRET}')",
        )
        settle(capture)
        capture.wait_until_complete(table("everybody"))
        assert places_of(capture.store, site.root, SECRET) == []
        assert places_of(capture.store, site.root, "is found")


@pytest.mark.slow
@pytest.mark.parametrize("trigger", [True, False], ids=["with the DDL trigger", "without it"])
@pytest.mark.parametrize("running", [True, False], ids=["while capture runs", "while it is stopped"])
def test_a_partition_that_moves_to_another_table_keeps_its_roots_policies(
    site: Site, running: bool, trigger: bool
) -> None:
    execute(
        site.dsn,
        PARTITIONED,
        "CREATE TABLE archive (email text, id int PRIMARY KEY, memo text, note text, phone text)"
        " PARTITION BY RANGE (id)",
    )
    root = {"public.everybody.phone": "drop", "public.everybody.email": "hash"}
    guarded = site.with_settings(columns=root, hash_key="only the environment knows it")
    guarded.init(ddl=trigger)
    moves = [
        "ALTER TABLE everybody DETACH PARTITION everybody_low",
        "ALTER TABLE archive ATTACH PARTITION everybody_low FOR VALUES FROM (0) TO (100)",
        insert_into("archive", 2),
    ]
    with init_and_capture(guarded) as capture:
        execute(site.dsn, insert_into("everybody", 1))
        settle(capture)
        if running:
            execute(site.dsn, *moves)
            settle(capture)
    if not running:
        execute(site.dsn, *moves)
    with RunningCapture(guarded) as capture:
        settle(capture)
        capture.wait_until_complete(table("archive"))
        assert places_of(capture.store, site.root, SECRET) == []
        latest = capture.store.schemas(table("archive"))[-1]
        assert {column.name for column in latest.columns} == {"email", "id", "memo", "note"}


@pytest.mark.slow
def test_a_policy_of_a_name_that_a_table_had_for_a_while_is_not_forgotten(site: Site) -> None:
    """Neither for the table, whose name changes back, nor for another one that gets the name, though the configuration
    does not say it any more."""
    key = "only the environment knows it"
    while_it_was_called_so = site.with_settings(columns={"public.client?.email": "hash"}, hash_key=key)
    silent = site.with_settings(columns={}, hash_key=key)
    insert = f"INSERT INTO {{}} (id, note, email) VALUES ({{}}, 'is found', '{SECRET}')"
    with init_and_capture(while_it_was_called_so) as capture:
        execute(site.dsn, "ALTER TABLE people RENAME TO clients", insert.format("clients", 1))
        settle(capture)
        capture.wait_until_complete(table("people"))
    with RunningCapture(silent) as capture:
        settle(capture)
        execute(
            site.dsn,
            "ALTER TABLE clients RENAME TO people",
            insert.format("people", 2),
            "CREATE TABLE clients (id int PRIMARY KEY, note text, email text)",
        )
        settle(capture)
    silent.init()
    with RunningCapture(silent) as capture:
        capture.wait_until_complete(table("clients"))
        execute(site.dsn, insert.format("clients", 3), insert.format("people", 3))
        settle(capture)
        assert places_of(capture.store, site.root, SECRET) == []
        assert places_of(capture.store, site.root, "is found")
