"""Every kind of table is captured as it is, or refused before its owner's own writes would fail."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from cdc.source import Level
from cdc.verify import TopicComparison
from eventstore.state import state
from tailrace.embedded import PostgresServer
from tests.fixtures.servers import drop_database
from tests.support.capturing import RunningCapture, Site, execute, query, table, wait_until

pytestmark = pytest.mark.timeout(120)

# Incompressible, so that it is stored out of line and an UPDATE of another column does not send it.
LONG = "(SELECT string_agg(gen_random_uuid()::text, '') FROM generate_series(1, 120))"

TABLES = (
    "CREATE TABLE bag (a int, b text, c double precision, tags text[])",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "INSERT INTO bag SELECT i % 3, CASE WHEN i % 3 > 0 THEN 'early' END, 'NaN', '{x,NULL}'"
    " FROM generate_series(1, 30) i",
)


@pytest.fixture(scope="module")
def running(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCapture]:
    """One capture for the whole module; each test has tables of its own."""
    name = f"tables_{secrets.token_hex(4)}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    site = Site.at(tmp_path_factory.mktemp("tables"), postgres.dsn(name))
    execute(site.dsn, *TABLES)
    site.init()
    with RunningCapture(site) as capture:
        capture.catch_up()
        yield capture
    drop_database(postgres, name)


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    return Site.at(store_dir, database)


def compared(capture: RunningCapture, name: str) -> TopicComparison:
    (found,) = capture.site.verify(table(name))
    assert found.equal, found
    return found


def logged(capture: RunningCapture, name: str) -> list[tuple[object, ...]]:
    """The rows of the topic's state, without their places in the log."""
    topic = table(name)
    found = []
    for part in state(capture.store, topic, capture.store.cut(), on_unreadable="text"):
        columns = [column for column in part.column_names if not column.startswith("_")]
        found += [tuple(row[column] for column in columns) for row in part.to_pylist()]
    return sorted(found, key=repr)


def test_a_table_without_a_key_is_a_bag_of_rows(running: RunningCapture) -> None:
    execute(
        running.site.dsn,
        "INSERT INTO bag VALUES (1, 'twice', 0.5, NULL), (1, 'twice', 0.5, NULL), (NULL, NULL, NULL, NULL),"
        " (NULL, NULL, NULL, NULL), (7, '', '-0', '{}')",
        "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = 0 LIMIT 4)",
        "UPDATE bag SET b = 'touched' WHERE ctid IN (SELECT ctid FROM bag WHERE a = 1 AND b = 'early' LIMIT 3)",
        "UPDATE bag SET b = b WHERE a = 2",
        f"INSERT INTO bag SELECT 9, {LONG}, 1, NULL",
        "INSERT INTO bag SELECT * FROM bag WHERE a = 9",
        "UPDATE bag SET a = 10 WHERE a = 9",
    )
    running.catch_up()
    assert compared(running, "bag").source_rows == 33
    counted = query(
        running.site.dsn, "SELECT a::text, left(b, 9), count(*) FROM bag GROUP BY 1, 2 ORDER BY 1, 2"
    )
    found = [(a, None if b is None else str(b)[:9]) for a, b, _, _ in logged(running, "bag")]
    assert sorted([(*row, found.count(row)) for row in set(found)], key=repr) == sorted(counted, key=repr)
    execute(running.site.dsn, "TRUNCATE bag", "INSERT INTO bag VALUES (1), (1)")
    running.catch_up()
    assert compared(running, "bag").source_rows == 2
    execute(running.site.dsn, "ALTER TABLE bag ADD COLUMN later int DEFAULT 5", "INSERT INTO bag VALUES (1)")
    running.catch_up()
    wait_until(
        lambda: running.store.topic(table("bag")).complete_since is not None, alive=lambda: running.running
    )
    assert compared(running, "bag").source_rows == 3


def test_a_table_without_identity_is_refused_with_the_statement_that_mends_it(site: Site) -> None:
    execute(site.dsn, "CREATE TABLE keyless (a int)", "CREATE TABLE fine (id int PRIMARY KEY)")
    (finding,) = [found for found in site.init(dry_run=True).findings if found.level is Level.SKIPPED]
    assert finding.subject == "public.keyless"
    assert 'ALTER TABLE "public"."keyless" REPLICA IDENTITY FULL' in finding.hint
