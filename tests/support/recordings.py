"""Recordings to test with: what is recorded, and what a log holds of it, in a form that JSON keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.cdc.recording.file import Recording
from tailrace.cdc.replay import replay
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.support.capturing import RunningCapture, Site, execute, rows

GOLDEN = Path(__file__).parents[1] / "cdc" / "golden"
SECRET = "Zq7x-nobody-may-read-this"
_PLACED = ("_epoch", "_offset", "_partition")  # by whoever appends


@dataclass(frozen=True)
class Scenario:
    """``statements`` are recorded, each a transaction; ``tables`` are there before."""

    tables: Sequence[str]
    statements: Sequence[str]
    settings: dict[str, Any] = field(default_factory=dict)


SCENARIOS = {
    "changes": Scenario(
        [
            "CREATE TABLE public.orders (id int PRIMARY KEY, note text, price numeric(8,2), due date)",
            "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
            "INSERT INTO orders SELECT i, 'note', i, '2024-02-29' FROM generate_series(1, 5) i",
            "CREATE TABLE public.items (n int, word text)",
            "ALTER TABLE items REPLICA IDENTITY FULL",
        ],
        [
            "INSERT INTO orders VALUES (10, 'ten', 1.5, 'infinity'), (11, NULL, 'NaN', '4713-01-01 BC')",
            "UPDATE orders SET note = repeat(md5(id::text), 70) WHERE id < 3; DELETE FROM orders WHERE id = 5",
            "UPDATE orders SET price = price + 1 WHERE id < 3",
            "UPDATE orders SET id = id + 100 WHERE id < 4",
            "INSERT INTO items VALUES (1, 'a'), (1, 'a'), (NULL, '')",
            "UPDATE items SET word = 'b' WHERE n = 1; SELECT pg_logical_emit_message(true, 'mine', 'hello')",
            "TRUNCATE items",
        ],
    ),
    "columns": Scenario(
        ["CREATE TABLE public.people (id bigint PRIMARY KEY, name text, tags int[])"],
        [
            "INSERT INTO people VALUES (1, 'Ann', '{1,NULL,3}'), (2, 'Bob', '{{1,2},{3,4}}')",
            "ALTER TABLE people ADD COLUMN seen timestamptz; UPDATE people SET seen = '2024-01-01 12:00+01'",
            "ALTER TABLE people RENAME COLUMN name TO called; INSERT INTO people VALUES (3, 'Eve', '{}', 'infinity')",
            "ALTER TABLE people DROP COLUMN tags; UPDATE people SET called = 'x' WHERE id = 1",
        ],
    ),
    "protected": Scenario(
        ["CREATE TABLE public.people (id int PRIMARY KEY, email text, phone text, name text)"],
        [
            f"INSERT INTO people SELECT i, '{SECRET}' || i, '{SECRET}', 'Zq{SECRET}' FROM generate_series(1, 5) i",  # noqa: S608
            f"UPDATE people SET email = '{SECRET}', phone = NULL WHERE id < 3",  # noqa: S608
            "UPDATE people SET id = -id WHERE id = 4; DELETE FROM people WHERE id = 5",
        ],
        {
            "columns": {
                "*.*.email": "hash",
                "public.people.phone": "drop",
                "public.people.name": "truncate:2",
            },
            "hash_key": "only the environment knows this key",
        },
    ),
}


def record(site: Site, scenario: Scenario, file: Path) -> list[dict[str, Any]]:
    """Capture a scenario into a recording; what the log holds of the stream then."""
    execute(site.dsn, *scenario.tables)
    site.init()
    with RunningCapture(site, record=file) as capture:
        capture.catch_up()
        for statement in scenario.statements:
            execute(site.dsn, statement)
        capture.catch_up()
        return as_documents(capture.store)


def replay_rows(file: Path, folder: Path) -> list[dict[str, Any]]:
    """What a log that is made of a recording holds."""
    with Store.open(StoreSettings(name="replay"), create=True, root=folder) as store:
        replay(Recording(file), store)
        return as_documents(store)


def as_documents(store: Store) -> list[dict[str, Any]]:
    """Streamed rows of all topics in commit order."""
    found = [
        {"topic": info.id.text} | {name: cell for name, cell in row.items() if name not in _PLACED}
        for info in store.topics()
        for row in _once(rows(store, info.id))
    ]
    ordered = sorted(found, key=lambda row: (row["_lsn"], row["_ordinal"]))
    documents: list[dict[str, Any]] = json.loads(json.dumps(ordered, default=str))
    return documents


def _once(found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Without what a load read, and a truncate, of which each partition has a copy, once."""
    seen = set()
    for row in found:
        place = row["_lsn"], row["_ordinal"]
        if row["_op"] != "r" and place not in seen:
            seen.add(place)
            yield row
