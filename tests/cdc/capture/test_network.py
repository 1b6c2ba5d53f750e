"""What a network and a server's operator do to a running capture: it goes on where it was, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from tailrace.cdc.postgres import liveness
from tailrace.cdc.status import CapturePhase
from tailrace.embedded import PostgresServer
from tailrace.eventstore.model.position import format_lsn
from tests.fixtures.proxy import Proxy
from tests.support import workload
from tests.support.capturing import (
    CaptureProcess,
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    connected,
    execute,
    init_and_load,
    query,
    rows,
    streaming,
    table,
    wait_until,
)


def with_sender_timeout(dsn: str, seconds: int) -> str:
    """The server hangs up on this client after so many seconds of silence."""
    return f"{dsn}?options=-c%20wal_sender_timeout%3D{seconds}s"


def site_via(site: Site, dsn: str, **settings: int) -> Site:
    """The same site with another way to its server."""
    return site.with_settings(dsn=SecretStr(dsn), **settings)


def test_a_network_that_is_cut_again_and_again_loses_nothing(site: Site, proxy: Proxy) -> None:
    site.init()
    shaky = site_via(site, proxy.dsn(site.dsn), epoch_bytes=8192, linger_ms=10)
    with RunningCapture(shaky) as capture:
        with workload.writing(site.dsn, seed=1, sessions=1, pause=0.002):
            for _ in range(3):
                seen = capture.status.transactions
                wait_until(
                    lambda seen=seen: capture.status.transactions > seen + 20,  # type: ignore[misc]
                    alive=lambda: capture.running,
                )
                proxy.cut()
        capture.catch_up()
        assert_equals_source(site, workload.TABLES)
        assert_sound(capture.store)


@pytest.mark.slow
def test_a_server_out_of_reach_is_tried_again_until_it_is_back(site: Site, proxy: Proxy) -> None:
    site.init()
    shaky = site_via(site, proxy.dsn(site.dsn))
    with RunningCapture(shaky) as capture:
        connected(capture, site)
        proxy.refusing = True
        proxy.cut()
        before = proxy.arrived
        capture.wait_until(lambda: proxy.arrived >= before + 4)
        assert capture.status.phase is CapturePhase.RECONNECTING
        assert any("trying again" in message for message in capture.status.messages)
        workload.write(site.dsn, seed=2, transactions=50)
        proxy.refusing = False
        capture.catch_up()
        assert_equals_source(site)
        assert_sound(capture.store)


def test_a_half_open_connection_is_noticed_by_both_sides(site: Site, proxy: Proxy) -> None:
    """No packet comes, no error either: neither TCP nor the server tells the client that its connection is dead."""
    site.init()
    shaky = site_via(site, with_sender_timeout(proxy.dsn(site.dsn), 3))
    with RunningCapture(shaky) as capture:
        dead = connected(capture, site)
        capture.wait_until(lambda: capture.status.server_lsn > 0)  # its session listens
        proxy.fall_silent()
        workload.write(site.dsn, seed=3, transactions=50)
        capture.catch_up()
        assert connected(capture, site) != dead
        assert_equals_source(site)
        assert_sound(capture.store)


def test_a_frame_that_takes_longer_than_the_timeout_is_received_over_a_slow_link(
    site: Site, proxy: Proxy
) -> None:
    site.init()
    slow = site_via(site, with_sender_timeout(proxy.dsn(site.dsn), 5))
    with RunningCapture(slow) as capture:
        before = connected(capture, site)
        proxy.bytes_per_second = 25 << 10
        execute(site.dsn, "INSERT INTO public.customers (id, name) VALUES (1, repeat('wide ', 30000))")
        capture.catch_up()
        proxy.bytes_per_second = None
        assert streaming(site) == before, "the connection was dropped and made again"
        assert_equals_source(site)


def test_feedback_goes_on_inside_a_huge_transaction(site: Site) -> None:
    """A server that hangs up after 5 s, a queue of a few kB, and a log that takes 0.5 s for each part of it."""
    patient = site_via(site, with_sender_timeout(site.dsn, 5), queue_bytes=65536, epoch_bytes=65536)
    patient.init()
    with CaptureProcess(patient, failpoint="segment_written~500") as process:
        before = connected(process, site)
        execute(
            site.dsn,
            "INSERT INTO public.orders SELECT i, i, i, NULL, '{}' FROM generate_series(1, 18000) i",
        )
        process.catch_up()
        assert streaming(site) == before, "the connection was dropped and made again"
        with patient.open() as store:
            assert len({row["_epoch"] for row in rows(store, table("orders"))}) == 1
            assert_sound(store)
        assert_equals_source(site)


def test_a_clean_stop_confirms_what_the_log_holds(site: Site) -> None:
    site.init()
    with RunningCapture(site) as capture:
        connected(capture, site)
        workload.write(site.dsn, seed=5, transactions=30)
        capture.catch_up()
    with site.open() as store:
        state = store.source("shop")
        assert state is not None
        slot = (
            "SELECT active, confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'acme_shop'"
        )
        wait_until(lambda: not query(site.dsn, slot)[0][0])  # the server's process ends behind its answer
        assert query(site.dsn, slot) == [(False, format_lsn(state.through_lsn))]


@pytest.mark.versions
def test_a_fast_shutdown_waits_until_the_log_holds_everything(
    postgres_server: Callable[..., PostgresServer], store_dir: Path
) -> None:
    """While the server stops it sends what is left and waits for the confirmation, which must come."""
    server = postgres_server()
    workload.create_tables(server.dsn())
    site = Site.at(store_dir, server.dsn(), tables=workload.PATTERNS, queue_bytes=65536, epoch_bytes=65536)
    site.init()
    with CaptureProcess(site, failpoint="inside_commit~50") as process:
        execute(server.dsn(), "INSERT INTO public.customers (id, name) VALUES (1, 'loaded')")
        process.catch_up()
        execute(server.dsn(), "INSERT INTO public.customers (id, name) VALUES (2, 'streamed')")
        process.catch_up()  # nothing but the stream is needed any more
        wide = "INSERT INTO public.customers (id, name) SELECT max(id) + 1, repeat('x', 20000) FROM public.customers"
        execute(server.dsn(), *[wide] * 38)
        server.stop("fast")
        with site.open() as store:
            assert len(rows(store, table("customers"))) == 40
        assert process.running
        server.start()
        workload.write(server.dsn(), seed=6, transactions=20)
        process.catch_up()
        assert_equals_source(site, workload.TABLES)
        assert process.terminate() == 0, process.output
    with site.open() as store:
        assert_sound(store)


@pytest.mark.parametrize("later", [False, True], ids=["first load", "load by chunks"])
def test_a_load_whose_connections_died_without_a_word_is_begun_again(
    site: Site, proxy: Proxy, later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COPY has no keepalives of its own; the proxy holds the connections open on both sides."""
    monkeypatch.setattr(liveness, "_FIRST_SECONDS", 0.5)
    monkeypatch.setattr(liveness, "_LATE_SECONDS", 0.2)
    if later:
        init_and_load(site)
    execute(
        site.dsn,
        "CREATE TABLE public.items (id int PRIMARY KEY, body text)",
        "INSERT INTO public.items SELECT i, repeat('x', 1000) FROM generate_series(1, 12000) i",
    )
    slow = site_via(site, with_sender_timeout(proxy.dsn(site.dsn), 3)).with_settings(
        tables=["public.items", *workload.PATTERNS], load_workers=1
    )
    slow.init()
    copying = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'COPY%' AND datname = current_database()"
    if not later:
        copying += " AND wait_event = 'ClientWrite'"  # more than all buffers hold is on its way
    proxy.bytes_per_second = 1 << 20
    with RunningCapture(slow) as capture:
        capture.wait_until(lambda: query(site.dsn, copying) != [])
        proxy.fall_silent()
        proxy.bytes_per_second = None
        capture.wait_until_complete(table("items"))
        assert any("dead" in text or "silent" in text for text in capture.status.messages)
        assert_equals_source(slow)
