"""The catalog's server dies in the midst of an epoch's commit: capture goes on by itself, and the log has each
transaction once, whether the commit landed or not."""

# ruff: noqa: S608 (statements are put together from names of our own)

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from enum import Enum
from pathlib import Path

import psycopg
import pytest

from tailrace.embedded import PostgresServer
from tailrace.eventstore.log import commit
from tests.fixtures.proxy import AtCommit, Proxy
from tests.fixtures.scale import Scale
from tests.fixtures.servers import ServerFactory
from tests.support import workload
from tests.support.capturing import (
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

HEAD = "acme_log.log_head"


class Moment(Enum):
    """When the catalog's server dies."""

    IN_THE_MIDDLE = "statements have run, COMMIT is not sent"
    NOT_RECEIVED = "COMMIT is sent and does not arrive"
    NOT_ANSWERED = "the server has committed, its answer is lost"
    WAITS_FOR_STANDBY = "the commit is on the disk, the server waits for a standby before it answers"


LANDED = (Moment.NOT_ANSWERED, Moment.WAITS_FOR_STANDBY)


class Catalog:
    """A Postgres catalog that capture reaches through a proxy, and the test directly."""

    def __init__(self, server: PostgresServer, proxy: Proxy) -> None:
        self.server, self.proxy = server, proxy

    def epoch(self) -> int:
        ((epoch,),) = query(self.server.dsn(), f"SELECT epoch FROM {HEAD}")
        return int(epoch)

    def dies(self, moment: Moment, act: Callable[[], object]) -> None:
        """``act`` leads to an epoch. At a moment of its commit the server dies as if its power failed, and comes back.
        Nobody but the test reaches it before it has been seen whether the epoch landed, as the moment says."""
        before = self.epoch()
        with closing(psycopg.connect(self.server.dsn())) as connection:
            connection.execute(f"SELECT FROM {HEAD} FOR UPDATE")
            act()
            self._wait_until_one_waits("wait_event_type = 'Lock'")
            self._go_on_to(moment, connection.rollback)
            self.proxy.refusing = True
            self.server.kill()
        self.server.start()
        assert self.epoch() == before + (moment in LANDED)
        self.proxy.refusing = False

    def _go_on_to(self, moment: Moment, release: Callable[[], None]) -> None:
        if moment is Moment.WAITS_FOR_STANDBY:
            dsn = self.server.dsn()
            execute(dsn, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
            wait_until(lambda: query(dsn, "SHOW synchronous_standby_names") == [("nobody",)])
            release()
            self._wait_until_one_waits("wait_event = 'SyncRep'")
            execute(dsn, "ALTER SYSTEM RESET synchronous_standby_names")  # from its next start on
        elif moment is not Moment.IN_THE_MIDDLE:
            lost, self.proxy.refusing = self.proxy.lost, True
            landed = moment in LANDED
            self.proxy.at_commit = AtCommit.LOST_AFTER if landed else AtCommit.LOST_BEFORE
            release()
            wait_until(lambda: self.proxy.lost > lost)

    def _wait_until_one_waits(self, how: str) -> None:
        waiting = f"SELECT 1 FROM pg_stat_activity WHERE {how}"
        wait_until(lambda: query(self.server.dsn(), waiting) != [])


@pytest.fixture
def catalog(postgres_server: ServerFactory) -> Iterator[Catalog]:
    server = postgres_server()
    with closing(Proxy(server.port)) as proxy:
        yield Catalog(server, proxy)


@pytest.fixture
def site(database: str, store_dir: Path, catalog: Catalog) -> Site:
    workload.create_tables(database)
    url = catalog.proxy.dsn(catalog.server.dsn())
    return Site.at(store_dir, database, catalog=url, tables=workload.PATTERNS)


@pytest.fixture(params=[60.0, 0.1], ids=["the append waits", "the append gives up"])
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the append itself finds out what became of its commit, or the next session takes over."""
    monkeypatch.setattr(commit, "RETRY_SECONDS", request.param)


def insert(site: Site, number: int) -> None:
    execute(site.dsn, f"INSERT INTO public.customers (id, name) VALUES ({number}, 'x')")


@pytest.mark.slow
@pytest.mark.usefixtures("patience")
def test_a_catalog_lost_in_a_commit_leaves_each_transaction_once(site: Site, catalog: Catalog) -> None:
    site.init()
    with RunningCapture(site) as capture:
        capture.catch_up()
        for number, moment in enumerate(Moment):
            catalog.dies(moment, lambda number=number: insert(site, number))  # type: ignore[misc]
            insert(site, 100 + number)
            capture.catch_up()
        ids = [row["key"]["id"] for row in rows(capture.store, table("customers"))]
        assert sorted(ids) == [*range(len(Moment)), *range(100, 100 + len(Moment))]
        assert_equals_source(site, workload.TABLES)
        assert_sound(capture.store)


@pytest.mark.slow
@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("moment", Moment)
def test_a_catalog_lost_in_the_commit_of_a_first_load_leaves_each_row_once(
    site: Site, catalog: Catalog, moment: Moment
) -> None:
    for number in range(3):
        insert(site, number)
    site.init()
    capture = RunningCapture(site)
    with ExitStack() as running:
        catalog.dies(moment, lambda: running.enter_context(capture))
        insert(site, 100)
        capture.catch_up()
        ids = [row["key"]["id"] for row in rows(capture.store, table("customers"))]
        assert sorted(ids) == [0, 1, 2, 100]
        assert_equals_source(site, workload.TABLES)
        assert_sound(capture.store)


@pytest.mark.slow
def test_a_catalog_that_crashes_under_load_leaves_each_transaction_once(
    site: Site, catalog: Catalog, scale: Scale
) -> None:
    dice = random.Random(11)
    small = site.with_settings(epoch_bytes=8192, linger_ms=10)
    small.init()
    with RunningCapture(small) as capture:
        with workload.writing(site.dsn, seed=12, sessions=2, pause=0.002):
            for number in range(scale.pick(smoke=3, full=30)):
                seen = capture.status.transactions
                capture.wait_until(lambda seen=seen: capture.status.transactions > seen)  # type: ignore[misc]
                time.sleep(dice.uniform(0.0, 0.3))
                if number % 2:
                    catalog.server.kill()
                else:
                    catalog.server.stop("immediate")
                catalog.server.start()
        capture.catch_up()
        assert_equals_source(small, workload.TABLES)
        assert_sound(capture.store)
