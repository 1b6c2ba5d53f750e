# ruff: noqa: S608 (names of this module alone)
"""A seeded random workload of DDL under writes, and its oracle: a direct read of the source under a lock."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.tables import Table, read_tables
from tailrace.cdc.topics import Topics
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tests.support.background import in_background
from tests.support.capturing import SOURCE, RunningCapture, wait_until

SCHEMA = """
CREATE TYPE public.mood AS ENUM ('sad', 'ok', 'glad');
CREATE TYPE public.pair AS (x int, m public.mood);
CREATE SEQUENCE public.numbers;
CREATE TABLE public.plain (id int PRIMARY KEY, other bigint NOT NULL DEFAULT nextval('public.numbers'),
  a text, b int, m public.mood);
CREATE TABLE public.entire (id int PRIMARY KEY, other bigint NOT NULL DEFAULT nextval('public.numbers'),
  a text, b int, p public.pair, ms public.mood[]);
ALTER TABLE public.entire REPLICA IDENTITY FULL;
CREATE TABLE public.chosen (id int NOT NULL, other bigint NOT NULL DEFAULT nextval('public.numbers'), a text, b int);
CREATE UNIQUE INDEX chosen_key ON public.chosen (id);
ALTER TABLE public.chosen REPLICA IDENTITY USING INDEX chosen_key;
"""
PATTERNS = ("public.*", "!public.next_*", "!public.old_*")
KEYS = 60
VALUES = {
    "integer": "(random() * 1000)::int",
    "bigint": "nextval('public.numbers')",
    "numeric(12,2)": "round((random() * 1000)::numeric, 2)",
    "text": "left(md5(random()::text), 6)",
    "uuid": "gen_random_uuid()",
    "mood": "(enum_range(NULL::public.mood))[1 + (random() * 2)::int]",
    "mood[]": "ARRAY[(enum_range(NULL::public.mood))[1 + (random() * 2)::int], NULL]",
    "pair": "json_populate_record(NULL::public.pair, '{\"x\": 5}')",
}
"""Random values by type, as SQL."""

# What a session ends with when its server is killed: also with a rollback of its own that did not come through.
KILLED = (psycopg.OperationalError, psycopg.Rollback)
IMPOSSIBLE = (
    psycopg.errors.ProgrammingError,
    psycopg.errors.IntegrityError,
    psycopg.errors.DataError,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.UnsafeNewEnumValueUsage,
)
"""What random statements may not be able to do."""

Connection = psycopg.Connection[tuple[object, ...]]


def prepare(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(SCHEMA))
        writer = Writer(dsn, 0)
        for _ in range(60):
            writer.transaction(connection)


@dataclass
class Writer:
    """Writes into whatever tables and columns there are."""

    dsn: str
    seed: int
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def transaction(self, connection: Connection) -> None:
        """One transaction of 1 to 4 changes; what a concurrent DDL makes impossible is left out."""
        try:
            with connection.transaction():
                for _ in range(self.random.randint(1, 4)):
                    self._change(connection)
        except IMPOSSIBLE:
            pass

    def _change(self, connection: Connection) -> None:
        tables = captured_tables(connection)
        name = self.random.choice(sorted(tables))
        columns = {column: VALUES[kind] for column, kind in tables[name].items() if kind in VALUES}
        columns.pop("id", None)
        chosen = self.random.sample(sorted(columns), self.random.randint(0, len(columns)))
        key = self.random.randrange(KEYS)
        table = sql.Identifier("public", name)
        pick = self.random.random()
        if pick < 0.5:
            names = sql.SQL(", ").join(map(sql.Identifier, ["id", *chosen]))
            values = sql.SQL(", ".join([str(key), *(columns[column] for column in chosen)]))
            statement = sql.SQL(
                "INSERT INTO {} ({}) SELECT {} WHERE NOT EXISTS (SELECT FROM {} WHERE id = {})"
            )
            connection.execute(statement.format(table, names, values, table, key))
        elif pick < 0.85:
            sets: list[sql.Composable] = [sql.SQL("id = id")]
            sets += [sql.Identifier(column) + sql.SQL(f" = {columns[column]}") for column in chosen]
            statement = sql.SQL("UPDATE {} SET {} WHERE id = {}")
            connection.execute(statement.format(table, sql.SQL(", ").join(sets), key))
        elif pick < 0.99:
            connection.execute(sql.SQL("DELETE FROM {} WHERE id = {}").format(table, key))
        else:
            connection.execute(sql.SQL("TRUNCATE {}").format(table))


def captured_tables(connection: Connection) -> dict[str, dict[str, str]]:
    """Tables of the workload, with their columns' types; generated columns are nobody's to write."""
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in connection.execute(
        "SELECT c.relname, a.attname, replace(format_type(a.atttypid, a.atttypmod), 'public.', '') FROM pg_class c"
        " JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'"
        " AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND c.relname !~ '^(old|next)_'"
    ).fetchall():
        found.setdefault(str(table), {})[str(column)] = str(kind)
    return found


@contextmanager
def writing(dsn: str, seed: int, sessions: int = 2, pause: float = 0.005) -> Iterator[None]:
    def write(number: int, stop: threading.Event) -> None:
        writer = Writer(dsn, seed + number)
        while not stop.wait(pause):  # a server that was killed is waited for
            with suppress(*KILLED), psycopg.connect(dsn, autocommit=True) as connection:
                while not stop.wait(pause):
                    writer.transaction(connection)

    with in_background(write, sessions):
        yield


class Alterer:
    """One random DDL after another. ``trigger``: also what only the event trigger shows."""

    def __init__(self, dsn: str, seed: int, *, trigger: bool) -> None:
        self._random = random.Random(seed)
        self._dsn = dsn
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._count = 0
        self._kinds: list[Callable[[str, dict[str, str]], list[str]]] = [
            self._add, self._add_volatile, self._drop, self._rename, self._exchange, self._move, self._retype,
            self._retype_using, self._generate, self._rekey, self._again, self._recreate, self._swap, self._label,
        ]  # fmt: skip
        if trigger:
            self._kinds += [self._rewrite_alike, self._rename_label, self._attribute]
        self.done: list[str] = []

    def close(self) -> None:
        self._connection.close()

    def some(self, count: int) -> None:
        """That many commands, every kind before one comes again."""
        kinds: list[Callable[[str, dict[str, str]], list[str]]] = []
        for _ in range(count):
            if not kinds:
                kinds = self._random.sample(self._kinds, len(self._kinds))
            self.alter(kinds.pop())

    def alter(self, kind: Callable[[str, dict[str, str]], list[str]]) -> None:
        """In one transaction with a row before and one behind; one in eight is rolled back, whole or to a savepoint."""
        self._count += 1
        try:
            tables = captured_tables(self._connection)
            table = self._random.choice(sorted(tables))
            statements = kind(table, tables[table])
            self.done += statements
            self._transaction(statements)
        except IMPOSSIBLE as error:
            self.done.append(f"-- {str(error).splitlines()[0]}")
        except KILLED as error:  # whether it landed is not known
            self.done.append(f"-- {str(error).splitlines()[0]}")
            self._reconnect()

    def _transaction(self, statements: list[str]) -> None:
        outcome = self._random.random()
        writer = Writer("", self._count)
        with self._connection.transaction() as whole:
            if self._random.random() < 0.5:
                writer.transaction(self._connection)
            with self._connection.transaction() as part:
                for statement in statements:
                    self._connection.execute(sql.SQL(statement))
                if outcome < 0.06:
                    raise psycopg.Rollback(part)
            if self._random.random() < 0.5:
                writer.transaction(self._connection)
            if outcome > 0.94:
                raise psycopg.Rollback(whole)

    def _reconnect(self) -> None:
        deadline = time.monotonic() + 120
        while self._connection.closed:
            with suppress(psycopg.OperationalError):
                self._connection = psycopg.connect(self._dsn, autocommit=True)
            assert time.monotonic() < deadline, "the server did not come back"
            time.sleep(0.05)

    def _column(self, columns: dict[str, str], *kinds: str) -> str:
        """A column that may be changed, of one of these types."""
        found = [
            name
            for name, kind in columns.items()
            if name not in ("id", "other") and (kind in kinds or not kinds)
        ]
        return self._random.choice(sorted(found)) if found else "none"

    def _new(self) -> str:
        return f"c{self._count}"

    def _add(self, table: str, columns: dict[str, str]) -> list[str]:
        kind = self._random.choice(["int DEFAULT 7", "text DEFAULT 'new, old'", "text", "numeric(12,2) DEFAULT 1.5",
                                    "public.mood DEFAULT 'ok'"])  # fmt: skip
        return [f"ALTER TABLE public.{table} ADD COLUMN {self._new()} {kind}"]

    def _add_volatile(self, table: str, columns: dict[str, str]) -> list[str]:
        kind = self._random.choice(
            ["uuid DEFAULT gen_random_uuid()", "bigint DEFAULT nextval('public.numbers')"]
        )
        more = [f"ALTER TABLE public.{table} ALTER COLUMN {self._new()} DROP DEFAULT"]
        return [
            f"ALTER TABLE public.{table} ADD COLUMN {self._new()} {kind}",
            *more[: self._random.randint(0, 1)],
        ]

    def _drop(self, table: str, columns: dict[str, str]) -> list[str]:
        return [f"ALTER TABLE public.{table} DROP COLUMN {self._column(columns)}"]

    def _rename(self, table: str, columns: dict[str, str]) -> list[str]:
        return [f"ALTER TABLE public.{table} RENAME COLUMN {self._column(columns)} TO {self._new()}"]

    def _exchange(self, table: str, columns: dict[str, str]) -> list[str]:
        """Two columns of a type take each other's name."""
        one, other = self._column(columns, "text"), self._new()
        return [
            f"ALTER TABLE public.{table} ADD COLUMN {other} text",
            f"ALTER TABLE public.{table} RENAME COLUMN {one} TO between",
            f"ALTER TABLE public.{table} RENAME COLUMN {other} TO {one}",
            f"ALTER TABLE public.{table} RENAME COLUMN between TO {other}",
        ]

    def _move(self, table: str, columns: dict[str, str]) -> list[str]:
        return [f"ALTER TABLE public.{table} RENAME TO {table.rstrip('0123456789')}{self._count}"]

    def _retype(self, table: str, columns: dict[str, str]) -> list[str]:
        column = self._column(columns, "integer", "text")
        kind = {"integer": self._random.choice(["bigint", "text"]), "text": "varchar(40)"}
        return [
            f"ALTER TABLE public.{table} ALTER COLUMN {column} TYPE {kind.get(columns.get(column, ''), 'text')}"
        ]

    def _retype_using(self, table: str, columns: dict[str, str]) -> list[str]:
        column = self._column(columns, "integer", "text")
        return [
            f"ALTER TABLE public.{table} ALTER COLUMN {column} TYPE numeric(12,2) USING length({column}::text)"
        ]

    def _generate(self, table: str, columns: dict[str, str]) -> list[str]:
        return [
            f"ALTER TABLE public.{table} ADD COLUMN {self._new()} int GENERATED ALWAYS AS (id * 2) STORED"
        ]

    def _rekey(self, table: str, columns: dict[str, str]) -> list[str]:
        key = self._random.choice(["id", "other", "id, other"])
        return [
            f"ALTER TABLE public.{table} ADD CONSTRAINT k{self._count} UNIQUE ({key})",
            f"ALTER TABLE public.{table} REPLICA IDENTITY USING INDEX k{self._count}",
        ]

    def _again(self, table: str, columns: dict[str, str]) -> list[str]:
        """The same name and type; rows lose their values."""
        column = self._column(columns, "integer", "text")
        kind = columns.get(column, "text")
        return [f"ALTER TABLE public.{table} DROP COLUMN {column}",
                f"ALTER TABLE public.{table} ADD COLUMN {column} {kind}"]  # fmt: skip

    def _recreate(self, table: str, columns: dict[str, str]) -> list[str]:
        return [
            f"DROP TABLE public.{table}",
            f"CREATE TABLE public.{table} (id int PRIMARY KEY, other bigint NOT NULL"
            " DEFAULT nextval('public.numbers'), a text, b int)",
            f"INSERT INTO public.{table} SELECT i, i, 'made anew' FROM generate_series(1, 9) i",
        ]

    def _swap(self, table: str, columns: dict[str, str]) -> list[str]:
        drop = [f"DROP TABLE public.old_{self._count}"]
        return [
            f"CREATE TABLE public.next_{self._count} (LIKE public.{table} INCLUDING ALL)",
            f"CREATE UNIQUE INDEX s{self._count} ON public.next_{self._count} (id)",  # LIKE copies no identity
            f"ALTER TABLE public.next_{self._count} REPLICA IDENTITY USING INDEX s{self._count}",
            f"INSERT INTO public.next_{self._count} (id, other) SELECT i, i FROM generate_series(1, 9) i",
            f"ALTER TABLE public.{table} RENAME TO old_{self._count}",
            f"ALTER TABLE public.next_{self._count} RENAME TO {table}",
            *drop,
        ]

    def _label(self, table: str, columns: dict[str, str]) -> list[str]:
        return [f"ALTER TYPE public.mood ADD VALUE 'more {self._count}'"]

    # Only the event trigger shows these.

    def _rewrite_alike(self, table: str, columns: dict[str, str]) -> list[str]:
        column = self._column(columns, "integer", "text")
        kind, change = columns.get(column, "text"), "'!'" if columns.get(column) == "text" else "1"
        sign = "||" if columns.get(column) == "text" else "+"
        return [
            f"ALTER TABLE public.{table} ALTER COLUMN {column} TYPE {kind} USING {column} {sign} {change}"
        ]

    def _rename_label(self, table: str, columns: dict[str, str]) -> list[str]:
        (found,) = self._connection.execute(
            "SELECT enumlabel FROM pg_enum WHERE enumtypid = 'public.mood'::regtype ORDER BY enumsortorder LIMIT 1"
        ).fetchall()
        return [f"ALTER TYPE public.mood RENAME VALUE '{found[0]}' TO 'label {self._count}'"]

    def _attribute(self, table: str, columns: dict[str, str]) -> list[str]:
        return [f"ALTER TYPE public.pair ADD ATTRIBUTE {self._new()} int"]


# --- the oracle ---


def touch(dsn: str) -> None:
    """A row event of every table: without the trigger the stream shows a table's columns only with its next row."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in captured_tables(connection):
            statement = sql.SQL("INSERT INTO public.{} (id) SELECT coalesce(max(id), 0) + 1 FROM public.{}")
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(name)))


def settle(capture: RunningCapture) -> None:
    """Take up tables that came under a name again, until every table has a complete topic."""
    site = capture.site

    def settled() -> bool:
        site.init()
        capture.catch_up()
        with connect(Address.of(site.settings), "settle") as connection:
            names = {("public", name) for name in captured_tables(connection)}
        return names == {table.label for table in complete(capture)}

    wait_until(settled, alive=lambda: capture.running)


def complete(capture: RunningCapture) -> dict[Table, TopicId]:
    """Tables that there are, with the complete topic each of them feeds."""
    topics = Topics.read(capture.store, SOURCE)
    address = Address.of(capture.site.settings)
    with connect(address, "oracle") as connection:
        tables = read_tables(connection, address, list(topics.schemas))
    fed = {table: topics.schemas[table.relid][0] for table in tables}
    return {table: topic for table, topic in fed.items() if topic not in topics.incomplete}


def assert_equals_locked_source(capture: RunningCapture) -> None:
    """Every topic equals its table, read under a lock that keeps everybody from writing and altering it."""
    with connect(Address.of(capture.site.settings), "oracle") as connection, connection.transaction():
        for name in captured_tables(connection):
            connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier("public", name)))
        names = {("public", name) for name in captured_tables(connection)}
        capture.catch_up()
        wait_until(lambda: {table.label for table in complete(capture)} == names)
        for table, topic in complete(capture).items():
            expected, found = source_rows(connection, table), log_rows(capture.store, topic)
            assert found[0] == expected[0], f"{topic} has {found[0]}, {table.text} {expected[0]}"
            assert found[1] == expected[1], _difference(topic, table, found, expected)


Rows = tuple[list[str], list[tuple[str | None, ...]]]
"""Names of columns, and the rows in order."""


def _difference(topic: TopicId, table: Table, found: Rows, expected: Rows) -> str:
    log, source = set(found[1]), set(expected[1])
    return (
        f"{topic} has other rows than {table.text}, with columns {', '.join(found[0])}: "
        f"{len(found[1])} and {len(expected[1])} rows;\nonly the log has {sorted(log - source, key=repr)[:5]}"
        f"\nonly the source has {sorted(source - log, key=repr)[:5]}"
    )


def source_rows(connection: Connection, table: Table) -> Rows:
    names = [column.name for column in table.columns]
    cells = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
    found = connection.execute(sql.SQL("SELECT {} FROM {}").format(cells, sql.Identifier(*table.label)))
    return names, sorted(found.fetchall(), key=repr)  # type: ignore[arg-type]


def log_rows(store: Store, topic: TopicId) -> Rows:
    names: list[str] = []
    rows: list[tuple[str | None, ...]] = []
    for table in state(store, topic, store.cut(), on_unreadable="text"):
        names = [name for name in table.column_names if not name.startswith("_")]
        rows += zip(*(table[name].to_pylist() for name in names), strict=True)
    return names, sorted(rows, key=repr)
