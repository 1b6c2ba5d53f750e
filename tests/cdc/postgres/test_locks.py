"""Whatever is done beside them, transactions of the source are never ended by Postgres as a deadlock with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tailrace.cdc.postgres import locks
from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.ddl_trigger import install_trigger
from tailrace.cdc.postgres.locks import Lock, lock_together
from tailrace.cdc.repair.position import Patience
from tailrace.cdc.setup.prepare import install_events
from tailrace.cdc.snapshot.chunk_query import ChunkBounds, chunk, open_session, plan_ranges, read_keyset
from tailrace.cdc.snapshot.copy import TableChanged
from tailrace.eventstore.catalog.leases import capture_lease
from tailrace.eventstore.errors import TransientError
from tests.support.capturing import (
    Site,
    execute,
    init_and_load,
    query,
    wait_until,
)

pytestmark = pytest.mark.versions
PARTITIONED = (
    "CREATE TABLE root (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
    "CREATE TABLE first PARTITION OF root FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE second PARTITION OF root FOR VALUES FROM (10) TO (20)",
)
TABLES = ("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
APPEND = """SELECT tailrace.append_events('order', '1', -1,
 '[{"type": "x", "schema_version": 1, "data": {}, "metadata": {}, "event_id": "00000000-0000-0000-0000-000000000001"}]')
"""
WAITING = "SELECT count(*)::int FROM pg_locks WHERE NOT granted"


def assert_survives(dsn: str, first: str, work: Callable[[], object], second: str) -> None:
    """A transaction takes something, ``work`` begins beside it, then the transaction takes more: it is not ended, be it
    the one that looks for deadlocks, and work comes to its end."""
    with ThreadPoolExecutor(1) as pool, psycopg.connect(dsn) as user:
        user.execute("SET deadlock_timeout = '50ms'")
        user.execute("SET statement_timeout = '60s'")
        user.execute(first)
        done = pool.submit(work)
        try:
            wait_until(lambda: done.done() or query(dsn, WAITING) != [(0,)])
            user.execute(second)
        finally:
            user.rollback()
        done.result(60)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids=" then ".join)
def test_init_publishes_tables_that_a_migration_alters(site: Site, order: tuple[str, str]) -> None:
    execute(site.dsn, *TABLES)
    statements = [f"ALTER TABLE {name} ADD COLUMN x int" for name in order]
    assert_survives(site.dsn, statements[0], site.init, statements[1])
    assert query(site.dsn, "SELECT count(*) FROM pg_publication_tables") == [(2,)]


def test_init_looks_at_partitions_that_are_truncated(site: Site) -> None:
    execute(site.dsn, *PARTITIONED)
    assert_survives(site.dsn, "TRUNCATE second", lambda: site.init(dry_run=True), "TRUNCATE first")


def test_init_publishes_domain_events_that_a_migration_appends(site: Site) -> None:
    execute(site.dsn, TABLES[0])
    init_and_load(site)
    execute(site.dsn, TABLES[1])
    install_events(site.settings)
    assert_survives(site.dsn, "ALTER TABLE b ADD COLUMN x int", lambda: site.init(events=True), APPEND)


def test_init_gives_up_what_is_locked_for_long_and_changes_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.cdc.setup.prepare._LOCKED_SECONDS", 0.0)
    monkeypatch.setattr(locks, "_WAIT", "50ms")
    execute(site.dsn, *TABLES)
    with psycopg.connect(site.dsn) as user:
        user.execute("CREATE INDEX ON b (id)")
        with pytest.raises(TransientError, match=r"table public\.b is locked by another session"):
            site.init()
        user.rollback()
    assert query(site.dsn, "SELECT count(*) FROM pg_publication") == [(0,)]
    site.init()


def test_a_table_that_its_owner_may_not_lock_is_published_too(site: Site) -> None:
    execute(site.dsn, *TABLES, "DROP ROLE IF EXISTS auditor", "CREATE ROLE auditor")
    try:
        execute(
            site.dsn,
            "ALTER TABLE b OWNER TO auditor",
            "REVOKE ALL ON b FROM auditor",
            "GRANT USAGE ON SCHEMA public TO auditor",
        )
        with connect(Address.parse(site.dsn)) as connection, connection.transaction():
            connection.execute("SET LOCAL ROLE auditor")
            wanted = [Lock(("public", "b"), "SHARE UPDATE EXCLUSIVE")]
            lock_together(connection, Address.parse(site.dsn), wanted, 0.0)
            assert connection.execute("SHOW lock_timeout").fetchone() == ("200ms",)
    finally:
        execute(site.dsn, "DROP TABLE b", "REVOKE ALL ON SCHEMA public FROM auditor", "DROP ROLE auditor")


def test_the_ddl_trigger_is_installed_while_partitions_are_truncated(database: str) -> None:
    execute(database, *PARTITIONED)
    address = Address.parse(database)

    def install() -> None:
        with connect(address) as connection:
            install_trigger(connection, address)

    assert_survives(database, "TRUNCATE second", install, "TRUNCATE first")


def test_the_ddl_trigger_locks_no_partition_of_a_table_that_a_user_alters(database: str) -> None:
    """It runs in the user's transaction, which holds what it locks to its end."""
    execute(database, *PARTITIONED, "CREATE TABLE third (id int PRIMARY KEY, v int)")
    address = Address.parse(database)
    with connect(address) as connection:
        install_trigger(connection, address)
    with psycopg.connect(database) as user:
        user.execute("ALTER TABLE root ATTACH PARTITION third FOR VALUES FROM (20) TO (30)")
        held = user.execute(
            "SELECT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid()"
            " AND relation IN ('first'::regclass, 'second'::regclass)"
        ).fetchall()
        user.rollback()
    assert held == []


@pytest.mark.versions(since=15)
def test_a_chunk_is_read_beside_another_table_with_a_row_filter_that_is_truncated(database: str) -> None:
    execute(database, *TABLES, "CREATE PUBLICATION pub FOR TABLE a, b WHERE (id > 1)")
    address = Address.parse(database)

    def read() -> None:
        with (
            open_session(address) as session,
            chunk(session, address, "pub", relid(database, "a"), ("public", "a"), ChunkBounds(limit=10)),
        ):
            pass

    assert_survives(database, "TRUNCATE b", read, "TRUNCATE a")


def test_a_load_by_chunks_samples_no_partitions_that_are_truncated(database: str) -> None:
    execute(database, *PARTITIONED, "CREATE PUBLICATION pub FOR TABLE root WITH (publish_via_partition_root)")
    address = Address.parse(database)

    def plan() -> None:
        with open_session(address) as session:
            keyset = read_keyset(session, address, "pub", relid(database, "root"))
            assert keyset is not None
            with pytest.raises(TableChanged, match="is locked by another session"):
                plan_ranges(session, address, keyset, 2, 0)

    assert_survives(database, "TRUNCATE second", plan, "TRUNCATE first")


@pytest.mark.slow
def test_verify_locks_no_table_before_the_log_is_there(site: Site) -> None:
    """A TRUNCATE would wait for it as long, and all who read the table behind that."""
    execute(site.dsn, *TABLES)
    init_and_load(site)
    execute(site.dsn, "INSERT INTO a VALUES (1)")
    exported = "SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'tailrace load'"
    # One that captures, as far as anybody can tell, and does not go on.
    with site.open() as store, capture_lease(store.catalog, "shop"), ThreadPoolExecutor(1) as pool:
        verified = pool.submit(site.verify, patience=Patience(10.0))
        wait_until(lambda: query(site.dsn, exported) == [(1,)])
        time.sleep(0.5)  # for the locks that it is not to take: nothing tells of one that was not
        execute(site.dsn, "SET lock_timeout = '1s'; TRUNCATE a")
        assert isinstance(verified.exception(60), TransientError)


def relid(dsn: str, name: str) -> int:
    ((found,),) = query(dsn, f"SELECT '{name}'::regclass::oid::bigint")
    return int(found)
