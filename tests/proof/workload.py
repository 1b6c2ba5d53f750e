"""A seeded random workload over tables of every shape: what a source does to us when nobody is looking."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

SCHEMA = """
CREATE SCHEMA "Vente é";
CREATE TYPE public.mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE public.account (
    id bigint PRIMARY KEY, name text NOT NULL, balance numeric(12,2), note text, at timestamptz DEFAULT now());
CREATE TABLE "Vente é"."Com ""mande"".x" (
    region text, no int, payload jsonb, price float8, tags text[], due date, "Größe" smallint,
    PRIMARY KEY (region, no));
CREATE TABLE public.whole (id int PRIMARY KEY, big text, v int);
ALTER TABLE public.whole REPLICA IDENTITY FULL;
CREATE TABLE public.zoo (
    id int PRIMARY KEY, b bool, i2 int2, r real, n numeric, u uuid, raw bytea, iv interval, ts timestamp,
    t time, d date, ip inet, rng int4range, m public.mood, fl float8, arr int[], dec numeric(30,10));
CREATE TABLE public.by_index (code text NOT NULL, v int, pad text);
CREATE UNIQUE INDEX by_index_code ON public.by_index (code);
ALTER TABLE public.by_index REPLICA IDENTITY USING INDEX by_index_code;
ALTER TABLE public.account ALTER note SET STORAGE EXTERNAL;
ALTER TABLE public.whole ALTER big SET STORAGE EXTERNAL;
"""

TABLES = ("public.*", "Vente é.*")
NAMES: dict[tuple[str, str], tuple[str, ...]] = {
    ("public", "account"): ("id",),
    ("Vente é", 'Com "mande".x'): ("region", "no"),
    ("public", "whole"): ("id",),
    ("public", "zoo"): ("id",),
    ("public", "by_index"): ("code",),
}

Step = Callable[[psycopg.Cursor[Any], random.Random], None]


def _large(rng: random.Random) -> str:
    """Long enough to be TOASTed."""
    return f"{rng.random()} " * rng.randrange(150, 600)


def _account(cursor: psycopg.Cursor[Any], rng: random.Random) -> None:
    key = rng.randrange(40)
    match rng.randrange(6):
        case 0 | 1:
            note = rng.choice([None, "", "plain", _large(rng)])
            cursor.execute(
                "INSERT INTO public.account (id, name, balance, note) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (id) DO UPDATE SET balance = excluded.balance",
                (key, rng.choice(["Ann", "Bö\tb", "C\\N", "d'Arc\n"]), rng.randrange(10**6) / 100, note),
            )
        case 2:  # leaves a TOASTed note untouched
            cursor.execute("UPDATE public.account SET balance = balance + 1 WHERE id = %s", (key,))
        case 3:  # moves a key, with a note that is not sent again
            cursor.execute(
                "UPDATE public.account SET id = %s WHERE id = %s AND NOT EXISTS"
                " (SELECT FROM public.account WHERE id = %s)",
                (key + 100, key, key + 100),
            )
        case 4:
            cursor.execute("UPDATE public.account SET note = %s WHERE id = %s", (_large(rng), key + 100))
        case _:
            cursor.execute("DELETE FROM public.account WHERE id IN (%s, %s)", (key, key + 100))


def _order(cursor: psycopg.Cursor[Any], rng: random.Random) -> None:
    table = sql.Identifier("Vente é", 'Com "mande".x')
    key = (rng.choice(["nord", "sud", "", "l'été"]), rng.randrange(15))
    match rng.randrange(4):
        case 0 | 1:
            price = rng.choice([0.1, -0.0, 1e300, float("nan"), float("inf"), rng.random()])
            tags = rng.choice([None, [], ["a", None, 'q"uote'], ["{", "NULL", ""]])
            cursor.execute(
                sql.SQL(
                    "INSERT INTO {} VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (region, no) DO UPDATE"
                    " SET payload = excluded.payload, price = excluded.price, tags = excluded.tags"
                ).format(table),
                (*key, '{"k": [1, "ü"]}', price, tags, rng.choice(["2026-01-31", "infinity", None]), 3),
            )
        case 2:
            cursor.execute(
                sql.SQL('UPDATE {} SET "Größe" = no, due = NULL WHERE region = %s').format(table), key[:1]
            )
        case _:
            cursor.execute(sql.SQL("DELETE FROM {} WHERE region = %s AND no = %s").format(table), key)


def _whole(cursor: psycopg.Cursor[Any], rng: random.Random) -> None:
    key = rng.randrange(20)
    match rng.randrange(5):
        case 0 | 1:
            cursor.execute(
                "INSERT INTO public.whole VALUES (%s, %s, 0) ON CONFLICT (id) DO UPDATE SET v = public.whole.v + 1",
                (key, _large(rng)),
            )
        case 2:
            cursor.execute("UPDATE public.whole SET v = v + 1 WHERE id >= %s", (key,))
        case 3:
            cursor.execute(
                "UPDATE public.whole SET id = id + 1000 WHERE id = %s"
                " AND NOT EXISTS (SELECT FROM public.whole w WHERE w.id = %s)",
                (key, key + 1000),
            )
        case _:
            cursor.execute("DELETE FROM public.whole WHERE id IN (%s, %s)", (key, key + 1000))


def _zoo(cursor: psycopg.Cursor[Any], rng: random.Random) -> None:
    key = rng.randrange(25)
    if rng.random() < 0.2:
        cursor.execute("DELETE FROM public.zoo WHERE id = %s", (key,))
        return
    cursor.execute(
        "INSERT INTO public.zoo VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
        " ON CONFLICT (id) DO UPDATE SET n = excluded.n, raw = excluded.raw, ts = excluded.ts, fl = excluded.fl,"
        " t = excluded.t, d = excluded.d, dec = excluded.dec, arr = excluded.arr, m = excluded.m",
        (
            key,
            rng.choice([True, False, None]),
            rng.randrange(-(2**15), 2**15),
            rng.choice(["1.1", "NaN", "-0", "3e38"]),
            rng.choice(["NaN", "Infinity", "0.000", "1" * 60, "-1.50", None]),
            f"00000000-0000-0000-0000-{rng.randrange(10**12):012d}",
            rng.randbytes(rng.choice([0, 3, 5000])),
            rng.choice(["1 mon -2 days", "-00:00:00.5", None]),
            rng.choice(["2026-02-28 23:59:59.999999", "infinity", "0044-03-15 12:00 BC", "294276-12-31"]),
            rng.choice(["00:00", "24:00:00", "12:34:56.7"]),
            rng.choice(["1999-12-31", "-infinity", "5874897-12-31", None]),
            rng.choice(["10.0.0.1/8", "::1", None]),
            rng.choice(["[1,5)", "empty", "(,)"]),
            rng.choice(["sad", "ok", "happy", None]),
            rng.choice([0.1, 1e-300, float("-inf"), 2.0**53 + 1]),
            rng.choice([None, [], [1, None, 3], [[1, 2], [3, 4]]]),
            rng.choice(["12345678901234567890.0123456789", "-0.0000000001", "NaN", None]),
        ),
    )


def _by_index(cursor: psycopg.Cursor[Any], rng: random.Random) -> None:
    code = rng.choice("abcdefgh")
    match rng.randrange(4):
        case 0 | 1:
            cursor.execute(
                "INSERT INTO public.by_index VALUES (%s, %s, %s) ON CONFLICT (code) DO UPDATE SET v = excluded.v",
                (code, rng.randrange(100), _large(rng) if rng.random() < 0.3 else "p"),
            )
        case 2:
            cursor.execute("UPDATE public.by_index SET v = v + 1 WHERE code < %s", (code,))
        case _:
            cursor.execute("DELETE FROM public.by_index WHERE code = %s", (code,))


def _rare(cursor: psycopg.Cursor[Any], rng: random.Random) -> None:
    match rng.randrange(4):
        case 0:
            cursor.execute("TRUNCATE public.whole, public.by_index")
        case 1:
            cursor.execute("SELECT pg_logical_emit_message(true, 'proof', %s)", (f"m{rng.random()}",))
        case 2:
            cursor.execute("TRUNCATE public.zoo")
        case _:
            cursor.execute("UPDATE public.account SET note = note || 'x'")


@dataclass
class Workload:
    """Transactions chosen by ``seed``: commits, rollbacks, savepoints undone. One connection, so it is repeatable."""

    dsn: str
    seed: int

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def run(self, transactions: int) -> None:
        steps: list[Step] = [_account, _account, _order, _whole, _zoo, _by_index]
        with psycopg.connect(self.dsn) as connection:
            for _ in range(transactions):
                self._transaction(connection, steps)

    def _transaction(self, connection: psycopg.Connection[Any], steps: list[Step]) -> None:
        rng = self._rng
        with connection.transaction(force_rollback=rng.random() < 0.1), connection.cursor() as cursor:
            for _ in range(rng.randrange(1, 6)):
                step = _rare if rng.random() < 0.01 else rng.choice(steps)
                with connection.transaction(force_rollback=rng.random() < 0.1):
                    step(cursor, rng)
