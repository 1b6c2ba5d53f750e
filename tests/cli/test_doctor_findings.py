"""Each thing that will bite a source is found by doctor before it does, with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.checks import Check
from tailrace.doctor import of_source
from tailrace.doctor_slots import of_slots, one_machine
from tailrace.embedded import PostgresServer
from tests.support.capturing import SOURCE, RunningCapture, Site, execute, query, wait_until


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    execute(
        database, "CREATE TABLE orders (id int PRIMARY KEY, note text)", "INSERT INTO orders VALUES (1, 'a')"
    )
    return Site.at(store_dir, database)


def found(site: Site, subject: str) -> Check:
    with site.open() as store:
        checks = [
            *of_source(store, SOURCE, site.settings),
            *of_slots(store, [SOURCE], SOURCE, site.settings),
        ]
    (check,) = [each for each in checks if each.subject == f"source shop {subject}"]
    assert check.verdict != "ok" and check.remedy
    return check


def test_missing_privileges(postgres: PostgresServer, site: Site) -> None:
    role = site.dsn.rpartition("/")[2]
    execute(postgres.dsn(), f"CREATE ROLE {role} LOGIN")
    try:
        poor = Site.at(site.root, site.dsn.replace("postgres@", f"{role}@"))
        assert f'ALTER ROLE "{role}" REPLICATION' in found(poor, "server").remedy
        assert "GRANT CREATE ON DATABASE" in found(poor, "publication").remedy
    finally:
        execute(postgres.dsn(), f"DROP ROLE {role}")


def test_a_catalog_inside_the_publication(site: Site) -> None:
    inside = Site.at(site.root, site.dsn, catalog=site.dsn)
    inside.open().close()
    execute(site.dsn, "CREATE PUBLICATION acme_shop FOR ALL TABLES")
    check = found(inside, "publication acme_shop")
    assert check.verdict == "fail" and "capturing it would never end" in check.found
    assert "acme_log" in check.found and "keep catalog and sinks in another database" in check.remedy


def test_a_publication_that_loses_changes(site: Site) -> None:
    execute(site.dsn, "CREATE PUBLICATION acme_shop FOR TABLE orders WITH (publish = 'insert, update')")
    check = found(site, "publication acme_shop")
    assert check.verdict == "fail" and check.found == "it does not publish delete, truncate"
    execute(site.dsn, check.remedy)
    with site.open() as store:
        assert [each for each in of_source(store, SOURCE, site.settings) if each.verdict == "fail"] == []


def test_generated_columns_that_are_not_published(site: Site) -> None:
    columns = "id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED"
    if int(query(site.dsn, "SHOW server_version_num")[0][0]) >= 180000:
        columns += ", half int GENERATED ALWAYS AS (id / 2) VIRTUAL"
    execute(site.dsn, f"CREATE TABLE computed ({columns})")
    check = found(site, "public.computed")
    assert check.verdict == "warn" and check.found.startswith("generated columns are not captured: twice")
    assert ("half" in check.found) == ("half" in columns)


@pytest.fixture
def small_keep(postgres: PostgresServer) -> Iterator[None]:
    try:
        yield
    finally:
        execute(
            postgres.dsn(),
            "ALTER SYSTEM RESET max_slot_wal_keep_size",
            "SELECT pg_reload_conf()",
            "CHECKPOINT",
        )


@pytest.mark.usefixtures("small_keep")
def test_a_slot_that_was_invalidated(site: Site) -> None:
    site.init()
    with RunningCapture(site) as capture:
        capture.catch_up()
    execute(site.dsn, "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    for _ in range(3):
        execute(site.dsn, "INSERT INTO orders SELECT 1 + max(id), 'b' FROM orders", "SELECT pg_switch_wal()")

    def lost() -> bool:  # by a checkpoint that has seen the new setting
        execute(site.dsn, "CHECKPOINT")
        return query(
            site.dsn, "SELECT wal_status FROM pg_replication_slots WHERE database = current_database()"
        ) == [("lost",)]

    wait_until(lost)
    check = found(site, "slot")
    assert check.verdict == "fail" and "acme_shop was invalidated" in check.found
    assert "tailrace source repair" in check.remedy


def test_a_sqlite_catalog_beside_a_server_of_another_machine() -> None:
    (check,) = one_machine("sqlite", "db.example", "10.0.0.5", "catalog")
    assert check.verdict == "warn" and "db.example" in check.found and "store.catalog" in check.remedy
    for kind, host, address in (
        ("postgres", "db.example", "10.0.0.5"), ("sqlite", "localhost", "127.0.0.1"), ("sqlite", "localhost", "::1"),
        ("sqlite", "/run/postgresql", ""),
    ):  # fmt: skip
        assert list(one_machine(kind, host, address, "catalog")) == []
