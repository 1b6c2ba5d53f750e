"""A seeded random workload on a real Postgres: every kind of change, awkward names and values, several sessions."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from tests.support.background import in_background

SCHEMA = """
CREATE SCHEMA IF NOT EXISTS "Größe.X";
CREATE TABLE public.customers (
  id int PRIMARY KEY, name text NOT NULL, balance numeric(12,2), joined timestamptz, tags text[], note text);
CREATE TABLE public.orders (
  customer_id int, number bigint, amount numeric, placed date, data jsonb, PRIMARY KEY (customer_id, number));
CREATE TABLE "Größe.X"."Tab ""le" (
  "Schlüssel" text PRIMARY KEY, "Wert 1" double precision, flag boolean, raw bytea, at time, span interval);
CREATE TABLE public.full_identity (id int PRIMARY KEY, body text, n int);
ALTER TABLE public.full_identity REPLICA IDENTITY FULL;
CREATE TABLE public.by_index (a int NOT NULL, b text NOT NULL, c text);
CREATE UNIQUE INDEX by_index_key ON public.by_index (b, a);
ALTER TABLE public.by_index REPLICA IDENTITY USING INDEX by_index_key;
"""
"""Five tables: typed and untyped columns, two-column keys, identity default, full and by index."""

PATTERNS = ("public.*", '"Größe.X".*')
TABLES = (
    ("public", "customers"),
    ("public", "orders"),
    ("Größe.X", 'Tab "le'),
    ("public", "full_identity"),
    ("public", "by_index"),
)
LONG = 4000  # random text of this length is TOASTed out of line once a row exceeds 2 kB

Connection = psycopg.Connection[tuple[object, ...]]


def create_tables(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(SCHEMA))


@dataclass
class Writer:
    """One session of the workload. Each call of ``transaction`` is one transaction of 1 to 8 changes, or an abort."""

    dsn: str
    seed: int
    key_space: int = 200
    truncates: bool = True
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def transaction(self, connection: Connection) -> None:
        try:
            with connection.transaction() as transaction:
                for _ in range(self.random.randint(1, 8)):
                    if self.random.random() < 0.1:
                        self._in_savepoint(connection)
                    else:
                        self._change(connection)
                if self.random.random() < 0.05:
                    raise psycopg.Rollback(transaction)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            pass  # the whole transaction is gone, as if it had not been

    def _in_savepoint(self, connection: Connection) -> None:
        with connection.transaction() as inner:
            self._change(connection)
            if self.random.random() < 0.5:
                raise psycopg.Rollback(inner)

    def _change(self, connection: Connection) -> None:
        pick = self.random.random()
        if pick < 0.03:
            self._message(connection)
        elif pick < 0.035 and self.truncates:
            connection.execute("TRUNCATE public.by_index, public.full_identity")
        else:
            self.random.choice(
                [self._customer, self._order, self._odd_names, self._full_identity, self._by_index]
            )(connection)

    def _message(self, connection: Connection) -> None:
        connection.execute(
            "SELECT pg_logical_emit_message(%s, 'audit', %s::text)",
            [self.random.random() < 0.8, self._text(50)],
        )

    def _key(self) -> int:
        return self.random.randrange(self.key_space)

    def _text(self, length: int) -> str:
        return "".join(self.random.choices("abcdefghij ÄÖü€𝄞'\"\\\n,{}", k=length))

    def _customer(self, connection: Connection) -> None:
        action = self.random.choice(["insert", "update", "touch", "rekey", "delete"])
        key = self._key()
        if action == "insert":
            connection.execute(
                "INSERT INTO public.customers VALUES (%s, %s, %s, now(), %s, %s) ON CONFLICT (id) DO UPDATE"
                " SET name = excluded.name, note = excluded.note",
                [key, self._text(10), self.random.choice([None, "NaN", "12.50", "-0.01"]),
                 self.random.choice([None, [], ["a", 'b"c', "d,e"]]), self._text(self.random.choice([5, LONG]))],
            )  # fmt: skip
        elif action == "update":
            connection.execute(
                "UPDATE public.customers SET name = %s, joined = 'infinity' WHERE id = %s",
                [self._text(8), key],
            )
        elif action == "touch":  # the long note stays as it is and is not sent
            connection.execute("UPDATE public.customers SET balance = balance + 1 WHERE id = %s", [key])
        elif action == "rekey":
            connection.execute("UPDATE public.customers SET id = %s WHERE id = %s", [self._key(), key])
        else:
            connection.execute("DELETE FROM public.customers WHERE id = %s", [key])

    def _order(self, connection: Connection) -> None:
        customer, number = self._key() % 20, self.random.randrange(1 << 40)
        if self.random.random() < 0.6:
            connection.execute(
                "INSERT INTO public.orders VALUES (%s, %s, %s, %s, %s)",
                [customer, number, str(self.random.uniform(-1e9, 1e9)),
                 self.random.choice([None, "2026-02-28", "0044-03-15 BC", "infinity"]),
                 self.random.choice(['{"a": [1, null]}', '"x"', "null"])],
            )  # fmt: skip
        elif self.random.random() < 0.5:
            connection.execute(
                "UPDATE public.orders SET amount = amount * 2 WHERE (customer_id, number) IN"
                " (SELECT customer_id, number FROM public.orders WHERE customer_id = %s ORDER BY number LIMIT 3)",
                [customer],
            )
        else:
            connection.execute(
                "DELETE FROM public.orders WHERE customer_id = %s AND number %% 3 = 0", [customer]
            )

    def _odd_names(self, connection: Connection) -> None:
        key = f"ключ {self._key()}"
        if self.random.random() < 0.7:
            connection.execute(
                'INSERT INTO "Größe.X"."Tab ""le" VALUES (%s, %s, %s, %s, %s, %s)'
                ' ON CONFLICT ("Schlüssel") DO UPDATE SET "Wert 1" = excluded."Wert 1", raw = excluded.raw',
                [key, self.random.choice([None, 0.1, -0.0, 1e300, float("nan"), float("-inf")]),
                 self.random.choice([None, True, False]), self.random.randbytes(self.random.choice([0, 9])),
                 self.random.choice([None, "24:00:00", "23:59:59.999999"]),
                 self.random.choice([None, "1 year 2 mons -3 days 04:05:06.7"])],
            )  # fmt: skip
        else:
            connection.execute('DELETE FROM "Größe.X"."Tab ""le" WHERE "Schlüssel" = %s', [key])

    def _full_identity(self, connection: Connection) -> None:
        key = self._key()
        pick = self.random.random()
        if pick < 0.5:
            connection.execute(
                "INSERT INTO public.full_identity VALUES (%s, %s, 0) ON CONFLICT (id) DO UPDATE SET n = 1",
                [key, self._text(LONG)],
            )
        elif pick < 0.8:
            connection.execute("UPDATE public.full_identity SET n = n + 1 WHERE id = %s", [key])
        elif pick < 0.9:
            connection.execute("UPDATE public.full_identity SET id = %s WHERE id = %s", [self._key(), key])
        else:
            connection.execute("DELETE FROM public.full_identity WHERE id = %s", [key])

    def _by_index(self, connection: Connection) -> None:
        a, b = self._key(), str(self._key() % 7)
        pick = self.random.random()
        if pick < 0.5:
            connection.execute(
                "INSERT INTO public.by_index VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
                [a, b, self._text(9)],
            )
        elif pick < 0.8:
            connection.execute(
                "UPDATE public.by_index SET c = %s WHERE a = %s AND b = %s", [self._text(3), a, b]
            )
        else:
            connection.execute("DELETE FROM public.by_index WHERE a = %s", [a])


def write(dsn: str, seed: int, transactions: int, **options: int | bool) -> None:
    """Run some transactions in one session."""
    writer = Writer(dsn, seed, **options)  # type: ignore[arg-type]
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(transactions):
            writer.transaction(connection)


@contextmanager
def writing(
    dsn: str, seed: int, sessions: int = 2, pause: float = 0.0, **options: int | bool
) -> Iterator[None]:
    """Sessions that write until the block ends; what one of them raised is raised then."""

    def work(number: int, stop: threading.Event) -> None:
        writer = Writer(dsn, seed * 1000 + number, **options)  # type: ignore[arg-type]
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                writer.transaction(connection)
                stop.wait(pause)

    with in_background(work, sessions):
        yield
