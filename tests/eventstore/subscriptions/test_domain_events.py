"""Domain events to consumers: typed, upcast, filtered by type and tag."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.redacted import ERASED, Erased
from tailrace.eventstore.model.schema import EVENT_SCHEMA, change_schema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import Json, Query, RawEvent, Recorded, Tag, event, upcast, upcaster
from tailrace.eventstore.subscriptions.rows.changes import Change
from tailrace.eventstore.subscriptions.rows.events import EventFilter, EventReader, event_rows, select_events
from tests.eventstore.shop import at, writer
from tests.fixtures.stores import StoreFactory, one_catalog

ACCOUNT = TopicId.events("shop", "account")


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


@event("tagged")
class Tagged(BaseModel, frozen=True):
    course: Annotated[str, Tag()]
    students: Annotated[tuple[int, ...], Tag("student")] = ()


@event("renamed", version=2)
class Renamed(BaseModel, frozen=True):
    course: Annotated[str, Tag()]


upcast("renamed", 1, rename={"subject": "course"})


@dataclass(frozen=True)
class Stored:
    """An event as another, earlier or later release appended it."""

    type: str
    version: int
    data: Json


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    return new_store()


def events(lsn: int, stream: str, *models: BaseModel | Stored) -> pa.Table:
    """What capture appends for events of one stream."""
    rows = []
    for number, model in enumerate(models):
        name, version, data = stored(model)
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
                    "type": name,
                    "schema_version": version,
                    "data": data,
                    "metadata": json.dumps({"by": "test"}),
                    "event_id": str(uuid4()),
                    "recorded_at": datetime(2026, 1, 1, tzinfo=UTC),
                },
                "_before": "none",
            }
        )
    return pa.Table.from_pylist(rows, schema=change_schema(EVENT_SCHEMA))


def stored(model: BaseModel | Stored) -> tuple[str, int, str]:
    if isinstance(model, Stored):
        return model.type, model.version, json.dumps(model.data)
    return type(model).__name__.lower(), 2 if isinstance(model, Renamed) else 1, model.model_dump_json()


def filled(store: Store, *models: BaseModel | Stored) -> None:
    capture = writer(store)
    register_topic(store, ACCOUNT, EVENT_SCHEMA, reason="")
    rows = TopicRows(ACCOUNT, 1, events(1, "42", *models))
    capture.append(EpochBatch("shop", 1, 2, 2, at(1), 1, [rows]))


@one_catalog
def test_domain_events_come_typed(store: Store) -> None:
    filled(store, Paid(amount=Decimal("9.50")), Sent(parcel="p1"), Paid(amount=Decimal(3)))
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
    filled(store, Moved(amount=Decimal(1), parcel="a"), Sent(parcel="b"))
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


@one_catalog
def test_a_consumer_is_given_the_types_that_it_asks_for_as_todays_code_has_them(store: Store) -> None:
    """Those that an upcaster makes included; other services' need not be declared."""
    paid = Paid(amount=Decimal(2))
    others = Stored("of_another_service", 7, {}), Stored("paid", 9, {"of": "a later release"})
    filled(store, Sent(parcel="a"), paid, Moved(amount=Decimal(1), parcel="b"), *others)
    group = store.group("g", ["shop.account"], start="earliest")
    with group.join(events=[Paid]) as member:
        batch = next(member.batches(0))
        assert batch.rows["_ordinal"].to_pylist() == [1, 2]
        assert [each.data for each in batch.events()] == [paid, Paid(amount=Decimal(1))]
        assert (batch.first_offset, batch.end_offset) == (0, 5)
    given: list[Any] = []
    with group.join(events=[Paid]) as member:
        member.process(given.append, timeout=0)
    assert [each.data for each in given] == [paid, Paid(amount=Decimal(1))]
    found = list(store.tail(["shop.account"], start="earliest", events=[Paid], timeout=0))
    assert [each.data for rows in found for each in rows.events()] == [paid, Paid(amount=Decimal(1))]


def fail(value: Change | Recorded[Any]) -> None:
    raise ValueError


@one_catalog
def test_a_parked_event_comes_again_without_the_parts_that_nobody_asked_for(store: Store) -> None:
    filled(store, Moved(amount=Decimal(1), parcel="a"))
    group = store.group("g", ["shop.account"], start="earliest")
    with group.join(events=[Sent]) as member:
        member.process(fail, attempts=1, timeout=0)
    group.replay()
    given: list[Any] = []
    with group.join(events=[Sent]) as member:
        member.process(given.append, timeout=0)
    assert [each.data for each in given] == [Sent(parcel="a")]


@one_catalog
def test_a_consumer_is_given_events_by_their_tags(store: Store) -> None:
    maths = Tagged(course="maths", students=(1, 2))
    filled(
        store, maths, Tagged(course="art"), Stored("renamed", 1, {"subject": "maths"}), Sent(parcel="maths")
    )
    group = store.group("g", ["shop.account"], start="earliest")
    with group.join(events=Query(course="maths")) as member:
        batch = next(member.batches(0))
        assert [each.data for each in batch.events()] == [maths, Renamed(course="maths")]
        assert [each.data for each in batch.events(Tagged)] == [maths]
    with group.join(events=Query(Tagged, course="maths", student=2) | Query(Tagged, student=9)) as member:
        assert [each.data for each in next(member.batches(0)).events()] == [maths]


@one_catalog
def test_what_cannot_be_read_is_not_passed_over_by_a_filter(store: Store) -> None:
    filled(store, Stored("tagged", 1, {"course": 5}))
    with store.group("g", ["shop.account"], start="earliest").join(
        events=Query(Tagged, course="maths")
    ) as member:
        batch = next(member.batches(0))
        assert batch.rows.num_rows == 1
        with pytest.raises(IntegrityError, match="event 10 of account/42"):
            list(batch.events())


@pytest.mark.parametrize("nothing", [[], [BaseModel]])
def test_a_filter_that_cannot_be_is_refused(nothing: Sequence[type[Any]]) -> None:
    with pytest.raises(UsageError, match=r"no events are asked for|not declared as an event"):
        EventFilter.of(nothing)


COURSES = st.sampled_from(["maths", "art"])
STUDENTS = st.integers(1, 3)
ANY_EVENT = st.one_of(
    st.builds(Tagged, course=COURSES, students=st.lists(STUDENTS, max_size=2).map(tuple)),
    st.builds(Renamed, course=COURSES),
    st.builds(lambda course: Stored("renamed", 1, {"subject": course}), COURSES),
    st.builds(Sent, parcel=COURSES),
)
MODELS = st.sets(st.sampled_from([Tagged, Renamed]), max_size=2)
QUERIES = st.one_of(
    st.builds(lambda models, course: Query(*models, course=course), MODELS, COURSES),
    st.builds(lambda student: Query(Tagged, student=student), STUDENTS),
    st.builds(lambda course, student: Query(course=course, student=student), COURSES, STUDENTS),
)
WANTED = st.one_of(
    st.lists(QUERIES, min_size=1, max_size=3).map(lambda parts: _either(parts)),
    st.sets(st.sampled_from([Tagged, Renamed, Sent, Erased]), min_size=1),
)


def _either(parts: Sequence[Query]) -> Query:
    found = parts[0]
    for each in parts[1:]:
        found |= each
    return found


@given(st.lists(st.tuples(ANY_EVENT, st.booleans()), max_size=8), WANTED)
def test_a_filter_gives_what_a_look_at_every_event_finds(
    stored_events: list[tuple[BaseModel | Stored, bool]], wanted: Query | set[type[Any]]
) -> None:
    """Some of them erased."""
    rows = with_erased(
        events(1, "42", *(each for each, _ in stored_events)), [gone for _, gone in stored_events]
    )
    every = [each for row in event_rows(rows) for each in EventReader(ACCOUNT).read(row)]
    if isinstance(wanted, Query):
        expected = [each for each in every if each.data is not ERASED and wanted.matches(each.data)]
    else:
        expected = [each for each in every if type(each.data) in wanted]
    asked = EventFilter.of(wanted)
    selected = select_events(ACCOUNT, rows, asked)
    found = [each for row in event_rows(selected) for each in EventReader(ACCOUNT, asked).read(row)]
    assert found == expected
    assert selected.num_rows == len({each.version for each in expected})


def with_erased(rows: pa.Table, gone: Sequence[bool]) -> pa.Table:
    """As a redaction of ``data`` leaves rows."""
    data = next(column.id for column in EVENT_SCHEMA.columns if column.name == "data")
    told = rows.to_pylist()
    for row, is_gone in zip(told, gone, strict=True):
        if is_gone:
            row["_raw"] = [(data, None)]
            row["after"]["data"] = None
    return pa.Table.from_pylist(told, schema=rows.schema)
