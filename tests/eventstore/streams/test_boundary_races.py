"""Whoever decides at the same time: an append inside a boundary is committed only if it has seen all events inside it
that commit before it. Commits are read from the write-ahead log, and replayed one after the other."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

import psycopg
import pytest
from psycopg import IsolationLevel
from pydantic import BaseModel

from tailrace.cdc.wire import pgoutput
from tailrace.eventstore.streams import (
    Boundary,
    Conflict,
    Query,
    Stream,
    Tag,
    append,
    event,
    load_boundary,
)
from tailrace.eventstore.streams.database.event_tables import install
from tests.fixtures.scale import Scale

Connection = psycopg.Connection[tuple[Any, ...]]
WORKERS, VALUES = 8, 4


class Base(BaseModel):
    n: int
    here: Annotated[list[int], Tag()]
    there: Annotated[list[int], Tag()]


@event("hammer_a")
class A(Base):
    pass


@event("hammer_b")
class B(Base):
    pass


@event("hammer_c")
class C(Base):
    pass


KINDS: dict[str, type[Base]] = {"hammer_a": A, "hammer_b": B, "hammer_c": C}


@dataclass
class Hammer:
    """Threads that read, wait, append and commit until the time is over. ``bounded``: appends keep to what was read."""

    dsn: str
    level: IsolationLevel
    seconds: float
    bounded: bool = True
    committed: int = 0
    refused: int = 0
    again: int = 0
    _numbers: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, seed: int) -> None:
        with ThreadPoolExecutor(WORKERS) as pool:
            for each in [pool.submit(self._work, random.Random(seed + at)) for at in range(WORKERS)]:
                each.result()

    def _work(self, rng: random.Random) -> None:
        until = time.monotonic() + self.seconds
        with psycopg.connect(self.dsn) as connection:
            connection.isolation_level = self.level
            while time.monotonic() < until:
                try:
                    done = self._transaction(connection, rng)
                    if rng.random() < 0.05:
                        connection.rollback()
                        continue
                    connection.commit()
                    self._count("committed" if done else "refused")
                except psycopg.errors.SerializationFailure:  # no deadlock: tags are taken in one order
                    connection.rollback()
                    self._count("again")

    def _transaction(self, connection: Connection, rng: random.Random) -> bool:
        if rng.random() < 0.3:  # the snapshot of the stricter levels is an early one
            connection.execute("SELECT 1")
            pause(rng)
        query = any_query(rng)
        seen = load_boundary(connection, query)
        if rng.random() < 0.2:
            pause(rng)
            seen = load_boundary(connection, query)
        pause(rng)
        done = self._append(connection, rng, seen)
        pause(rng)
        return done

    def _append(self, connection: Connection, rng: random.Random, seen: Boundary) -> bool:
        items = [[[model.__name__ for model in item.models], item.tags] for item in seen.query.items]
        about = {"query": items, "seen": sorted(each.data.n for each in seen.events)}
        events = [self._event(rng) for _ in range(rng.randint(1, 2))]
        stream = Stream("hammer", str(rng.randrange(20)))
        boundary = seen if self.bounded else None
        return not isinstance(append(connection, stream, events, metadata=about, boundary=boundary), Conflict)

    def _event(self, rng: random.Random) -> Base:
        with self._lock:
            self._numbers += 1
            number = self._numbers
        here = rng.sample(range(VALUES), rng.randint(1, 2))
        return rng.choice([*KINDS.values()])(
            n=number, here=here, there=rng.sample(range(VALUES), rng.randint(0, 1))
        )

    def _count(self, what: str) -> None:
        with self._lock:
            setattr(self, what, getattr(self, what) + 1)


def pause(rng: random.Random) -> None:
    time.sleep(rng.random() * 0.005)


def any_query(rng: random.Random) -> Query:
    found: Query | None = None
    for _ in range(rng.randint(1, 2)):
        models = rng.sample([*KINDS.values()], rng.randint(0, 2))
        tags = rng.choice([{"here": 0}, {"there": 0}, {"here": 0, "there": 0}])
        one = Query(*models, **{name: rng.randrange(VALUES) for name in tags})
        found = one if found is None else found | one
    assert found is not None
    return found


@pytest.fixture
def slot(database: str) -> Iterator[str]:
    install(database)
    name = f"races_{database.rpartition('/')[2]}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION races FOR TABLE tailrace.events")
        connection.execute("SELECT pg_create_logical_replication_slot(%s::text, 'pgoutput')", [name])
        yield name
        connection.execute("SELECT pg_drop_replication_slot(%s)", [name])


@dataclass(frozen=True)
class Written:
    n: int
    kind: str
    tags: frozenset[str]


def lost_conflicts(dsn: str, slot: str) -> tuple[int, int]:
    """Of appends in the order of their commits: how many there are, and how many had not seen what is before them."""
    before: list[Written] = []
    appends = lost = 0
    for rows in transactions(dsn, slot):
        about = json.loads(rows[0]["metadata"])
        inside = sorted(each.n for each in before if any(matches(each, item) for item in about["query"]))
        appends += 1
        lost += inside != about["seen"]
        for row in rows:
            data = json.loads(row["data"])
            tags = {f"{name}:{value}" for name in ("here", "there") for value in data[name]}
            before.append(Written(data["n"], KINDS[row["type"]].__name__, frozenset(tags)))
    return appends, lost


def matches(written: Written, item: list[list[str]]) -> bool:
    kinds, tags = item
    return (not kinds or written.kind in kinds) and set(tags) <= written.tags


def transactions(dsn: str, slot: str) -> Iterator[list[dict[str, str]]]:
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'races')",
            [slot],
        ).fetchall()
    names: list[str] = []
    rows: list[dict[str, str]] = []
    for (data,) in found:
        match pgoutput.decode(data):
            case pgoutput.Relation() as relation:
                names = [column.name for column in relation.columns]
            case pgoutput.Begin():
                rows = []
            case pgoutput.Insert(_, cells):
                rows.append(
                    {
                        name: cell.decode()
                        for name, cell in zip(names, cells, strict=True)
                        if isinstance(cell, bytes)
                    }
                )
            case pgoutput.Commit() if rows:
                yield rows


@pytest.mark.parametrize(
    "level",
    [
        IsolationLevel.READ_COMMITTED,
        pytest.param(IsolationLevel.REPEATABLE_READ, marks=pytest.mark.slow),
        pytest.param(IsolationLevel.SERIALIZABLE, marks=pytest.mark.slow),
    ],
)
def test_no_conflict_is_lost_at_any_isolation_level(
    database: str, slot: str, scale: Scale, level: IsolationLevel
) -> None:
    hammer = Hammer(database, level, scale.pick(smoke=3, full=60))
    hammer.run(scale.pick(smoke=1, full=random.randrange(10**9)))
    appends, lost = lost_conflicts(database, slot)
    print(
        level.name,
        hammer.committed,
        "committed",
        hammer.refused,
        "refused",
        hammer.again,
        "to be tried again",
    )
    assert (appends, lost) == (hammer.committed, 0)
    assert hammer.committed > 50 and hammer.refused + hammer.again > 50
    with psycopg.connect(database) as connection:
        sparse = connection.execute(
            "SELECT tag FROM tailrace.tags g LEFT JOIN tailrace.tagged_events e USING (tag) GROUP BY tag, g.version"
            " HAVING count(e.version) <> g.version OR coalesce(max(e.version), 0) <> g.version"
        ).fetchall()
    assert sparse == []


def test_without_the_boundary_conflicts_are_lost_and_seen_to_be(database: str, slot: str) -> None:
    hammer = Hammer(database, IsolationLevel.READ_COMMITTED, 1, bounded=False)
    hammer.run(1)
    appends, lost = lost_conflicts(database, slot)
    assert appends == hammer.committed and lost > 0
