"""A sink of one's own: texts in a SQLite file, made a sink by ``tailrace.projections.sinks.keyvalue.sink``.

    @projection(key="customer_id", sink=SqliteFile("totals.db"), orders=State("shop.public.orders"))
    def totals(orders): ...

``tests/projections/sinks/test_own_sink.py`` runs the suite over it that every sink must pass, and a projection into it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from tailrace.eventstore.settings import Settings
from tailrace.projections.sinks.keyvalue.reader import KeyValueReader
from tailrace.projections.sinks.keyvalue.sink import KeyValueSink


@dataclass(frozen=True)
class SqliteTexts:
    database: sqlite3.Connection

    def get(self, name: str) -> str | None:
        found = self.database.execute("SELECT text FROM texts WHERE name = ?", (name,)).fetchone()
        return found[0] if found else None

    def put(self, name: str, text: str) -> None:
        self.database.execute("REPLACE INTO texts VALUES (?, ?)", (name, text))

    def delete(self, name: str) -> None:
        self.database.execute("DELETE FROM texts WHERE name = ?", (name,))

    def below(self, prefix: str) -> Iterator[tuple[str, str]]:
        query = "SELECT name, text FROM texts WHERE name >= ? AND substr(name, 1, ?) = ?"
        yield from self.database.execute(query, (prefix, len(prefix), prefix))


@dataclass(frozen=True)
class SqliteFile:
    """What a projection names as its sink. The catalog keeps its fields with each generation, as JSON."""

    path: str

    @contextmanager
    def begin(self) -> Iterator[SqliteTexts]:
        # Closing undoes what was not committed.
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS texts (name PRIMARY KEY, text) WITHOUT ROWID")
            database.execute("BEGIN IMMEDIATE")
            yield SqliteTexts(database)
            database.execute("COMMIT")

    def open_sink(self, settings: Settings) -> KeyValueSink:
        return KeyValueSink(self.begin)

    def open_reader(self, settings: Settings, store: str, projection: str) -> KeyValueReader:
        return KeyValueReader(self.begin, store, projection)
