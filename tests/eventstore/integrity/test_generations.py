"""A generation is what was begun and each of its steps what was committed to it. Otherwise readers refuse it and
``verify`` finds it, also when the steps before were forgotten."""

from __future__ import annotations

import pytest
from sqlalchemy import LargeBinary, Text, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.metadata.generations import NewGeneration
from tailrace.eventstore.metadata.projection_steps import NewStep, step_hash
from tailrace.eventstore.model.time import from_micros
from tailrace.eventstore.store import Store
from tests.eventstore.shop import batch, writer
from tests.fixtures.stores import StoreFactory, one_catalog

FOUND_AGAIN = {"state", "frozen_at", "checked", "parity", "taken_at"}
"""What changes in the life of a generation."""


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    """Two generations of a few steps."""
    store = new_store()
    capture = writer(store)
    for lsn in range(1, 10):
        capture.append(batch(lsn, [("c", lsn)]))
    for key in ("id", "note"):
        number = store.derived.create_generation(
            NewGeneration("totals", "f", "{}", (key,), b"ipc", 4, 2, as_of="now", preview="x")
        )
        for first, last in ((0, 3), (3, 5), (5, 9)):
            moment = from_micros(last)
            store.steps.commit(NewStep("totals", number, first, last, "delta", [{}], 7, moment))
    assert places(store) == []
    return store


def places(store: Store) -> list[str]:
    return [found.place for found in store.verify(quick=True).findings]


@one_catalog
def test_a_generation_that_is_not_as_it_was_begun_is_refused_and_found(store: Store) -> None:
    table = tables.generations
    mine = table.c.generation == 2
    changed = [column for column in table.c if column.name not in FOUND_AGAIN | {"projection", "generation"}]
    assert len(changed) == 11
    with store.catalog.read() as connection:
        before = connection.execute(select(table).where(mine)).mappings().one()
    for column in changed:
        value = before[column.name]
        other = value + (
            b"x" if isinstance(column.type, LargeBinary) else "x" if isinstance(column.type, Text) else 1
        )
        if column.name in ("key", "inputs"):
            other = '["other"]' if column.name == "key" else '[["shop.public.orders", "state", 0]]'
        with store.catalog.write() as connection:
            connection.execute(update(table).where(mine).values({column.name: other}))
        assert places(store)[:1] == ["generations: projection totals, generation 2"], column.name
        with pytest.raises(
            IntegrityError, match="generations: projection totals, generation 2: its description"
        ):
            store.derived.generations("totals")
        with store.catalog.write() as connection:
            connection.execute(update(table).where(mine).values({column.name: value}))
    assert places(store) == [] and len(store.derived.generations("totals")) == 2


@one_catalog
@pytest.mark.parametrize("forgotten", [0, 5], ids=["all steps", "the last step alone"])
def test_a_step_that_is_not_as_it_was_committed_is_refused_and_found(store: Store, forgotten: int) -> None:
    store.steps.forget("totals", 2, forgotten)
    table = tables.derived
    mine = (table.c.generation == 2) & (table.c.from_epoch == 5)
    with store.catalog.read() as connection:
        before = connection.execute(select(table).where(mine)).mappings().one()
    for name, other in (
        ("rows", 8), ("commit_ts", 8), ("commit_ts", None), ("kind", "full"), ("files", "[]"), ("to_epoch", 8),
        ("previous", "x"), ("previous", ""), ("hash", "0" * 64),
    ):  # fmt: skip
        with store.catalog.write() as connection:
            connection.execute(update(table).where(mine).values({name: other}))
        assert len(places(store)) == 1, name
        for read in (store.steps.last, store.steps.list):
            with pytest.raises(
                IntegrityError, match="derived: projection totals, generation 2, from_epoch 5"
            ):
                read("totals", 2)
        with store.catalog.write() as connection:
            connection.execute(update(table).where(mine).values({name: before[name]}))
    with store.catalog.write() as connection:  # another generation's step, whole
        connection.execute(table.delete().where(mine))
        connection.execute(
            update(table).where(table.c.generation == 1, table.c.from_epoch == 5).values(generation=2)
        )
    assert places(store) != []
    with pytest.raises(IntegrityError, match="from_epoch 5"):
        store.steps.last("totals", 2)


@one_catalog
def test_a_step_in_the_place_of_another_does_not_go_before_the_next(store: Store) -> None:
    table = tables.derived
    with store.catalog.write() as connection:
        steps = select(table).where(table.c.generation == 2).order_by(table.c.from_epoch)
        first, second, _ = connection.execute(steps).mappings()
        digest = connection.scalar(
            select(tables.generations.c.digest).where(tables.generations.c.generation == 2)
        )
        other = {**first, "files": '[{"other": 1}]'}
        other["hash"] = step_hash(str(digest), other)
        connection.execute(table.delete().where(table.c.generation == 2, table.c.from_epoch == 0))
        connection.execute(table.insert().values(other))
    assert places(store) == [f"projection totals g2, step to epoch {second['to_epoch']}"]
