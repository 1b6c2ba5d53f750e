"""Event by event: retries, parking, order per key, keys beside each other, replay."""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pydantic import BaseModel

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.schema import EVENT_SCHEMA, change_schema
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import Json, RawEvent, Recorded, event, upcaster
from tailrace.eventstore.subscriptions.batch import Change
from tests.eventstore.shop import ORDERS, at, batch, writer
from tests.fixtures.stores import StoreFactory, one_catalog


@event("paid", version=1)
class Paid(BaseModel):
    amount: Decimal


@event("sent", version=1)
class Sent(BaseModel):
    parcel: str


class Moved(BaseModel):
    """No event any more: an upcaster splits those that are stored."""

    amount: Decimal
    parcel: str


@upcaster("moved", 1)
def split(data: Json) -> list[RawEvent]:
    return [RawEvent("paid", 1, {"amount": data["amount"]}), RawEvent("sent", 1, {"parcel": data["parcel"]})]


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


def events(lsn: int, stream: str, *models: BaseModel) -> pa.Table:
    """What capture appends for events of one stream."""
    rows = []
    for number, model in enumerate(models):
        rows.append(
            {
                "_hash": hash_texts([stream]),
                "_op": "c",
                "_lsn": lsn,
                "_txn": lsn,
                "_ordinal": number,
                "_commit_ts": at(lsn),
                "key": {"stream": stream},
                "after": {
                    "stream": stream,
                    "version": lsn * 10 + number,
                    "type": type(model).__name__.lower(),
                    "schema_version": 1,
                    "data": model.model_dump_json(),
                    "metadata": json.dumps({"by": "test"}),
                    "event_id": str(uuid4()),
                    "recorded_at": datetime(2026, 1, 1, tzinfo=UTC),
                },
                "_before": "none",
            }
        )
    return pa.Table.from_pylist(rows, schema=change_schema(EVENT_SCHEMA))


@one_catalog
def test_domain_events_come_typed(store: Store) -> None:
    capture = writer(store)
    topic = TopicId.events("shop", "account")
    register_topic(store, topic, EVENT_SCHEMA, reason="")
    rows = events(1, "42", Paid(amount=Decimal("9.50")), Sent(parcel="p1"), Paid(amount=Decimal(3)))
    capture.append(EpochBatch("shop", 1, 2, 2, at(1), 1, [TopicRows(topic, 1, rows)]))
    group = store.group("g", ["shop.account"], start="earliest")
    with group.join() as member:
        found = next(member.batches(0))
        assert [each.data for each in found.events(Paid)] == [
            Paid(amount=Decimal("9.50")),
            Paid(amount=Decimal(3)),
        ]
        assert [each.stream.id for each in found.events()] == ["42"] * 3
        with pytest.raises(UsageError, match="not declared as an event"):
            list(found.events(BaseModel))
    typed: list[Recorded[Any] | Change] = []
    with group.join() as member:
        member.process(typed.append, timeout=0)
    assert [type(each) for each in typed] == [Recorded] * 3


@one_catalog
def test_an_event_that_an_upcaster_splits_comes_as_its_parts(store: Store) -> None:
    capture = writer(store)
    topic = TopicId.events("shop", "account")
    register_topic(store, topic, EVENT_SCHEMA, reason="")
    rows = events(1, "42", Moved(amount=Decimal(1), parcel="a"), Sent(parcel="b"))
    capture.append(EpochBatch("shop", 1, 2, 2, at(1), 1, [TopicRows(topic, 1, rows)]))
    group = store.group("g", ["shop.account"], start="earliest")
    with group.join() as member:
        found = next(member.batches(0))
        assert [each.data for each in found.events(Sent)] == [Sent(parcel="a"), Sent(parcel="b")]
        assert [(each.version, each.part) for each in found.events()] == [(10, 0), (10, 1), (11, 0)]
    given: list[Any] = []

    def once_too_often(value: Change | Recorded[Any]) -> None:
        assert isinstance(value, Recorded)
        given.append(value.data)
        if len(given) == 2:
            raise ValueError

    with group.join() as member:
        member.process(once_too_often, pause=0.001, timeout=0)
    paid, sent = Paid(amount=Decimal(1)), Sent(parcel="a")
    assert given == [paid, sent, paid, sent, Sent(parcel="b")]  # one stored event is tried again as a whole
