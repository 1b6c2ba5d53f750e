"""A catalog that may only be read: what reads works or says why it cannot, and what writes refuses."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tailrace.cdc.capture import Capture
from tailrace.eventstore.catalog.leases import reader_lease
from tailrace.eventstore.errors import MissingFile, OperatorError
from tailrace.eventstore.maintenance.move.backup import backup
from tailrace.eventstore.settings import PostgresSourceSettings, StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import ORDERS, batch, notes, writer
from tests.support.disks import mounted, read_only

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that every user may pass through, as those of pytest are not."""
    found = Path(tempfile.mkdtemp())
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as found:
        yield found


def make(root: Path, *, group: bool = False) -> None:
    with open_at(root, create=True) as store:
        capture = writer(store)
        capture.append(batch(1, orders=[("c", 1)], completes=[ORDERS]))
        store.seal()
        capture.append(batch(2, orders=[("c", 2)]))
        if group:
            store.group("g", [ORDERS.text], start="earliest")


def open_at(root: Path, *, create: bool = False) -> Store:
    settings = StoreSettings(catalog="sqlite:///store/catalog.db", segments=Path("store/segments"))
    return Store.open(settings, create=create, root=root)


def let_others_read(root: Path) -> None:
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def as_nobody(work: Callable[[], object]) -> None:
    """Do it in a child with a user who may write nothing (root may write whatever the modes say)."""
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(60)
        try:
            if os.geteuid() == 0:
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            work()
            code = 0
        except BaseException as error:  # noqa: BLE001 nothing may go on in the child
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def assert_reads(root: Path, groups: list[str]) -> None:
    with open_at(root) as store:
        assert store.catalog.read_only
        assert notes(store) == ["1.0", "2.0"]
        assert sum(table.num_rows for table in store.state(ORDERS)) == 2
        assert sum(found.rows.num_rows for found in store.tail(start="earliest", timeout=0)) == 2
        assert [group.name for group in store.groups()] == groups
        assert store.verify().findings == ()
        with reader_lease(store.catalog, "a reader"):
            assert notes(store) == ["1.0", "2.0"]


def assert_refuses(root: Path) -> None:
    attempts: list[Callable[[Store], object]] = [
        lambda store: Capture(
            store, "shop", PostgresSourceSettings(dsn=SecretStr("host=absent")), stop=threading.Event()
        ),
        lambda store: store.take_over("shop"),
        lambda store: store.seal(),
        lambda store: store.maintain(),
        lambda store: store.compact(),
        lambda store: store.group("new", [ORDERS.text]),
    ]
    for attempt in attempts:
        with open_at(root) as store, pytest.raises(OperatorError, match="only read") as caught:
            attempt(store)
        assert str(root) in caught.value.message and "write" in caught.value.hint


def test_beside_a_writer_a_user_who_may_only_read_reads_and_writes_nothing(folder: Path) -> None:
    make(folder, group=True)
    with open_at(folder) as store:  # it holds SQLite's own files open
        assert store.groups() and store.catalog.path is not None
        let_others_read(folder / "store")
        as_nobody(lambda: assert_reads(folder, ["g"]))
        as_nobody(lambda: assert_refuses(folder))


def test_a_catalog_that_sqlite_cannot_read_without_writing_is_a_clear_error(folder: Path) -> None:
    make(folder)
    let_others_read(folder / "store")

    def refused() -> None:
        with pytest.raises(OperatorError, match="cannot be read here") as caught:
            open_at(folder)
        assert "catalog.db" in caught.value.message and "whole copy" in caught.value.hint

    as_nobody(refused)


@pytest.mark.parametrize("back", ["moved back", "a copy"])
def test_a_catalog_that_vanishes_while_it_is_open_stops_readers_and_writers(
    tmp_path: Path, back: str
) -> None:
    """SQLite itself would go on in the removed file: what is committed there is lost."""
    make(tmp_path)
    catalog, aside = tmp_path / "store" / "catalog.db", tmp_path / "aside.db"
    with open_at(tmp_path) as store:
        capture = store.take_over("shop")
        catalog.rename(aside)
        with pytest.raises(MissingFile, match=r"catalog\.db was removed or replaced"):
            notes(store)
        with pytest.raises(MissingFile, match=r"catalog\.db was removed or replaced"):
            capture.append(batch(3, orders=[("c", 3)]))
        if back == "moved back":
            aside.rename(catalog)
            assert notes(store) == ["1.0", "2.0"]
        else:
            shutil.copy(aside, catalog)
            with pytest.raises(MissingFile, match=r"catalog\.db was removed or replaced"):
                notes(store)


@pytest.mark.servers
@pytest.mark.parametrize("groups", [["g"], []], ids=["a group", "no group"])
def test_a_read_only_disk_is_read_whole_and_refuses_writers(disk: Path, groups: list[str]) -> None:
    make(disk, group=bool(groups))
    with read_only(disk):
        assert_reads(disk, groups)
        assert_refuses(disk)
        with open_at(disk) as store, tempfile.TemporaryDirectory() as copy:
            assert backup(store, Path(copy) / "copy").epoch == 2
    with open_at(disk) as store:
        store.take_over("shop").append(batch(3, orders=[("c", 3)]))
        assert notes(store) == ["1.0", "2.0", "3.0"]


@pytest.mark.servers
def test_commits_that_are_only_in_the_write_ahead_log_are_never_left_out(disk: Path, tmp_path: Path) -> None:
    """A copy of the database alone would show fewer rows."""
    make(tmp_path)
    with open_at(tmp_path) as store:
        store.take_over("shop").append(batch(3, orders=[("c", 3)]))
        shutil.copytree(tmp_path / "store", disk / "store")
    for each in ["whole", "without its index"]:
        with read_only(disk):
            if each == "whole":
                with open_at(disk) as store:
                    assert notes(store) == ["1.0", "2.0", "3.0"]
            else:
                with pytest.raises(OperatorError, match="cannot be read here"):
                    open_at(disk)
        (disk / "store" / "catalog.db-shm").unlink(missing_ok=True)


@pytest.mark.servers
def test_a_writer_that_has_the_same_files_elsewhere_is_noticed(disk: Path) -> None:
    make(disk)
    with read_only(disk):
        store = open_at(disk)
    with store:
        with open_at(disk) as other:
            other.take_over("shop").append(batch(3, orders=[("c", 3)]))
            with pytest.raises(MissingFile, match="changed from outside"):
                notes(store)
        with pytest.raises(MissingFile, match="changed from outside"):
            notes(store)
