"""Clocks that jump ahead or are set back: no two owners, nobody stuck, nothing given twice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import pytest
from sqlalchemy import select, update

from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.maintenance.files import tiers
from tailrace.eventstore.maintenance.files.retired import collect_retired
from tailrace.eventstore.model.time import now_micros
from tailrace.eventstore.settings import UpkeepSettings
from tailrace.eventstore.store import Store
from tailrace.eventstore.subscriptions import group as groups
from tailrace.eventstore.subscriptions import membership
from tests.eventstore.shop import batch, writer
from tests.eventstore.subscriptions.test_group import all_rows, drain, fill, row_counts
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support.capturing import wait_until

YEAR = 365 * 86_400 * 10**6
SetAhead = Callable[[float], None]


@pytest.fixture(autouse=True)
def few_files_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "FAN_IN", 2)


@pytest.fixture
def set_ahead(monkeypatch: pytest.MonkeyPatch) -> SetAhead:
    """Sets this host's clock ahead of the true one by so many seconds."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(leases, "now_micros", lambda: now_micros() + int(seconds * 1e6))

    return set_to


def retired_files(store: Store) -> set[str]:
    """Files that were merged away and are still there."""
    with store.catalog.read() as connection:
        return {
            path for path in connection.scalars(select(tables.retired.c.path)) if store.storage.exists(path)
        }


def store_to_merge(new_store: StoreFactory) -> Store:
    """As soon as it is maintained."""
    store = new_store(inline_bytes=0, upkeep=UpkeepSettings(keep_seconds=0))
    capture = writer(store)
    for lsn in range(1, 5):
        capture.append(batch(lsn, orders=[("c", lsn)]))
    return store


def can_maintain(store: Store) -> bool:
    try:
        with leases.maintainer_lease(store.catalog):
            return True
    except leases.Busy:
        return False


def test_a_lease_that_a_jump_ended_early_does_not_end_its_successors(
    new_store: StoreFactory, set_ahead: SetAhead
) -> None:
    """On Postgres the catalog's own clock counts, so a host's does nothing at all."""
    store = new_store()
    with leases.maintainer_lease(store.catalog):
        set_ahead(3600)
        if store.catalog.kind == "postgres":
            assert not can_maintain(store)
            return
        second = leases.maintainer_lease(store.catalog)
        second.__enter__()
    try:
        assert not can_maintain(store), "the first ended, the second is at work"
    finally:
        second.__exit__(None, None, None)
    assert can_maintain(store)


def test_a_lease_from_before_the_clock_was_set_back_ends_like_any_other(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of somebody who died on another host, given when the clock was a year ahead."""
    store = store_to_merge(new_store)
    monkeypatch.setattr(leases, "_RENEWALS", 1e-6)  # the dead renew none
    upkeep = leases.maintainer_lease(store.catalog)
    reader = leases.reader_lease(store.catalog, "a job")
    for one in (upkeep, reader):
        one.__enter__()
    table = tables.leases
    with store.catalog.write() as connection:
        ahead = {"created_at": table.c.created_at + YEAR, "expires_at": table.c.expires_at + YEAR}
        connection.execute(update(table).values(holder="somebody by elsewhere:1", **ahead))
    assert not can_maintain(store)
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.1)
    wait_until(lambda: can_maintain(store))
    store.maintain()
    collect_retired(store, 0)
    assert retired_files(store) == set()


def test_who_lives_keeps_its_files_when_the_clock_is_set_back(
    new_store: StoreFactory, set_ahead: SetAhead
) -> None:
    store = store_to_merge(new_store)
    set_ahead(86_400)
    with leases.reader_lease(store.catalog, "a job"):
        for seconds in (0, -86_400, -86_400 + 60):
            set_ahead(seconds)
            store.maintain()
            assert retired_files(store)
    store.maintain()
    assert retired_files(store) == set()


def test_files_replaced_when_the_clock_was_ahead_go_when_their_time_has_come(new_store: StoreFactory) -> None:
    store = store_to_merge(new_store)
    with leases.reader_lease(store.catalog, "a job"):
        store.maintain()
    with store.catalog.write() as connection:
        connection.execute(update(tables.retired).values(retired_at=tables.retired.c.retired_at + YEAR))
    assert retired_files(store)
    assert collect_retired(store, 3600) == (0, 0)  # as if they had been replaced at this moment
    collect_retired(store, 0)
    assert retired_files(store) == set()


@one_catalog
def test_steps_of_the_wall_clock_move_no_partition(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store()
    fill(store, 3)
    group = store.group("g", ["shop.public.*"], start="earliest")
    found = []
    with (
        group.join("first", lease=60, batch_rows=5) as first,
        group.join("second", lease=60, batch_rows=5) as second,
    ):
        for member in (first, second) * 3:
            member._shared_at = float("-inf")  # share out now, not in a third of the lease
            found += drain(member)
        owned = first.slots, second.slots
        assert [len(slots) for slots in owned] == [4, 4]
        steps = cycle([YEAR, -YEAR, 0])
        for module in (membership, groups):
            monkeypatch.setattr(module, "now_micros", lambda: now_micros() + next(steps))
        fill(store, 2)
        for member in (first, second) * 3:
            member._shared_at = float("-inf")
            found += drain(member)
        assert (first.slots, second.slots) == owned
        assert all(each.lag == 0 for each in group.progress())
    assert row_counts(found) == all_rows(store)
