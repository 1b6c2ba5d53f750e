"""kill -9 at every step, server crashes, network silence: no change lost, none twice, offsets dense."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path

import psycopg
import pytest

from tailrace.cdc.postgres.connect import Address
from tailrace.cdc.postgres.errors import SlotActive
from tailrace.cdc.setup.continuity import check_start
from tailrace.embedded import PostgresServer
from tailrace.eventstore.errors import Fenced
from tests.fixtures.proxy import Proxy
from tests.fixtures.scale import Scale
from tests.support import workload
from tests.support.capturing import (
    SOURCE,
    CaptureProcess,
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    connected,
    execute,
    init_and_capture,
    query,
    slot_pid,
    streaming,
    table,
    wait_until,
)

KILLED = -9

# Where, and at which pass: some early (inside the first load where it passes there), some in the middle of the stream.
FAIL_POINTS = [
    "frame_received:40",
    "transaction_gathered:15",
    "epoch_decoded:3",
    "segment_written:2",
    "inside_commit:1",
    "inside_commit:4",
    "epoch_committed:4",
    "position_confirmed:2",
]


@pytest.mark.parametrize("failpoint", FAIL_POINTS)
def test_kill_at_a_step_loses_nothing_and_doubles_nothing(site: Site, failpoint: str) -> None:
    small = site.with_settings(epoch_bytes=32768, linger_ms=20)
    if failpoint.startswith("segment_written"):
        small = replace(small, store_settings=small.store_settings.model_copy(update={"inline_bytes": 1024}))
    workload.write(site.dsn, seed=1, transactions=60)
    small.init()
    with workload.writing(site.dsn, seed=2, sessions=1, pause=0.02, truncates=False):
        with CaptureProcess(small, failpoint=failpoint) as process:
            assert process.wait(60) == KILLED, process.output
        with CaptureProcess(small) as process:
            process.catch_up()
            assert_equals_source(small, workload.TABLES)
            assert process.terminate() == 0, process.output
    with small.open() as store:
        assert_sound(store)


def test_random_kills_under_load(site: Site, scale: Scale) -> None:
    dice = random.Random(7)
    site.init()
    with workload.writing(site.dsn, seed=3, sessions=2, pause=0.002):
        for _ in range(scale.pick(smoke=2, full=100)):
            with CaptureProcess(site) as process:
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(dice.uniform(0.6, 2.5))
                process.kill()
        with CaptureProcess(site) as process:
            process.catch_up()
            assert_equals_source(site, workload.TABLES)
    with site.open() as store:
        assert_sound(store)


def test_a_zombie_is_fenced_and_nothing_of_it_is_visible(site: Site) -> None:
    """A capture that stood still (a paused machine) while another took over must stop at its next commit."""
    site.init()
    with CaptureProcess(site) as zombie:
        zombie.catch_up()
        zombie.freeze()
        workload.write(site.dsn, seed=4, transactions=50)
        ((written,),) = query(site.dsn, "SELECT pg_current_wal_flush_lsn()::text")
        sent = f"SELECT 1 FROM pg_stat_replication WHERE pid = {slot_pid(site)} AND sent_lsn >= '{written}'"  # noqa: S608
        wait_until(lambda: query(site.dsn, sent) != [])
        execute(site.dsn, f"SELECT pg_terminate_backend({slot_pid(site)}, 60000)")
        with RunningCapture(site) as successor:
            successor.catch_up()
            term = successor.store.source("shop")
            zombie.thaw()
            assert zombie.wait(60) == Fenced.exit_code, zombie.output
            assert "another writer" in zombie.output
            workload.write(site.dsn, seed=5, transactions=50)
            successor.catch_up()
            assert successor.store.source("shop").term == term.term  # type: ignore[union-attr]
            assert_equals_source(site, workload.TABLES)
            assert_sound(successor.store)


@pytest.mark.slow
def test_a_second_capture_is_refused_and_disturbs_nobody(site: Site) -> None:
    site.init()
    with RunningCapture(site) as first:
        first.catch_up()
        with CaptureProcess(site) as second:
            assert second.wait(60) == 7, second.output
            assert "in use by another process" in second.output
            assert "pg_terminate_backend" in second.output
        workload.write(site.dsn, seed=6, transactions=30)
        first.catch_up()
        assert_equals_source(site)


@pytest.mark.slow
def test_what_the_second_is_told_does_not_depend_on_what_the_first_stores_meanwhile(
    site: Site, proxy: Proxy
) -> None:
    site.init()
    proxy.bytes_per_second = 2_000  # so that much is stored between two questions
    with RunningCapture(site) as first, ThreadPool(1) as writing:
        first.catch_up()
        writes = writing.apply_async(partial(workload.write, site.dsn, seed=6, transactions=2_000))
        while not writes.ready():
            with pytest.raises(SlotActive):
                check_start(first.store, SOURCE, Address.parse(proxy.dsn(site.dsn)))
        writes.get()


def test_a_server_restart_is_survived(
    postgres_server: Callable[..., PostgresServer], store_dir: Path
) -> None:
    server = postgres_server()
    workload.create_tables(server.dsn())
    site = Site.at(store_dir, server.dsn(), tables=workload.PATTERNS)
    site.init()
    with RunningCapture(site) as capture:
        stops: list[Callable[[], None]] = [
            partial(server.stop, "immediate"), server.kill, partial(server.stop, "fast"),
        ]  # fmt: skip
        for seed, stop in enumerate(stops):
            workload.write(server.dsn(), seed=70 + seed, transactions=100)
            stop()
            server.start()
            workload.write(server.dsn(), seed=80 + seed, transactions=50)
            capture.catch_up()
            assert_equals_source(site, workload.TABLES)
        assert_sound(capture.store)


@pytest.mark.slow
def test_a_server_restart_during_the_first_load_begins_it_again(
    postgres_server: Callable[..., PostgresServer], store_dir: Path
) -> None:
    server = postgres_server()
    workload.create_tables(server.dsn())
    execute(
        server.dsn(),
        "INSERT INTO public.customers SELECT i, repeat('x', 100), i FROM generate_series(1, 30000) i",
    )
    site = Site.at(store_dir, server.dsn(), tables=workload.PATTERNS)
    site.init()
    segments = site.root / site.store_settings.segments
    with CaptureProcess(site, failpoint="segment_written~1500") as capture:
        wait_until(lambda: any(segments.rglob("*.parquet")), alive=lambda: capture.running)
        server.restart("immediate")  # the file is written, the load that it belongs to is not committed
        capture.catch_up()
        with site.open() as store:
            assert sum(batch.num_rows for batch in store.read(table("customers"))) == 30_000
        assert_equals_source(site, workload.TABLES)


@pytest.mark.slow
def test_a_slow_log_holds_back_reading_but_never_feedback(site: Site) -> None:
    """Queue of a few transactions, commits that take 0.6 s, a server that hangs up after 5 s of silence."""
    options = "options=-c%20wal_sender_timeout%3D5s"
    slow = Site.at(
        site.root,
        f"{site.dsn}?{options}",
        tables=workload.PATTERNS,
        queue_bytes=8192,
        epoch_bytes=4096,
        linger_ms=0,
    )
    slow.init()
    with CaptureProcess(slow, failpoint="inside_commit~600") as process:
        before = connected(process, site)
        workload.write(site.dsn, seed=9, transactions=24, truncates=False)
        execute(
            site.dsn,
            "INSERT INTO public.orders SELECT 1000 + i, i, i, NULL, '{}' FROM generate_series(1, 500) i",
        )
        process.catch_up(120)
        assert streaming(site) == before, "the connection was dropped and made again"
        assert_equals_source(slow)
    with slow.open() as store:
        assert_sound(store)


def test_the_slot_is_not_confirmed_beyond_what_the_log_holds(site: Site) -> None:
    site.init()
    with CaptureProcess(site) as process, site.open() as store:
        process.catch_up()  # before, the slot stands where it was made, and the log holds nothing
        for seed in range(10, 14):
            workload.write(site.dsn, seed=seed, transactions=20)
            with psycopg.connect(site.dsn, autocommit=True) as connection:
                confirmed = connection.execute(
                    "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = 'acme_shop'"
                ).fetchone()
            state = store.source("shop")
            assert confirmed is None or state is None or int(confirmed[0]) <= state.through_lsn
        process.catch_up()
        state = store.source("shop")
        assert state is not None
        wait_until(
            lambda: (
                query(
                    site.dsn,
                    "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = 'acme_shop'",
                )[0][0]
                >= state.through_lsn
            ),
            alive=lambda: process.running,
        )


def test_wal_of_an_idle_source_is_released(site: Site) -> None:
    """Writes outside of the publication move the confirmed position too."""
    with init_and_capture(site) as capture:
        head = capture.store.head()
        execute(
            site.dsn,
            "CREATE TABLE public.not_captured (i int)",
            "INSERT INTO public.not_captured SELECT generate_series(1, 50000)",
        )
        capture.catch_up()
        capture.wait_until(lambda: capture.status.confirmed_lsn >= capture.status.durable_lsn)
        assert capture.store.head() == head
