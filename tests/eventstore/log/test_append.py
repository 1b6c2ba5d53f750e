"""Appending: one fenced transaction per epoch, dense offsets, the same rows from blobs and from files."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import func, select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import Fenced, IncompleteTopic, IntegrityError, OperatorError, UsageError
from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.metadata import load_progress
from tailrace.eventstore.model.epoch import EpochBatch, Load, LoadRange, LoadStep, TopicRows
from tailrace.eventstore.model.schema import EVENT_SCHEMA, Column, TopicSchema, change_schema
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.segment.segment import read_segment
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.storage import LocalStorage
from tailrace.eventstore.store import Store
from tests.eventstore.shop import (
    CUSTOMERS,
    ORDERS,
    SCHEMA,
    WIDER,
    assert_dense,
    batch,
    content,
    register,
    rows,
    writer,
)
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support.folders import segments_folder


@one_catalog
def test_an_epoch_holds_rows_of_all_topics_of_a_transaction(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    info = capture.append(batch(10, orders=[("c", 1), ("c", 2)], customers=[("c", 9)]))
    assert info is not None and (info.epoch, info.rows, info.commit_lsn) == (1, 3, 10)
    assert store.head() == info == store.epochs()[0]
    assert {row["after"]["id"] for row in content(store)} == {1, 2}
    assert [row["after"]["id"] for row in content(store, CUSTOMERS)] == [9]
    state = store.source("shop")
    assert state == capture.state
    assert state is not None and (state.commit_lsn, state.end_lsn, state.loaded) == (10, 11, True)


@one_catalog
def test_an_append_without_rows_moves_the_position_and_uses_no_epoch(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    capture.append(batch(10, orders=[("c", 1)]))
    assert capture.append(EpochBatch("shop", 30, 31, 40)) is None
    capture.advance(end_lsn=50, through_lsn=60)
    capture.advance(end_lsn=45, through_lsn=55)  # late and lower: changes nothing
    state = store.source("shop")
    assert state is not None and (state.commit_lsn, state.end_lsn, state.through_lsn) == (30, 50, 60)
    assert [info.epoch for info in store.epochs()] == [1]


@one_catalog
def test_a_position_before_the_first_commit_is_no_load(new_store: StoreFactory) -> None:
    """A capture that is loading moves its position; cut off then, the next one must load, not stream."""
    store = new_store()
    capture = writer(store)
    capture.advance(end_lsn=5, through_lsn=5)
    state = store.source("shop")
    assert state == capture.state
    assert state is not None and (state.commit_lsn, state.through_lsn, state.loaded) == (0, 5, False)


@one_catalog
def test_the_progress_of_a_chunk_without_rows_is_kept(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    ranges = (LoadRange(0, after=None, upto=None),)
    capture.append(replace(batch(10), load_begins=[Load(ORDERS, 1, 10, 0, ranges)]))
    info = capture.append(
        replace(batch(20), load_steps=[LoadStep(ORDERS, 0, after=("7",), rows=0, done=True)])
    )
    assert info is not None and (info.epoch, info.rows) == (2, 0)
    load = load_progress.read(store.catalog, ORDERS)
    assert load is not None and load.epoch == 1
    assert load.ranges == (LoadRange(0, after=("7",), upto=None, done=True),)


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
@one_catalog
def test_offsets_are_dense_per_partition(new_store: StoreFactory, inline_bytes: int) -> None:
    store = new_store(inline_bytes=inline_bytes)
    capture = writer(store)
    for lsn in range(10, 20):
        capture.append(batch(lsn, orders=[("c", lsn * 100 + i) for i in range(lsn)]))
    found = content(store)
    assert len(found) == sum(range(10, 20))
    assert_dense(found)


@one_catalog
def test_offsets_go_on_where_the_previous_writer_ended(new_store: StoreFactory) -> None:
    store = new_store()
    writer(store).append(batch(10, orders=[("c", i) for i in range(50)]))
    again = new_store()
    again.take_over("shop").append(batch(20, orders=[("u", i) for i in range(50)]))
    assert_dense(content(store))


def test_a_blob_and_files_read_the_same(tmp_path: Path) -> None:
    """Every kind of cell, also a truncate in every partition and a topic without a key."""
    read: list[list[tuple[str, pa.Table]]] = []
    for inline_bytes in (0, 1 << 20):
        with Store.open(
            StoreSettings(inline_bytes=inline_bytes), create=True, root=tmp_path / f"{inline_bytes}"
        ) as store:
            capture = writer(store)
            keyless = TopicId.table("shop", "public", "no_key")
            register_topic(store, keyless, KEYLESS)
            changes = [("c", 1), ("c", 7), ("t", 0), ("u", 7), ("d", 1)]
            extra = TopicRows(keyless, 1, _keyless_rows())
            given = batch(10, orders=changes, customers=[("c", 3)])
            capture.append(replace(given, rows=[*given.rows, extra]))
            found = []
            for topic in (ORDERS, CUSTOMERS, keyless):
                found += [(str(topic), pa.Table.from_batches([part])) for part in store.read(topic)]
            read.append(found)
            assert any(store.storage.list("log")) == (inline_bytes == 0)
    from_files, from_blob = read
    assert len(from_files) == len(from_blob) == 3
    for (name, file), (_, blob) in zip(from_files, from_blob, strict=True):
        assert file.schema.equals(blob.schema, check_metadata=True), name
        assert file.equals(blob), name
    truncates = [row for row in from_files[0][1].to_pylist() if row["_op"] == "t"]
    assert sorted(row["_partition"] for row in truncates) == [0, 1, 2, 3]


KEYLESS = TopicSchema(1, (Column(1, "tags", 1009, type_name="text[]"), Column(2, "seen", 1184)))


def _keyless_rows() -> pa.Table:
    base = rows(10, [("c", 1), ("c", 2), ("t", 0)]).to_pylist()
    for row in base:
        row["key"] = None if row["_op"] == "t" else {}
        row["after"] = None if row["_op"] == "t" else {"tags": ["a", None], "seen": row["_commit_ts"]}
    return pa.Table.from_pylist(base, schema=change_schema(KEYLESS))


def test_the_earlier_of_two_writers_is_fenced_and_leaves_nothing(new_store: StoreFactory) -> None:
    first_store, second_store = new_store(), new_store()
    first = writer(first_store)
    first.append(batch(10, orders=[("c", 1)]))
    second = second_store.take_over("shop")
    assert second.term == first.term + 1
    with pytest.raises(Fenced):
        first.append(batch(20, orders=[("c", 2)]))
    with pytest.raises(Fenced):
        first.advance(21, 21)
    second.append(batch(20, orders=[("c", 3)]))
    with pytest.raises(Fenced):
        first.append(batch(30, orders=[("c", 4)]))
    assert [row["after"]["id"] for row in content(first_store)] == [1, 3]
    with first_store.catalog.read() as connection:
        assert connection.scalar(select(func.count()).select_from(tables.blobs)) == 2


def test_writers_that_race_append_each_position_once(new_store: StoreFactory) -> None:
    """Many take-overs while appends run: whatever the interleaving, the log is one writer's work at every position."""
    register(new_store())
    stores = [new_store() for _ in range(3)]
    go = threading.Barrier(len(stores))

    def run(store: Store) -> None:
        go.wait()
        for _ in range(8):
            capture = store.take_over("shop")
            try:
                for _ in range(3):
                    lsn = capture.state.commit_lsn + 10
                    capture.append(batch(lsn, orders=[("c", lsn)]))
            except Fenced:
                continue

    threads = [threading.Thread(target=run, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = content(stores[0])
    lsns = sorted(row["_lsn"] for row in found)
    assert lsns == list(range(10, 10 * len(lsns) + 10, 10))
    assert_dense(found)
    assert [info.epoch for info in stores[0].epochs()] == list(range(1, len(lsns) + 1))


@one_catalog
def test_a_batch_that_goes_backwards_or_comes_twice_is_refused(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    capture.append(batch(10, orders=[("c", 1)]))
    for wrong in (batch(10, orders=[("c", 1)]), batch(9, orders=[("c", 1)])):
        with pytest.raises(IntegrityError, match="is at commit"):
            capture.append(wrong)
    with pytest.raises(IntegrityError, match="source"):
        capture.append(replace(batch(20), source="other"))
    assert len(content(store)) == 1


@one_catalog
def test_rows_of_another_shape_or_version_are_refused(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    odd = TopicRows(ORDERS, 1, rows(10, [("c", 1)], schema=WIDER))
    with pytest.raises(IntegrityError, match="columns of its version"):
        capture.append(replace(batch(10), rows=[odd]))
    with pytest.raises(IntegrityError, match="version 2"):
        capture.append(replace(batch(10), rows=[replace(odd, version=2)]))
    with pytest.raises(IntegrityError, match="columns of its version"):
        capture.prepare(odd.topic, odd.version, odd.rows)
    assert list(store.storage.list("log")) == []
    with pytest.raises(UsageError, match="no topic"):
        capture.prepare(TopicId.table("shop", "public", "order"), 1, rows(10, [("c", 1)]))


def test_prepared_files_become_visible_by_their_epoch_only(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    files: list[Any] = []
    lock = threading.Lock()

    def load(part: int) -> None:
        prepared = capture.prepare(ORDERS, 1, rows(9, [("r", part * 100 + i) for i in range(20)]))
        with lock:
            files.append(prepared)

    workers = [threading.Thread(target=load, args=(part,)) for part in range(4)]
    for worker in workers:
        worker.start()
    capture.advance(0, 0)  # the status of a loading capture moves meanwhile
    for worker in workers:
        worker.join()
    assert store.head() is None and content(store) == []
    with pytest.raises(IncompleteTopic, match="waiting for first load"):
        store.require_complete(ORDERS, store.cut())
    info = capture.append(EpochBatch("shop", 9, 10, 10, files=files, completes=[ORDERS]))
    assert info is not None and store.topic(ORDERS).complete_since == info.epoch
    store.require_complete(ORDERS, store.cut())
    found = content(store)
    assert len(found) == 80
    by_partition = sorted(found, key=lambda row: (row["_partition"], row["_offset"]))
    assert_dense(by_partition)


def test_completeness_is_known_for_every_epoch(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    capture.append(batch(10, orders=[("r", 1)], completes=[ORDERS]))
    capture.append(batch(20, orders=[("c", 2)], suspends=[(ORDERS, "type of column note was rewritten")]))
    capture.append(batch(30, suspends=[(ORDERS, "rewritten again")]))
    assert store.topic(ORDERS).reason == "rewritten again" and store.topic(ORDERS).complete_since is None
    capture.append(batch(40, orders=[("r", 1)], completes=[ORDERS]))
    known = []
    for epoch in range(5):
        try:
            store.require_complete(ORDERS, store.cut(epoch))
            known.append(epoch)
        except IncompleteTopic:
            continue
    assert known == [1, 4]


@one_catalog
def test_new_versions_and_topics_begin_with_their_epoch(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    capture.append(batch(10, orders=[("c", 1)]))
    carts = TopicId.events("shop", "cart")
    wide = TopicRows(ORDERS, 2, rows(20, [("c", 2)], schema=WIDER))
    capture.append(replace(batch(20), rows=[wide], new_schemas=[(ORDERS, WIDER), (carts, EVENT_SCHEMA)]))
    assert [schema.version for schema in store.schemas(ORDERS)] == [1, 2]
    assert store.schemas(ORDERS)[1] == WIDER
    assert store.topic(ORDERS).version == 2
    cart = store.topic(carts)
    assert (cart.kind, cart.complete_since) == (TopicKind.EVENTS, 0)
    versions = [found.schema.metadata[b"tailrace:version"] for found in store.read(ORDERS)]
    assert versions == [b"1", b"2"]
    altered = replace(WIDER, columns=SCHEMA.columns)
    with pytest.raises(IntegrityError, match="version 2"):
        capture.append(replace(batch(30, orders=[("c", 3)]), new_schemas=[(ORDERS, altered)]))


def test_the_hash_chain_depends_on_content_and_history(tmp_path: Path) -> None:
    def heads(name: str, ids: list[int]) -> list[str]:
        with Store.open(create=True, root=tmp_path / name) as store:
            capture = writer(store)
            for step, key in enumerate(ids, start=1):
                capture.append(batch(step * 10, orders=[("c", key)]))
            return [info.hash for info in store.epochs()]

    first, same, other = heads("a", [1, 2, 3]), heads("b", [1, 2, 3]), heads("c", [5, 2, 3])
    assert first == same
    assert not set(first) & set(other)


@one_catalog
def test_damage_is_noticed_and_named(new_store: StoreFactory) -> None:
    store = new_store(inline_bytes=0)
    writer(store).append(batch(10, orders=[("c", i) for i in range(100)]))
    (ref,) = store.segments(ORDERS, store.cut())
    assert ref.path is not None
    path = segments_folder(store) / ref.path
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    with pytest.raises(IntegrityError, match=path.name):
        content(store)
    path.unlink()
    with pytest.raises(IntegrityError, match=path.name):
        content(store)


def test_a_damaged_blob_is_noticed_and_named(new_store: StoreFactory) -> None:
    store = new_store()
    writer(store).append(batch(10, orders=[("c", 1)]))
    with store.catalog.write() as connection:
        data = connection.execute(select(tables.blobs.c.data)).scalar_one()
        connection.execute(tables.blobs.update().values(data=data[:-1] + bytes([data[-1] ^ 1])))
    with pytest.raises(IntegrityError, match="blob of epoch 1"):
        content(store)


@one_catalog
def test_a_reference_is_read_without_the_catalog(new_store: StoreFactory) -> None:
    store = new_store(inline_bytes=0)
    writer(store).append(batch(10, orders=[("c", i) for i in range(30)]))
    (ref,) = store.segments(ORDERS, store.cut())
    moved: tuple[LocalStorage, SegmentRef] = pickle.loads(pickle.dumps((store.storage, ref)))
    table = read_segment(*moved, columns=("_offset", "_op", "after"), partitions={1, 2})
    assert table.column_names == ["_offset", "_op", "after"]
    expected = [row for row in content(store) if row["_partition"] in (1, 2)]
    assert table["_offset"].to_pylist() == [row["_offset"] for row in expected]


def test_a_source_belongs_to_one_system_once_loaded(new_store: StoreFactory) -> None:
    store = new_store()
    register_source(store.catalog, "shop", slot="a", publication="p", system_id="1")
    state = register_source(
        store.catalog, "shop", slot="b", publication="p", system_id="2"
    )  # nothing loaded yet
    assert (state.slot, state.system_id) == ("b", "2")
    writer(store).append(batch(10, orders=[("c", 1)]))
    with pytest.raises(OperatorError, match="7001"):
        register_source(store.catalog, "shop", slot="b", publication="p", system_id="3")
    with pytest.raises(UsageError, match="shop"):
        store.take_over("shopp")
    with pytest.raises(UsageError, match="not a source name"):
        register_source(store.catalog, "../x", slot="b", publication="p", system_id="3")


def test_two_captures_never_show_an_epoch_before_its_predecessor(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random delays before COMMIT; a reader polls all the time and must see a prefix, with both topics' rows."""
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse("inside_commit~7"))
    sources = ("shop", "bank")
    stores = {source: new_store() for source in sources}
    for source, store in stores.items():
        register(store, source)
    reader = new_store()
    done = threading.Event()
    seen: list[list[int]] = []

    def capture(source: str) -> None:
        appender = stores[source].take_over(source)
        for lsn in range(1, 25):
            topic = TopicId.table(source, "public", "orders")
            given = [TopicRows(topic, 1, rows(lsn, [("c", lsn)]))]
            appender.append(replace(batch(lsn), source=source, rows=given))

    def poll() -> None:
        while not done.is_set():
            seen.append([info.epoch for info in reader.epochs()])

    threads = [threading.Thread(target=capture, args=(source,)) for source in sources]
    poller = threading.Thread(target=poll)
    for thread in (*threads, poller):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    poller.join()
    assert len(seen) > 5
    for epochs in seen:
        assert epochs == list(range(1, len(epochs) + 1))
    final = reader.epochs()
    assert len(final) == 48
    for source in sources:
        lsns = [info.commit_lsn for info in final if info.source == source]
        assert lsns == list(range(1, 25))
