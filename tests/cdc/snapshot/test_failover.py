"""A standby is promoted while the first load runs: the load is taken from it anew, or capture says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tailrace.cdc.postgres.errors import SlotLost
from tailrace.cdc.repair.report import TopicRepair
from tailrace.embedded import PostgresServer
from tailrace.eventstore.errors import OperatorError
from tests.fixtures.proxy import Proxy
from tests.fixtures.servers import ServerFactory
from tests.support.capturing import (
    SOURCE,
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    execute,
    query,
    rows,
    table,
)
from tests.support.standby import LINK, promote, start_standby, wait_until_replayed

pytestmark = pytest.mark.slow  # servers of their own
LOADED = 12_000  # rows, of 1 kB each: more than all buffers of a connection hold
SCHEMA = (
    "CREATE TABLE public.items (id int PRIMARY KEY, body text)",
    f"INSERT INTO public.items SELECT i, repeat('x', 1000) FROM generate_series(1, {LOADED}) i",  # noqa: S608
)
COPYING = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'COPY%' AND state = 'active' AND wait_event = 'ClientWrite'"


@pytest.fixture
def primary(postgres_server: ServerFactory) -> PostgresServer:
    server = postgres_server()
    execute(server.dsn(), *SCHEMA)
    return server


@pytest.fixture
def standby(primary: PostgresServer, postgres_server: ServerFactory) -> PostgresServer:
    return start_standby(primary, postgres_server, primary_slot_name=LINK)


@pytest.fixture
def address(primary: PostgresServer) -> Iterator[Proxy]:
    """What the source's dsn names, whichever server is behind it."""
    with closing(Proxy(primary.port)) as proxy:
        yield proxy


@pytest.fixture
def site(primary: PostgresServer, address: Proxy, store_dir: Path) -> Site:
    return Site.at(store_dir, address.dsn(primary.dsn()), load_workers=1)


def insert(server: PostgresServer, number: int) -> None:
    execute(server.dsn(), f"INSERT INTO public.items VALUES ({number}, 'later')")  # noqa: S608


def take_over(address: Proxy, primary: PostgresServer, standby: PostgresServer) -> None:
    """The standby becomes the one that new connections reach, and goes its own way."""
    wait_until_replayed(primary, standby)
    address.lead_to(standby.port)
    promote(standby)
    insert(standby, LOADED + 1)


def assert_loaded_anew(capture: RunningCapture, standby: PostgresServer) -> None:
    """The log holds what the promoted server has, each row once, and goes on there."""
    capture.catch_up()
    insert(standby, LOADED + 2)
    capture.catch_up()
    ids = [row["key"]["id"] for row in rows(capture.store, table("items"))]
    assert sorted(ids) == list(range(1, LOADED + 3))
    state = capture.store.source(SOURCE)
    assert state is not None and state.timeline == 2
    assert_equals_source(capture.site)
    assert_sound(capture.store)


def test_a_primary_that_dies_while_it_is_read_is_followed_by_a_new_load(
    primary: PostgresServer, standby: PostgresServer, address: Proxy, site: Site
) -> None:
    site.init()
    address.bytes_per_second = 1 << 20
    with RunningCapture(site) as capture:
        capture.wait_until(lambda: query(primary.dsn(), COPYING) != [])
        wait_until_replayed(primary, standby)
        primary.kill()
        address.bytes_per_second = None
        address.lead_to(standby.port)
        capture.wait_until(lambda: any("is a standby" in text for text in capture.status.messages))
        promote(standby)
        insert(standby, LOADED + 1)
        assert_loaded_anew(capture, standby)


def test_readers_that_reach_another_server_than_the_slot_are_followed_by_a_new_load(
    primary: PostgresServer, standby: PostgresServer, address: Proxy, site: Site
) -> None:
    """The old primary lives on, and with it the connection that made the slot and exports its snapshot."""
    site.init()
    with psycopg.connect(primary.dsn()) as user:
        user.execute("UPDATE public.items SET body = '' WHERE id = 1")  # the slot waits for its end
        with RunningCapture(site) as capture:
            capture.wait_until(
                lambda: (
                    query(primary.dsn(), "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'acme_shop'")
                    != []
                )
            )
            take_over(address, primary, standby)
            user.rollback()
            assert_loaded_anew(capture, standby)


def test_a_load_that_ends_on_the_old_primary_is_refused_by_the_promoted_one_and_repaired(
    primary: PostgresServer, standby: PostgresServer, address: Proxy, site: Site
) -> None:
    """All connections of the load were made before: it is whole, but what came since is missing from it."""
    site.init()
    address.bytes_per_second = 1 << 20
    with RunningCapture(site) as capture:
        capture.wait_until(lambda: query(primary.dsn(), COPYING) != [])
        take_over(address, primary, standby)
        address.bytes_per_second = None
        error = capture.ended()
        capture.forgive()
    assert isinstance(error, SlotLost) and "source repair" in error.hint
    assert site.repair().topics == (TopicRepair(table("items"), rows=LOADED + 1, added=1),)
    with RunningCapture(site) as capture:
        assert_loaded_anew(capture, standby)


def test_a_promoted_standby_that_lacks_the_publication_is_prepared_again(
    primary: PostgresServer, standby: PostgresServer, address: Proxy, site: Site
) -> None:
    """It was behind: the primary died with what `init` had made."""
    standby.stop()
    site.init()
    primary.kill()
    standby.start()
    address.lead_to(standby.port)
    promote(standby)
    insert(standby, LOADED + 1)
    error = site.capture_error()
    assert isinstance(error, OperatorError) and "tailrace init" in error.hint
    site.init()
    with RunningCapture(site) as capture:
        assert_loaded_anew(capture, standby)
