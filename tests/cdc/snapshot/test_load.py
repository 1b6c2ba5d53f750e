"""First loads: every value exact, large tables in parts, one epoch, nothing visible before its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from tailrace.cdc.context import Stopped, Task, lock_wait
from tailrace.cdc.kernels.copy_text import hash_columns
from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.publication import Publication
from tailrace.cdc.postgres.tables import read_tables
from tailrace.cdc.setup.continuity import check_start
from tailrace.cdc.snapshot.copy import (
    CopyForm,
    CopyUnit,
    TableChanged,
    copy_chunks,
    lock_tables,
    parse_rows,
    plan_copies,
    snapshot_session,
)
from tailrace.cdc.snapshot.first_load import first_load
from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import IntegrityError, TransientError
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.store import Store
from tests.support.capturing import (
    SOURCE,
    RunningCapture,
    Site,
    assert_equals_source,
    execute,
    init_and_capture,
    query,
    rows,
    table,
    wait_until,
)
from tests.support.folders import segments_folder

CELL = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(CELL, CELL), max_size=20))
def test_any_text_and_null_survive_copy(database: str, cells: list[tuple[str | None, str | None]]) -> None:
    address = Address.parse(database)
    with connect(address) as connection:
        connection.execute("SET search_path = public")
        connection.execute("DROP TABLE IF EXISTS two, one")
        connection.execute("CREATE TABLE two (n serial PRIMARY KEY, a text, b text)")
        connection.execute("CREATE TABLE one (a text)")
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO two (a, b) VALUES (%s, %s)", cells)
            cursor.executemany("INSERT INTO one VALUES (%s)", [(a,) for a, _ in cells])
        described = {found.name: found for found in read_tables(connection, address)}
        two = CopyUnit(described["two"], "public", "two", order=" ORDER BY n")
        one = CopyUnit(described["one"], "public", "one")
        for form in CopyForm:
            with connection.transaction():
                found = [
                    row
                    for texts in copy_chunks(connection, address, two, ["a", "b"], form)
                    for row in zip(*(column.to_pylist() for column in texts), strict=True)
                ]
                alone = [
                    cell
                    for (texts,) in copy_chunks(connection, address, one, ["a"], form)
                    for cell in texts.to_pylist()
                ]
            assert found == cells
            assert sorted(alone, key=str) == sorted((a for a, _ in cells), key=str)


def parse_columns(rows: list[bytes], columns: int) -> list[pa.Array]:
    return parse_rows(np.frombuffer(bytearray(b"".join(rows)), np.uint8), len(rows), columns)


def test_rows_that_go_missing_are_noticed() -> None:
    sent = [b"a\t\\N\n", b"\\N\tb\n"]
    assert [column.to_pylist() for column in parse_columns(sent, 2)] == [["a", None], [None, "b"]]
    for wrong, columns in ((sent, 1), (sent, 3), ([*sent, b""], 2), (sent[:1] * 2 + [sent[0][:-1]], 2)):
        with pytest.raises(IntegrityError, match=f"cannot be read as {len(wrong)} rows"):
            parse_columns(wrong, columns)


CHARACTERS = st.sampled_from("\t\n\\\b\rNa\u00e9")


@given(
    st.lists(st.tuples(*[st.none() | st.text(CHARACTERS, max_size=40)] * 2), max_size=20),
    st.integers(0, 70),
)
def test_rows_are_taken_apart_wherever_they_lie(
    cells: list[tuple[str | None, str | None]], width: int
) -> None:
    """Kernels look at 64 bytes at once and copy 16: a cell in front moves the others across these bounds."""
    table = [("x" * width, *row) for row in cells]
    found = parse_columns([copy_line(row) for row in table], 3)
    assert [tuple(row) for row in zip(*(column.to_pylist() for column in found), strict=True)] == table


def copy_line(row: tuple[str | None, ...]) -> bytes:
    """A row in COPY's text format, as CopyAttributeOutText in copyto.c writes it."""
    escapes = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", "\v": "v", "\\": "\\"}
    cells = [
        "\\N" if cell is None else "".join("\\" + escapes[c] if c in escapes else c for c in cell)
        for cell in row
    ]
    return "\t".join(cells).encode() + b"\n"


@pytest.mark.parametrize(
    "sent", [b"a", b"a\\", b"\\N", b"\\Na\n", b"a\\N\n", b"\\x41\n", b"\\.\n", b"a\tb\n"]
)
def test_what_no_server_writes_is_refused(sent: bytes) -> None:
    with pytest.raises(IntegrityError, match="cannot be read as 1 rows"):
        parse_columns([sent], 1)


@given(st.lists(st.tuples(st.none() | st.text(max_size=5), st.none() | st.binary(max_size=3)), max_size=30))
def test_key_hashes_of_a_load_are_those_of_the_definition(
    cells: list[tuple[str | None, bytes | None]],
) -> None:
    texts = [pa.array([a for a, _ in cells], pa.large_string()), pa.array([b for _, b in cells], pa.binary())]
    for columns in (texts, texts[:1], [column.slice(len(column) // 2) for column in texts]):
        assert hash_columns(columns).equals(keys.hash_columns(columns))


def test_a_large_table_is_read_in_ranges_that_cover_it_once(database: str) -> None:
    execute(
        database,
        "CREATE TABLE big (id int PRIMARY KEY, filler text) WITH (fillfactor = 10)",
        "INSERT INTO big SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i",
    )
    address = Address.parse(database)
    ((relid,),) = query(database, "SELECT 'big'::regclass::oid::bigint")
    with connect(address) as connection, connection.transaction():
        (big,) = lock_tables(connection, address, [relid])
        units = plan_copies(connection, address, big, workers=2)
        assert len(units) > 1
        ids = [
            cell
            for unit in units
            for (texts,) in copy_chunks(connection, address, unit, ["id"])
            for cell in texts.to_pylist()
        ]
        assert sorted(ids, key=int) == [str(i) for i in range(1, 20001)]


@contextmanager
def exported_snapshot(address: Address) -> Iterator[str]:
    """A snapshot that others can take while the block lasts."""
    with connect(address) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        row = connection.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        yield str(row[0])


@pytest.mark.parametrize("statement", ["TRUNCATE t", "ALTER TABLE t ALTER COLUMN v TYPE text USING v::text"])
def test_a_table_that_was_rewritten_after_the_snapshot_is_not_taken_for_empty(
    database: str, statement: str
) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    address = Address.parse(database)
    ((relid,),) = query(database, "SELECT 't'::regclass::oid::bigint")
    with exported_snapshot(address) as snapshot:
        execute(database, statement)
        with snapshot_session(address, snapshot) as session, pytest.raises(TableChanged):
            lock_tables(session, address, [relid])


def test_a_snapshot_that_its_server_does_not_have_is_no_final_refusal(database: str) -> None:
    """The server was restarted or replaced between the slot and its first reader: a new slot mends it."""
    with (
        pytest.raises(TransientError, match="does not have the exported snapshot"),
        snapshot_session(Address.parse(database), "00000003-0000001B-1"),
    ):
        pass


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids=" then ".join)
def test_a_transaction_that_truncates_several_tables_is_never_ended_by_a_load(
    database: str, order: tuple[str, str]
) -> None:
    """Whoever holds one table and waits for another is in a deadlock with it, and the server ends either."""
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    address = Address.parse(database)
    ((relids,),) = query(database, "SELECT ARRAY['a'::regclass::oid::bigint, 'b'::regclass::oid::bigint]")
    refused = threading.Event()
    with (
        exported_snapshot(address) as snapshot,
        snapshot_session(address, snapshot) as session,
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(database) as user,
    ):
        user.execute(f"TRUNCATE {order[0]}")
        loading = pool.submit(lock_tables, session, address, relids, waiting=lambda said: refused.set())
        assert refused.wait(60)
        user.execute(f"TRUNCATE {order[1]}")
        user.rollback()
        assert [table.name for table in loading.result(60)] == ["a", "b"]


def test_a_load_that_waits_for_a_lock_says_so_and_ends_when_it_is_stopped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.cdc.context._REPORT_AFTER_SECONDS", 0.3)
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    ((relid,),) = query(site.dsn, "SELECT 't'::regclass::oid::bigint")
    expected_message = (
        'reading waits for another session to end: could not obtain lock on relation "public.t"'
    )
    with (
        site.open() as store,
        connect(Address.parse(site.dsn)) as session,
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(site.dsn) as user,
    ):
        task = Task.of(store, SOURCE, site.settings)
        user.execute("ALTER TABLE t ADD COLUMN a int")
        session.execute("BEGIN")
        loading = pool.submit(lock_tables, session, task.address, [relid], waiting=lock_wait(task))
        wait_until(lambda: expected_message in task.progress.status().messages)
        task.stop.set()
        with pytest.raises(Stopped):
            loading.result(60)


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE t RENAME a TO c", "ALTER TABLE t RENAME b TO a", "ALTER TABLE t RENAME c TO b"],
        ["ALTER TABLE t RENAME TO old", "ALTER TABLE other RENAME TO t"],
        ["ALTER TABLE t DROP COLUMN b", "ALTER TABLE t ADD COLUMN b text"],
    ],
    ids=["columns exchanged", "swapped by rename", "dropped and added"],
)
def test_names_that_changed_hands_after_the_snapshot_are_not_read_one_for_the_other(
    database: str, statements: list[str]
) -> None:
    """A snapshot has the catalog of its day; COPY looks names up as they are now."""
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text)",
        "CREATE TABLE other (LIKE t INCLUDING ALL)",
        "INSERT INTO t VALUES (1, 'a', 'b')",
    )
    address = Address.parse(database)
    ((relid,),) = query(database, "SELECT 't'::regclass::oid::bigint")
    with exported_snapshot(address) as snapshot, snapshot_session(address, snapshot) as session:
        execute(database, *statements)
        with pytest.raises(TableChanged, match=r"public\.t was altered, renamed or dropped"):
            lock_tables(session, address, [relid])


def test_a_table_dropped_after_the_snapshot_is_described_by_it(database: str) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    address = Address.parse(database)
    ((relid,),) = query(database, "SELECT 't'::regclass::oid::bigint")
    with connect(address) as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT 1")
        execute(database, "DROP TABLE t")
        (found,) = read_tables(session, address, [relid])
    assert found.text == "public.t"


def test_the_catalog_is_read_while_ddl_waits_for_a_reader(database: str) -> None:
    """Otherwise a load that holds its locks would wait for the ALTER TABLE that waits for it."""
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
    address = Address.parse(database)
    ((relid,),) = query(database, "SELECT 't'::regclass::oid::bigint")
    waiting = "SELECT count(*)::int FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
    with psycopg.connect(database) as reader, ThreadPoolExecutor(1) as pool, connect(address) as session:
        reader.execute("LOCK TABLE t IN ACCESS SHARE MODE")
        altered = pool.submit(execute, database, "ALTER TABLE t ADD COLUMN a int")
        wait_until(lambda: query(database, waiting) == [(1,)])
        session.execute("SET statement_timeout = '60s'")
        (found,) = read_tables(session, address, [relid])
        reader.rollback()
        altered.result()
    assert [column.name for column in found.columns] == ["id"]


def test_a_first_load_is_one_epoch_and_its_values_are_exact(site: Site) -> None:
    execute(
        site.dsn,
        "CREATE TYPE mood AS ENUM ('glad', 'sad')",
        """CREATE TABLE kinds (id bigint PRIMARY KEY, b bool, s smallint, f real, d double precision, n numeric,
             p numeric(20,5), t text, c char(5), y bytea, da date, ti time, ts timestamp, tz timestamptz, u uuid,
             j json, jb jsonb, i interval, a int[], aa text[], m mood, r int4range, x varbit, ip inet, mo money)""",
        r"""INSERT INTO kinds VALUES (1, true, -32768, 3.4e38, 1e-308, 1e100, 12345.67890, E'a\n"b",\\c', 'ab',
             '\x00ff', '2026-11-21', '12:34:56.789', '2026-11-21 01:02:03.000004', '2026-11-21 01:02:03+05', NULL,
             '{"a": 1}', '{"a": 1}', '1 day', '{1,NULL,3}', '{"a b",NULL,"NULL"}', 'sad', '[1,5)', B'0101',
             '10.0.0.1/8', '1234.56')""",
        """INSERT INTO kinds VALUES (2, NULL, NULL, 'NaN', '-Infinity', 'NaN', 'NaN', '', '', '', 'infinity',
             '24:00:00', '-infinity', '0044-03-15 01:02:03 BC', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'null', 'null',
             '-1 mon', '{{1,2},{3,4}}', '[2:3]={a,b}', 'glad', 'empty', B'', '::1', '-0.01')""",
        "INSERT INTO kinds (id) VALUES (3)",
        'CREATE TABLE "One" ("ß" text PRIMARY KEY)',
        """INSERT INTO "One" VALUES (''), ('\\N'), ('\\.'), (E'\\n'), ('"'), ('NULL')""",
        "CREATE TABLE nobody (id int PRIMARY KEY)",
    )
    with init_and_capture(site) as capture:
        epochs = capture.store.epochs()
        assert [(info.epoch, info.rows) for info in epochs] == [(1, 9)]
        assert {info.complete_since for info in capture.store.topics()} == {1}
        loaded = rows(capture.store, table("kinds"))
        assert {row["_op"] for row in loaded} == {"r"}
        assert {row["_lsn"] for row in loaded} == {epochs[0].commit_lsn}
        assert_equals_source(site, [("public", "kinds"), ("public", "One"), ("public", "nobody")])


@pytest.mark.slow
def test_a_stopped_first_load_leaves_nothing_visible_and_is_begun_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse("segment_written~4000"))  # so it is seen
    execute(
        site.dsn,
        "CREATE TABLE big (id int PRIMARY KEY, filler text)",
        "INSERT INTO big SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 100000) i",
    )
    site.init()
    with RunningCapture(site) as capture:
        capture.wait_until(lambda: bool(capture.status.loading))
        capture.stop_event.set()
        capture.ended()
        assert capture.store.head() is None
    monkeypatch.setattr(failpoints, "_armed", {})
    with RunningCapture(site) as capture:
        capture.catch_up()
        assert sum(batch.num_rows for batch in capture.store.read(table("big"))) == 100_000
        ids = pa.chunked_array(
            [batch.column("key").field("id") for batch in capture.store.read(table("big"))]
        )
        assert len(ids.unique()) == 100_000
        files = list(segments_folder(capture.store).rglob("*.parquet"))
        referenced = capture.store.segments(table("big"), capture.store.cut())
        assert len(files) == len([ref for ref in referenced if ref.path])


def test_a_source_that_another_capture_loaded_meanwhile_keeps_its_slot(site: Site) -> None:
    """The state was read before the other load ended: its slot is not one that was left over."""
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    site.init()
    with site.open() as store:
        before, publication = check_start(store, SOURCE, Address.parse(site.dsn))
        with RunningCapture(site) as capture:
            capture.catch_up()
        assert publication is not None and not before.loaded
        slot = query(site.dsn, "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots")
        assert load_again(site, store, before, publication) == 0
        assert query(site.dsn, "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots") == slot


def test_a_slot_that_is_lost_during_the_load_is_noticed_before_anything_is_visible(site: Site) -> None:
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    site.init()

    def drop_slot() -> None:
        execute(
            site.dsn,
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active",
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
        )

    with site.open() as store:
        before, publication = check_start(store, SOURCE, Address.parse(site.dsn))
        assert publication is not None
        with pytest.raises(TransientError, match="dropped or moved"):
            load_again(site, store, before, publication, tick=drop_slot)
        state = store.source(SOURCE)
        assert state is not None and not state.loaded and store.head() is None


def load_again(
    site: Site,
    store: Store,
    state: SourceState,
    publication: Publication,
    tick: Callable[[], None] = lambda: None,
) -> int:
    return first_load(Task.of(store, SOURCE, site.settings), state, publication, tick)


def test_a_truncate_that_waits_for_the_load_does_not_lock_it_up(site: Site) -> None:
    """It queues behind the first reader's lock; the other readers would queue behind it."""
    execute(
        site.dsn,
        "CREATE TABLE big (id int PRIMARY KEY, filler text) WITH (fillfactor = 20)",
        "INSERT INTO big SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 30000) i",
    )
    site.init()
    with psycopg.connect(site.dsn) as blocker:
        blocker.execute("SELECT 1 FROM big LIMIT 1")  # keeps a TRUNCATE waiting from before the load on
        with ThreadPoolExecutor(1) as pool, RunningCapture(site) as capture:
            truncate = pool.submit(execute, site.dsn, "TRUNCATE big")
            wait_until(lambda: query(site.dsn, "SELECT 1 FROM pg_locks WHERE NOT granted") != [])
            blocker.rollback()
            truncate.result(60)
            capture.catch_up()
            assert_equals_source(site, [("public", "big")])


def test_names_are_quoted_everywhere(site: Site) -> None:
    name = "we\"ird \\ näme' %s {}"
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        connection.execute(
            sql.SQL("CREATE TABLE {} ({} int PRIMARY KEY, {} text)").format(
                sql.Identifier(name, name), sql.Identifier(name), sql.Identifier("select")
            )
        )
        connection.execute(sql.SQL("INSERT INTO {} VALUES (1, 'x')").format(sql.Identifier(name, name)))
        odd = site.with_settings(tables=("*.*",))
        with init_and_capture(odd) as capture:
            connection.execute(sql.SQL("INSERT INTO {} VALUES (2, 'y')").format(sql.Identifier(name, name)))
            capture.catch_up()
            assert len(rows(capture.store, table(name, name))) == 2
            assert_equals_source(odd, [(name, name)])
