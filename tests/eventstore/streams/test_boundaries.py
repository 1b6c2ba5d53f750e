"""Decisions across streams: an append is refused when there is another event inside its boundary, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.streams import (
    NO_STREAM,
    Appended,
    AppendTo,
    Conflict,
    Decider,
    Every,
    Query,
    RawEvent,
    Stream,
    Tag,
    append,
    append_all,
    event,
    handle,
    load_boundary,
    state_of,
    upcast,
    upcaster,
)
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.eventstore.streams.database.source import AnyConnection, keeper_of
from tailrace.eventstore.streams.models.event_types import tags_of
from tailrace.eventstore.streams.models.tags import tagged_fields
from tailrace.eventstore.streams.rows import EventType, NewRow
from tailrace.testing import MemoryStreams


@event("seat_taken")
class Taken(BaseModel, frozen=True):
    room: Annotated[str, Tag()]
    person: Annotated[str, Tag("who")]
    note: str = ""


@event("room_closed")
class Closed(BaseModel, frozen=True):
    room: Annotated[str, Tag()]


@event("person_greeted")
@dataclass(frozen=True)
class Greeted:
    persons: Annotated[list[str], Tag("who")]


class Colour(Enum):
    RED = "red"


@event("many_tags")
class Many(BaseModel, frozen=True):
    text: Annotated[str | None, Tag()] = None
    number: Annotated[int, Tag()] = 7
    id: Annotated[UUID, Tag()] = UUID(int=1)
    day: Annotated[date, Tag()] = date(2026, 2, 1)
    colour: Annotated[Colour, Tag("paint")] = Colour.RED
    untagged: str = ""


def at(number: int) -> Stream:
    return Stream("room", str(number))


def test_the_tags_of_an_event_are_its_annotated_fields() -> None:
    assert tags_of(Taken(room="r", person="p")) == ("room:r", "who:p")
    assert tags_of(Greeted(["a", "b", "a"])) == ("who:a", "who:b")
    assert tags_of(Greeted([])) == ()
    assert tags_of(Many()) == (
        "number:7", "id:00000000-0000-0000-0000-000000000001", "day:2026-02-01", "paint:red"
    )  # fmt: skip


def test_what_cannot_be_a_tag_is_refused_before_anything_is_written(connection: AnyConnection) -> None:
    for wrong in (Taken(room="x" * 1000, person="p"), Taken(room="a\0b", person="p")):
        with pytest.raises(UsageError, match="tag 'room' cannot have the value"):
            append(connection, at(1), [wrong])

    @event("float_tag")
    class Float(BaseModel):
        size: Annotated[float, Tag()]

    with pytest.raises(UsageError, match="a float cannot be the tag 'size'"):
        append(connection, at(1), [Float(size=1.5)])

    assert load_boundary(connection, Query(room="1")).events == ()


def test_two_fields_cannot_be_one_tag() -> None:
    class Twice(BaseModel):
        one: Annotated[str, Tag("x")]
        other: Annotated[str, Tag("x")]

    with pytest.raises(UsageError, match="field 'other' cannot be the tag 'x'"):
        tagged_fields(Twice)


def test_a_query_names_tags_that_its_events_have() -> None:
    with pytest.raises(UsageError, match="at least one tag"):
        Query(Taken)
    with pytest.raises(UsageError, match="Closed have no tag 'who'"):
        Query(Taken, Closed, who="p")
    with pytest.raises(UsageError, match="is not declared as an event"):
        Query(int, room="r")
    assert Query(Taken, who="p", room="r") == Query(Taken, room="r", who="p")
    query = Query(Taken, room="r", who="p") | Query(who="q")
    assert query.matches(Taken(room="r", person="p")) and query.matches(Greeted(["a", "q"]))
    assert not query.matches(Taken(room="r", person="a")) and not query.matches(Closed(room="r"))


def test_events_are_found_by_their_tags_and_types_each_once_in_order(connection: AnyConnection) -> None:
    events = [
        Taken(room="r", person="p"), Closed(room="r"), Taken(room="s", person="p"), Greeted(["p", "q"]),
        Taken(room="r", person="q"),
    ]  # fmt: skip
    for number, each in enumerate(events):
        append(connection, at(number % 2), [each])

    def found(query: Query) -> list[object]:
        return [each.data for each in load_boundary(connection, query).events]

    assert found(Query(room="r")) == [events[0], events[1], events[4]]
    assert found(Query(Taken, room="r", who="p")) == [events[0]]
    assert found(Query(Taken, who="p") | Query(room="r") | Query(Greeted, who="q")) == events
    assert found(Query(Closed, room="s")) == []
    assert found(Query(who="nobody")) == []
    (first,) = load_boundary(connection, Query(Taken, Closed, room="r") | Query(who="p")).events[:1]
    assert (first.stream, first.version, first.data) == (at(0), 1, events[0])


def test_an_append_is_refused_when_there_is_another_event_inside_and_only_then(
    connection: AnyConnection,
) -> None:
    append(connection, at(1), [Taken(room="r", person="p")])
    query = Query(Taken, room="r") | Query(Taken, who="p")
    seen = load_boundary(connection, query)
    # The same tags, but another type, or not all of the tags.
    append(connection, at(2), [Closed(room="r"), Greeted(["p"])])
    done = append(connection, at(3), [Taken(room="r", person="q")], boundary=seen)
    assert isinstance(done, Appended) and done.version == 1
    refused = append(connection, at(3), [Taken(room="r", person="q")], boundary=seen)
    assert refused == Conflict(3, 1, tag="room:r")
    both = load_boundary(connection, Query(Taken, room="r", who="p"))
    append(connection, at(4), [Taken(room="r", person="x"), Taken(room="x", person="p")])
    assert isinstance(append(connection, at(5), [Closed(room="z")], boundary=both), Appended)


def test_a_refused_append_leaves_everything_as_it_was(connection: AnyConnection) -> None:
    seen = load_boundary(connection, Query(room="r"))
    append(connection, at(1), [Closed(room="r")])
    other = load_boundary(connection, Query(room="r") | Query(who="p"))
    parts = [AppendTo(at(7), [Taken(room="r", person="p")]), AppendTo(at(8), [Closed(room="s")])]
    assert append_all(connection, parts, boundary=seen) == Conflict(1, 0, tag="room:r")
    assert append_all(connection, parts, {at(9): 4}, boundary=other) == Conflict(0, 4)
    assert load_boundary(connection, Query(room="r") | Query(who="p")).asked == other.asked
    outcomes = append_all(connection, parts, {at(9): 0}, boundary=other)
    assert isinstance(outcomes, tuple) and [each.version for each in outcomes] == [1, 1]
    stale = append(
        connection, at(7), [Closed(room="t")], NO_STREAM, boundary=load_boundary(connection, Query(room="t"))
    )
    assert stale == Conflict(1, NO_STREAM)


def test_a_boundary_read_twice_and_appended_to_twice_in_one_transaction(connection: AnyConnection) -> None:
    query = Query(Taken, room="r")
    load_boundary(connection, query)
    seen = load_boundary(connection, query)
    assert isinstance(append(connection, at(1), [Taken(room="r", person="a")], boundary=seen), Appended)
    assert isinstance(append(connection, at(1), [Taken(room="r", person="b")], boundary=seen), Conflict)
    again = load_boundary(connection, query)
    assert [each.data.person for each in again.events] == ["a"]
    assert isinstance(append(connection, at(1), [Taken(room="r", person="b")], boundary=again), Appended)


def test_events_with_ids_of_the_callers_are_found_and_repeated(connection: AnyConnection) -> None:
    ids = [uuid4(), uuid4()]
    events = [Taken(room="r", person="p"), Closed(room="r")]
    for repeated in (False, True):
        outcome = append(connection, at(1), events, event_ids=ids)
        assert isinstance(outcome, Appended) and outcome.repeated is repeated
    found = load_boundary(connection, Query(room="r"))
    assert [each.event_id for each in found.events] == ids
    assert found.asked[0].version == 2
    with pytest.raises(UsageError, match="cannot be given together"):
        append(connection, at(1), events, event_ids=[uuid4(), uuid4()], boundary=found)


def take(command: tuple[str, str], persons: frozenset[str]) -> list[Taken]:
    room, person = command
    return [] if person in persons else [Taken(room=room, person=person)]


seats = Decider(
    "room",
    frozenset[str](),
    take,
    lambda persons, taken: persons | {taken.person},
    boundary=lambda command: Query(Taken, room=command[0]),
)


def test_a_decider_with_a_boundary_decides_on_the_events_inside_it(connection: AnyConnection) -> None:
    append(connection, Stream("elsewhere", "1"), [Taken(room="r", person="a"), Taken(room="s", person="b")])
    done = handle(connection, seats, "r", ("r", "c"))
    assert (done.state, done.version) == (frozenset("ac"), 1)
    assert handle(connection, seats, "r", ("r", "a")).events == ()
    with pytest.raises(UsageError, match="its state is not that of a stream"):
        state_of(connection, seats, "r")
    with pytest.raises(UsageError, match="states cannot be kept"):
        Decider(
            "room",
            0,
            lambda c, s: [],
            lambda s, e: s,
            snapshot=Every(events=3),
            boundary=lambda c: Query(a="b"),
        )


@event("renamed_tag", version=2)
class Renamed(BaseModel, frozen=True):
    person: Annotated[str, Tag("who")]


upcast("renamed_tag", 1, rename={"name": "person"})


@upcaster("two_in_one", 1)
def split(data: dict[str, str]) -> list[RawEvent]:
    return [
        RawEvent("room_closed", 1, {"room": data["room"]}),
        RawEvent("renamed_tag", 2, {"person": data["who"]}),
    ]


def test_events_of_earlier_versions_are_found_as_todays(database: str) -> None:
    install(database)
    with psycopg.connect(database) as connection:
        for name, data, tags in (
            ("renamed_tag", '{"name": "p"}', ("who:p",)),
            ("two_in_one", '{"room": "r", "who": "p"}', ("room:r", "who:p")),
        ):
            row = NewRow(EventType(name, 1), uuid4(), data, tags)
            assert finish(keeper_of(connection).write(Stream("old", "1"), -1, [row], "{}")) > 0
        whole = load_boundary(connection, Query(Renamed, who="p"))
        assert [each.data for each in whole.events] == [Renamed(person="p")] * 2
        (closed,) = load_boundary(connection, Query(Closed, room="r")).events
        assert (closed.data, closed.part) == (Closed(room="r"), 0)


def test_an_order_that_contradicts_itself_is_not_believed(database: str) -> None:
    install(database)
    with psycopg.connect(database) as connection:
        append(connection, at(1), [Taken(room="r", person="p"), Taken(room="r", person="p")])
        connection.execute("UPDATE tailrace.tagged_events SET version = 3 - version + 10 WHERE tag = 'who:p'")
        with pytest.raises(IntegrityError, match="contradict each other"):
            load_boundary(connection, Query(room="r") | Query(who="p"))


def test_the_order_of_a_tag_is_that_of_its_commits_whatever_the_clock_says(database: str) -> None:
    install(database)
    with psycopg.connect(database) as connection:
        for person in "abc":
            append(connection, at(1), [Taken(room="r", person=person)])
        connection.execute(
            "UPDATE tailrace.events SET recorded_at = recorded_at - version * interval '1 hour'"
        )
        found = load_boundary(connection, Query(room="r")).events
        assert [each.data.person for each in found] == ["a", "b", "c"]


_names = st.sampled_from(["a", "b", "c"])
_events = st.one_of(
    st.builds(Taken, room=_names, person=_names),
    st.builds(Closed, room=_names),
    st.builds(Greeted, persons=st.lists(_names, max_size=3)),
)
_items = st.one_of(
    st.builds(lambda room, who: Query(Taken, room=room, who=who), _names, _names),
    st.builds(lambda room: Query(room=room), _names),
    st.builds(lambda room: Query(Closed, room=room), _names),
    st.builds(lambda who: Query(Greeted, Taken, who=who), _names),
)


@given(
    before=st.lists(_events, max_size=6),
    after=st.lists(_events, max_size=3),
    queries=st.lists(_items, min_size=1, max_size=3),
)
@settings(max_examples=40)
def test_any_query_finds_and_refuses_what_it_asks_for(
    plain: psycopg.Connection[tuple[object, ...]],
    before: list[object],
    after: list[object],
    queries: list[Query],
) -> None:
    query = queries[0]
    for each in queries[1:]:
        query |= each
    for connection in (MemoryStreams(), plain):
        for number, made in enumerate(before):
            append(connection, at(number % 3), [made])
        seen = load_boundary(connection, query)
        assert [each.data for each in seen.events] == [each for each in before if query.matches(each)]
        if after:
            append(connection, at(1), after)
        outcome = append(connection, at(0), [Closed(room="a")], boundary=seen)
        assert isinstance(outcome, Conflict) is any(query.matches(each) for each in after)
    plain.rollback()


@pytest.fixture
def plain(database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    install(database)
    with psycopg.connect(database) as connection:
        yield connection
