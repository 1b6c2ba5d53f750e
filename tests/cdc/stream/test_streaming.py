"""Protocol version 2 against a real server: large transactions are streamed before their commit, and what reaches the
log is what version 1 brings."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from tailrace.eventstore.store import Store
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
)
from tests.support.plaintext import nameless_files, places_of

SMALL_MEMORY = "options=-c%20logical_decoding_work_mem%3D64kB"
"""The server streams a transaction as soon as its changes exceed this."""
LONG = "(SELECT string_agg(gen_random_uuid()::text, '') FROM generate_series(1, 200))"


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    workload.create_tables(database)
    plain = Site.at(store_dir, database, tables=workload.PATTERNS)
    plain.init()
    return plain.with_settings(
        protocol=2, dsn=SecretStr(f"{database}?{SMALL_MEMORY}"), queue_bytes=262144, epoch_bytes=262144
    )


def streamed_count(site: Site) -> int:
    """How many transactions the server has streamed, as far as its statistics know by now."""
    return int(query(site.dsn, "SELECT stream_txns FROM pg_stat_replication_slots")[0][0])


def write_secrets(connection: psycopg.Connection[tuple[object, ...]], first: int, last: int) -> None:
    connection.execute(
        f"INSERT INTO people SELECT i, '{SECRET}' || i, '{SECRET}', repeat('{SECRET}', 250), i"  # noqa: S608
        " FROM generate_series(%s::int, %s::int) i",
        [first, last],
    )


def changes(store: Store, name: str) -> list[dict[str, object]]:
    """Streamed rows in the order of their transaction, without where this log has them."""
    found = [
        {name: cell for name, cell in row.items() if name not in ("_epoch", "_offset")}
        for row in rows(store, table(name))
        if row["_op"] != "r"
    ]
    return sorted(found, key=lambda row: row["_ordinal"])


def fill(connection: psycopg.Connection[tuple[object, ...]], first: int, last: int) -> None:
    connection.execute(
        "INSERT INTO public.customers (id, name, note) SELECT i, 'n' || i, repeat('x', 100)"
        " FROM generate_series(%s::int, %s::int) i",
        [first, last],
    )


@pytest.mark.versions
def test_interleaved_transactions_savepoints_toast_and_ddl_arrive_as_with_version_1(site: Site) -> None:
    with RunningCapture(site) as capture, psycopg.connect(site.dsn) as one, psycopg.connect(site.dsn) as two:
        connected(capture, site)
        execute(site.dsn, f"INSERT INTO public.customers (id, name, note) SELECT 0, 'long', {LONG}")
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
        capture.wait_until(lambda: streamed_count(site) >= 2)
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
        capture.wait_until(lambda: streamed_count(site) >= 1)
        ((pid,),) = connected(capture, site)
        query(site.dsn, f"SELECT pg_terminate_backend({pid}, 10000)")
        fill(one, 2001, 3500)
        one.commit()
        capture.catch_up()
        assert len(rows(capture.store, table("customers"))) == 3000
        assert_equals_source(site)
        assert_sound(capture.store)


@pytest.mark.versions
@pytest.mark.parametrize("protocol", [1, 2])
def test_a_prepared_transaction_comes_whole_when_it_is_committed(site: Site, protocol: int) -> None:
    """One whose changes the server streams, and one that fits; one is rolled back after it was prepared."""
    with RunningCapture(site.with_settings(protocol=protocol)) as capture:
        connected(capture, site)
        for number, name, last in ((1, "large", 1500), (2001, "small", 2003), (4001, "dropped", 5500)):
            with psycopg.connect(site.dsn) as one:
                fill(one, number, last)
                one.execute(f"PREPARE TRANSACTION '{name}'".encode())
        execute(site.dsn, "INSERT INTO public.orders SELECT 1, 1, 1, NULL, '{}'")
        capture.catch_up()
        assert rows(capture.store, table("customers")) == [], "nothing is committed yet"
        execute(site.dsn, "COMMIT PREPARED 'small'", "ROLLBACK PREPARED 'dropped'", "COMMIT PREPARED 'large'")
        capture.catch_up()
        found = rows(capture.store, table("customers"))
        assert sorted(row["key"]["id"] for row in found) == [*range(1, 1501), *range(2001, 2004)]
        assert len({row["_lsn"] for row in found}) == len({row["_txn"] for row in found}) == 2
        assert_equals_source(site)
        assert_sound(capture.store)


SECRET = "Zq7xVn2w"  # every protected value begins with it


def test_protected_columns_of_a_streamed_transaction_are_in_nameless_files_alone_and_arrive_as_with_version_1(
    site: Site, tmp_path: Path
) -> None:
    execute(
        site.dsn,
        "CREATE TABLE public.people (id int PRIMARY KEY, email text, phone text, letter text, n int)",
        "CREATE TABLE unseen (id int PRIMARY KEY, letter text)",  # only the stream describes it
        f"INSERT INTO people SELECT 0, 'old', 'old', {LONG}",
    )
    policies = {
        "public.people.email": "hash", "public.people.phone": "drop", "*.*.letter": "hash", "*.*.late": "truncate:2",
    }  # fmt: skip
    key = "a key that only this test knows"
    streaming = site.with_settings(tables=("public.*",), columns=policies, hash_key=key)
    whole = Site.at(tmp_path / "whole", site.dsn, name="whole", columns=policies, hash_key=key)
    streaming.init()
    whole.init()
    with (
        RunningCapture(streaming) as capture,
        RunningCapture(
            whole,
        ) as other,
        psycopg.connect(site.dsn) as one,
    ):
        connected(capture, site)
        other.catch_up()
        write_secrets(one, 1, 400)
        one.execute("SAVEPOINT a")
        write_secrets(one, 2001, 2400)
        one.execute("ROLLBACK TO a")
        one.execute("UPDATE people SET n = n + 1 WHERE id = 0")  # TOAST, not sent
        one.execute(f"ALTER TABLE people ADD COLUMN late text DEFAULT '{SECRET}'")
        one.execute("ALTER TABLE people RENAME COLUMN email TO mail")
        write_secrets(one, 401, 800)
        one.execute(f"INSERT INTO unseen SELECT i, '{SECRET}' || i FROM generate_series(1, 2000) i")  # noqa: S608
        capture.wait_until(lambda: sum(map(len, nameless_files(capture.store.spool))) > 800_000)
        assert places_of(capture.store, site.root, SECRET) == []
        one.commit()
        for each in (capture, other):
            each.catch_up()
            assert_sound(each.store)
            assert_equals_source(each.site)
        assert nameless_files(capture.store.spool) == [], "closed at the commit"
        assert places_of(capture.store, site.root, SECRET) == []
        for name, count in (("people", 801), ("unseen", 2000)):
            assert changes(capture.store, name) == changes(other.store, name)
            assert len(changes(capture.store, name)) == count
