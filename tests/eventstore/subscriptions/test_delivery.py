"""Event by event: retries, parking, order per key, keys beside each other, replay."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from typing import Any

import pytest

from tailrace.eventstore.model.topic import Op
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import Recorded
from tailrace.eventstore.subscriptions.rows.changes import Change
from tests.eventstore.shop import ORDERS, batch, writer
from tests.fixtures.stores import StoreFactory, one_catalog


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    return new_store()


def fill(store: Store, lsns: range = range(1, 6), keys: range = range(6)) -> None:
    """Every epoch creates every key once."""
    capture = writer(store)
    for lsn in lsns:
        capture.append(batch(lsn, orders=[("u", key) for key in keys]))


class Handler:
    """Notes what it was given; raises for some keys."""

    def __init__(self, *poison: int) -> None:
        self.poison = set(poison)
        self.given: dict[int, list[int]] = defaultdict(list)
        self.tries = 0

    def __call__(self, value: Change | Recorded[Any]) -> None:
        assert isinstance(value, Change) and value.key is not None
        self.tries += 1
        if value.key["id"] in self.poison:
            raise ValueError(f"{value.key['id']} is poison")
        self.given[value.key["id"]].append(value.lsn)


def process(store: Store, handler: Any, **how: Any) -> None:
    group = store.group("g", [ORDERS.text], start="earliest")
    with group.join("pod", batch_rows=4) as member:
        member.process(handler, pause=0.001, timeout=0, **how)


@pytest.mark.parametrize("concurrency", [1, 4])
@one_catalog
def test_every_key_is_handled_in_its_order(store: Store, concurrency: int) -> None:
    fill(store)
    handler = Handler()
    process(store, handler, concurrency=concurrency)
    assert dict(handler.given) == {key: [1, 2, 3, 4, 5] for key in range(6)}
    assert sum(each.lag for each in store.group("g").progress()) == 0


def test_keys_are_handled_beside_each_other(store: Store) -> None:
    fill(store, range(1, 2), range(40))
    meeting = threading.Barrier(2, timeout=120)  # two handlers of one batch must be inside at once
    calls = itertools.count()
    met: list[int] = []

    def handler(value: Change | Recorded[Any]) -> None:
        if next(calls) < 2:
            met.append(meeting.wait())

    group = store.group("g", [ORDERS.text], start="earliest")
    with group.join("pod") as member:
        member.process(handler, concurrency=2, timeout=0)
    assert sorted(met) == [0, 1]


@one_catalog
def test_a_handler_that_fails_for_a_while_is_tried_again(store: Store) -> None:
    fill(store, range(1, 2), range(1))
    failures = iter([ValueError("away"), ConnectionError("away"), None])

    def handler(value: Change | Recorded[Any]) -> None:
        error = next(failures)
        if error is not None:
            raise error

    process(store, handler, attempts=3)
    assert store.group("g").parked() == []
    assert next(failures, "all") == "all"


@one_catalog
def test_what_fails_always_is_parked_with_its_error_and_holds_back_its_key_alone(store: Store) -> None:
    fill(store)
    handler = Handler(2)
    process(store, handler, attempts=3)
    assert dict(handler.given) == {key: [1, 2, 3, 4, 5] for key in range(6) if key != 2}
    parked = store.group("g").parked()
    assert [each.attempts for each in parked] == [3, 0, 0, 0, 0]
    assert parked[0].error == "ValueError: 2 is poison"
    assert {each.key for each in parked} == {'{"id": 2}'}
    assert sum(each.lag for each in store.group("g").progress()) == 0


@one_catalog
def test_by_choice_later_events_of_a_parked_key_pass(store: Store) -> None:
    fill(store)
    handler = Handler()

    def second_only(value: Change | Recorded[Any]) -> None:
        assert isinstance(value, Change) and value.key is not None
        if value.key["id"] == 2 and value.lsn == 2:
            raise ValueError("no")
        handler(value)

    process(store, second_only, attempts=1, order="none")
    assert handler.given[2] == [1, 3, 4, 5]
    assert [each.attempts for each in store.group("g").parked()] == [1]


def test_a_replay_gives_the_parked_again_in_order_before_what_came_later(store: Store) -> None:
    fill(store)
    handler = Handler(2, 4)
    process(store, handler, attempts=1)
    store.seal()
    group = store.group("g")
    handler.poison = {4}
    assert group.replay() == 10
    fill(store, range(6, 8))
    process(store, handler, attempts=1)
    assert handler.given[2] == [1, 2, 3, 4, 5, 6, 7]
    parked = group.parked()
    assert {each.key for each in parked} == {'{"id": 4}'} and len(parked) == 7
    assert [each.attempts for each in parked] == [2, *[0] * 6]
    assert not any(each.replay for each in parked)
    assert group.replay([parked[3].id]) == 7  # the key as a whole
    assert group.discard([each.id for each in parked]) == 7
    assert group.parked() == []


@one_catalog
def test_a_truncate_waits_for_all_before_it_and_all_after_it_wait(store: Store) -> None:
    capture = writer(store)
    capture.append(batch(1, orders=[("c", key) for key in range(20)]))
    capture.append(batch(2, orders=[("t", 0)]))
    capture.append(batch(3, orders=[("c", key) for key in range(20)]))
    order: dict[int, list[str]] = defaultdict(list)

    def handler(value: Change | Recorded[Any]) -> None:
        assert isinstance(value, Change)
        order[value.partition].append(value.op if value.op is Op.TRUNCATE else str(value.lsn))

    group = store.group("g", [ORDERS.text], start="earliest")
    with group.join() as member:
        member.process(handler, concurrency=4, timeout=0)
    for seen in order.values():
        at_ = seen.index("t")
        assert set(seen[:at_]) <= {"1"} and set(seen[at_ + 1 :]) <= {"3"}


@one_catalog
def test_stopping_leaves_an_unfinished_batch_for_the_next(store: Store) -> None:
    fill(store, range(1, 2), range(1))
    group = store.group("g", [ORDERS.text], start="earliest")
    with group.join("pod") as member:

        def handler(value: Change | Recorded[Any]) -> None:
            member.stop()
            raise ValueError("not now")

        member.process(handler, attempts=5, pause=60)
    assert group.parked() == []
    assert sum(each.lag for each in group.progress()) == 1
