"""A backup made while everything runs is a moment of the log, whole; an interrupted one leaves the one before."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.integrity.findings import LogProblem
from tailrace.eventstore.maintenance.files import tiers
from tailrace.eventstore.maintenance.move.backup import backup
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.settings import StoreSettings, UpkeepSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import ORDERS, batch, content, writer
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support import forking
from tests.support.folders import segments_folder

AT_ONCE = UpkeepSettings(keep_seconds=0, keep_epochs=4)
COPIER = """
import sys
from pathlib import Path
from tailrace.eventstore.maintenance.move.backup import backup
from tailrace.eventstore.store import Store
from tailrace.eventstore.settings import StoreSettings
with Store.open(StoreSettings(catalog=sys.argv[1], segments=Path("segments")), root=Path(sys.argv[2])) as store:
    backup(store, Path(sys.argv[3]))
"""


def copy_of(folder: Path) -> Store:
    """The copy, as a store of its own."""
    settings = StoreSettings(catalog="sqlite:///catalog.db", segments=Path("segments"))
    return Store.open(settings, root=folder)


@one_catalog
def test_a_copy_made_beside_capture_and_upkeep_is_a_moment_of_the_log(
    new_store: StoreFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "FAN_IN", 2)  # files are replaced all the time
    store, upkeep, copied = new_store(inline_bytes=3500), new_store(upkeep=AT_ONCE), new_store()
    capture = writer(store)
    store.group("mails", topics=["shop.*"], start="earliest")
    ended = threading.Event()

    def maintain() -> None:
        while not ended.is_set():
            upkeep.maintain()

    with ThreadPoolExecutor() as pool:
        maintained = pool.submit(maintain)
        try:
            for lsn in range(1, 31):
                capture.append(batch(lsn, orders=[("c", i) for i in range(60 if lsn % 8 == 0 else 2)]))
                if lsn % 10 == 0:
                    done = backup(copied, tmp_path)
                    assert done.epoch >= lsn
                    with copy_of(tmp_path) as copy:
                        found = copy.verify()
                        assert found.findings == ()
                        assert (found.epoch, found.hash) == (done.epoch, done.hash)
                        assert content(copy) == content(store, cut=Cut(done.epoch))
                        assert [group.name for group in copy.groups()] == ["mails"]
        finally:
            ended.set()
        maintained.result()
    assert backup(copied, tmp_path).copied <= done.files  # what was copied before is not copied again
    assert backup(copied, tmp_path).copied == 0


@one_catalog
def test_a_killed_backup_leaves_the_one_before_and_the_next_finishes_it(
    new_store: StoreFactory, catalog_url: str, store_dir: Path, tmp_path: Path
) -> None:
    store = new_store(inline_bytes=0)
    capture = writer(store)
    capture.append(batch(1, orders=[("c", 1)]))
    backup(store, tmp_path)
    capture.append(batch(2, orders=[("c", 2)]))
    died = forking.run(
        [sys.executable, "-c", COPIER, catalog_url, str(store_dir), str(tmp_path)],
        env={**os.environ, failpoints.VARIABLE: "backup_copied"}, timeout=60,
    )  # fmt: skip
    assert died.returncode == -9, died.stderr
    with copy_of(tmp_path) as copy:
        assert copy.verify().findings == ()
        assert len(content(copy)) == 1
    assert backup(store, tmp_path).copied == 0
    with copy_of(tmp_path) as copy:
        assert copy.verify().findings == ()
        assert len(content(copy)) == 2


@one_catalog
def test_of_two_backups_into_one_folder_the_second_is_refused(
    new_store: StoreFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = new_store(inline_bytes=0), new_store()
    capture = writer(store)
    capture.append(batch(1, orders=[("c", 1)]))
    passed = failpoints.hit

    def meanwhile(name: str) -> None:
        if name == "backup_copied":
            capture.append(batch(2, orders=[("c", 2)]))
            with pytest.raises(UsageError, match=r"another backup into .* is under way"):
                backup(other, tmp_path)
        passed(name)

    monkeypatch.setattr(failpoints, "hit", meanwhile)
    assert backup(store, tmp_path).epoch == 1
    monkeypatch.undo()
    with copy_of(tmp_path) as copy:
        assert copy.verify().findings == ()
        assert len(content(copy)) == 1
    assert backup(other, tmp_path).epoch == 2


@one_catalog
def test_a_copy_goes_to_no_other_logs_folder(new_store: StoreFactory, tmp_path: Path) -> None:
    writer(new_store())
    other = StoreSettings(catalog="sqlite:///catalog.db", segments=Path("segments"))
    Store.open(other, create=True, root=tmp_path).close()
    with pytest.raises(UsageError, match="holds another log"):
        backup(new_store(), tmp_path)


@one_catalog
def test_an_older_copy_of_the_store_replaces_no_newer_backup(new_store: StoreFactory, tmp_path: Path) -> None:
    store, target = new_store(inline_bytes=0), tmp_path / "backup"
    capture = writer(store)
    capture.append(batch(1, orders=[("c", 1)]))
    backup(store, tmp_path / "old")
    backup(store, tmp_path / "other")
    capture.append(batch(2, orders=[("c", 2)]))
    assert backup(store, target).epoch == 2
    before = (target / "catalog.db").read_bytes()

    with copy_of(tmp_path / "old") as older:
        with pytest.raises(UsageError, match="up to epoch 2, and this store ends at epoch 1") as refused:
            backup(older, target)
        assert "another folder" in refused.value.hint and str(target / "catalog.db") in refused.value.hint
    with copy_of(tmp_path / "other") as forked:
        own = forked.take_over("shop")
        for lsn in (3, 4, 5):
            own.append(batch(lsn, orders=[("c", lsn)]))
        with pytest.raises(UsageError, match=r"epoch 2 .* another history"):
            backup(forked, target)
    assert (target / "catalog.db").read_bytes() == before
    assert not list(target.glob("*.new"))
    capture.append(batch(3, orders=[("c", 3)]))
    store.maintain()
    assert backup(store, target).epoch == 3

    (target / "catalog.db").unlink()  # the user's word
    with copy_of(tmp_path / "old") as older:
        assert backup(older, target).epoch == 1


def test_a_catalog_that_goes_back_misses_files_that_were_replaced_since(
    new_store: StoreFactory, store_dir: Path
) -> None:
    """A catalog of before beside the files of now: what upkeep replaced since is missing."""
    store = new_store(upkeep=AT_ONCE)
    if store.catalog.path is None:
        with pytest.raises(UsageError, match="Postgres"):
            backup(store, store_dir / "copy")
        return
    capture = writer(store)
    for lsn in range(1, 4):
        capture.append(batch(lsn, orders=[("c", lsn)]))
        store.seal()
    backup(store, store_dir / "copy")
    old = set(store.storage.list("log"))
    for lsn in range(4, 12):
        capture.append(batch(lsn, orders=[("c", lsn)]))
        store.seal()
    store.maintain()
    gone = old - set(store.storage.list("log"))
    assert gone
    settings = StoreSettings(
        catalog=f"sqlite:///{store_dir / 'copy' / 'catalog.db'}", segments=segments_folder(store)
    )
    with Store.open(settings) as restored:
        found = restored.verify()
        assert {f.place for f in found.findings if f.problem is LogProblem.MISSING} == gone
        assert found.unregistered
        with pytest.raises(IntegrityError, match="missing"):
            content(restored, ORDERS)
