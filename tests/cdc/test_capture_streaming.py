"""Protocol version 2 against a real server: large transactions are streamed before their commit, and what reaches the
log is what version 1 brings."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr, ValidationError

from eventstore.errors import UsageError
from eventstore.settings import SourceSettings
from tests.support import workload
from tests.support.capturing import (
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    connected,
    execute,
    query,
    rows,
    table,
    wait_until,
)

pytestmark = pytest.mark.timeout(240)
SMALL_MEMORY = "options=-c%20logical_decoding_work_mem%3D64kB"
"""The server streams a transaction as soon as its changes exceed this."""


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    workload.create_tables(database)
    plain = Site.at(store_dir, database, tables=workload.PATTERNS)
    plain.init()
    return plain.with_settings(
        protocol=2, dsn=SecretStr(f"{database}?{SMALL_MEMORY}"), queue_bytes=262144, epoch_bytes=262144
    )


def streamed(site: Site) -> int:
    """How many transactions the server has streamed, as far as its statistics know by now."""
    return int(query(site.dsn, "SELECT stream_txns FROM pg_stat_replication_slots")[0][0])


def fill(connection: psycopg.Connection[tuple[object, ...]], first: int, last: int) -> None:
    connection.execute(
        "INSERT INTO public.customers (id, name, note) SELECT i, 'n' || i, repeat('x', 100)"
        " FROM generate_series(%s::int, %s::int) i",
        [first, last],
    )


@pytest.mark.versions
def test_interleaved_transactions_savepoints_toast_and_ddl_arrive_as_with_version_1(site: Site) -> None:
    long = "(SELECT string_agg(gen_random_uuid()::text, '') FROM generate_series(1, 200))"
    with RunningCapture(site) as capture, psycopg.connect(site.dsn) as one, psycopg.connect(site.dsn) as two:
        connected(capture, site)
        execute(site.dsn, f"INSERT INTO public.customers (id, name, note) SELECT 0, 'long', {long}")
        fill(one, 1, 1500)
        fill(two, 10001, 11500)
        one.execute("SAVEPOINT a")
        fill(one, 2001, 3500)
        one.execute("SAVEPOINT b")
        fill(one, 4001, 5500)
        one.execute("ROLLBACK TO a")
        one.execute("UPDATE public.customers SET name = 'touched' WHERE id = 0")
        one.execute("ALTER TABLE public.full_identity ADD COLUMN level int DEFAULT 7")
        one.execute(
            "INSERT INTO public.full_identity (id, body, n) SELECT i, 'b', i FROM generate_series(1, 1500) i"
        )
        execute(site.dsn, "INSERT INTO public.orders SELECT 1, 1, 1, NULL, '{}'")
        fill(two, 12001, 13500)
        two.commit()
        one.commit()
        with psycopg.connect(site.dsn) as three:
            fill(three, 20001, 22000)
            three.rollback()
        capture.catch_up()
        wait_until(lambda: streamed(site) >= 2, alive=lambda: capture.running)
        assert_equals_source(site)
        assert_sound(capture.store)
        found = rows(capture.store, table("customers"))
        assert len([row for row in found if row["_op"] != "r"]) == 1500 + 3000 + 2
        assert [row["_unchanged"] for row in found if row["_op"] == "u"] == [[6]]
        per_transaction = {row["_txn"]: set[int]() for row in found}
        for row in found:
            per_transaction[row["_txn"]].add(row["_epoch"])
        assert all(len(epochs) == 1 for epochs in per_transaction.values())
        assert capture.store.schemas(table("full_identity"))[-1].version == 2


@pytest.mark.versions
def test_a_streamed_transaction_is_begun_again_after_a_reconnect(site: Site) -> None:
    with RunningCapture(site) as capture, psycopg.connect(site.dsn) as one:
        connected(capture, site)
        fill(one, 1, 1500)
        execute(site.dsn, "SELECT pg_logical_emit_message(true, 'mark', '')")
        ((pid,),) = connected(capture, site)
        query(site.dsn, f"SELECT pg_terminate_backend({pid}, 10000)")
        fill(one, 2001, 3500)
        one.commit()
        capture.catch_up()
        assert len(rows(capture.store, table("customers"))) == 3000
        assert_equals_source(site)
        assert_sound(capture.store)


@pytest.mark.parametrize("policy", ["drop", "truncate:2"])
def test_a_source_with_protected_columns_is_refused_for_its_raw_rows_would_reach_the_disk(
    policy: str,
) -> None:
    with pytest.raises(ValidationError, match="protocol = 2 keeps rows on disk"):
        SourceSettings(dsn=SecretStr("dbname=x"), columns={"a.b.c": policy}, protocol=2)
    assert SourceSettings(dsn=SecretStr("dbname=x"), columns={"a.b.c": "plain"}, protocol=2).protocol == 2


def test_protection_that_the_configuration_forgot_still_refuses(site: Site) -> None:
    protected = site.with_settings(protocol=1, columns={"public.customers.name": "truncate:2"})
    protected.init()
    with RunningCapture(protected) as capture:
        capture.catch_up()
    with RunningCapture(site) as capture:
        error = capture.ended()
        assert isinstance(error, UsageError) and "protected columns" in error.message
        capture.forgive()
