"""Sealing moves rows and changes nothing a reader sees, also when it dies; orphans go when their term has ended."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.errors import Fenced
from tailrace.eventstore.maintenance.files import seal
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.store import Store
from tests.eventstore.shop import (
    CUSTOMERS,
    ORDERS,
    WIDER,
    assert_dense,
    batch,
    content,
    rows,
    writer,
)
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support import forking
from tests.support.folders import segments_folder

SEALER = """
import sys
from pathlib import Path
from typing import Any
from tailrace.eventstore.store import Store
from tailrace.eventstore.settings import StoreSettings
settings = StoreSettings(catalog=sys.argv[1], segments=Path("segments"))
with Store.open(settings, root=Path(sys.argv[2])) as store:
    store.seal()
"""


def fill(store: Store, epochs: int = 30) -> None:
    """Blobs, some large epochs between, a new version, a truncate, an epoch without rows of a topic."""
    capture = writer(store)
    for lsn in range(1, epochs + 1):
        orders = [("c", i) for i in range(60 if lsn % 10 == 0 else lsn % 4)]
        customers = [("t", 0)] if lsn == 7 else [("u", lsn)]
        given = batch(lsn, orders=orders, customers=customers)
        if lsn > epochs // 2:
            wide = [TopicRows(ORDERS, 2, rows(lsn, orders, schema=WIDER))] if orders else []
            new = [(ORDERS, WIDER)] if lsn == epochs // 2 + 1 else []
            more = [*[one for one in given.rows if one.topic != ORDERS], *wide]
            given = EpochBatch("shop", lsn, lsn + 1, lsn + 1, given.commit_ts, 1, more, new_schemas=new)
        capture.append(given)


def everything(store: Store, after_epoch: int = 0) -> list[list[dict[str, Any]]]:
    """All rows of both topics, in the order of reading."""
    return [content(store, topic, after_epoch=after_epoch) for topic in (ORDERS, CUSTOMERS)]


def test_readers_see_the_same_rows_before_and_after(new_store: StoreFactory) -> None:
    store = new_store(inline_bytes=3500)
    fill(store)
    before = everything(store)
    hashes = [info.hash for info in store.epochs()]
    from_middle = {after: everything(store, after) for after in (3, 11, 17)}
    cuts = {
        lsn: (store.cut(f"0/{lsn:X}"), content(store, cut=store.cut(f"0/{lsn:X}"))) for lsn in (5, 16, 25)
    }
    assert store.seal(12) == 11  # epoch 10 is a file already
    assert store.seal() > 0
    assert store.seal() == 0
    assert everything(store) == before
    assert_dense(content(store))
    assert_dense(content(store, CUSTOMERS))
    for after, expected in from_middle.items():
        assert everything(store, after) == expected, after
    for lsn, (cut, expected_rows) in cuts.items():
        assert store.cut(f"0/{lsn:X}") == cut
        assert content(store, cut=cut) == expected_rows
    assert [info.hash for info in store.epochs()] == hashes
    with store.catalog.read() as connection:
        assert connection.scalar(select(func.count()).select_from(tables.blobs)) == 0
        assert (connection.scalar(select(func.count()).select_from(tables.segments)) or 0) < 20


@one_catalog
def test_a_writer_goes_on_after_sealing(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    for lsn in range(1, 10):
        capture.append(batch(lsn, orders=[("c", lsn)]))
        if lsn % 3 == 0:
            store.seal()
    assert [row["_lsn"] for row in sorted(content(store), key=lambda row: row["_lsn"])] == list(range(1, 10))
    assert_dense(content(store))


@one_catalog
def test_a_reader_in_the_middle_goes_on(new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_index, "_PAGE_EPOCHS", 3)
    monkeypatch.setattr(seal, "CHUNK_EPOCHS", 7)
    store = new_store()
    fill(store)
    expected = {(row["_partition"], row["_offset"]): row for row in content(store, CUSTOMERS)}
    found = []
    for step, part in enumerate(store.read(CUSTOMERS)):
        found += part.to_pylist()
        if step == 2:
            store.seal(17)
        if step == 5:
            store.seal()
    assert {(row["_partition"], row["_offset"]): row for row in found} == expected
    assert len(found) == len(expected)


def test_readers_keep_reading_while_sealing(new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "CHUNK_EPOCHS", 3)
    store, reader = new_store(), new_store()
    fill(store)
    expected = everything(store)
    sealed = threading.Thread(target=store.seal)
    sealed.start()
    reads = 0
    while sealed.is_alive() or reads == 0:
        assert everything(reader) == expected
        reads += 1
    sealed.join()
    assert everything(reader) == expected


@pytest.mark.parametrize(
    ("catalog_url", "place"),
    [("sqlite", "segment_written:2"), ("sqlite", "seal_written"), ("postgres", "seal_swapped")],
    indirect=["catalog_url"],
)
def test_a_killed_sealer_changes_nothing(
    new_store: StoreFactory, catalog_url: str, store_dir: Path, place: str
) -> None:
    store = new_store()
    fill(store, 12)
    before = everything(store)
    environment = {**os.environ, failpoints.VARIABLE: place}
    died = forking.run(
        [sys.executable, "-c", SEALER, catalog_url, str(store_dir)], env=environment, timeout=60
    )
    assert died.returncode == -9
    assert store.verify().findings == ()
    assert everything(store) == before
    left = set(store.storage.list("log"))
    assert left
    store.seal()  # a new term: the dead sealer's files are orphans now, if no epoch names them
    assert everything(store) == before
    removed = store.collect_orphans()
    assert removed == (0 if place == "seal_swapped" else len(left))
    assert everything(store) == before


def test_of_two_sealers_the_earlier_is_fenced(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = new_store(), new_store()
    fill(store, 6)
    before = everything(store)
    written = failpoints.hit

    def overtaken(name: str) -> None:
        if name == "seal_written":
            terms.begin(other.catalog, terms.SEAL)
        written(name)

    monkeypatch.setattr(failpoints, "hit", overtaken)
    with pytest.raises(Fenced):
        store.seal()
    assert everything(store) == before
    assert store.collect_orphans() > 0
    assert everything(store) == before


def test_upkeep_goes_on_when_a_job_seals_beside_it(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, job = new_store(), new_store()
    fill(store, 6)
    before = everything(store)
    written = failpoints.hit

    def meanwhile(name: str) -> None:
        if name == "seal_written":
            monkeypatch.setattr(failpoints, "hit", written)
            assert job.seal() == 6
        written(name)

    monkeypatch.setattr(failpoints, "hit", meanwhile)
    assert store.maintain().sealed_epochs == 0
    assert everything(store) == before
    assert store.verify().findings == ()


@one_catalog
def test_a_killed_collector_has_removed_orphans_only_and_the_next_finishes(
    new_store: StoreFactory, catalog_url: str, store_dir: Path
) -> None:
    store = new_store(inline_bytes=0)
    capture = writer(store)
    capture.append(batch(10, orders=[("c", 1), ("c", 2)]))
    orphans = {capture.prepare(ORDERS, 1, rows(20, [("c", key)])).path for key in range(3)}
    store.take_over("shop")
    before, files = everything(store), set(store.storage.list("log"))
    died = forking.run(
        [sys.executable, "-c", SEALER.replace("seal()", "collect_orphans()"), catalog_url, str(store_dir)],
        env={**os.environ, failpoints.VARIABLE: "file_removed:2"},
        timeout=60,
    )
    assert died.returncode == -9
    left = set(store.storage.list("log"))
    assert len(left & orphans) == 1 and left - orphans == files - orphans
    assert store.verify().findings == ()
    assert store.collect_orphans() == 1
    assert set(store.storage.list("log")) == files - orphans
    assert everything(store) == before


@one_catalog
def test_orphans_are_collected_only_when_their_term_has_ended(new_store: StoreFactory) -> None:
    store = new_store(inline_bytes=0)
    capture = writer(store)
    capture.append(batch(10, orders=[("c", 1)]))
    orphan = capture.prepare(ORDERS, 1, rows(20, [("c", 2)]))
    partial = segments_folder(store) / (orphan.path + ".partial")
    partial.write_bytes(b"half")
    foreign = segments_folder(store) / "log" / "readme.txt"
    foreign.write_text("not ours")
    assert store.collect_orphans() == 0
    later = store.take_over("shop")
    pending = later.prepare(ORDERS, 1, rows(20, [("c", 3)]))
    assert store.collect_orphans() == 2
    assert not store.storage.exists(orphan.path) and not partial.exists()
    assert foreign.exists()
    later.append(EpochBatch("shop", 20, 21, 21, files=[pending]))
    assert store.collect_orphans() == 0
    assert sorted(row["after"]["id"] for row in content(store)) == [1, 3]
