"""Repartitioning: later rows are spread over other partitions, each key stays in order, and what was there stays."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.model.keys import hash_texts, partition_of
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.retention import Retention
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import TopicSettings, UpkeepSettings
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tailrace.eventstore.subscriptions.offsets import end_of
from tailrace.eventstore.subscriptions.rows.changes import Change
from tests.eventstore.shop import CUSTOMERS, ORDERS, assert_dense, batch, content, rows, writer
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support import forking

KEYS = range(12)


def is_emptied(lsn: int) -> bool:
    return lsn % 7 == 3


def fill(store: Store, first: int, last: int) -> None:
    """An epoch each: some keys are changed, one of them is deleted, another comes to stay; now and then the table is
    emptied in the middle of that."""
    capture = store.take_over("shop") if store.source("shop") else writer(store)
    for lsn in range(first, last + 1):
        orders = [("u", key) for key in KEYS]
        if is_emptied(lsn):
            orders.insert(6, ("t", 0))
        orders += [("d", lsn % 5), ("c", 100 + lsn)]
        more: dict[str, Any] = {"completes": [ORDERS, CUSTOMERS]} if lsn == 1 else {}
        capture.append(batch(lsn, orders, [("u", lsn)], **more))


def state_of(store: Store, epoch: int) -> dict[int, str]:
    found = state(store, ORDERS, store.cut(epoch), on_unreadable="null")
    return {row["id"]: row["note"] for table in found for row in table.to_pylist()}


def expected(upto: int) -> dict[int, str | None]:
    """What the first transactions make, row by row."""
    table: dict[int, str | None] = {}
    for lsn in range(1, upto + 1):
        keys = [*KEYS, None, 100 + lsn]
        for ordinal, key in enumerate(keys):
            later = is_emptied(lsn) and ordinal >= 6
            if later and ordinal == 6:
                table.clear()
            if key is None:
                table.pop(lsn % 5, None)
            else:
                table[key] = None if key % 7 == 0 else f"{lsn}.{ordinal + later}"
    return table


@one_catalog
def test_later_rows_are_in_partitions_of_their_own_and_every_state_is_what_it_was(
    new_store: StoreFactory,
) -> None:
    """More of them, and fewer; rows in blobs and in files, behind state runs, and behind retention."""
    store = new_store(
        upkeep=UpkeepSettings(keep_seconds=0, state_bytes=1),
        topics={ORDERS.text: TopicSettings(retention=Retention(bytes=1))},
    )
    fill(store, 1, 5)
    before = content(store)
    assert repartition(store, ORDERS, 7).epoch == 6
    assert content(store) == before
    store.seal()
    fill(store, 6, 9)
    done = repartition(store, ORDERS, 2)
    assert (done.epoch, done.before.numbers, done.after.numbers) == (11, range(4, 11), range(11, 13))
    store.compact([ORDERS])
    fill(store, 10, 13)
    # Epochs 6 and 11 tell of it, and have no rows.
    transactions = [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 9, 10, 11, 12, 13]
    wanted = {epoch: expected(transactions[epoch - 1]) for epoch in (4, 6, 10, 11, 14, 15)}
    assert {epoch: state_of(store, epoch) for epoch in wanted} == wanted
    found = content(store)
    assert_dense(found)
    for row in found:
        first, count = (0, 4) if row["_epoch"] < 6 else (4, 7) if row["_epoch"] < 11 else (11, 2)
        if row["_op"] == "t":
            assert first <= row["_partition"] < first + count
        else:
            assert row["_partition"] == first + partition_of(row["_hash"], count)

    store.seal()
    assert content(store) == found
    assert state_of(store, 15) == wanted[15]
    store.compact([ORDERS])
    assert state_of(store, 15) == wanted[15]
    assert store.verify().findings == ()
    store.maintain()
    start = store.log_start(ORDERS).epoch
    assert 6 < start <= 10
    assert {epoch: state_of(store, epoch) for epoch in (10, 14)} == {10: wanted[10], 14: wanted[14]}
    assert store.verify().findings == ()


@one_catalog
def test_verification_finds_partitions_that_are_not_those_the_log_was_given(new_store: StoreFactory) -> None:
    store = new_store()
    fill(store, 1, 2)
    repartition(store, ORDERS, 2)
    fill(store, 3, 4)
    table = tables.topics
    for wrong in ("[[0, 0, 4], [3, 4, 1]]", "[[0, 0, 4], [4, 4, 2]]"):
        with store.catalog.write() as connection:
            connection.execute(update(table).where(table.c.name == ORDERS.text).values(partitioning=wrong))
        assert store.verify(quick=True).findings != ()


@one_catalog
def test_a_writer_in_the_middle_arranges_its_rows_again(new_store: StoreFactory) -> None:
    """It knows the topic already, and has written files; its rows are large enough for one of their own."""
    store = new_store(inline_bytes=3000)
    capture = writer(store)
    capture.append(batch(1, [("c", key) for key in KEYS], [("c", 1)], completes=[ORDERS, CUSTOMERS]))
    changes = [("u", 1), ("u", 2), ("t", 0), *[("c", key) for key in KEYS]]
    file = capture.prepare(ORDERS, 1, rows(2, changes))
    repartition(store, ORDERS, 3)
    capture.append(replace(batch(2, (), [("u", 1)]), files=[file]))
    repartition(store, ORDERS, 5)
    capture.append(batch(3, [("u", key) for key in KEYS for _ in range(9)]))
    found = content(store)
    assert {row["_partition"] for row in found if row["_lsn"] == 3} == {7, 8, 9, 10, 11}
    for partition in (4, 5, 6):
        mine = [(row["_lsn"], row["_ordinal"]) for row in found if row["_partition"] == partition]
        assert mine == sorted(mine) and mine.count((2, 2)) == 1
    assert len(found) == len(KEYS) + len(changes) + 2 + 9 * len(KEYS)
    done = store.verify()
    assert (done.findings, done.unregistered) == ((), 0)


def test_it_is_refused_before_anything_is_done_and_twice_is_once(new_store: StoreFactory) -> None:
    store = new_store()
    fill(store, 1, 2)
    for partitions in (0, 1025):
        with pytest.raises(UsageError, match="cannot have"):
            repartition(store, ORDERS, partitions)
    with pytest.raises(UsageError, match=r"no topic shop\.public\.order in the log"):
        repartition(store, TopicId.parse("shop.public.order"), 3)
    assert repartition(store, ORDERS, 4).epoch == 0
    together = threading.Barrier(2)
    epochs: list[int] = []

    def run() -> None:
        together.wait()
        epochs.append(repartition(store, ORDERS, 3).epoch)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(epochs) == [0, 3]
    assert store.topic(ORDERS).partitioning == Partitioning.of(4).repartition(3, 3)


REPARTITIONER = """
import sys
from pathlib import Path
from tailrace.eventstore.store import Store
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings
with Store.open(StoreSettings(catalog=sys.argv[1], segments=Path("segments")), root=Path(sys.argv[2])) as store:
    repartition(store, TopicId.parse("shop.public.orders"), 6)
"""


@pytest.mark.parametrize(("place", "done"), [("repartition_written", False), ("repartition_committed", True)])
@one_catalog
def test_killed_it_is_done_or_not(
    new_store: StoreFactory, catalog_url: str, store_dir: Path, place: str, done: bool
) -> None:
    store = new_store()
    fill(store, 1, 2)
    died = forking.run(
        [sys.executable, "-c", REPARTITIONER, catalog_url, str(store_dir)],
        env={**os.environ, failpoints.VARIABLE: place}, timeout=60,
    )  # fmt: skip
    assert died.returncode == -9, died.stderr
    assert (store.topic(ORDERS).partitions, store.cut().epoch) == ((6, 3) if done else (4, 2))
    assert bool(repartition(store, ORDERS, 6).epoch) is not done
    fill(store, 3, 4)
    assert {row["_partition"] for row in content(store) if row["_epoch"] == 5} == set(range(4, 10))
    assert store.verify().findings == ()


# consumers


@one_catalog
def test_what_is_parked_holds_its_key_in_the_new_partitions_and_is_replayed_in_order(
    new_store: StoreFactory,
) -> None:
    store = new_store()
    capture = writer(store)
    capture.append(batch(1, [("c", key) for key in KEYS]))
    given: list[tuple[int, int]] = []
    poison = {3}

    def handle(value: Any) -> None:
        assert isinstance(value, Change) and value.key is not None
        if value.key["id"] in poison:
            raise ValueError("poison")
        given.append((value.key["id"], value.lsn))

    group = store.group("g", [ORDERS.text], start="earliest")
    with group.join("pod") as member:
        member.process(handle, attempts=1, timeout=0)
    repartition(store, ORDERS, 9)
    capture.append(batch(2, [("u", key) for key in KEYS]))
    with group.join("pod") as member:
        member.process(handle, attempts=1, timeout=0)
    parked = [(each.slot.partition, each.attempts) for each in group.parked()]
    three = store.topic(ORDERS).partitioning.partitions_of_key(hash_texts(["3"]))
    assert parked == [(three[0], 1), (three[1], 0)]
    poison.clear()
    group.replay([group.parked()[1].id])
    capture.append(batch(3, [("u", 4)]))
    with group.join("pod") as member:
        member.process(handle, attempts=1, timeout=0)
        member.process(handle, attempts=1, timeout=0)  # between batches: the first poll shares out partitions
    assert group.parked() == []
    assert {key: [lsn for each, lsn in given if each == key] for key in (3, 4)} == {3: [1, 2], 4: [1, 2, 3]}


@one_catalog
def test_effects_in_another_database_and_filters_that_leave_all_out_get_to_the_new_partitions(
    new_store: StoreFactory, tmp_path: Path
) -> None:
    store = new_store()
    capture = writer(store)
    capture.append(batch(1, [("c", key) for key in KEYS]))
    capture.append(batch(2, [("u", key) for key in KEYS]))
    repartition(store, ORDERS, 2)
    capture.append(batch(3, [("c", key) for key in KEYS]))
    engine = create_engine(f"sqlite:///{tmp_path / 'effects.db'}")
    group = store.group("g", [ORDERS.text], start="earliest")
    found = []
    with group.join("pod", effects=engine, ops=["c"]) as member:
        while (given := member.poll()) is not None:
            found += given.rows["_lsn"].to_pylist()
            with engine.begin() as connection:
                given.commit(connection)
    engine.dispose()
    assert found == [1] * len(KEYS) + [3] * len(KEYS)
    assert [each.slot.partition for each in group.progress()] == [4, 5]


@one_catalog
def test_one_that_commits_before_it_works_is_waited_for(new_store: StoreFactory) -> None:
    store = new_store(partitions=1)
    capture = writer(store)
    capture.append(batch(1, [("c", 1)]))
    seconds = itertools.count(0, 30)  # less than a lease, long enough to share out at each poll
    groups = [store.group("g", [ORDERS.text], start="earliest") for _ in range(2)]
    for group in groups:
        group.clock = lambda: float(next(seconds))
    with (
        groups[0].join("one", delivery="at most once", lease=300) as one,
        groups[1].join("two", lease=300) as two,
    ):
        assert one.poll() is not None
        repartition(store, ORDERS, 3)
        capture.append(batch(2, [("u", 1)]))
        while not two.slots:
            assert two.poll() is None
        assert two.poll() is None  # one is still at work with what it committed
        given = [one.poll(), two.poll()]
        assert [each.first_offset for each in given if each is not None] == [0]


@one_catalog
def test_a_filter_by_key_reads_its_partition_of_before_and_of_now(new_store: StoreFactory) -> None:
    store = new_store()
    fill(store, 1, 3)
    repartition(store, ORDERS, 7)
    fill(store, 5, 7)
    tailed = [
        row["_lsn"]
        for each in store.tail([ORDERS.text], start="earliest", keys=["11"], timeout=0)
        for row in each.rows.to_pylist()
    ]
    assert tailed == [1, 2, 3, 3, 5, 6, 7]  # a truncate concerns every key
    group = store.group("g", [ORDERS.text], start="earliest")
    lsns: list[int] = []
    with group.join("pod", keys=["11"]) as member:
        while (given := member.poll()) is not None:
            lsns += given.rows["_lsn"].to_pylist()
            given.commit()
    assert lsns == tailed
    assert sum(each.lag for each in group.progress()) == 0
    assert len(end_of(store, ORDERS)[1]) == 11
