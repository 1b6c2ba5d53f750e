"""First load and stream together hold exactly what the source holds, whatever is written, whenever."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.metadata.generations import InputNeed, NewGeneration
from tailrace.eventstore.model.topic import TopicId
from tests.support import workload
from tests.support.background import in_background
from tests.support.capturing import (
    SOURCE,
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    execute,
    init_and_capture,
    rows,
    table,
    wait_until,
)


@pytest.mark.versions
def test_first_load_and_stream_equal_the_source_under_concurrent_writes(site: Site) -> None:
    workload.write(site.dsn, seed=1, transactions=150)
    site.init()
    with workload.writing(site.dsn, seed=2, sessions=2, pause=0.002), RunningCapture(site) as capture:
        capture.wait_until(lambda: capture.status.transactions > 150)
        assert_equals_source(site, workload.TABLES)
        capture.wait_until(lambda: capture.status.transactions > 350)
        assert_equals_source(site)
        assert_sound(capture.store)


@pytest.mark.versions
def test_every_kind_of_change_arrives_as_what_it_was(site: Site) -> None:
    execute(site.dsn, "INSERT INTO public.customers VALUES (1, 'before', 1.50, NULL, NULL, NULL)")
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "INSERT INTO public.customers SELECT 2, 'new', NULL, NULL, NULL,"
            " string_agg(gen_random_uuid()::text, '') FROM generate_series(1, 200)",
            "UPDATE public.customers SET name = 'touched' WHERE id = 2",
            "UPDATE public.customers SET id = 3 WHERE id = 2",
            "DELETE FROM public.customers WHERE id = 1",
            "TRUNCATE public.customers",
            "SELECT pg_logical_emit_message(true, 'note', 'hello')",
            "SELECT pg_logical_emit_message(false, 'note', 'not transactional: not captured')",
        )
        capture.catch_up()
        found = sorted(
            rows(capture.store, table("customers")), key=lambda row: (row["_lsn"], row["_ordinal"])
        )
        changes = [(row["_op"], row["key"] and row["key"]["id"]) for row in found]
        truncates = capture.store.settings.partitions
        assert changes == [
            ("r", 1), ("c", 2), ("u", 2), ("d", 2), ("c", 3), ("d", 1), *[("t", None)] * truncates,
        ]  # fmt: skip
        assert found[2]["_unchanged"] == [6] and found[2]["after"]["note"] is None
        assert found[4]["_moved_from"] == {"id": 2}
        messages = rows(capture.store, TopicId.messages(SOURCE))
        assert [(row["_op"], row["after"]) for row in messages] == [
            ("m", {"prefix": "note", "content": b"hello"})
        ]
        assert_equals_source(site)


def test_a_renamed_column_is_reported_with_both_names_and_with_what_reads_its_table(site: Site) -> None:
    with init_and_capture(site) as capture:
        need = InputNeed(table("customers").text, "changes", 0)
        schema = pa.schema([("id", pa.int64())]).serialize().to_pybytes()
        capture.store.derived.create_generation(
            NewGeneration("names", "", "{}", ["id"], schema, partitions=1, split=1, inputs=[need])
        )
        execute(
            site.dsn,
            "ALTER TABLE public.customers RENAME COLUMN name TO title",
            "INSERT INTO public.customers (id, title) VALUES (1, 'Ada')",
        )
        capture.catch_up()
        said = "column renamed (name is title now); it is read by projection names"
        assert any(said in text for text in capture.status.messages), capture.status.messages


def test_a_topic_is_repartitioned_beside_a_running_capture(site: Site) -> None:
    with init_and_capture(site) as capture:
        workload.write(site.dsn, seed=6, transactions=20)
        capture.catch_up()
        with (
            workload.writing(site.dsn, seed=7, sessions=1, pause=0.002),
            site.open() as other,
        ):
            for count in (7, 3):
                enough = capture.status.transactions + 20
                capture.wait_until(partial(is_beyond, capture, enough))
                for info in other.topics(SOURCE):
                    repartition(other, info.id, count)
        workload.write(site.dsn, seed=8, transactions=20)
        capture.catch_up()
        assert_equals_source(site)
        assert_sound(capture.store)
        for info in capture.store.topics(SOURCE):
            of_now = info.partitioning.current
            for row in rows(capture.store, info.id):
                assert (row["_epoch"] > of_now.behind) is (row["_partition"] in of_now.numbers)


def is_beyond(capture: RunningCapture, transactions: int) -> bool:
    return capture.status.transactions > transactions


@pytest.mark.slow
@pytest.mark.versions
def test_a_table_created_later_is_reported_and_taken_up_by_init_while_writes_go_on(site: Site) -> None:
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "CREATE TABLE public.later (id serial PRIMARY KEY, body text)",
            "INSERT INTO public.later (body) SELECT 'early ' || i FROM generate_series(1, 20000) i",
        )
        capture.wait_until(lambda: capture.status.pending_tables == ("public.later",))
        assert any("public.later" in message for message in capture.status.messages)

        def write_later(_: int, stop: threading.Event) -> None:
            with psycopg.connect(site.dsn, autocommit=True) as connection:
                number = 0
                while not stop.wait(0.001):
                    number += 1
                    connection.execute("INSERT INTO public.later (body) VALUES ('late')")
                    connection.execute(
                        "UPDATE public.later SET body = body || '!' WHERE id = %s", [number * 7]
                    )
                    connection.execute("DELETE FROM public.later WHERE id = %s", [number * 11])

        with in_background(write_later):
            before = capture.status.transactions
            assert site.init().new == (table("later"),)
            capture.wait_until_complete(table("later"))
            assert_equals_source(site)
            capture.wait_until(lambda: capture.status.transactions > before + 300)
        assert_equals_source(site, [*workload.TABLES, ("public", "later")])
        assert_sound(capture.store)


def test_an_added_column_is_a_new_version_with_its_fill_value(site: Site) -> None:
    execute(site.dsn, "INSERT INTO public.customers (id, name) VALUES (1, 'old')")
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "ALTER TABLE public.customers ADD COLUMN level int DEFAULT 7, ADD COLUMN remark text",
            "INSERT INTO public.customers (id, name, level) VALUES (2, 'new', 8)",
        )
        capture.catch_up()
        latest = capture.store.schemas(table("customers"))[-1]
        assert latest.version == 2
        assert [(c.id, c.name, c.fill) for c in latest.columns[-2:]] == [
            (7, "level", "7"),
            (8, "remark", None),
        ]
        execute(  # a rewrite, after which the catalog does not know any more what filled the column
            site.dsn,
            "VACUUM FULL public.customers",
            "ALTER TABLE public.customers ADD COLUMN more text DEFAULT 'm'",
            "INSERT INTO public.customers (id, name) VALUES (3, 'newer')",
        )
        capture.catch_up()
        assert capture.store.schemas(table("customers"))[-1].version == 3
        assert capture.is_complete(table("customers"))
        assert_equals_source(site)


def wait_until_read_again(capture: RunningCapture, name: str) -> None:
    """Complete since an epoch behind the first load's."""
    capture.wait_until(lambda: (capture.store.topic(table(name)).complete_since or 0) > 1)


@pytest.mark.versions
def test_a_rewriting_alter_makes_the_topic_be_read_again(site: Site) -> None:
    """By an expression, and by a default that each row has another value of."""
    execute(
        site.dsn,
        "INSERT INTO public.full_identity SELECT i, 'x' || i, i FROM generate_series(1, 500) i",
        "INSERT INTO public.by_index SELECT i, 'b', 'x' || i FROM generate_series(1, 100) i",
    )
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "ALTER TABLE public.full_identity ALTER COLUMN n TYPE text USING 'n' || n",
            "UPDATE public.full_identity SET body = 'touched' WHERE id = 1",
            "ALTER TABLE public.by_index ADD COLUMN token uuid DEFAULT gen_random_uuid()",
            "UPDATE public.by_index SET c = 'touched' WHERE a = 1",
        )
        capture.catch_up()
        wait_until_read_again(capture, "full_identity")
        wait_until_read_again(capture, "by_index")
        assert_equals_source(site)


@pytest.mark.slow
def test_a_column_dropped_and_added_again_makes_the_topic_be_read_again(site: Site) -> None:
    """The stream shows the same names and types; existing rows lost their values without an event."""
    execute(site.dsn, "INSERT INTO public.full_identity SELECT i, 'x' || i, i FROM generate_series(1, 100) i")
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "ALTER TABLE public.full_identity DROP COLUMN n",
            "ALTER TABLE public.full_identity ADD COLUMN n int",
        )
        wait_until_read_again(capture, "full_identity")
        assert_equals_source(site)


@pytest.mark.slow
def test_a_column_that_took_anothers_name_unseen_makes_the_topic_be_read_again(site: Site) -> None:
    """For a while the stream showed the same names and types, so what rows had in the one was stored as the other."""
    execute(site.dsn, "INSERT INTO public.full_identity SELECT i, 'x' || i, i FROM generate_series(1, 100) i")
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "ALTER TABLE public.full_identity DROP COLUMN n",
            "ALTER TABLE public.full_identity ADD COLUMN n int",
            "UPDATE public.full_identity SET n = 7 WHERE id < 50",
            "ALTER TABLE public.full_identity RENAME COLUMN n TO m",
            "UPDATE public.full_identity SET m = 8 WHERE id = 1",
        )
        capture.catch_up()
        wait_until_read_again(capture, "full_identity")
        assert_equals_source(site)


def test_a_renamed_table_stays_in_its_topic(site: Site) -> None:
    execute(site.dsn, "INSERT INTO public.by_index VALUES (1, 'a', 'x')")
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "ALTER TABLE public.by_index RENAME TO by_index_now",
            "INSERT INTO public.by_index_now VALUES (2, 'b', 'y')",
        )
        capture.catch_up()
        assert site.init().new == ()
        assert len(rows(capture.store, table("by_index"))) == 2
        assert_equals_source(site, workload.TABLES)


def test_tables_that_exchanged_names_never_feed_one_topic_together(site: Site) -> None:
    """One is read again and takes the table of its name: the topic that had this table has to find another one."""
    execute(
        site.dsn,
        "CREATE TABLE one (id int PRIMARY KEY, v text)",
        "CREATE TABLE two (id int PRIMARY KEY, v text)",
        "INSERT INTO one VALUES (1, 'of one')",
        "INSERT INTO two VALUES (2, 'of two')",
    )
    site.init(ddl=True)
    with RunningCapture(site) as capture:
        capture.catch_up()
        execute(
            site.dsn,
            "ALTER TABLE one RENAME TO x",
            "ALTER TABLE two RENAME TO one",
            "ALTER TABLE x RENAME TO two",
            "ALTER TABLE one ALTER COLUMN v TYPE text USING upper(v)",  # it feeds the topic two until then
        )
        wait_until_read_again(capture, "two")
        execute(
            site.dsn, "INSERT INTO one VALUES (3, 'new in one')", "INSERT INTO two VALUES (4, 'new in two')"
        )
        capture.catch_up()
        capture.wait_until_complete(table("one"))
        assert_equals_source(site)
        for name, before, after in (("one", {1}, {2, 3}), ("two", {2}, {1, 4})):
            found = rows(capture.store, table(name))
            again = [row["_op"] for row in found].index(
                "t"
            )  # a topic that is read again begins with a truncate
            assert {row["key"]["id"] for row in found[:again]} == before, name
            assert {row["key"]["id"] for row in found[again:] if row["key"]} == after, name


@pytest.mark.slow
def test_a_table_that_left_the_publication_is_read_again_after_init(site: Site) -> None:
    execute(site.dsn, "INSERT INTO public.by_index VALUES (1, 'a', 'x'), (2, 'b', 'y')")
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "ALTER PUBLICATION acme_shop DROP TABLE public.by_index",
            "DELETE FROM public.by_index WHERE a = 1",
        )
        capture.wait_until(lambda: not capture.is_complete(table("by_index")))
        site.init()
        capture.wait_until_complete(table("by_index"))
        assert_equals_source(site, workload.TABLES)


def test_a_table_dropped_and_made_anew_is_read_again(site: Site) -> None:
    execute(site.dsn, "INSERT INTO public.by_index VALUES (1, 'a', 'x'), (2, 'b', 'y')")
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "DROP TABLE public.by_index",
            "CREATE TABLE public.by_index (a int PRIMARY KEY, other text)",
            "INSERT INTO public.by_index VALUES (5, 'new')",
        )
        capture.wait_until(lambda: not capture.is_complete(table("by_index")))
        site.init()
        capture.wait_until_complete(table("by_index"))
        execute(site.dsn, "INSERT INTO public.by_index VALUES (6, 'newer')")
        capture.catch_up()
        assert_equals_source(site, workload.TABLES)


@pytest.mark.slow
@pytest.mark.versions
def test_a_transaction_larger_than_memory_is_one_epoch(site: Site) -> None:
    small = site.with_settings(epoch_bytes=65536, queue_bytes=65536)
    with init_and_capture(small) as capture:
        execute(
            site.dsn,
            """
            DO $$ BEGIN
              INSERT INTO public.customers SELECT i, 'n' || i, i, now(), NULL, NULL FROM generate_series(1, 5000) i;
              INSERT INTO public.orders SELECT i, i, i, NULL, '{}' FROM generate_series(1, 5000) i;
              UPDATE public.customers SET name = name || '!' WHERE id % 2 = 0;
            END $$
            """,
        )
        capture.catch_up()
        customers = rows(capture.store, table("customers"))
        assert len(customers) == 7500
        epochs = {row["_epoch"] for row in [*customers, *rows(capture.store, table("orders"))]}
        assert len(epochs) == 1
        assert_equals_source(small)
        assert_sound(capture.store)


@pytest.mark.slow
def test_a_table_dropped_while_its_load_waits_does_not_hold_up_the_others(site: Site) -> None:
    site.init()
    with psycopg.connect(site.dsn) as blocker, RunningCapture(site) as capture:
        capture.catch_up()
        blocker.execute("INSERT INTO public.customers (id, name) VALUES (1, 'open')")
        execute(
            site.dsn,
            "CREATE TABLE public.gone (id int PRIMARY KEY)",
            "CREATE TABLE public.stays (id int PRIMARY KEY)",
        )
        site.init()
        wait_until(lambda: any("the load waits" in message for message in capture.status.messages))
        execute(site.dsn, "DROP TABLE public.gone", "INSERT INTO public.stays VALUES (1)")
        blocker.commit()
        capture.wait_until_complete(table("stays"))
        assert not capture.is_complete(table("gone"))
        (found,) = site.verify(table("stays"))
        assert found.equal and found.source_rows == 1


def test_a_table_renamed_and_then_rewritten_is_read_again(site: Site) -> None:
    execute(site.dsn, "INSERT INTO public.by_index VALUES (1, 'a', '1')")
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "ALTER TABLE public.by_index RENAME TO moved",
            "ALTER TABLE public.moved ALTER COLUMN c TYPE int USING 7",
            "INSERT INTO public.moved VALUES (2, 'b', 8)",
        )
        wait_until_read_again(capture, "by_index")
        execute(site.dsn, "INSERT INTO public.moved VALUES (3, 'c', 9)")
        capture.catch_up()
        assert_equals_source(site)


@pytest.mark.slow
@pytest.mark.parametrize(
    "default", ["uuid NOT NULL DEFAULT gen_random_uuid()", "uuid DEFAULT gen_random_uuid()", "bigserial"]
)
def test_a_default_that_filled_rows_and_was_dropped_makes_the_topic_be_read_again(
    site: Site, default: str
) -> None:
    execute(site.dsn, "INSERT INTO public.full_identity SELECT i, 'x' || i, i FROM generate_series(1, 10) i")
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            f"ALTER TABLE public.full_identity ADD COLUMN token {default}",
            "ALTER TABLE public.full_identity ALTER COLUMN token DROP DEFAULT",
            "UPDATE public.full_identity SET body = 'touched' WHERE id = 1",
        )
        capture.catch_up()
        wait_until_read_again(capture, "full_identity")
        assert_equals_source(site)


def test_what_was_changed_behind_our_back_is_reported(site: Site) -> None:
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "ALTER TABLE public.customers DROP CONSTRAINT customers_pkey",
            "ALTER TABLE public.orders REPLICA IDENTITY NOTHING",
            "CREATE TABLE public.bare ()",
            "CREATE TABLE public.clash (id int PRIMARY KEY, _lsn int)",
            "CREATE TABLE public.twofold (id int, _lsn int)",
            "CREATE TABLE public.listed (id int PRIMARY KEY, n int)",
            "CREATE TABLE public.filtered (id int PRIMARY KEY, n int)",
            "ALTER PUBLICATION acme_shop ADD TABLE bare, clash, twofold, listed (n), filtered WHERE (n > 1)",
            "ALTER PUBLICATION acme_shop SET (publish = 'insert, update, truncate')",
        )
        refused = "the server refuses UPDATE and DELETE of it"
        unidentified = f"so changed rows cannot be identified; {refused}: "
        for said in (
            "loses changes: it does not publish delete",
            f"table public.customers: no primary key, {unidentified}add a primary key, or ",
            f"table public.orders: REPLICA IDENTITY NOTHING, {unidentified}ALTER TABLE ",
            "table public.bare: it has no columns: add one, or take it out",
            "table public.clash: its column _lsn has the name of one that the log adds to a row's state: ALTER",
            f"table public.twofold: no primary key, {unidentified}add a primary key, or ",
            f"table public.listed: its column list leaves out id of the replica identity: {refused}: ALTER",
            f"table public.filtered: its row filter looks at n, which the replica identity does not cover: {refused}: ",
        ):
            wait_until(
                lambda said=said: any(said in message for message in capture.status.messages),  # type: ignore[misc]
                alive=lambda: capture.running,
            )


def test_another_key_under_full_identity_makes_the_topic_be_read_again(site: Site) -> None:
    """The stream flags all columns there, so it does not show which are the key."""
    execute(site.dsn, "INSERT INTO public.full_identity VALUES (1, 'a', 1)")
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "ALTER TABLE public.full_identity DROP CONSTRAINT full_identity_pkey, ADD PRIMARY KEY (n)",
            "INSERT INTO public.full_identity VALUES (1, 'b', 2)",
        )
        wait_until_read_again(capture, "full_identity")
        execute(site.dsn, "INSERT INTO public.full_identity VALUES (1, 'c', 3)")
        capture.catch_up()
        assert_equals_source(site)


def test_a_capture_whose_first_load_found_no_table_goes_on(database: str, store_dir: Path) -> None:
    """All were made anew after `init`, which publishes them: nobody sends what the topics were registered for."""
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
    site = Site.at(store_dir, database)
    site.init()
    execute(database, "DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)")
    for _ in range(2):
        with RunningCapture(site) as capture:
            capture.catch_up()
    with site.open() as store:
        assert [epoch.rows for epoch in store.epochs()][:1] == [0]
        assert store.verify().findings == ()
