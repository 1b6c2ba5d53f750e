"""Events of years ago are read as today's, by chains of upcasters; what cannot be read says where it is."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pydantic import BaseModel

from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.streams import EventType, Json, RawEvent, Stream, event, load, upcast, upcaster
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.eventstore.streams.models.reshape import Reshape
from tailrace.eventstore.streams.models.upcasters import Place, read_events

STREAM = Stream("upcast", "1")
PLACE = Place(STREAM, 7, UUID(int=9))


@event("up_opened", version=4)
class Opened(BaseModel):
    owner: str
    currency: str
    limit: int


upcast("up_opened", 1, rename={"name": "owner"})
upcast("up_opened", 2, default={"currency": "EUR"}, drop=["colour"])


@upcaster("up_opened", 3)
def with_limit(data: Json) -> Json:
    return data | {"limit": len(data["owner"])}


@event("up_sent", version=1)
class Sent(BaseModel):
    amount: Decimal


@event("up_received", version=2)
class Received(BaseModel):
    amount: Decimal
    by: str


@upcaster("up_moved", 1)
def split(data: Json) -> list[RawEvent]:
    parts = [RawEvent("up_sent", 1, data), RawEvent("up_received", 1, data)]
    return parts if data["amount"] != "0" else []


upcast("up_received", 1, default={"by": "nobody"})


def store(connection: psycopg.Connection[Any], *events: tuple[str, int, Json]) -> None:
    """As earlier releases of a service stored them."""
    for version, (name, schema_version, data) in enumerate(events, 1):
        connection.execute(
            "INSERT INTO tailrace.events VALUES ('upcast', '1', %s, %s, %s, %s, '{}', %s, now())",
            [version, name, schema_version, Jsonb(data), UUID(int=version)],
        )


def test_each_version_is_read_as_the_latest_and_what_is_stored_stays(database: str) -> None:
    install(database)
    stored: list[tuple[str, int, Json]] = [
        ("up_opened", 1, {"name": "Ada", "colour": "red"}),
        ("up_opened", 2, {"owner": "Bo", "currency": "SEK"}),
        ("up_opened", 3, {"owner": "C", "currency": "EUR"}),
        ("up_opened", 4, {"owner": "D", "currency": "EUR", "limit": 9}),
        ("up_moved", 1, {"amount": "5"}),
        ("up_moved", 1, {"amount": "0"}),
        ("up_sent", 1, {"amount": "3"}),
    ]
    with psycopg.connect(database) as connection:
        store(connection, *stored)
        found = load(connection, STREAM)
        assert [(each.version, each.part, each.type, each.data) for each in found] == [
            (1, 0, EventType("up_opened", 4), Opened(owner="Ada", currency="EUR", limit=3)),
            (2, 0, EventType("up_opened", 4), Opened(owner="Bo", currency="SEK", limit=2)),
            (3, 0, EventType("up_opened", 4), Opened(owner="C", currency="EUR", limit=1)),
            (4, 0, EventType("up_opened", 4), Opened(owner="D", currency="EUR", limit=9)),
            (5, 0, EventType("up_sent", 1), Sent(amount=Decimal(5))),
            (5, 1, EventType("up_received", 2), Received(amount=Decimal(5), by="nobody")),
            (7, 0, EventType("up_sent", 1), Sent(amount=Decimal(3))),
        ]
        assert found[4].event_id == found[5].event_id == UUID(int=5)
        rows = connection.execute("SELECT type, schema_version, data FROM tailrace.events ORDER BY version")
        assert rows.fetchall() == stored


@pytest.mark.parametrize(
    ("steps", "before", "after"),
    [
        ({"drop": ["a.b", "c.d"]}, {"a": {"b": 1, "x": 2}, "c": 3}, {"a": {"x": 2}, "c": 3}),
        ({"rename": {"a.b": "z"}}, {"a": {"b": 1}}, {"a": {"z": 1}}),
        ({"rename": {"a": "b"}}, {}, {}),
        ({"rename": {"a": "b"}, "drop": ["b"]}, {"a": 1, "b": 2}, {"b": 1}),
        ({"move": {"a": "p.q.a"}}, {"a": None}, {"p": {"q": {"a": None}}}),
        ({"move": {"p.a": "a"}, "drop": []}, {"p": {"a": 1}}, {"p": {}, "a": 1}),
        ({"cast": {"a": "str"}}, {"a": 5}, {"a": "5"}),
        ({"cast": {"a": "str"}}, {"a": True}, {"a": "true"}),
        ({"cast": {"a": "int"}}, {"a": "12"}, {"a": 12}),
        ({"cast": {"a": "int"}}, {"a": 12.0}, {"a": 12}),
        ({"cast": {"a": "float"}}, {"a": "1.5"}, {"a": 1.5}),
        ({"cast": {"a": "bool", "b": "bool"}}, {"a": "false", "b": 1}, {"a": False, "b": True}),
        ({"cast": {"a": "int", "b": "int"}}, {"a": None}, {"a": None}),
        ({"default": {"a": 1, "b.c": []}}, {"a": None}, {"a": None, "b": {"c": []}}),
        ({"rename": {"a": "b"}, "cast": {"b": "int"}, "default": {"a": "new"}}, {"a": "1"}, {"b": 1, "a": "new"}),
    ],
)  # fmt: skip
def test_what_is_declared_is_done(steps: dict[str, Any], before: Json, after: Json) -> None:
    empty: dict[str, Any] = {"drop": (), "rename": {}, "move": {}, "cast": {}, "default": {}}
    assert Reshape(**(empty | steps))(copy.deepcopy(before)) == after


def test_a_default_is_not_shared_between_events() -> None:
    step = Reshape((), {}, {}, {}, {"notes": []})
    step({})["notes"].append("x")
    assert step({}) == {"notes": []}


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("up_bad_cast", {"a": 1.5}, "a is no int"),
        ("up_bad_cast", {"a": "x"}, "invalid literal"),
        ("up_taken", {"a": 1, "b": 2}, "a cannot become b, which is there already"),
        ("up_through", {"a": 1, "b": 2}, "b is no object"),
        ("up_raises", {}, "KeyError"),
    ],
)
def test_an_upcaster_that_fails_says_where_and_which(
    name: str, data: Json, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_SHOW_VALUES", "1")
    upcast("up_bad_cast", 1, cast={"a": "int"})
    upcast("up_taken", 1, rename={"a": "b"})
    upcast("up_through", 1, move={"a": "b.c"})
    upcaster("up_raises", 1)(raises)
    text = str(data).replace("'", '"')
    with pytest.raises(IntegrityError) as failed:
        read_events(EventType(name, 1), text, PLACE)
    about = f"event 7 of upcast/1 (id {UUID(int=9)}): the upcaster of {name!r} version 1"
    assert failed.value.message.startswith(about) and problem in failed.value.message
    assert ("test_upcasters.raises" in failed.value.message) is (name == "up_raises")


def raises(data: Json) -> Json:
    return {"a": data["missing"]}


def test_values_in_an_upcasters_error_are_hidden() -> None:
    upcast("up_hidden", 1, cast={"a": "int"})
    with pytest.raises(IntegrityError) as failed:
        read_events(EventType("up_hidden", 1), '{"a": "s3cret"}', PLACE)
    assert "s3cret" not in failed.value.message and "ValueError" in failed.value.message


def test_what_no_model_takes_says_where_it_is() -> None:
    with pytest.raises(
        IntegrityError, match=r"^event 7 of upcast/1 \(id .*\): 'up_sent' version 1 does not fit"
    ):
        read_events(EventType("up_sent", 1), "{}", PLACE)
    with pytest.raises(UsageError, match=r"^event 7 of upcast/1 [\s\S]*upcast\('up_sent', 2, …\)"):
        read_events(EventType("up_sent", 2), "{}", PLACE)


@pytest.mark.parametrize("made", [None, "text", [{"a": 1}]])
def test_an_upcaster_that_gives_nothing_to_go_on_with_is_refused(made: Any) -> None:
    upcaster("up_nothing", 1)(lambda data: made)
    with pytest.raises(UsageError, match=r"event 7 .* gave a (NoneType|str|list)"):
        read_events(EventType("up_nothing", 1), "{}", PLACE)


def test_a_circle_of_upcasters_ends() -> None:
    @upcaster("up_circle", 1)
    def back(data: Json) -> Sequence[RawEvent]:
        return [RawEvent("up_circle", 1, data)]

    with pytest.raises(UsageError, match="go round in circles"):
        read_events(EventType("up_circle", 1), "{}", PLACE)


def test_a_version_has_one_upcaster_which_may_be_declared_again() -> None:
    upcast("up_opened", 1, rename={"name": "owner"})
    upcaster("up_opened", 3)(with_limit)
    with pytest.raises(
        UsageError, match=r"'up_opened' version 3 has two upcasters: .*with_limit and Reshape"
    ):
        upcast("up_opened", 3)
    with pytest.raises(UsageError, match="cannot be cast to 'date'"):
        upcast("up_opened", 9, cast={"a": "date"})  # type: ignore[dict-item]
