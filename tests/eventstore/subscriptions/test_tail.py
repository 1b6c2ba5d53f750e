"""Following without a group: the log's order, any position, filtered, without reading what cannot be wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace.eventstore.errors import HistoryGone, UsageError
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_texts, partition_of
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.retention import Retention
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import segment
from tailrace.eventstore.settings import StoreSettings, TopicSettings
from tailrace.eventstore.store import Store
from tailrace.eventstore.subscriptions.filter import matches
from tailrace.eventstore.subscriptions.member import Member
from tailrace.eventstore.subscriptions.tail import FollowedRows
from tests.eventstore.shop import CUSTOMERS, ORDERS, SCHEMA, at, batch, content, rows, writer

EPOCHS = 12


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Twelve epochs of three orders and a customer, one with a truncate; the first eight are sealed."""
    kept = {"shop.public.customers": TopicSettings(retention=Retention(compact=True), compact_after=0.0)}
    with closing(Store.open(StoreSettings(topics=kept), create=True, root=tmp_path)) as store:
        capture = writer(store)
        for lsn in range(1, EPOCHS + 1):
            orders = [("c" if lsn == 1 else "u", key) for key in (1, 2, 3)]
            capture.append(batch(lsn, orders=orders, customers=[("t", 0)] if lsn == 5 else [("u", lsn % 3)]))
            if lsn == 8:
                store.seal()
        yield store


def ids(found: list[FollowedRows]) -> list[tuple[int, str, int]]:
    """(epoch, topic, key) of every row, in the order given."""
    return [
        (each.epoch, each.topic.parts[-1], row["key"]["id"] if row["key"] else 0)
        for each in found
        for row in each.rows.select(["key"]).to_pylist()
    ]


def tail_ids(store: Store, *topics: str, **how: Any) -> list[tuple[int, str, int]]:
    return ids(list(store.tail(topics or ("*",), timeout=0, **how)))


@contextmanager
def segments_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    """Which segments are read, with the partitions asked for."""
    found: list[tuple[str, Any]] = []
    read = segment.read_segment

    def reading(
        storage: Any, ref: Any, schema: Any = None, columns: Any = None, partitions: Any = None
    ) -> Any:
        found.append((ref.path or "inline", partitions))
        return read(storage, ref, schema, columns, partitions)

    with monkeypatch.context() as patched:
        patched.setattr(segment, "read_segment", reading)
        yield found


def test_topics_are_merged_epoch_by_epoch_and_every_end_of_one_is_a_place_to_go_on_from(store: Store) -> None:
    found = list(store.tail(start="earliest", timeout=0))
    assert [epoch for epoch, *_ in ids(found)] == sorted(epoch for epoch, *_ in ids(found))
    assert len(ids(found)) == sum(len(content(store, topic)) for topic in (ORDERS, CUSTOMERS))
    assert [each.epoch for each in found if each.ends_epoch] == list(range(1, EPOCHS + 1))
    for at_epoch in (0, 3, 8, EPOCHS):
        before = ids([each for each in found if each.epoch <= at_epoch])
        assert before + tail_ids(store, start=at_epoch) == ids(found)
        assert tail_ids(store, start="earliest", until=at_epoch) == before


def test_it_begins_at_any_position(store: Store) -> None:
    every = tail_ids(store, start="earliest")
    assert tail_ids(store) == []
    assert tail_ids(store, start="0/4") == [row for row in every if row[0] >= 4]
    assert tail_ids(store, start=at(9)) == [row for row in every if row[0] > 9]
    partition = partition_of(hash_texts(["2"]), 4)
    of_partition = [row["key"]["id"] for row in content(store, ORDERS) if row["_partition"] == partition]
    found = tail_ids(store, ORDERS.text, start=f"{partition}:5")
    assert [key for *_, key in found] == of_partition[5:]
    assert tail_ids(store, ORDERS.text, start=f"{partition}:{len(of_partition)}") == []
    for wrong, said in ((f"{partition}:99", "has no offset 99"), ("7:0", "has no partition 7")):
        with pytest.raises(UsageError, match=said):
            tail_ids(store, ORDERS.text, start=wrong)
    with pytest.raises(UsageError, match="of one topic, but 2 topics match"):
        tail_ids(store, start="0:1")
    with pytest.raises(UsageError, match="lies behind"):
        tail_ids(store, start=9, until=3)


def test_patterns_operations_keys_and_time_choose_rows(store: Store) -> None:
    every = tail_ids(store, start="earliest")
    assert tail_ids(store, "shop.public.*", "!*.orders", start="earliest") == [
        r for r in every if r[1] == "customers"
    ]
    assert {row[1] for row in tail_ids(store, "*.ord?rs", start="earliest")} == {"orders"}
    assert [row[0] for row in tail_ids(store, start="earliest", ops=["c"])] == [1, 1, 1]
    of_key = tail_ids(store, start="earliest", keys=["2"])
    truncates = [row for row in of_key if row[2] == 0]
    assert [row for row in of_key if row[2] == 2] == [row for row in every if row[2] == 2]
    assert truncates == [(5, "customers", 0)]  # it concerns the key; once, as only its partition is read
    assert tail_ids(store, start="earliest", since=at(7)) == [row for row in every if row[0] >= 7]
    assert tail_ids(store, start="earliest", since=at(99)) == []
    with pytest.raises(UsageError, match="is not a list of topics"):
        tail_ids(store, "")


def test_of_a_key_one_partition_is_read_and_of_a_time_no_older_file(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with segments_read(monkeypatch) as reads:
        tail_ids(store, start="earliest", keys=["2"])
    assert {frozenset(partitions) for _, partitions in reads} == {
        frozenset({partition_of(hash_texts(["2"]), 4)})
    }
    with segments_read(monkeypatch) as reads:
        assert len(tail_ids(store, ORDERS.text, start="earliest", since=at(9))) == 12
    assert {path for path, _ in reads} == {"inline"}  # the file of epochs 1 to 8 was not opened


def test_what_comes_and_topics_that_come_are_followed(store: Store) -> None:
    late = TopicId.table("shop", "public", "late_orders")
    following = store.tail(["*orders"], timeout=30)
    capture = writer(store)
    register_topic(store, late, SCHEMA)
    capture.append(batch(20, customers=[("u", 1)]))
    capture.append(batch(21, orders=[("u", 9)]))
    capture.append(
        EpochBatch(
            "shop", 22, 23, 23, at(22), transactions=1, rows=[TopicRows(late, 1, rows(22, [("c", 5)]))]
        )
    )
    found = [next(following), next(following)]
    assert ids(found) == [(14, "orders", 9), (15, "late_orders", 5)]
    assert [change.key for each in found for change in each.changes()] == [{"id": 9}, {"id": 5}]


def test_a_compacted_topic_begins_with_what_is_left_and_what_is_gone_is_said(store: Store) -> None:
    writer(store).append(batch(30, completes=[ORDERS, CUSTOMERS]))
    store.maintain()
    start = store.log_start(CUSTOMERS)
    assert start.epoch == EPOCHS + 1
    left = tail_ids(store, CUSTOMERS.text, start="earliest")
    assert sorted(left) == [(start.epoch, "customers", key) for key in (0, 1, 2)]
    with pytest.raises(HistoryGone):
        tail_ids(store, start=3)
    assert tail_ids(store, ORDERS.text, start=3) == [
        row for row in tail_ids(store, ORDERS.text, start="earliest") if row[0] > 3
    ]


def drained(member: Member) -> list[dict[str, Any]]:
    found = []
    for each in member.batches(0):
        found += each.rows.select(["_epoch", "key"]).to_pylist()
        each.commit()
    return found


def test_a_group_with_keys_or_a_time_passes_what_it_does_not_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = partition_of(hash_texts(["2"]), 4)
    with store.group("by-key", [ORDERS.text], start="earliest").join(keys=["2"]) as member:
        with segments_read(monkeypatch) as reads:
            found = drained(member)
        assert [row["key"]["id"] for row in found] == [2] * EPOCHS
        assert {frozenset(partitions) for _, partitions in reads} == {frozenset({partition})}
        assert sum(each.lag for each in member.group.progress()) == 0
    with store.group("by-time", [ORDERS.text], start="earliest").join(since=at(9)) as member:
        found = drained(member)
        assert sorted(row["_epoch"] for row in found) == [e for e in range(9, EPOCHS + 1) for _ in range(3)]
        assert sum(each.lag for each in member.group.progress()) == 0
    with store.group("later", [ORDERS.text], start="earliest").join(since=at(99)) as member:
        assert drained(member) == []
        assert sum(each.lag for each in member.group.progress()) == 0
        writer(store).append(batch(100, orders=[("u", 2)]))
        assert [row["_epoch"] for row in drained(member)] == [EPOCHS + 1]


def test_a_group_is_reset_to_offsets(store: Store) -> None:
    partition = partition_of(hash_texts(["2"]), 4)
    group = store.group("g", ["shop.public.*"], start="latest")
    with pytest.raises(UsageError, match="2 topics of the group match"):
        group.reset(f"{partition}:5")
    with pytest.raises(UsageError, match="has no offset 99"):
        group.reset(f"{partition}:99", [ORDERS.text])
    group.reset(f"{partition}:5", [ORDERS.text])
    expected = [
        row["_offset"] for row in content(store, ORDERS, cut=Cut(EPOCHS)) if row["_partition"] == partition
    ]
    with group.join("pod") as member:
        got = [offset for each in member.batches(0) for offset in each.rows["_offset"].to_pylist()]
    assert got == expected[5:]


def test_a_name_that_is_no_topic_is_refused_with_the_nearest(store: Store) -> None:
    with pytest.raises(UsageError, match=r"no topic shop\.public\.order in the log") as caught:
        store.tail(["shop.public.order"])
    assert "shop.public.orders" in caught.value.hint
    with pytest.raises(UsageError, match=r"no topic shop\.public\.order in the log"):
        store.group("invoicing", ["shop.public.customers", "shop.public.order"])
    with pytest.raises(UsageError, match=r"no topic shop\.public\.order in the log"):
        next(store.follow(["shop.public.order"], after_epoch=0))
    with pytest.raises(UsageError, match="is not written") as caught:
        store.tail(['shop."public".orders'])
    assert caught.value.hint == "write shop.public.orders"


def test_a_pattern_waits_for_a_topic_to_come(store: Store) -> None:
    assert tail_ids(store, "shop.public.invoices*") == []
    assert store.group("later", ["shop.public.invoices*"]).topics() == []


def test_a_pattern_means_tailraces_own_topics_only_where_it_names_their_schema() -> None:
    own = TopicId(("shop", "pg_kafka", "positions"))
    assert not any(matches(own, [each]) for each in ("*", "shop.*", "shop.*.positions"))
    assert all(matches(own, [each]) for each in ("shop.pg_kafka.*", "shop.pg_kafka.positions"))
    assert matches(TopicId.table("shop", "public", "orders"), ["shop.*"])
