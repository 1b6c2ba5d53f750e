"""Capture as a user with the least privileges: the scripts of docs/capture/setting-up-a-source.md, run as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tailrace.cdc.postgres.connect import Address
from tailrace.cdc.postgres.progress import read_ladder
from tailrace.cdc.setup.prepare import prepare_source
from tailrace.cdc.stream.requests import SNAPSHOT
from tailrace.doctor.doctor import check_source
from tailrace.doctor.slots import check_slots
from tailrace.embedded import PostgresServer
from tailrace.eventstore.catalog.requests import RequestState
from tailrace.eventstore.errors import OperatorError
from tests.fixtures.servers import FAST_SETTINGS
from tests.support import REPOSITORY
from tests.support.capturing import (
    SOURCE,
    RunningCapture,
    Site,
    assert_equals_source,
    execute,
    query,
    table,
    wait_until,
)

PAGE = REPOSITORY / "docs" / "capture" / "setting-up-a-source.md"
OTHERS, ITS_OWN = re.findall(r"```sql\n(CREATE ROLE tailrace .*?)```", PAGE.read_text(), re.S)
SHOP = """
CREATE ROLE shop_owner;
GRANT CREATE ON DATABASE shop TO shop_owner;
GRANT CREATE ON SCHEMA public TO shop_owner;
SET ROLE shop_owner;
CREATE TABLE customers (id bigint PRIMARY KEY, name text);
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint);
INSERT INTO customers SELECT n, 'c' || n FROM generate_series(1, 50) n;
INSERT INTO orders SELECT n, n FROM generate_series(1, 50) n;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(settings=FAST_SETTINGS, trust=True) as started:
        yield started


@pytest.fixture
def admin(server: PostgresServer) -> Iterator[str]:
    """DSN of a superuser for database ``shop``, in which ``shop_owner`` has two tables; nobody may do what is not
    granted."""
    execute(server.dsn(), "CREATE DATABASE shop", "REVOKE ALL ON DATABASE shop FROM PUBLIC")
    run(server.dsn("shop"), SHOP)
    try:
        yield server.dsn("shop")
    finally:
        execute(
            server.dsn(),
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
            "DROP DATABASE shop WITH (FORCE)",
            "DROP ROLE IF EXISTS tailrace",
            "DROP ROLE shop_owner",
        )


def run(dsn: str, script: str) -> None:
    """A script, as psql would run it: statement by statement."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in filter(str.strip, script.split(";")):
            connection.execute(sql.SQL(statement))


@pytest.mark.parametrize(
    "script", [OTHERS, ITS_OWN], ids=["publication of another role", "publication of its own"]
)
def test_everything_works_with_what_the_script_grants(admin: str, store_dir: Path, script: str) -> None:
    run(admin, script)
    site = Site.at(store_dir, admin.replace("postgres@", "tailrace@"))
    attributes = (
        "SELECT rolsuper, rolcreatedb, rolcreaterole, rolbypassrls FROM pg_roles WHERE rolname = current_user"
    )
    assert query(site.dsn, attributes) == [(False, False, False, False)]
    site.init()
    others = script is OTHERS
    with RunningCapture(site) as capture:
        capture.catch_up()
        run(
            admin,
            "SET ROLE shop_owner; UPDATE orders SET customer_id = 1; CREATE TABLE later (id int PRIMARY KEY)",
        )
        run(admin, "SET ROLE shop_owner; INSERT INTO later SELECT generate_series(1, 20)")
        if others:
            (finding,) = [each for each in site.init(dry_run=True).findings if each.subject == "public.later"]
            assert "belongs to shop_owner" in finding.what
            run(admin, f"SET ROLE shop_owner; {finding.hint.removeprefix('as shop_owner: ')}")
        site.init()
        with site.open() as store:
            wait_until(lambda: all(each.complete_since is not None for each in store.topics(SOURCE)))
            assert table("later") in {each.id for each in store.topics(SOURCE)}
            (request,) = store.requests.ask(SNAPSHOT, [table("orders")])
            wait_until(lambda: store.requests.get([request.id])[0].state is RequestState.DONE)
        assert_equals_source(site, [("public", "customers"), ("public", "orders"), ("public", "later")])
    execute(admin, "SELECT pg_drop_replication_slot('acme_shop')", "DELETE FROM customers WHERE id = 7")
    repaired = site.repair()
    assert {each.topic.parts[-1]: each.deleted for each in repaired.topics}["customers"] == 1
    with site.open() as store:
        known = store.source(SOURCE)
        assert known is not None
        assert read_ladder(Address.of(site.settings), known.slot, known.through_lsn).slot_state != "missing"
        checks = [
            *check_source(store, SOURCE, site.settings),
            *check_slots(store, [SOURCE], SOURCE, site.settings),
        ]
        assert [each for each in checks if each.verdict == "fail"] == []


MISSING = {
    "ALTER ROLE tailrace NOREPLICATION": 'ALTER ROLE "tailrace" REPLICATION',
    "ALTER ROLE tailrace NOLOGIN": "ALTER ROLE <user> LOGIN",
    "REVOKE CONNECT ON DATABASE shop FROM tailrace": "GRANT CONNECT ON DATABASE",
    "REVOKE CREATE ON DATABASE shop FROM tailrace, shop_owner": 'GRANT CREATE ON DATABASE "shop" TO "tailrace"',
    "REVOKE shop_owner FROM tailrace": 'GRANT "shop_owner" TO "tailrace"',
    "REVOKE SELECT ON orders FROM tailrace": 'GRANT SELECT ON "public"."orders" TO "tailrace"',
    "REVOKE USAGE ON SCHEMA public FROM tailrace; REVOKE USAGE ON SCHEMA public FROM PUBLIC": (
        'GRANT USAGE ON SCHEMA "public" TO "tailrace"'
    ),
}


def test_each_privilege_that_is_missing_is_named_with_its_grant(admin: str, store_dir: Path) -> None:
    site = Site.at(store_dir, admin.replace("postgres@", "tailrace@"))
    for revoked, grant in MISSING.items():
        script = OTHERS if "SELECT" in revoked or "USAGE" in revoked else ITS_OWN
        run(admin, script + ";" + revoked)
        with site.open() as store, pytest.raises(OperatorError) as raised:
            prepare_source(store, SOURCE, site.settings)
        assert grant in str(raised.value), f"{revoked}: {raised.value}"
        with site.open() as store:
            assert store.source(SOURCE) is None, "nothing is written before"
        run(admin, "DROP PUBLICATION IF EXISTS acme_shop; DROP OWNED BY tailrace; DROP ROLE tailrace")
        run(admin, "GRANT USAGE ON SCHEMA public TO PUBLIC; GRANT CREATE ON DATABASE shop TO shop_owner")


def test_a_privilege_that_goes_while_it_is_needed_is_named(admin: str, store_dir: Path) -> None:
    """Between ``init`` and the first load, which stops; and for marks of a load by chunks, which is tried again."""
    run(admin, OTHERS)
    site = Site.at(store_dir, admin.replace("postgres@", "tailrace@"))
    site.init()
    execute(admin, "REVOKE SELECT ON customers FROM tailrace")
    error = site.capture_error()
    assert isinstance(error, OperatorError) and "GRANT SELECT ON" in error.hint and "customers" in error.hint
    execute(admin, "GRANT SELECT ON customers TO tailrace")
    emit = "FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea, boolean)"
    execute(admin, f"REVOKE EXECUTE ON {emit} FROM PUBLIC")
    with RunningCapture(site) as capture:
        capture.catch_up()
        (request,) = capture.store.requests.ask(SNAPSHOT, [table("orders")])
        grant = "GRANT EXECUTE ON FUNCTION pg_logical_emit_message"
        capture.wait_until(lambda: any(grant in message for message in capture.status.messages))
        execute(admin, f"GRANT EXECUTE ON {emit} TO PUBLIC")
        wait_until(lambda: capture.store.requests.get([request.id])[0].state is RequestState.DONE)
