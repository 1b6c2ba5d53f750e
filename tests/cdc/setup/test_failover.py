"""A standby takes the source's place: capture goes on when nothing is missing there, else says what is."""

# ruff: noqa: S608 (statements are put together from names of our own)

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tailrace.cdc.postgres.errors import SlotLost
from tailrace.cdc.repair.report import TopicRepair
from tailrace.cdc.setup.continuity import Mismatch
from tailrace.embedded import PostgresServer
from tests.fixtures.proxy import Proxy
from tests.fixtures.servers import ServerFactory
from tests.support.capturing import (
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    execute,
    init_and_load,
    query,
    rows,
    table,
    wait_until,
)
from tests.support.standby import LINK, promote, start_standby, wait_until_replayed

LAST = 1001  # the row by which a capture is seen to go on
SCHEMA = (
    "CREATE TABLE public.items (id int PRIMARY KEY, n int)",
    "INSERT INTO public.items SELECT i, 0 FROM generate_series(1, 20) i",
)


@pytest.fixture
def primary(postgres_server: ServerFactory) -> PostgresServer:
    server = postgres_server()
    execute(server.dsn(), *SCHEMA)
    return server


@pytest.fixture
def site(primary: PostgresServer, store_dir: Path) -> Site:
    made = Site.at(store_dir, primary.dsn())
    init_and_load(made)
    return made


def insert(dsn: str, first: int, last: int) -> None:
    """One transaction per row."""
    execute(dsn, *(f"INSERT INTO public.items VALUES ({number}, 1)" for number in range(first, last + 1)))


def captured_ids(site: Site) -> list[int]:
    """The ids of rows that the stream brought, in order, but the last one."""
    with site.open() as store:
        found = sorted(rows(store, table("items")), key=lambda row: (row["_lsn"], row["_ordinal"]))
    return [row["key"]["id"] for row in found if row["_op"] == "c" and row["key"]["id"] < LAST]


def assert_goes_on(site: Site) -> None:
    with RunningCapture(site) as capture:
        insert(site.dsn, LAST, LAST)
        capture.catch_up()
        execute(site.dsn, f"DELETE FROM public.items WHERE id = {LAST}")
        capture.catch_up()
        assert_equals_source(site)
        assert_sound(capture.store)


def replication_command(dsn: str, command: str) -> None:
    """As ``psql "… replication=database" -c …`` sends it."""
    with psycopg.connect(dsn, replication="database", autocommit=True) as connection:
        connection.pgconn.exec_(command.encode())


@pytest.mark.servers  # the standby's slot is synchronized now and then: it takes its time
def test_a_running_capture_follows_its_failover_slot_to_the_promoted_standby(
    primary: PostgresServer, postgres_server: ServerFactory, site: Site
) -> None:
    """The primary dies. It sent capture nothing that the standby had not confirmed, so the standby lacks nothing."""
    standby = start_standby(primary, postgres_server, sync_replication_slots="on", primary_slot_name=LINK)
    execute(
        primary.dsn(),
        f"ALTER SYSTEM SET synchronized_standby_slots = '{LINK}'",
        "SELECT pg_reload_conf()",
    )
    replication_command(primary.dsn(), "ALTER_REPLICATION_SLOT acme_shop (FAILOVER true)")
    ready = (
        "SELECT synced AND NOT temporary AND failover FROM pg_replication_slots WHERE slot_name = 'acme_shop'"
    )
    with (
        closing(Proxy(primary.port)) as proxy,
        RunningCapture(Site.at(site.root, proxy.dsn(primary.dsn()))) as capture,
    ):
        insert(primary.dsn(), 101, 120)
        capture.catch_up()

        def synchronized() -> bool:
            execute(primary.dsn(), "SELECT pg_log_standby_snapshot()")  # what it waits for
            return query(standby.dsn(), ready) == [(True,)]

        wait_until(synchronized, 180)  # it sleeps for up to half a minute between its looks
        insert(primary.dsn(), 121, 140)
        wait_until_replayed(primary, standby)
        primary.kill()
        proxy.lead_to(standby.port)
        wait_until(lambda: any("is a standby" in text for text in capture.status.messages))
        promote(standby)
        insert(standby.dsn(), 141, 160)
        capture.catch_up()
        assert_sound(capture.store)
    assert captured_ids(site) == list(range(101, 161))
    assert_goes_on(Site.at(site.root, standby.dsn()))


def test_a_slot_made_on_the_standby_carries_capture_over_a_planned_failover(
    primary: PostgresServer, postgres_server: ServerFactory, site: Site
) -> None:
    """Version 16 and later, without failover slots. The primary is stopped in order, so both receive all it wrote."""
    standby = start_standby(primary, postgres_server, primary_slot_name=LINK)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(
            execute, standby.dsn(), "SELECT pg_create_logical_replication_slot('acme_shop', 'pgoutput')"
        )
        while not made.done():  # it waits for a record that says which transactions run
            execute(primary.dsn(), "SELECT pg_log_standby_snapshot()")
        made.result()
    with RunningCapture(site) as capture:
        insert(primary.dsn(), 101, 120)
        capture.catch_up()
        insert(primary.dsn(), 121, 140)
        primary.stop()
        capture.forgive()
    promote(standby)
    insert(standby.dsn(), 141, 160)
    promoted = Site.at(site.root, standby.dsn())
    assert_goes_on(promoted)
    assert captured_ids(site) == list(range(101, 161))


@pytest.mark.servers
def test_a_promoted_standby_without_the_slot_is_refused_also_with_one_made_too_late(
    primary: PostgresServer, postgres_server: ServerFactory, site: Site
) -> None:
    """It lacks nothing, but what was committed before its slot began would be missing from the stream."""
    standby = start_standby(primary, postgres_server, primary_slot_name=LINK)
    with RunningCapture(site) as capture:
        insert(primary.dsn(), 101, 110)
        capture.catch_up()
        primary.stop()
        capture.forgive()
    promote(standby)
    insert(standby.dsn(), 111, 120)
    promoted = Site.at(site.root, standby.dsn())
    missing = promoted.capture_error()
    assert isinstance(missing, SlotLost) and "source repair" in missing.hint
    query(standby.dsn(), "SELECT pg_create_logical_replication_slot('acme_shop', 'pgoutput')")
    late = promoted.capture_error()
    assert isinstance(late, Mismatch) and "was confirmed up to" in late.message
    assert "source repair" in late.hint
    assert promoted.repair().topics == (TopicRepair(table("items"), rows=40, added=10),)
    assert_goes_on(promoted)


def test_a_promoted_standby_that_lacks_what_the_log_has_is_refused_and_repaired(
    primary: PostgresServer, postgres_server: ServerFactory, site: Site
) -> None:
    standby = start_standby(primary, postgres_server, primary_slot_name=LINK)
    promoted = Site.at(site.root, standby.dsn())
    wait_until_replayed(primary, standby)
    standby.stop()
    with RunningCapture(site) as capture:
        insert(primary.dsn(), 101, 120)
        capture.catch_up()
    primary.kill()
    standby.start()
    promote(standby)
    insert(standby.dsn(), 201, 220)
    behind = promoted.capture_error()
    assert isinstance(behind, Mismatch) and "source repair" in behind.hint
    assert "timeline 2, which left that one at" in behind.message or "ends at" in behind.message
    assert promoted.repair().topics == (TopicRepair(table("items"), rows=40, added=20, deleted=20),)
    assert_goes_on(promoted)
