"""Process managers on a real Postgres: each input once, timers that outlive who set them, failures by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.streams import (
    Cancel,
    Decider,
    Do,
    Due,
    End,
    EventType,
    Every,
    ProcessManager,
    Recorded,
    Refused,
    Rejected,
    Stream,
    Timer,
    aio,
    event,
    event_type_of,
    load,
    react,
)
from tailrace.eventstore.streams.database.connection import GRANTS, PROCESS_GRANT
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.eventstore.streams.database.source import SourceStreams
from tailrace.eventstore.streams.reacting.react import Reacted, fire_timer

PAST, FUTURE = datetime(2020, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(days=1)


@event("process_started")
class Started(BaseModel, frozen=True):
    id: str
    what: str


@event("process_noted")
class Noted(BaseModel, frozen=True):
    text: str


notes: Decider[str, int, Noted] = Decider(
    "process_note", 0, lambda text, count: note(text), lambda count, event: count + 1
)


def note(text: str) -> list[Noted]:
    if text == "refuse":
        raise Rejected("no such note")
    if text == "fail":
        raise RuntimeError("the decider is broken")
    return [Noted(text=text)]


Input = Started | Due | Refused


def respond(input: Input, seen: tuple[str, ...]) -> list[Do | Timer | Cancel | End]:
    match input:
        case Started(what="timer"):
            return [Timer("alarm", PAST)]
        case Started(what="later"):
            return [Timer("alarm", FUTURE), Timer("other", FUTURE)]
        case Started(what="cancel"):
            return [Cancel("alarm")]
        case Started(what="end"):
            return [End()]
        case Started(id=id, what=what):
            return [Do(notes, id, f"{what} after {len(seen)}" if what == "count" else what)]
        case Due(name=name, key=id):
            return [Do(notes, id, f"due {name}" if not id.startswith("broken") else "fail")]
        case Refused(reason=reason, key=id):
            return [Do(notes, id, f"refused: {reason}")]


def evolve(seen: tuple[str, ...], input: Input) -> tuple[str, ...]:
    return (*seen, input.what) if isinstance(input, Started) else seen


manager: ProcessManager[Input, tuple[str, ...]] = ProcessManager(
    "proc", (), respond, evolve, key={Started: "id"}
)


def started(id: str, what: str) -> Recorded[Started]:
    return Recorded(
        *(Stream("starter", id), 1, event_type_of(Started), Started(id=id, what=what)),
        *({"correlation_id": "c1"}, uuid4(), datetime.now(UTC)),
    )


@pytest.fixture
def dsn(database: str) -> str:
    install(database)
    return database


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    made = create_engine(make_url(dsn).set(drivername="postgresql+psycopg"))
    yield made
    made.dispose()


def noted(dsn: str, id: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [each.data.text for each in load(connection, Stream("process_note", id))]


def timers(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT instance, name, tries, error, try_at = 'infinity' FROM tailrace.timers ORDER BY 1, 2"
        )
        return rows.fetchall()


def test_an_input_is_reacted_to_once_however_often_it_comes_and_whoever_is_at_it(
    dsn: str, engine: Engine
) -> None:
    came = started("a", "hello")
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: react(engine, manager, came), range(8)))
    assert [each for each in found if each is not None] == [(Do(notes, "a", "hello"),)]
    assert noted(dsn, "a") == ["hello"]


def test_an_input_and_what_it_leads_to_are_one_transaction(dsn: str) -> None:
    came = started("a", "hello")
    with psycopg.connect(dsn) as connection:
        assert react(connection, manager, came) is not None
        connection.rollback()
        assert react(connection, manager, came) is not None
        with pytest.raises(RuntimeError, match="the decider is broken"):
            react(connection, manager, started("a", "fail"))
        connection.rollback()
    assert noted(dsn, "a") == []


def test_the_state_is_what_came_before_and_the_events_say_because_of_what(dsn: str, engine: Engine) -> None:
    first = started("a", "one")
    for each in (first, started("a", "two"), started("b", "one"), started("a", "count")):
        react(engine, manager, each)
    assert noted(dsn, "a") == ["one", "two", "count after 2"]
    with psycopg.connect(dsn) as connection:
        (kept, *_) = load(connection, Stream("proc", "a"))
        assert kept.data == Reacted(
            kind="event", type="process_started", version=1, data={"id": "a", "what": "one"},
            did=("do str on process_note/a",),
        )  # fmt: skip
        (made, *_) = load(connection, Stream("process_note", "a"))
    assert made.metadata == {"causation_id": str(first.event_id), "correlation_id": "c1"}


@pytest.mark.parametrize("kind", ["with a state", "without"])
def test_an_instance_with_many_inputs_reads_those_behind_its_snapshot(
    dsn: str, engine: Engine, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is what it is without one."""
    evolving = kind == "with a state"
    kept: ProcessManager[Input, tuple[str, ...]] = ProcessManager(
        "proc", (), respond, evolve if evolving else None, key={Started: "id"},
        snapshot=Every(events=3, state=tuple[str, ...]) if evolving else None,
    )  # fmt: skip
    monkeypatch.setattr("tailrace.eventstore.streams.reacting.react._EVERY", Every(events=3))
    read: list[int] = []
    tail = SourceStreams.read_tail

    async def counting(self: SourceStreams, stream: Stream, code: str) -> Any:
        found = await tail(self, stream, code)
        read.append(len(found[1]))
        return found

    monkeypatch.setattr(SourceStreams, "read_tail", counting)
    inputs = [started("a", "one" if number else "later") for number in range(10)]
    for each in (*inputs, *inputs, started("a", "count")):
        react(engine, kept, each)
    assert max(read) <= 3
    assert noted(dsn, "a") == [*["one"] * 9, f"count after {10 if evolving else 0}"]
    react(engine, kept, started("a", "end"))
    assert react(engine, kept, started("a", "one")) is None


def test_a_timer_that_is_due_fires_once_whoever_set_it(dsn: str, engine: Engine) -> None:
    react(engine, manager, started("a", "timer"))
    react(engine, manager, started("b", "later"))
    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(lambda _: fire_timer(engine, manager), range(8))) == 1
    assert noted(dsn, "a") == ["due alarm"] and noted(dsn, "b") == []
    assert [row[:2] for row in timers(dsn)] == [("b", "alarm"), ("b", "other")]


def test_a_timer_that_is_cancelled_or_whose_instance_ended_does_not_fire(dsn: str, engine: Engine) -> None:
    for what in ("timer", "cancel"):
        react(engine, manager, started("a", what))
    for what in ("timer", "end", "timer", "hello"):
        react(engine, manager, started("b", what))
    assert not fire_timer(engine, manager) and timers(dsn) == []
    assert noted(dsn, "a") == noted(dsn, "b") == []
    assert react(engine, manager, started("b", "hello")) is None


def test_a_timer_that_fails_waits_by_itself_and_starves_nobody(dsn: str, engine: Engine) -> None:
    for id in ("broken 1", "broken 2", "whole"):
        react(engine, manager, started(id, "timer"))
    for _ in range(6):
        fire_timer(engine, manager, attempts=2)
        with psycopg.connect(dsn) as connection:  # the pauses pass
            connection.execute("UPDATE tailrace.timers SET try_at = now() WHERE try_at < 'infinity'")
    assert noted(dsn, "whole") == ["due alarm"]
    assert timers(dsn) == [
        (f"broken {number}", "alarm", 2, "RuntimeError: the decider is broken", True) for number in (1, 2)
    ]
    assert not fire_timer(engine, manager)


def test_a_refused_command_is_an_input(dsn: str, engine: Engine) -> None:
    react(engine, manager, started("a", "refuse"))
    assert noted(dsn, "a") == ["refused: no such note"]
    with psycopg.connect(dsn) as connection:
        kinds = [each.data.kind for each in load(connection, Stream("proc", "a"))]
    assert kinds == ["event", "refused"]


def test_reactions_can_be_awaited(dsn: str) -> None:
    came = started("a", "hello")

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            assert await aio.react(connection, manager, came) == (Do(notes, "a", "hello"),)
            assert await aio.react(connection, manager, came) is None
        engine = create_async_engine(make_url(dsn).set(drivername="postgresql+psycopg"))
        assert await aio.react(engine, manager, started("a", "again")) == (Do(notes, "a", "again"),)
        await engine.dispose()

    asyncio.run(work())
    assert noted(dsn, "a") == ["hello", "again"]


def test_a_process_that_goes_round_in_refusals_is_stopped(engine: Engine) -> None:
    circle: ProcessManager[Any, None] = ProcessManager(
        "circle", None, lambda input, state: [Do(notes, "a", "refuse")], key={Started: "id"}
    )
    with pytest.raises(UsageError, match="answers refused commands with refused commands"):
        react(engine, circle, started("a", "x"))


def test_events_that_are_for_nobody_are_passed_over(engine: Engine) -> None:
    chosen: ProcessManager[Any, None] = ProcessManager(
        "proc", None, lambda input, state: [], key={Started: lambda event: None}
    )
    assert react(engine, chosen, started("a", "x")) is None
    other = Recorded(
        *(Stream("x", "y"), 1, EventType("process_noted", 1), Noted(text="")), {}, UUID(int=1), PAST
    )
    assert react(engine, manager, other) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ProcessManager("p", None, lambda i, s: []), "reacts to no event"),
        (lambda: ProcessManager("p", None, lambda i, s: [], key={Started: "nr"}), "has no field 'nr'"),
        (
            lambda: ProcessManager("p", None, lambda i, s: [], key={BaseModel: "id"}),
            "not declared as an event",
        ),
        (lambda: ProcessManager("", None, lambda i, s: [], key={Started: "id"}), "category of a stream"),
    ],
)
def test_a_process_that_cannot_be_is_refused_when_it_is_made(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_outputs_that_are_none_are_refused(engine: Engine) -> None:
    wrong: ProcessManager[Any, None] = ProcessManager(
        "proc",
        None,
        lambda input, state: cast(Any, ["ship"]),
        key={Started: "id"},
    )
    with pytest.raises(UsageError, match="gave a str"):
        react(engine, wrong, started("a", "x"))
    naive: ProcessManager[Any, None] = ProcessManager(
        "proc",
        None,
        lambda input, state: [Timer("t", FUTURE.replace(tzinfo=None))],
        key={Started: "id"},
    )
    with pytest.raises(UsageError, match="without a zone"):
        react(engine, naive, started("a", "x"))


def test_who_may_not_use_timers_is_told_the_grant(dsn: str, engine: Engine) -> None:
    role = f"app_{uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}")
        connection.execute(" ".join(GRANTS).format(role=role))
        connection.execute(f"SET ROLE {role}")
        with pytest.raises(OperatorError) as refused, connection.transaction():
            react(connection, manager, started("a", "timer"))
        connection.execute("RESET ROLE")
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert refused.value.hint == f"as the owner of the tables: {PROCESS_GRANT.format(role='APPLICATION')}"
