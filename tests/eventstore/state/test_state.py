"""State read from a store: at any cut, without a catalog in tasks, and never a wrong value for one it cannot give."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tailrace.eventstore.disclosure import show_values
from tailrace.eventstore.errors import IncompleteTopic, UnknownCell, UnreadableCell, UsageError
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.state.input import OnUnreadable, plan_state
from tailrace.eventstore.state.state import _rows_after_truncate, state, unknown_keys
from tailrace.eventstore.store import Store
from tests.eventstore import shop
from tests.eventstore.bucket_state import compute_state, readable_state
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support.folders import segments_folder


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    """Orders 1 and 2 at LSN 10 (complete), order 1 changed at 20, order 2 deleted at 30, order 7 made at 40."""
    store = new_store()
    writer = shop.writer(store)
    writer.append(shop.batch(10, [("c", 1), ("c", 2)], completes=[shop.ORDERS]))
    writer.append(shop.batch(20, [("u", 1)]))
    writer.append(shop.batch(30, [("d", 2)]))
    writer.append(shop.batch(40, [("c", 7)]))
    return store


def notes_at(store: Store, cut: Cut, **how: Any) -> dict[int, str]:
    how = {"on_unreadable": "null"} | how
    rows = [row for table in state(store, shop.ORDERS, cut, **how) for row in table.to_pylist()]
    return {int(row["id"]): row["note"] for row in rows}


def test_state_as_of_an_epoch_an_lsn_and_the_head(store: Store) -> None:
    assert notes_at(store, store.cut("1")) == {1: "10.0", 2: "10.1"}
    assert notes_at(store, store.cut("0/1E")) == {1: "20.0", 2: "10.1"}
    assert notes_at(store, store.cut()) == {1: "20.0", 7: None}


@one_catalog
def test_the_store_gives_the_state_as_of_a_position_of_a_topic_by_its_name(store: Store) -> None:
    def notes(as_of: int | str | None) -> dict[int, str]:
        tables = store.state("shop.public.orders", as_of, columns=["id", "note"], on_unreadable="null")
        return {row["id"]: row["note"] for table in tables for row in table.to_pylist()}

    assert [notes(1), notes("0/1E"), notes(None)] == [
        {1: "10.0", 2: "10.1"},
        {1: "20.0", 2: "10.1"},
        {1: "20.0", 7: None},
    ]
    with pytest.raises(UsageError, match=r"no topic shop\.public\.order"):
        store.state("shop.public.order")
    assert store.topic("shop.public.orders").id == shop.ORDERS


@one_catalog
def test_sealing_does_not_change_the_state(store: Store) -> None:
    before = notes_at(store, store.cut("0/1E")), notes_at(store, store.cut())
    assert store.seal() > 0
    assert (notes_at(store, store.cut("0/1E")), notes_at(store, store.cut())) == before


@one_catalog
def test_a_task_needs_only_the_plan_and_the_segments_folder(store: Store) -> None:
    plan = pickle.loads(
        pickle.dumps(replace(plan_state(store, shop.ORDERS, store.cut(), on_unreadable="null"), split=2))
    )
    root = segments_folder(store)
    store.close()
    tables = [readable_state(root, plan, bucket) for bucket in range(plan.buckets)]
    assert {table.schema for table in tables} == {plan.schema}
    assert sorted(row["id"] for table in tables for row in table.to_pylist()) == [1, 7]


@one_catalog
def test_a_topic_that_is_not_complete_at_the_cut_has_no_state(store: Store) -> None:
    with pytest.raises(IncompleteTopic):
        plan_state(store, shop.CUSTOMERS, store.cut())


@pytest.mark.parametrize(
    ("policy", "cell"), [("null", None), ("text", "raw"), ({"note": "null"}, None), ({"note": "text"}, "raw")]
)
@one_catalog
def test_a_cell_without_a_value_is_read_as_the_policy_says(
    store: Store, policy: OnUnreadable | dict[str, OnUnreadable], cell: str | None
) -> None:
    assert notes_at(store, store.cut(), on_unreadable=policy) == {1: "20.0", 7: cell}


@one_catalog
def test_a_cell_without_a_value_is_an_error_that_names_it(store: Store) -> None:
    with show_values(True), pytest.raises(UnreadableCell, match=r"column 'note' of the row id=7 holds 'raw'"):
        notes_at(store, store.cut(), on_unreadable="error")
    hidden = r"column 'note' of the row id=<hidden: 1 character> holds <hidden: 3 characters>"
    with pytest.raises(UnreadableCell, match=hidden):
        notes_at(store, store.cut(), on_unreadable="error")


@one_catalog
def test_a_column_that_is_not_read_raises_nothing(store: Store) -> None:
    tables = list(state(store, shop.ORDERS, store.cut(), columns=["id"]))
    assert sorted(row["id"] for table in tables for row in table.to_pylist()) == [1, 7]
    assert "note" not in tables[0].column_names


@one_catalog
def test_whole_columns_as_text_are_what_postgres_prints(new_store: StoreFactory) -> None:
    store = new_store()
    writer = shop.writer(store)
    writer.append(shop.batch(10, [("c", 1)], completes=[shop.ORDERS]))
    wide = shop.rows(20, [("c", 3)], schema=shop.WIDER)
    writer.append(
        EpochBatch(
            "shop",
            20,
            21,
            21,
            rows=[TopicRows(shop.ORDERS, 2, wide)],
            new_schemas=[(shop.ORDERS, shop.WIDER)],
        )
    )
    plan = plan_state(store, shop.ORDERS, store.cut(), on_unreadable="text")
    assert plan.schema.field("amount").type == pa.string()
    rows = [
        row
        for bucket in range(plan.buckets)
        for row in readable_state(store.storage, plan, bucket).to_pylist()
    ]
    assert {row["id"]: row["amount"] for row in rows} == {"1": None, "3": None}


@one_catalog
def test_an_unknown_cell_is_never_null_whatever_the_policy(new_store: StoreFactory) -> None:
    store = new_store()
    writer = shop.writer(store)
    table = shop.rows(10, [("u", 1)])
    never_sent = pa.array([[2]], table.schema.field("_unchanged").type)
    table = table.set_column(
        table.schema.get_field_index("_unchanged"), table.schema.field("_unchanged"), never_sent
    )
    rows = [TopicRows(shop.ORDERS, 1, table)]
    writer.append(EpochBatch("shop", 10, 11, 11, rows=rows, completes=[shop.ORDERS]))
    for policy in ("error", "null", "text"):
        with show_values(True), pytest.raises(UnknownCell, match=r"'note' of the row id=1 was never sent"):
            notes_at(store, store.cut(), on_unreadable=policy)
        with pytest.raises(UnknownCell, match=r"'note' of the row id=<hidden: 1 character> was never sent"):
            notes_at(store, store.cut(), on_unreadable=policy)
    plan = plan_state(store, shop.ORDERS, store.cut())
    (row,) = (
        r for bucket in range(plan.buckets) for r in compute_state(store.storage, plan, bucket).to_pylist()
    )
    assert row["_unknown"] == [2]
    assert list(unknown_keys(store, shop.ORDERS, since=1)) == [("1",)]
    assert list(unknown_keys(store, shop.ORDERS, since=2)) == []


@one_catalog
def test_a_value_of_a_former_type_names_both_versions(new_store: StoreFactory) -> None:
    """What cannot be cast is kept as text; whoever reads the column learns which versions do not agree."""
    store = new_store()
    writer = shop.writer(store)
    writer.append(shop.batch(10, [("c", 1)], completes=[shop.ORDERS]))
    columns = (shop.SCHEMA.columns[0], Column(2, "note", 23, type_name="integer"))
    retyped = TopicSchema(2, columns, relid=shop.SCHEMA.relid)
    writer.append(EpochBatch("shop", 20, 21, 21, new_schemas=[(shop.ORDERS, retyped)]))
    with show_values(True), pytest.raises(
        UnreadableCell, match=r"'note' of the row id=1 holds '10.0', which int32 cannot "
        r"\(it was text in version 1 of the topic, and is integer in version 2\)",
    ):  # fmt: skip
        notes_at(store, store.cut(), on_unreadable="error")
    assert notes_at(store, store.cut(), on_unreadable="text") == {1: "10.0"}


@pytest.mark.parametrize(
    "oid", [16, 17, 20, 21, 23, 700, 701, 1082, 1083, 1114, 1184, 1700, 1001, 1007, 1009, 1182, 1231]
)
@one_catalog
def test_of_every_type_a_cell_that_does_not_fit_can_be_read_as_null_or_as_text(
    new_store: StoreFactory, oid: int
) -> None:
    store = new_store()
    writer = shop.writer(store)
    writer.append(shop.batch(10, [("c", 1)], completes=[shop.ORDERS]))
    column = Column(2, "note", oid, typmod=(12 << 16 | 2) + 4 if oid in (1700, 1231) else -1)
    assert column.arrow != pa.string()
    retyped = TopicSchema(2, (shop.SCHEMA.columns[0], column))
    writer.append(EpochBatch("shop", 20, 21, 21, new_schemas=[(shop.ORDERS, retyped)]))
    assert notes_at(store, store.cut(), on_unreadable="null") == {1: None}
    assert notes_at(store, store.cut(), on_unreadable="text") == {1: "10.0"}
    with pytest.raises(UnreadableCell, match="column 'note'"):
        notes_at(store, store.cut(), on_unreadable="error")


@one_catalog
def test_a_version_without_rows_holds_from_its_epoch_on(new_store: StoreFactory) -> None:
    store = new_store()
    writer = shop.writer(store)
    writer.append(shop.batch(10, [("c", 1)], completes=[shop.ORDERS]))
    before = store.cut()
    columns = (*shop.SCHEMA.columns, Column(3, "level", 23, fill="7"))
    added = TopicSchema(2, columns, from_lsn=20, relid=shop.SCHEMA.relid)
    writer.append(EpochBatch("shop", 20, 21, 21, new_schemas=[(shop.ORDERS, added)]))
    for cut, names in ((before, ["id", "note"]), (store.cut(), ["id", "note", "level"])):
        assert [column.name for column in plan_state(store, shop.ORDERS, cut).target.columns] == names
    (row,) = (row for part in state(store, shop.ORDERS, store.cut()) for row in part.to_pylist())
    assert row["level"] == 7


@one_catalog
def test_wrong_names_are_answered_with_the_right_ones(store: Store) -> None:
    with pytest.raises(UsageError, match="its columns are id, note"):
        plan_state(store, shop.ORDERS, store.cut(), columns=["nope"])
    with pytest.raises(UsageError, match="has no column 'nope'"):
        plan_state(store, shop.ORDERS, store.cut(), columns=["nope"], on_unreadable={"note": "null"})
    with pytest.raises(UsageError, match="has no column 'nope'"):
        plan_state(store, shop.ORDERS, store.cut(), on_unreadable={"nope": "null"})
    with pytest.raises(UsageError, match="choose one of error, null, text"):
        plan_state(store, shop.ORDERS, store.cut(), on_unreadable={"note": "guess"})  # type: ignore[dict-item]


def test_what_lies_before_a_truncate_is_left_out_by_epoch_then_commit_then_ordinal() -> None:
    names = ("_op", "_epoch", "_lsn", "_ordinal")
    before = [("c", 1, 90, 9), ("c", 2, 19, 9), ("c", 2, 20, 4)]
    after = [("c", 2, 20, 5), ("c", 2, 20, 6), ("c", 2, 21, 0), ("c", 3, 1, 0)]
    rows = [*before, ("t", 2, 20, 5), *after, ("t", 4, 1, 0)]
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])

    def left(truncate: tuple[int, int, int] | None) -> list[tuple[Any, ...]]:
        return [
            tuple(row[name] for name in names) for row in _rows_after_truncate(table, truncate).to_pylist()
        ]

    assert left((2, 20, 5)) == after
    assert left(None) == [*before, *after]
