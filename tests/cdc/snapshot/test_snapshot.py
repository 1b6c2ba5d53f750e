"""Tables read again by chunks while everything in them is being written, on a real server."""

from __future__ import annotations

import io
import json
import os
import random
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tailrace.cdc.context import Task
from tailrace.cdc.postgres.connect import Address
from tailrace.cdc.snapshot.chunk_load import ChunkedLoad
from tailrace.cdc.snapshot.chunk_query import ChunkBounds, ChunkTooLarge, chunk, open_session
from tailrace.cdc.stream.own_messages import MARKS, OUTSIDE
from tailrace.cdc.stream.requests import SNAPSHOT
from tailrace.cli.progress import Pace, Reporter
from tailrace.cli.source.snapshot import report_rows_read
from tailrace.embedded import PostgresServer
from tailrace.eventstore.catalog.requests import RequestState
from tailrace.eventstore.metadata import load_progress
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store
from tailrace.terminal import Output
from tests.fixtures.scale import Scale
from tests.support.background import in_background
from tests.support.capturing import (
    SOURCE,
    CaptureProcess,
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    execute,
    query,
    rows,
    table,
    wait_until,
)

pytestmark = pytest.mark.timeout(600)

ITEMS = table("items")
ROWS = 200
# The key's index has another order than the table, and a long note is TOASTed: an update does not send it.
SCHEMA = """
CREATE TABLE public.items (id int, n int, part text, note text, PRIMARY KEY (part, id));
ALTER TABLE public.items ALTER COLUMN note SET STORAGE EXTERNAL;
INSERT INTO public.items SELECT i, 0, 'p' || i % 7, repeat(md5(i::text), 70) FROM generate_series(1, 200) i
"""


@contextmanager
def churning(dsn: str, seed: int, sessions: int = 2) -> Iterator[None]:
    """Sessions that update, delete, insert again and rename the key of random rows, until the block ends."""

    def work(number: int, stop: threading.Event) -> None:
        choice = random.Random(seed * 100 + number)
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                with suppress(psycopg.errors.UniqueViolation), connection.transaction():
                    for _ in range(choice.randint(1, 4)):
                        churn(connection, choice, number, sessions)
                stop.wait(0.03)

    with in_background(work, sessions):
        yield


def churn(
    connection: psycopg.Connection[tuple[object, ...]], choice: random.Random, number: int, sessions: int
) -> None:
    """One change of a row that belongs to this session (by its id), so that sessions do not wait for each other."""
    key = choice.randrange(ROWS // sessions) * sessions + number + 1
    statement = choice.choice(
        [
            "UPDATE public.items SET n = n + 1 WHERE id = %(key)s",
            "UPDATE public.items SET n = n + 1 WHERE id = %(key)s",
            "UPDATE public.items SET part = 'p' || %(part)s WHERE id = %(key)s AND NOT EXISTS"
            " (SELECT FROM public.items o WHERE o.id = %(key)s AND o.part = 'p' || %(part)s)",
            "UPDATE public.items SET note = repeat(md5(n::text), 70) WHERE id = %(key)s",
            "DELETE FROM public.items WHERE id = %(key)s",
            "INSERT INTO public.items VALUES (%(key)s, 0, 'p' || %(part)s, repeat('x', 3000)) ON CONFLICT DO NOTHING",
        ]
    )
    connection.execute(sql.SQL(statement), {"key": key, "part": choice.randrange(7)})


def read_again(capture: RunningCapture, *topics: TopicId) -> None:
    requests = capture.store.requests
    ids = [request.id for request in requests.ask(SNAPSHOT, topics)]
    capture.wait_until(lambda: all(request.ended_at for request in requests.get(ids)), 300)
    assert {request.state for request in requests.get(ids)} == {RequestState.DONE}


def chunk_rows(store: Store, topic: TopicId = ITEMS) -> int:
    """Rows that chunks brought since the topic was last emptied."""
    found = rows(store, topic)
    emptied = max((row["_lsn"] for row in found if row["_op"] == "t"), default=0)
    return sum(row["_op"] == "r" and row["_lsn"] > emptied for row in found)


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    execute(database, *SCHEMA.strip().split(";"))
    made = Site.at(store_dir, database, load_chunk_rows=30)
    made.init()
    return made


@pytest.mark.slow
@pytest.mark.versions
def test_a_table_is_read_again_while_all_of_it_is_updated_deleted_and_inserted(
    site: Site, scale: Scale
) -> None:
    with RunningCapture(site) as capture:
        capture.catch_up()
        with churning(site.dsn, seed=1):
            for _ in range(scale.pick(smoke=1, full=20)):
                read_again(capture, ITEMS)
                assert_equals_source(site)
        assert_sound(capture.store)
        assert chunk_rows(capture.store) > 0


@pytest.mark.versions
def test_commits_that_are_held_back_from_view_lose_nothing(
    postgres_server: Callable[..., PostgresServer], store_dir: Path, scale: Scale
) -> None:
    """A commit is in the WAL, and in the stream, before it is visible: long before when a standby does not answer."""
    server = postgres_server(settings={"commit_delay": "2000", "commit_siblings": "1"})
    execute(server.dsn(), *SCHEMA.strip().split(";"))
    site = Site.at(store_dir, server.dsn(), load_chunk_rows=30)
    site.init()

    def hold_back(_: int, stop: threading.Event) -> None:
        names = ["nowhere", ""]
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            while not stop.is_set() or names[0] == "":
                connection.execute(
                    sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(sql.Literal(names[0]))
                )
                connection.execute("SELECT pg_reload_conf()")
                names.reverse()
                stop.wait(0.15)

    with RunningCapture(site) as capture:
        capture.catch_up()
        with churning(server.dsn(), seed=2, sessions=4), in_background(hold_back):
            for _ in range(scale.pick(smoke=1, full=30)):
                read_again(capture, ITEMS)
        assert_equals_source(site)
        assert_sound(capture.store)


def test_marks_that_a_hostile_role_makes_up_or_repeats_have_no_effect_on_a_load(site: Site) -> None:
    """A role with REPLICATION, the most that it takes to see marks, sends each one again once it is in the WAL."""
    role = f"hostile_{os.getpid()}"
    execute(site.dsn, f"CREATE ROLE {role} LOGIN REPLICATION")
    hostile = site.dsn.replace("postgres@", f"{role}@")
    execute(hostile, "SELECT pg_create_logical_replication_slot('hostile', 'pgoutput')")
    seen: set[bytes] = set()

    def repeat(_: int, stop: threading.Event) -> None:
        changes = (
            "SELECT data FROM pg_logical_slot_get_binary_changes('hostile', NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'acme_shop', 'messages', 'true') WHERE substr(data, 1, 1) = 'M'"
        )
        with psycopg.connect(hostile, autocommit=True) as connection:
            while not stop.is_set():
                found = [bytes(data) for (data,) in connection.execute(sql.SQL(changes)).fetchall()]
                marks = {data[-16:] for data in found if data[10:].startswith(b"tailrace.")} - seen
                seen.update(marks)
                for content in [*marks, secrets.token_bytes(16)]:
                    for transactional in (True, False):
                        connection.execute(
                            "SELECT pg_logical_emit_message(%s, 'tailrace.chunk', %s::bytea)",
                            [transactional, content],
                        )

    try:
        with RunningCapture(site) as capture:
            capture.catch_up()
            with churning(site.dsn, seed=3), in_background(repeat):
                read_again(capture, ITEMS)
                assert_equals_source(site)
            assert_sound(capture.store)
            assert chunk_rows(capture.store) > 0 and len(seen) > ROWS // 30
            assert {*dict(capture.status.refused)} == {MARKS, OUTSIDE}
    finally:
        execute(
            site.dsn,
            "SELECT pg_drop_replication_slot('hostile')",
            f"DROP ROLE {role}",
        )


def test_a_killed_load_goes_on_with_the_chunk_it_was_at(site: Site) -> None:
    with CaptureProcess(site) as first:
        first.catch_up()
    with site.open() as store:
        (request,) = store.requests.ask(SNAPSHOT, [ITEMS])
        with CaptureProcess(site, failpoint="chunk_read:6") as killed:
            assert killed.wait() == -9, killed.output
        load = load_progress.read(store.catalog, ITEMS)
        assert load is not None and 0 < load.rows < ROWS and not load.done
        lines, pace = io.StringIO(), Pace()
        pace.measure(f"reading {ITEMS.text}", 0, None)
        time.sleep(0.01)
        with Output(stderr=lines).progress("snapshot") as progress:
            report_rows_read(store, Reporter(progress, pace), request)
        (shown,) = map(json.loads, lines.getvalue().splitlines())
        assert re.search(rf": {load.rows} of about \d+ rows, [\d,]+/s", shown["text"]), shown
        assert (shown["done"], shown["unit"], shown["topic"]) == (load.rows, "rows", ITEMS.text)
        assert shown["total"] >= load.rows and shown["per_second"] > 0 and shown["seconds_left"] >= 0
        with CaptureProcess(site) as process:
            wait_until(
                lambda: load_progress.read(store.catalog, ITEMS) is None, alive=lambda: process.running
            )
            process.catch_up()
            assert chunk_rows(store) == ROWS, "chunks that were in the log were read again"
            assert_equals_source(site)
        assert_sound(store)


LARGE_ROWS = (
    "CREATE TABLE public.grown (id int PRIMARY KEY, v text)",
    "INSERT INTO public.grown SELECT g, 'x' FROM generate_series(1, 1500) g",
    "INSERT INTO public.grown SELECT g, repeat('x', 4000000) FROM generate_series(1501, 1510) g",
)


def test_a_chunk_is_given_up_when_it_has_too_many_bytes(database: str) -> None:
    """Whoever writes to a table decides how large its next rows are."""
    execute(database, *LARGE_ROWS, "CREATE PUBLICATION pub FOR TABLE grown")
    address = Address.parse(database)
    relid, label = (
        int(str(query(database, "SELECT 'grown'::regclass::oid::bigint")[0][0])),
        ("public", "grown"),
    )
    keys = tuple((str(number),) for number in range(1490, 1600))
    with (
        closing(open_session(address)) as session,
        pytest.raises(ChunkTooLarge) as large,
        chunk(session, address, "pub", relid, label, ChunkBounds(keys=keys)),
    ):
        pass
    assert 0 < large.value.rows < 20


@pytest.mark.slow
def test_rows_that_suddenly_are_large_never_make_a_large_chunk(database: str, store_dir: Path) -> None:
    execute(database, *LARGE_ROWS)
    site, topic = Site.at(store_dir, database), table("grown")
    site.init()
    with RunningCapture(site) as capture:
        capture.catch_up()
        read_again(capture, topic)
        sizes: Counter[int] = Counter()
        for row in rows(capture.store, topic):
            if row["_op"] == "r" and row["_epoch"] > 1:
                sizes[row["_epoch"]] += len(row["after"]["v"])
        assert max(sizes.values()) < 40_000_000, sizes
        assert_equals_source(site)
        assert_sound(capture.store)


def test_a_load_that_is_ended_between_two_steps_is_not_taken_for_whole(site: Site) -> None:
    with CaptureProcess(site) as first:
        first.catch_up()
    reading = threading.Event()

    class Rates(dict[TopicId, int]):
        """Asked for when the load has begun and reads its first chunk next."""

        def get(self, topic: TopicId, default: int | None = None) -> int | None:  # type: ignore[override]
            reading.set()
            time.sleep(0.3)
            return default

    with site.open() as store:
        store.requests.ask(SNAPSHOT, [ITEMS])
        with CaptureProcess(site, failpoint="chunk_read:2") as killed:
            assert killed.wait() == -9, killed.output
        state = store.source(SOURCE)
        assert state is not None
        task = Task.of(store, SOURCE, site.settings)
        load = ChunkedLoad(task, state.publication, {ITEMS: store.schemas(ITEMS)[-1]}, Rates())
        load.start()
        assert reading.wait(30)
        load.close()
        assert not load.ready(0), "nothing was read"


def test_a_load_is_as_slow_as_its_limit_and_a_request_for_nothing_is_refused(site: Site) -> None:
    with RunningCapture(site) as capture:
        capture.catch_up()
        (nothing,) = capture.store.requests.ask(SNAPSHOT, [table("nothing")])
        (request,) = capture.store.requests.ask(SNAPSHOT, [ITEMS], rows_per_second=ROWS // 2)
        began = time.monotonic()
        capture.wait_until(lambda: capture.store.requests.get([request.id])[0].ended_at is not None)
        assert time.monotonic() - began > 1, "faster than the limit allows"
        assert capture.store.requests.get([nothing.id])[0].state is RequestState.FAILED
        assert_equals_source(site)
