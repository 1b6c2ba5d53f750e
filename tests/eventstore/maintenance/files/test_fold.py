"""Folding moves rows of old epochs from the catalog to files: every look-up gives what it gave before."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.errors import Fenced, IntegrityError
from tailrace.eventstore.maintenance.files import fold, tiers
from tailrace.eventstore.metadata import epochs
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.settings import UpkeepSettings
from tailrace.eventstore.store import Store
from tailrace.eventstore.subscriptions.offsets import first_commit_after
from tests.eventstore.maintenance.files.test_seal import everything, fill
from tests.eventstore.shop import ORDERS, at, batch, register
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support import forking

FOLDER = """
import sys
from pathlib import Path
from tailrace.eventstore.store import Store
from tailrace.eventstore.maintenance.files import fold
from tailrace.eventstore.settings import StoreSettings, UpkeepSettings
fold.CHUNK = 4
upkeep = UpkeepSettings(keep_seconds=0, keep_epochs=5)
settings = StoreSettings(catalog=sys.argv[1], segments=Path("segments"), upkeep=upkeep)
with Store.open(settings, root=Path(sys.argv[2])) as store:
    store.maintain()
"""
KEEP = UpkeepSettings(keep_seconds=0, keep_epochs=5)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "CHUNK", 4)
    monkeypatch.setattr(fold, "_ROWS_PER_GROUP", 8)
    monkeypatch.setattr(tiers, "FAN_IN", 3)


def table_rows(store: Store) -> int:
    with store.catalog.read() as connection:
        return connection.scalar(select(func.count()).select_from(tables.epochs)) or 0


def answers(store: Store, lsns: int) -> dict[str, Any]:
    """Every kind of look-up, over the whole length of the log."""
    found: dict[str, Any] = {"head": store.head(), "epochs": store.epochs()}
    head = store.head()
    assert head is not None
    for epoch in range(head.epoch + 1):
        found[f"epoch {epoch}"] = store.cut(epoch)
        found[f"after {epoch}"] = store.epochs(epoch, 3)
        found[f"commit after {epoch}"] = first_commit_after(store, ORDERS, epoch)
    for lsn in range(lsns + 1):
        found[f"lsn {lsn}"] = store.cut(f"shop=0/{lsn:X}")
        found[f"time {lsn}"] = store.cut(at(lsn - 0.5))
    found["followed"] = list(store.follow(after_epoch=0, timeout=0))
    found["followed orders"] = list(store.follow([ORDERS], after_epoch=3, timeout=0))
    return found


def some_answers(store: Store) -> list[Any]:
    return [
        store.head(),
        store.epochs(),
        store.cut(3),
        store.cut(17),
        store.cut("shop=0/9"),
        store.cut(at(8.5)),
    ]


@one_catalog
def test_every_look_up_gives_what_it_gave_before(new_store: StoreFactory) -> None:
    store = new_store(upkeep=KEEP)
    register(store, "bank")
    fill(store, 40)
    bank = store.take_over("bank")
    bank.append(EpochBatch("bank", 7, 8, 8, at(99), 1, []))  # no epoch of its own
    before, rows = answers(store, 40), everything(store)
    store.seal()
    folded = store.fold()
    assert sum(each.files for each in folded) > 0, "files of epochs were merged, too"
    assert table_rows(store) < 5 + fold.CHUNK
    with store.catalog.read() as connection:
        files = connection.execute(
            select(tables.epoch_files).order_by(tables.epoch_files.c.first_epoch)
        ).all()
    assert len(files) > 1
    assert [file.first_epoch for file in files] == [1, *(file.last_epoch + 1 for file in files[:-1])]
    assert answers(store, 40) == before
    assert everything(store) == rows
    assert store.fold() == []
    capture = store.take_over("shop")
    capture.append(batch(50, orders=[("c", 1)]))
    head = store.head()
    assert head is not None and head.epoch == before["head"].epoch + 1


@one_catalog
def test_epochs_that_are_not_sealed_stay(new_store: StoreFactory) -> None:
    store = new_store(upkeep=KEEP)
    fill(store, 40)
    before = answers(store, 40)
    assert store.fold() == []
    store.seal(12)
    assert sum(each.rows for each in store.fold()) == 12
    assert answers(store, 40) == before


@one_catalog
def test_a_look_up_opens_only_files_that_can_hold_the_answer(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "FAN_IN", 100)  # many files
    store = new_store(upkeep=KEEP)
    fill(store, 40)
    store.maintain()
    opened: list[str] = []
    real: Callable[..., Any] = epochs.open_file

    def counted(storage: Any, row: Any, **how: Any) -> Any:
        opened.append(row.path)
        return real(storage, row, **how)

    monkeypatch.setattr(epochs, "open_file", counted)
    for look in (lambda: store.cut(17), lambda: store.epochs(20, 1), lambda: store.cut(at(9))):
        opened.clear()
        look()
        assert 1 <= len(set(opened)) <= 2
    opened.clear()
    store.head()
    store.cut()
    assert opened == []


@pytest.mark.parametrize(
    ("catalog_url", "place"),
    [("sqlite", "fold_written"), ("postgres", "fold_swapped:9")],
    indirect=["catalog_url"],
)
def test_a_killed_fold_changes_nothing_and_is_finished_by_the_next(
    new_store: StoreFactory, catalog_url: str, store_dir: Path, place: str
) -> None:
    store = new_store(upkeep=KEEP)
    fill(store, 40)
    store.seal()
    before = some_answers(store)
    environment = {**os.environ, failpoints.VARIABLE: place}
    died = forking.run(
        [sys.executable, "-c", FOLDER, catalog_url, str(store_dir)], env=environment, timeout=60
    )
    assert died.returncode == -9
    assert store.verify().findings == ()
    assert some_answers(store) == before
    store.maintain()
    assert some_answers(store) == before
    with store.catalog.read() as connection:
        named = set(connection.scalars(select(tables.epoch_files.c.path)))
    assert set(store.storage.list("epochs")) == named


def test_of_two_folds_the_earlier_is_fenced(new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = new_store(upkeep=KEEP), new_store()
    fill(store, 20)
    store.seal()
    before = some_answers(store)
    passed = failpoints.hit

    def overtaken(name: str) -> None:
        if name == "fold_written":
            terms.begin(other.catalog, terms.FOLD)
        passed(name)

    monkeypatch.setattr(failpoints, "hit", overtaken)
    with pytest.raises(Fenced):
        store.fold()
    assert some_answers(store) == before


def test_a_damaged_file_of_epochs_is_named_and_a_gap_is_not_folded(new_store: StoreFactory) -> None:
    store = new_store(upkeep=KEEP)
    fill(store, 24)
    store.maintain()
    with store.catalog.write() as connection:
        path = connection.scalar(select(tables.epoch_files.c.path).limit(1))
        connection.execute(
            update(tables.epoch_files).where(tables.epoch_files.c.path == path).values(checksum="0")
        )
    with pytest.raises(IntegrityError, match=f"{path} is damaged"):
        store.epochs()
