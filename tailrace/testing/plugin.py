"""A plugin for pytest: a real Postgres, and a log that follows it. In a ``conftest.py``:

    pytest_plugins = ["tailrace.testing.plugin"]

It needs the extras ``embedded`` and, for ``tailrace_log``, ``capture``.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from tailrace.embedded import PostgresServer
from tailrace.eventstore.model.event_schema import chosen_schema
from tailrace.eventstore.model.position import parse_lsn
from tailrace.eventstore.settings import PostgresSourceSettings, StoreSettings
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import position
from tailrace.eventstore.streams.database.event_tables import install

if TYPE_CHECKING:
    from tailrace.cdc.capture import Capture

SOURCE = "test"
_POLL_SECONDS = 0.02
# A test that is killed leaves nothing that anybody needs.
_SETTINGS = {"fsync": "off", "full_page_writes": "off"}
_SLOTS = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
)


@pytest.fixture(scope="session")
def tailrace_server() -> Iterator[PostgresServer]:
    """An embedded Postgres with logical replication, for all tests."""
    with PostgresServer(settings=_SETTINGS, trust=True) as server:
        yield server


@pytest.fixture
def tailrace_dsn(tailrace_server: PostgresServer) -> Iterator[str]:
    """A database of the test's own, with the tables of domain events."""
    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(tailrace_server.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        dsn = tailrace_server.dsn(name)
        install(dsn)
        yield dsn
        with psycopg.connect(dsn, autocommit=True) as inside:
            inside.execute(_SLOTS)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


class FollowingLog:
    """A log in the test's own folder. Capture runs in a thread from the first ``catch_up`` on."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        schema = chosen_schema()
        keys = f"{dsn}{'&' if '?' in dsn else '?'}schema={schema}"
        self.store = Store.open(StoreSettings(name="test", keys={SOURCE: keys}), create=True, root=folder)
        """The log: ``store.tail``, ``store.group``, ``store.state`` …; its source is called ``test``."""
        self._settings = PostgresSourceSettings(dsn=dsn, linger_ms=5, events_schema=schema)
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, "capture of a test")
        self._running: Future[None] | None = None

    def catch_up(self, seconds: float = 60.0) -> None:
        """Wait until the log holds what is committed by now, also of tables that are new. Raises what ends capture, and
        TimeoutError."""
        from tailrace.cdc.setup.prepare import prepare_source

        prepare_source(self.store, SOURCE, self._settings)
        if self._running is None:
            self._running = self._pool.submit(self._capture().run)
        with psycopg.connect(self.dsn) as connection:
            wanted = parse_lsn(position(connection))
        until = time.monotonic() + seconds
        while not self._holds(wanted):
            if self._running.done():
                self._running.result()
            if time.monotonic() > until:
                raise TimeoutError(f"the log does not hold what was committed {seconds:g} s ago")
            time.sleep(_POLL_SECONDS)

    def _capture(self) -> Capture:
        from tailrace.cdc.capture import Capture

        return Capture(self.store, SOURCE, self._settings, stop=self._stop)

    def _holds(self, wanted: int) -> bool:
        state = self.store.source(SOURCE)
        if state is None or not state.loaded or state.through_lsn < wanted:
            return False
        return all(info.complete_since is not None for info in self.store.topics(SOURCE))

    def close(self) -> None:
        """Raises what ended capture."""
        self._stop.set()
        try:
            if self._running is not None:
                self._running.result()
        finally:
            self._pool.shutdown()
            self.store.close()


@pytest.fixture
def tailrace_log(tailrace_dsn: str, tmp_path: Path) -> Iterator[FollowingLog]:
    """A log that follows ``tailrace_dsn``."""
    following = FollowingLog(tailrace_dsn, tmp_path / "tailrace_log")
    yield following
    following.close()
