"""What a writer records beside rows: the state of its own source, the times of an epoch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import Fenced, IntegrityError
from tailrace.eventstore.model.epoch import EpochBatch, Incarnation, TopicRows
from tailrace.eventstore.model.time import to_micros
from tailrace.eventstore.store import Store
from tests.eventstore.shop import ORDERS, at, batch, register, rows, writer
from tests.fixtures.stores import StoreFactory, one_catalog


@one_catalog
def test_a_repair_and_a_timeline_are_recorded_of_the_own_source_by_its_latest_writer(
    new_store: StoreFactory,
) -> None:
    store = new_store()
    register(store, "depot")
    before = store.source("depot")
    capture = writer(store)
    capture.append(batch(10, orders=[("c", 1)]))
    capture.set_timeline(7)
    capture.set_timeline(7)
    capture.begin_repair()
    state = store.source("shop")
    assert state == capture.state
    assert state is not None and (state.timeline, state.repairing, state.incarnation) == (7, True, 1)
    follower = store.take_over("shop")
    with pytest.raises(Fenced):
        capture.begin_repair()
    capture.set_timeline(8)
    assert store.source("shop") == follower.state and follower.state.timeline == 7
    with pytest.raises(IntegrityError, match="incarnation 1"):
        follower.append(replace(batch(5), incarnation=Incarnation(1, "7002", 2)))
    follower.append(replace(batch(5, orders=[("r", 1)]), incarnation=Incarnation(2, "7002", 2)))
    begun = store.source("shop")
    assert begun == follower.state
    assert begun is not None and (begun.incarnation, begun.system_id, begun.timeline) == (2, "7002", 2)
    assert (begun.commit_lsn, begun.repairing) == (5, False)
    assert store.source("depot") == before


def spans(store: Store) -> list[tuple[int | None, ...]]:
    """First and last LSN, first and last time of each epoch."""
    table = tables.epochs.c
    with store.catalog.read() as connection:
        query = select(table.first_lsn, table.last_lsn, table.first_ts, table.last_ts).order_by(table.epoch)
        return [tuple(row) for row in connection.execute(query)]


@one_catalog
def test_an_epoch_spans_its_rows_or_else_the_time_of_its_commit(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    several = [TopicRows(ORDERS, 1, rows(lsn, [("c", lsn)])) for lsn in (8, 9)]
    capture.append(replace(batch(10), rows=several))
    capture.append(batch(20, completes=[ORDERS]))
    capture.append(EpochBatch("shop", 20, 21, 21, suspends=[(ORDERS, "it must be read again")]))
    assert spans(store) == [
        (8, 9, to_micros(at(8)), to_micros(at(9))),
        (None, None, to_micros(at(20)), to_micros(at(20))),
        (None, None, None, None),
    ]
