"""Captures to test with: in a thread, or as a real process that fail points and signals kill; and what must hold of
the log afterwards."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from sqlalchemy import select

from tailrace.cdc.capture import Capture
from tailrace.cdc.repair.position import Patience
from tailrace.cdc.repair.repair import RepairResult, repair_source
from tailrace.cdc.repair.verify import TopicComparison, verify_source
from tailrace.cdc.setup.prepare import Preparation, prepare_source
from tailrace.cdc.status import CapturePhase, CaptureStatus
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.model.position import parse_lsn
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.settings import PostgresSourceSettings, StoreSettings
from tailrace.eventstore.store import Store
from tests.support import REPOSITORY
from tests.support.forking import Forked

SOURCE = "shop"


@dataclass(frozen=True)
class Site:
    """One store and one source called ``shop``."""

    root: Path
    dsn: str
    store_settings: StoreSettings
    settings: PostgresSourceSettings

    @classmethod
    def at(
        cls, root: Path, dsn: str, *, name: str = "acme", catalog: str | None = None, **settings: Any
    ) -> Site:
        store = StoreSettings(name=name) if catalog is None else StoreSettings(name=name, catalog=catalog)
        return cls(root, dsn, store, PostgresSourceSettings(dsn=dsn, **settings))

    def open(self) -> Store:
        return Store.open(self.store_settings, create=True, root=self.root)

    def with_settings(self, **changes: Any) -> Site:
        settings = PostgresSourceSettings.model_validate(self.settings.model_dump() | changes)
        return Site(self.root, self.dsn, self.store_settings, settings)

    def init(self, **options: bool) -> Preparation:
        with self.open() as store:
            return prepare_source(store, SOURCE, self.settings, **options)

    def catalog_is_free(self) -> bool:
        """Whether nobody holds the write lock of the (SQLite) catalog."""
        with closing(sqlite3.connect(self.root / ".tailrace" / "catalog.db", timeout=0)) as catalog:
            try:
                catalog.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                return False
            return True

    def capture_error(self) -> TailraceError:
        """Capture until that ends by itself; what it ended with."""
        with RunningCapture(self) as capture:
            error = capture.ended()
            capture.forgive()
        assert isinstance(error, TailraceError) and error.hint, error
        return error

    def repair(self) -> RepairResult:
        with self.open() as store:
            result = repair_source(store, SOURCE, self.settings)
        assert result is not None
        return result

    def verify(self, *topics: TopicId, patience: Patience | None = None) -> list[TopicComparison]:
        with self.open() as store:
            return verify_source(
                store, SOURCE, self.settings, topics or None, patience=patience or Patience(120.0)
            )

    def to_json(self) -> str:
        settings = self.settings.model_dump(mode="json") | {"dsn": self.dsn}
        if self.settings.hash_key is not None:
            settings["hash_key"] = self.settings.hash_key.get_secret_value()
        return json.dumps(
            {"root": str(self.root), "store": self.store_settings.model_dump(mode="json"), "source": settings}
        )

    @classmethod
    def from_json(cls, text: str) -> Site:
        data = json.loads(text)
        source = PostgresSourceSettings.model_validate(data["source"])
        return cls(
            Path(data["root"]), data["source"]["dsn"], StoreSettings.model_validate(data["store"]), source
        )


class RunningCapture:
    """A capture in a thread of this process. Leaving the block stops it and raises what it raised."""

    def __init__(self, site: Site, *, record: Path | None = None) -> None:
        self.site = site
        self.store = site.open()
        self.stop_event = threading.Event()
        self._capture = Capture(self.store, SOURCE, site.settings, stop=self.stop_event, record=record)
        self._pool = ThreadPoolExecutor(1, "capture under test")
        self._future: Future[None] | None = None
        self._forgiven = False

    def __enter__(self) -> Self:
        self._future = self._pool.submit(self._capture.run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = self.join()
        if failure is not None and error is None and not self._forgiven:
            raise failure

    def forgive(self) -> None:
        """Its error was what the test is about: leaving the block does not raise it."""
        self._forgiven = True

    @property
    def status(self) -> CaptureStatus:
        return self._capture.status

    @property
    def running(self) -> bool:
        return self._future is not None and not self._future.done()

    @property
    def error(self) -> BaseException | None:
        return self._future.exception() if self._future is not None and self._future.done() else None

    def join(self, timeout: float = 120.0) -> BaseException | None:
        """Stop, wait, and give back what it raised."""
        self.stop_event.set()
        error = self.ended(timeout)
        self._pool.shutdown()
        self.store.close()
        return error

    def ended(self, timeout: float = 120.0) -> BaseException | None:
        """Wait until it ends by itself; what it raised."""
        assert self._future is not None
        return self._future.exception(timeout)

    def catch_up(self, timeout: float = 120.0) -> None:
        """Wait until it streams and the log holds all that the source has committed by now."""
        catch_up(
            self.store,
            self.site,
            timeout,
            streams=lambda: self.status.phase is CapturePhase.STREAMING,
            alive=lambda: self.running or self.raise_error(),
        )

    def wait_until(self, condition: Callable[[], bool], timeout: float = 120.0) -> None:
        """Wait for it while the capture runs."""
        wait_until(condition, timeout, alive=lambda: self.running or self.raise_error())

    def is_complete(self, topic: TopicId) -> bool:
        """Whether the topic holds all that its table holds."""
        return self.store.topic(topic).complete_since is not None

    def wait_until_complete(self, topic: TopicId) -> None:
        self.wait_until(lambda: self.is_complete(topic))

    def raise_error(self) -> bool:
        if self.error is not None:
            raise self.error
        return False


@contextmanager
def init_and_capture(site: Site) -> Iterator[RunningCapture]:
    """``init``, then a capture whose first load is over: from here on the stream brings what changes."""
    site.init()
    with RunningCapture(site) as capture:
        capture.catch_up()
        yield capture


def init_and_load(site: Site) -> None:
    """``init`` and the first load. No capture runs afterwards."""
    with init_and_capture(site):
        pass


class CaptureProcess:
    """A capture (or, ``work``: a repair) as a process of its own, to be killed."""

    def __init__(self, site: Site, *, failpoint: str | None = None, work: str = "capture") -> None:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        environment.pop("TAILRACE_FAILPOINT", None)
        if failpoint:
            environment["TAILRACE_FAILPOINT"] = failpoint
        self._process = Forked(
            [sys.executable, "-m", "tests.support.capture_process", site.to_json(), work],
            cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._site = site
        self.output = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        elif self._process.stdout is not None and not self._process.stdout.closed:
            self.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self.wait()

    def terminate(self, timeout: float = 120.0) -> int:
        """SIGTERM: the clean stop."""
        self._process.terminate()
        return self.wait(timeout)

    def freeze(self) -> None:
        """SIGSTOP, but not in the midst of a commit: SQLite has no way past the lock of a process that stands still."""
        while True:
            self._process.send_signal(signal.SIGSTOP)
            wait_until(lambda: all(state == "T" for state in self._thread_states()))
            if self._site.catalog_is_free():
                return
            self.thaw()
            time.sleep(0.01)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def wait(self, timeout: float = 120.0) -> int:
        """Exit code (negative: the signal that ended it); ``output`` is what it printed."""
        self.output, _ = self._process.communicate(timeout=timeout)
        return self._process.returncode

    def catch_up(self, timeout: float = 120.0) -> None:
        """Wait until it streams and the log holds all that the source has committed by now."""
        with self._site.open() as store:
            catch_up(store, self._site, timeout, streams=lambda: has_replied(self._site), alive=self._alive)

    def _thread_states(self) -> list[str]:
        """proc(5): the letter behind the name, which is in parentheses and may hold some."""
        stats = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return [stat.read_text().rpartition(")")[2].split()[0] for stat in stats]

    def _alive(self) -> bool:
        if not self.running:
            raise AssertionError(f"it ended with {self.wait()}: {self.output}")
        return True


def catch_up(
    store: Store, site: Site, timeout: float, *, streams: Callable[[], bool], alive: Callable[[], bool]
) -> None:
    """Wait until a capture streams and the log holds all that the source has committed by now. After its load it holds
    that already, but the slot is free for a moment."""
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    target = parse_lsn(row[0])

    def reached() -> bool:
        state = store.source(SOURCE)
        return state is not None and state.loaded and state.through_lsn >= target and streams()

    wait_until(reached, timeout, alive)


def wait_until(
    condition: Callable[[], bool], timeout: float = 120.0, alive: Callable[[], bool] = lambda: True
) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert alive(), "it ended meanwhile"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)  # a look often takes a new connection


def slot_pid(site: Site) -> int | None:
    """The server process that streams to the site's capture."""
    found = query(
        site.dsn,
        "SELECT active_pid FROM pg_replication_slots"  # noqa: S608 (a name of our own)
        f" WHERE slot_name = '{site.store_settings.name}_{SOURCE}' AND active_pid IS NOT NULL",
    )
    return found[0][0] if found else None


def has_replied(site: Site) -> bool:
    """Whether the capture that streams has taken over the source: only then does it begin to reply."""
    replied = "SELECT 1 FROM pg_stat_replication WHERE reply_time IS NOT NULL AND pid = "
    return (pid := slot_pid(site)) is not None and query(site.dsn, f"{replied}{pid}") != []


def streaming(site: Site) -> list[tuple[int]]:
    """The server process that streams to the capture and has caught up."""
    return query(
        site.dsn,
        "SELECT pid FROM pg_stat_replication WHERE application_name = 'tailrace acme_shop' AND state = 'streaming'",
    )


def connected(capture: RunningCapture | CaptureProcess, site: Site) -> list[tuple[int]]:
    wait_until(lambda: streaming(site) != [], 60, alive=lambda: capture.running)
    return streaming(site)


def execute(dsn: str, *statements: str) -> None:
    """Each statement in a transaction of its own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(sql.SQL(statement))


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(sql.SQL(statement)).fetchall()


def server_version(dsn: str) -> int:
    """The server's major version."""
    return int(query(dsn, "SHOW server_version_num")[0][0]) // 10_000


def rows(store: Store, topic: TopicId) -> list[dict[str, Any]]:
    """All rows of a topic in epoch and partition order."""
    return [row for batch in store.read(topic) for row in batch.to_pylist()]


def table(name: str, schema: str = "public") -> TopicId:
    return TopicId.table(SOURCE, schema, name)


def assert_equals_source(site: Site, expected: Sequence[tuple[str, str]] | None = None) -> None:
    """``verify``: every topic (or exactly these tables) equals its table, cell by cell."""
    comparisons = site.verify()
    assert [each for each in comparisons if not each.equal] == []
    if expected is not None:
        assert {each.topic.parts[1:] for each in comparisons} == set(expected)


def assert_sound(store: Store) -> None:
    """Offsets are dense from 0 per topic and partition; every change stands once, in commit order per partition and
    incarnation; epochs are a gap-free prefix. A capture may go on meanwhile: the epochs are listed after the rows."""
    stored = [(info, rows(store, info.id)) for info in store.topics(SOURCE)]
    epochs = [info.epoch for info in store.epochs(limit=1_000_000)]
    assert epochs == list(range(1, len(epochs) + 1))
    with store.catalog.read() as connection:
        lives = dict(connection.execute(select(tables.epochs.c.epoch, tables.epochs.c.incarnation)).all())
    seen: set[tuple[int, int, int]] = set()
    for info, found in stored:
        offsets: dict[int, int] = {}
        positions: dict[int, tuple[int, int, int]] = {}
        loaded_until = (0, 0)
        once: set[tuple[int, int, int]] = set()
        for row in found:
            life = (lives[row["_epoch"]], row["_lsn"])
            partition, place = row["_partition"], (*life, row["_ordinal"])
            assert row["_offset"] == offsets.get(partition, 0), f"{info.id}: a gap in partition {partition}"
            offsets[partition] = row["_offset"] + 1
            if row["_txn"] == 0:  # a load: unordered among themselves, all of one position
                loaded_until = max(loaded_until, life)
                continue
            assert place > positions.get(partition, (0, 0, 0)), f"{info.id}: out of order or twice"
            assert life > loaded_until, f"{info.id}: a change from before its load"
            positions[partition] = place
            if row["_op"] != "t" or place not in once:
                assert place not in seen, f"{info.id}: {place} stands twice"
            seen.add(place)
            once.add(place)
        assert info.kind is not TopicKind.TABLE or info.version >= 1
