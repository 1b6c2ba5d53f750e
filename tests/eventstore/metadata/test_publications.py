"""Rows that a publication has not sent stay, as long as it is heard of."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from tailrace.eventstore.catalog import group_tables
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.metadata.publications import forget, publication_needs, record_need
from tests.eventstore.maintenance.retention.test_retention import SetClock, fill, open_store, set_clock
from tests.eventstore.shop import ORDERS, content
from tests.fixtures.stores import StoreFactory, one_catalog

__all__ = ["set_clock"]
WAITS = 600.0


def test_rows_that_are_not_published_stay_until_it_is_not_heard_of_or_forgotten(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    fill(store, 1, 30)
    set_clock(30)
    record_need(store.groups_database, "feed", ["shop.*"], 10, {}, WAITS)
    (held,) = store.maintain().held
    assert (held.reader, held.why) == ("publication feed", "it is published up to epoch 10")
    assert min(row["_epoch"] for row in content(store)) == 11

    record_need(store.groups_database, "feed", ["shop.*"], 20, {ORDERS.text: 14}, WAITS)
    assert "a key waits behind epoch 14" in [each.why for each in store.maintain().held]
    assert min(row["_epoch"] for row in content(store)) == 15

    record_need(store.groups_database, "feed", ["!shop.*"], 0, {}, WAITS)
    record_need(store.groups_database, "other", ["shop.*"], 20, {}, WAITS)
    assert forget(store.groups_database, "other")
    assert not forget(store.groups_database, "other")
    assert store.maintain().held == ()
    assert min(row["_epoch"] for row in content(store)) > 20


@one_catalog
def test_one_that_stands_still_for_too_long_holds_nothing(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    fill(store, 1, 30)
    set_clock(30)
    record_need(store.groups_database, "feed", ["shop.*"], 10, {}, WAITS)
    (need,) = publication_needs(store.groups_database)
    assert need.seen_at and need.holds_until and need.holds
    assert need.holds_until - need.seen_at == timedelta(seconds=WAITS)
    assert [each.reader for each in store.maintain().held] == ["publication feed"]
    table = group_tables.publication_needs
    with store.groups_database.write() as connection:
        connection.execute(update(table).values(holds_until=table.c.seen_at))
    assert store.maintain().held == ()
    assert [each.holds for each in publication_needs(store.groups_database)] == [False]


@one_catalog
def test_retention_can_be_forced_past_a_publication(new_store: StoreFactory, set_clock: SetClock) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    fill(store, 1, 30)
    set_clock(30)
    record_need(store.groups_database, "feed", ["shop.*"], 10, {}, WAITS)
    done = store.maintain(force_past=["publication:feed"])
    assert [each.forced for each in done.removed] == [("publication feed",)]


@one_catalog
def test_a_damaged_row_is_refused_with_what_removes_it(new_store: StoreFactory) -> None:
    store = new_store()
    table = group_tables.publication_needs
    for name, text in (("topics", "[1]"), ("topics", "{"), ("parked", "[]"), ("parked", '{"a": "b"}')):
        record_need(store.groups_database, "feed", ["shop.*"], 10, {}, WAITS)
        with store.groups_database.write() as connection:
            connection.execute(update(table).values({name: text}))
        with pytest.raises(IntegrityError, match="the row of publication 'feed'"):
            publication_needs(store.groups_database)
