"""Reading: by epoch, offset, LSN and time; following is woken; sealing is invisible."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.eventstore.errors import IncompleteTopic, UsageError
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.info import EpochInfo
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import (
    CUSTOMERS,
    ORDERS,
    at,
    batch,
    content,
    notes,
    register,
    rows,
    writer,
)
from tests.fixtures.stores import StoreFactory, one_catalog


def lsns(store: Store, cut: Cut, topic: TopicId = ORDERS) -> list[int]:
    return sorted(row["_lsn"] for row in content(store, topic, cut=cut, columns=("_lsn",)))


def append_many(capture: SourceWriter, transactions: list[tuple[int, float]], source: str = "shop") -> None:
    """One epoch of several transactions, each (lsn, seconds after noon), with one row in orders."""
    topic = TopicId.table(source, "public", "orders")
    tables = [rows(lsn, [("c", lsn)], at(seconds)) for lsn, seconds in transactions]
    last_lsn, last_seconds = transactions[-1]
    given = [TopicRows(topic, 1, pa.concat_tables(tables))]
    capture.append(
        EpochBatch(source, last_lsn, last_lsn + 1, last_lsn + 1, at(last_seconds), len(transactions), given)
    )


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_cut_by_lsn_holds_what_committed_below_it(
    new_store: StoreFactory, inline_bytes: int, sealed: bool
) -> None:
    store = new_store(inline_bytes=inline_bytes)
    capture = writer(store)
    append_many(capture, [(10, 10), (20, 20), (30, 30)])
    append_many(capture, [(40, 40), (50, 50)])
    if sealed:
        store.seal()
    for lsn in (5, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51):
        cut = store.cut(f"0/{lsn:X}")
        assert lsns(store, cut) == [known for known in (10, 20, 30, 40, 50) if known < lsn], lsn
        assert cut.commit_ts == (at((lsn - 1) // 10 * 10) if lsn > 10 else None)
    assert store.cut("0/1F") == Cut(1, {}, at(30))  # between two epochs: an epoch boundary
    assert store.cut("shop=0/15") == Cut(1, {"shop": 21}, at(20))
    with pytest.raises(UsageError, match="commit below 0/33"):
        store.cut("0/34")


@pytest.mark.parametrize("sealed", [False, True])
@one_catalog
def test_a_cut_by_time_ends_before_the_first_later_commit(new_store: StoreFactory, sealed: bool) -> None:
    """Commit times go back and forth (39 after 45): a later transaction with an earlier time is outside."""
    store = new_store()
    capture = writer(store)
    append_many(capture, [(10, 10), (20, 20), (30, 19)])
    append_many(capture, [(40, 45), (50, 39)])
    append_many(capture, [(60, 60)])
    if sealed:
        store.seal()
    expected = {5: [], 10: [10], 15: [10], 19: [10], 20: [10, 20, 30], 39: [10, 20, 30], 44: [10, 20, 30]}
    expected |= {45: [10, 20, 30, 40, 50], 59: [10, 20, 30, 40, 50], 60: [10, 20, 30, 40, 50, 60]}
    for seconds, known in expected.items():
        assert lsns(store, store.cut(at(seconds))) == known, seconds
    naive = at(20).replace(tzinfo=None)
    assert store.cut(naive) == store.cut("2026-01-01T12:00:20Z") == store.cut("2026-01-01T13:00:20+01:00")
    assert store.cut(at(20)) == Cut(1, {}, at(19))
    assert store.cut(at(10)) == Cut(1, {"shop": 20}, at(10))
    with pytest.raises(UsageError, match="has not come"):
        store.cut(datetime.now(UTC) + timedelta(hours=1))


@pytest.mark.parametrize("loaded_rows", [0, 1])
@one_catalog
def test_a_load_of_a_table_is_no_commit_in_a_cut_by_time(new_store: StoreFactory, loaded_rows: int) -> None:
    """What committed before a time is in its cut, also when the next thing in the log is a load and not a commit."""
    store = new_store()
    capture = writer(store)
    capture.append(batch(10, orders=[("c", 10)], completes=[ORDERS]))
    capture.append(batch(20, orders=[("c", 20)]))
    capture.append(batch(30, orders=[("c", 30)]))
    load = [TopicRows(CUSTOMERS, 1, rows(24, [("r", 1)], at(50)))][:loaded_rows]
    capture.append(
        EpochBatch("shop", 30, 31, 31, at(50), 0, load, completes=[CUSTOMERS])  # its snapshot is below 25
    )
    for seconds, known in {15: [10], 25: [10, 20], 40: [10, 20, 30], 60: [10, 20, 30]}.items():
        assert lsns(store, store.cut(at(seconds))) == known, seconds
    with pytest.raises(IncompleteTopic):
        store.require_complete(CUSTOMERS, store.cut(at(40)))
    assert lsns(store, store.cut(at(60)), CUSTOMERS) == [24][:loaded_rows]
    store.require_complete(CUSTOMERS, store.cut(at(60)))


def test_a_cut_by_time_is_taken_in_each_source_by_itself(new_store: StoreFactory) -> None:
    store = new_store()
    register(store, "bank")
    shop, bank = writer(store), store.take_over("bank")
    append_many(shop, [(10, 10), (20, 20)])
    append_many(bank, [(500, 5), (600, 25)], "bank")
    append_many(shop, [(30, 30)])
    append_many(bank, [(700, 12)], "bank")
    accounts = TopicId.table("bank", "public", "orders")
    cut = store.cut(at(15))
    assert lsns(store, cut) == [10] and lsns(store, cut, accounts) == [500]
    cut = store.cut(at(22))
    assert lsns(store, cut) == [10, 20] and lsns(store, cut, accounts) == [500]
    cut = store.cut(at(26))
    assert lsns(store, cut) == [10, 20] and lsns(store, cut, accounts) == [500, 600, 700]
    assert store.cut(at(100)) == store.cut()
    cut = store.cut("bank=0/258")  # 600: the other source is read up to the same epoch
    assert lsns(store, cut, accounts) == [500] and lsns(store, cut) == [10, 20]
    with pytest.raises(UsageError, match="one source"):
        store.cut("0/10")
    with pytest.raises(UsageError, match="no source 'bnk'"):
        store.cut("bnk=0/10")


@one_catalog
def test_a_cut_by_epoch(new_store: StoreFactory) -> None:
    store = new_store()
    assert store.cut() == store.cut(0) == Cut(0)
    capture = writer(store)
    for lsn in (10, 20, 30):
        capture.append(batch(lsn, orders=[("c", lsn)]))
    assert store.cut() == store.cut(3) == store.cut("3") == Cut(3, {}, at(30))
    assert lsns(store, store.cut(2)) == [10, 20]
    for wrong in (4, "4", -1, "the other day", "0/zz", "1/", "2026-13-01"):
        with pytest.raises(UsageError):
            store.cut(wrong)


@one_catalog
def test_reading_by_offset_partition_column_and_epoch(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    for lsn in (10, 20, 30):
        capture.append(batch(lsn, orders=[("c", i) for i in range(40)]))
    whole = content(store)
    for partition in range(4):
        part = [row for row in whole if row["_partition"] == partition]
        assert content(store, partitions=[partition]) == part
        assert content(store, offsets={partition: (5, 12)}) == part[5:12]
    both = content(store, offsets={0: (0, 3), 1: (2, 4)}, columns=("_offset", "_op"))
    assert sorted(row["_offset"] for row in both) == [0, 1, 2, 2, 3]
    assert all(list(row) == ["_offset", "_op"] for row in both)
    assert content(store, after_epoch=2) == [row for row in whole if row["_epoch"] == 3]
    assert content(store, after_epoch=1, cut=store.cut(2)) == [row for row in whole if row["_epoch"] == 2]
    assert content(store, after_epoch=3) == []


@one_catalog
def test_large_partitions_are_read_by_themselves(new_store: StoreFactory) -> None:
    """Row groups follow partitions, so a task that reads one partition gets exactly its rows and offsets."""
    store = new_store(inline_bytes=0)
    capture = writer(store)
    table = pa.concat_tables(
        [rows(10, [("c", i) for i in range(10_000)])] * 5, promote_options="none"
    ).combine_chunks()
    capture.append(EpochBatch("shop", 10, 11, 11, at(10), 1, [TopicRows(ORDERS, 1, table)]))
    whole = content(store, columns=("_partition", "_offset", "key"))
    for wanted in ([0], [3], [0, 2], [1, 2, 3]):
        expected = [row for row in whole if row["_partition"] in wanted]
        assert content(store, partitions=wanted, columns=("_partition", "_offset", "key")) == expected


@one_catalog
def test_a_long_log_is_read_page_by_page(new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_index, "_PAGE_EPOCHS", 4)
    store = new_store(inline_bytes=2500)  # small epochs are blobs, the others files
    capture = writer(store)
    for lsn in range(1, 40):
        capture.append(batch(lsn, orders=[("c", i) for i in range(30 if lsn % 9 == 0 else 1)]))
    whole = notes(store)
    assert len(whole) == 35 + 4 * 30
    assert sum(len(content(store, cut=store.cut(n), after_epoch=n - 1)) for n in range(1, 40)) == len(whole)
    refs = store.segments(ORDERS, store.cut())
    assert [ref.first_epoch for ref in refs] == list(range(1, 40))
    assert {ref.path is None for ref in refs} == {True, False}
    store.seal(20)
    assert notes(store) == whole
    monkeypatch.setattr(segment_index, "_PAGE_BYTES", 1)
    assert notes(store) == whole


def test_unknown_topics_are_named_with_what_comes_close(new_store: StoreFactory) -> None:
    store = new_store()
    with pytest.raises(UsageError, match="no topics yet"):
        store.topic(ORDERS)
    register(store)
    assert [info.id for info in store.topics()] == [CUSTOMERS, ORDERS]
    assert store.topics("bank") == []
    with pytest.raises(UsageError, match=r"did you mean shop\.public\.orders"):
        next(store.read(TopicId.parse("shop.public.order")))


def follow_one(store: Store, into: list[EpochInfo], ready: threading.Event) -> None:
    """Poll so rarely that only a wake-up can bring the epoch before the follower gives up."""
    ready.set()
    into.extend(_take(store.follow([ORDERS], after_epoch=1, timeout=40, poll=300), 1))


def _take(epochs: Iterator[EpochInfo], count: int) -> list[EpochInfo]:
    return [next(epochs) for _ in range(count)]


def test_a_follower_is_woken_by_a_commit(new_store: StoreFactory) -> None:
    store, reader = new_store(), new_store()
    capture = writer(store)
    capture.append(batch(10, orders=[("c", 1)]))
    found: list[EpochInfo] = []
    ready = threading.Event()
    follower = threading.Thread(target=follow_one, args=(reader, found, ready))
    follower.start()
    ready.wait()
    capture.append(batch(20, customers=[("c", 1)]))  # not the followed topic
    # Commit again and again until the follower has come: whether it listens before or after a commit, one wakes it.
    lsn = 30
    while follower.is_alive() and lsn < 400:
        capture.append(batch(lsn, orders=[("c", 1)]))
        follower.join(0.1)
        lsn += 10
    follower.join()
    assert [info.epoch for info in found] == [3]


def test_a_sleeping_follower_is_woken_below_a_deep_folder(tmp_path: Path) -> None:
    """Socket addresses hold about 100 bytes; folders may be deeper."""
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 5)
    deep.mkdir(parents=True)
    with Store.open(StoreSettings(), create=True, root=deep) as store:
        capture = writer(store)
        with store.waker.listen() as listener:
            epochs = store.epochs()
            assert epochs == []
            capture.append(batch(10, orders=[("c", 1)]))
            waiting = threading.Thread(target=listener.wait, args=(300,), daemon=True)
            waiting.start()
            waiting.join(60)
            assert not waiting.is_alive()
        assert not list((deep / ".tailrace" / "catalog.db.wake").iterdir())


def test_a_dead_follower_is_swept_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(StoreSettings(), create=True, root=tmp_path) as store:
        folder = tmp_path / ".tailrace" / "catalog.db.wake"
        folder.mkdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            monkeypatch.chdir(folder)  # a socket's path has to be short
            dead.bind("1-dead.sock")
        writer(store).append(batch(10, orders=[("c", 1)]))
        assert not list(folder.iterdir())


@one_catalog
def test_following_ends_at_its_timeout_and_begins_anywhere(new_store: StoreFactory) -> None:
    store = new_store()
    assert list(store.follow(after_epoch=0, timeout=0)) == []
    capture = writer(store)
    for lsn in (10, 20, 30):
        capture.append(batch(lsn, orders=[("c", 1)], customers=[("c", 1)] if lsn == 20 else []))
    assert [info.epoch for info in store.follow(after_epoch=0, timeout=0)] == [1, 2, 3]
    assert [info.epoch for info in store.follow([CUSTOMERS], after_epoch=0, timeout=0)] == [2]
    assert [info.epoch for info in store.follow(after_epoch=2, timeout=0.01)] == [3]


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
@one_catalog
def test_reading_positions_alone_gives_every_row(new_store: StoreFactory, inline_bytes: int) -> None:
    store = new_store(inline_bytes=inline_bytes)
    writer(store).append(batch(10, orders=[("c", i) for i in range(40)]))
    assert len(content(store, columns=("_partition", "_offset"))) == 40


@one_catalog
def test_a_topic_is_named_by_its_text_as_well_as_by_its_identity(new_store: StoreFactory) -> None:
    store = new_store()
    writer(store).append(batch(10, orders=[("c", 1)], completes=[ORDERS]))
    store.seal()
    name = ORDERS.text
    assert store.files(name) == store.files(ORDERS) != []
    assert store.archived_files(name) == []
    assert [info.epoch for info in store.epochs(topics=[name])] == [1]
    cut = store.cut()
    assert store.schemas_at(name, cut) == store.schemas_at(ORDERS, cut) == store.schemas(name)
    assert store.segments(name, cut) == store.segments(ORDERS, cut) != []
    assert store.state_segments(name, cut) == store.state_segments(ORDERS, cut)
    assert store.log_start(name) == store.log_start(ORDERS)
    assert store.removed_until(name) is None
    store.require_complete(name, cut)
    store.require_history(name, cut)
    assert store.verify([name]).findings == ()
    assert [made.topic for made in store.compact([name])] == [name]
