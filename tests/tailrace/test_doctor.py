"""Each thing that will bite a source is found by doctor before it does, with what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.doctor.check import Check
from tailrace.doctor.doctor import check_quarantine, check_source
from tailrace.doctor.slots import check_catalog_place, check_slots
from tailrace.embedded import PostgresServer
from tailrace.embedded.process import free_port
from tailrace.eventstore import failpoints
from tailrace.eventstore.metadata.quarantine import quarantined_topics
from tailrace.eventstore.settings import SinkSettings
from tailrace.projections.sinks.postgres.sink import PostgresSink
from tailrace.projections.sinks.specs import PostgresTable
from tests.projections.sinks.sink_data import fill, target
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
            *check_source(store, SOURCE, site.settings),
            *check_slots(store, [SOURCE], SOURCE, site.settings),
            *check_quarantine(store, SOURCE),
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


def test_a_sink_inside_the_publication(site: Site) -> None:
    sink = PostgresSink(PostgresTable("mart", "totals"), SinkSettings(kind="postgres", dsn=site.dsn))
    fill(sink, target(1), [])
    execute(site.dsn, "CREATE PUBLICATION acme_shop FOR ALL TABLES")
    check = found(site, "publication acme_shop")
    assert check.verdict == "fail" and "capturing it would never end" in check.found
    assert (
        "what Tailrace writes in public" in check.found
        and "keep catalog and sinks in another database" in check.remedy
    )


def test_a_table_that_was_set_aside(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.init()
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse("table_decoded=shop.public.orders"))
    with RunningCapture(site) as capture:
        capture.catch_up()
        execute(site.dsn, "INSERT INTO orders VALUES (2, 'a secret')")
        wait_until(lambda: quarantined_topics(capture.store.catalog) != [], alive=lambda: capture.running)
    check = found(site, "shop.public.orders")
    assert (
        check.verdict == "warn" and "its rows could not be built (Refused); 1 message stored" in check.found
    )
    assert "tailrace source retry shop.public.orders" in check.remedy


def test_a_publication_that_loses_changes(site: Site) -> None:
    execute(site.dsn, "CREATE PUBLICATION acme_shop FOR TABLE orders WITH (publish = 'insert, update')")
    check = found(site, "publication acme_shop")
    assert check.verdict == "fail" and check.found == "it does not publish delete, truncate"
    execute(site.dsn, check.remedy)
    with site.open() as store:
        assert [each for each in check_source(store, SOURCE, site.settings) if each.verdict == "fail"] == []


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
    (check,) = check_catalog_place("sqlite", "db.example", "10.0.0.5", "catalog")
    assert check.verdict == "warn" and "db.example" in check.found and "store.catalog" in check.remedy
    for kind, host, address in (
        ("postgres", "db.example", "10.0.0.5"), ("sqlite", "localhost", "127.0.0.1"), ("sqlite", "localhost", "::1"),
        ("sqlite", "/run/postgresql", ""),
    ):  # fmt: skip
        assert list(check_catalog_place(kind, host, address, "catalog")) == []


@pytest.fixture(params=["session", "transaction"])
def pooler(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[int]:
    """Port of a pgbouncer in front of the session's server."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None, "make test-servers installs it"
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="pooler-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "users").write_text('"postgres" ""\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={postgres.port} user=postgres\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"auth_file = {folder}/users\npool_mode = {request.param}\n"
        )
        other_user = ["-u", "nobody"] if os.getuid() == 0 else []  # it refuses to be root
        process = subprocess.Popen(
            [program, "-q", *other_user, str(folder / "pgbouncer.ini")], stderr=subprocess.DEVNULL
        )
        try:
            yield port
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.servers
def test_a_pooler_in_front_of_the_server(site: Site, pooler: int, postgres: PostgresServer) -> None:
    pooled = Site.at(site.root, site.dsn.replace(f":{postgres.port}/", f":{pooler}/"))

    def answers() -> bool:
        try:
            return query(pooled.dsn, "SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    wait_until(answers)
    with pooled.open() as store:
        (refused,) = check_source(store, SOURCE, pooled.settings)
        assert refused.verdict == "fail" and "a connection pooler answered" in refused.found
        assert "the server's own host and port" in refused.remedy
    assert "a pooler or proxy answers" in found_by_slots(pooled, "address").found
    with site.open() as store:
        direct = list(check_slots(store, [SOURCE], SOURCE, site.settings))
    assert [each for each in direct if each.subject == "source shop address"] == []


def found_by_slots(site: Site, subject: str) -> Check:
    with site.open() as store:
        checks = check_slots(store, [SOURCE], SOURCE, site.settings)
        (check,) = [each for each in checks if each.subject == f"source shop {subject}"]
    return check
