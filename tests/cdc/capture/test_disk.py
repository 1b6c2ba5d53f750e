"""A full or read-only disk, wherever capture writes: a named stop, nothing lost, and capture goes on when it is mended.

The disk is a small tmpfs, which root alone may mount.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.settings import PostgresSourceSettings, StoreSettings
from tailrace.eventstore.storage import PARTIAL
from tests.support.capturing import (
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    execute,
    init_and_capture,
    wait_until,
)
from tests.support.disks import fill, mounted, read_only

pytestmark = pytest.mark.servers
STREAMED = "options=-c%20logical_decoding_work_mem%3D64kB"
"""With protocol 2 the server streams a transaction as soon as its changes exceed this."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as folder:
        yield folder


def write(dsn: str) -> bool:
    """A transaction of 400 kB that does not compress."""
    execute(
        dsn,
        "INSERT INTO t SELECT coalesce((SELECT max(id) FROM t), 0) + i, gen_random_uuid()::text"
        " FROM generate_series(1, 10000) i",
    )
    return True


def stop_of(site: Site, *, writing: bool) -> OperatorError:
    """What ends a capture of the site, while transactions come if it needs them."""
    with pytest.raises(OperatorError) as caught, RunningCapture(site) as capture:
        wait_until(lambda: (not writing or write(site.dsn)) and not capture.running, 90)
    return caught.value


@pytest.mark.parametrize(
    ("part", "said"),
    [
        pytest.param("catalog.db", "catalog", id="the catalog"),
        pytest.param("segments", "no space left for", id="files of the log"),
        pytest.param("segments/spool", "cannot be kept in", id="a transaction that is streamed"),
        pytest.param("", "", id="all of the store"),
    ],
)
def test_a_full_disk_is_a_named_stop_that_loses_nothing(
    database: str, store_dir: Path, disk: Path, part: str, said: str
) -> None:
    spooled = part == "segments/spool"
    store = StoreSettings(
        name="acme",
        catalog=f"sqlite:///{(store_dir if part.startswith('segments') else disk) / 'catalog.db'}",
        segments=(store_dir if part == "catalog.db" else disk) / "segments",
        inline_bytes=0 if part == "segments" else 1 << 20,
    )
    source = PostgresSourceSettings(dsn=SecretStr(database), protocol=2 if spooled else 1)
    site = Site(store_dir, database, store, source)
    execute(database, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (0, 'before')")
    site.init()
    if spooled:
        site = site.with_settings(dsn=SecretStr(f"{database}?{STREAMED}"))
    with RunningCapture(site) as capture:
        capture.catch_up()
        execute(database, "INSERT INTO t VALUES (-1, 'streamed')")
        capture.catch_up()

    ballast = fill(disk)
    stopped = stop_of(site, writing=True)
    assert stopped.exit_code == 7
    assert str(disk / part) in stopped.message and said in stopped.message
    assert "space" in stopped.hint or "room" in stopped.hint
    again = stop_of(site, writing=True)
    assert str(disk / part) in again.message and again.exit_code == 7

    ballast.unlink()
    with RunningCapture(site) as capture:
        capture.catch_up(90)
        assert_equals_source(site, [("public", "t")])
        assert_sound(capture.store)
    partial = list(disk.rglob(f"*{PARTIAL}"))
    assert len(partial) <= 1, "what ended terms left is collected; that of the last one at the next start"


@pytest.mark.parametrize("part", ["catalog.db", "segments"])
def test_a_read_only_disk_is_a_named_stop_that_loses_nothing(
    database: str, store_dir: Path, disk: Path, part: str
) -> None:
    store = StoreSettings(
        name="acme",
        catalog=f"sqlite:///{(disk if part == 'catalog.db' else store_dir) / 'catalog.db'}",
        segments=(disk if part == "segments" else store_dir) / "segments",
        inline_bytes=0,
    )
    site = Site(store_dir, database, store, PostgresSourceSettings(dsn=SecretStr(database)))
    execute(database, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (0, 'before')")
    with init_and_capture(site) as capture:
        execute(database, "INSERT INTO t VALUES (-1, 'streamed')")
        capture.catch_up()
    capture.store.close()
    with read_only(disk):
        stopped = stop_of(site, writing=True)
        assert stopped.exit_code == 7
        assert str(disk / part) in stopped.message
    with RunningCapture(site) as capture:
        capture.catch_up(90)
        assert_equals_source(site, [("public", "t")])
        assert_sound(capture.store)


def test_a_first_load_that_does_not_fit_is_a_named_stop_and_begun_again_when_there_is_room(
    database: str, store_dir: Path, disk: Path
) -> None:
    store = StoreSettings(
        name="acme", catalog=f"sqlite:///{store_dir / 'catalog.db'}", segments=disk / "segments"
    )
    site = Site(store_dir, database, store, PostgresSourceSettings(dsn=SecretStr(database)))
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, gen_random_uuid()::text || gen_random_uuid()::text"
        " FROM generate_series(1, 60000) i",
    )
    site.init()
    ballast = fill(disk)
    os.truncate(ballast, ballast.stat().st_size - (1 << 20))  # room for the half of it
    stopped = stop_of(site, writing=False)
    assert stopped.exit_code == 7
    assert str(disk / "segments") in stopped.message and "no space left for" in stopped.message
    with site.open() as log:
        assert log.head() is None, "nothing of it is visible"

    ballast.unlink()
    with RunningCapture(site) as capture:
        capture.catch_up(90)
        assert_equals_source(site, [("public", "t")])
        assert_sound(capture.store)
