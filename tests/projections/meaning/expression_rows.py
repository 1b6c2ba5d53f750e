"""A table with two columns of every type that random expressions use, filled with edges and random values."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import psycopg
from psycopg import sql

ROWS = 32
_CREATED = "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'Happy')"
_LETTERS = "abcXYZ  019_-.,%\\'\"äÖßñ日€😀\n\t"

EDGES: dict[str, Sequence[str]] = {
    "bool": ("t", "f"),
    "int2": ("0", "1", "-1", "7", "32767", "-32768"),
    "int4": ("0", "1", "-1", "2", "3", "10", "-7", "2147483647", "-2147483648"),
    "int8": ("0", "1", "-1", "9223372036854775807", "-9223372036854775808", "2147483648", "12345678901"),
    "float4": ("0", "-0", "0.5", "1.5", "2.5", "-2.5", "1.1", "1e10", "1e-5", "1e38", "NaN", "Infinity", "-Infinity"),
    "float8": ("0", "-0", "0.5", "1.5", "2.5", "-2.5", "1.1", "-3.7", "1e15", "1e16", "1e-5", "1e300", "NaN",
               "Infinity", "-Infinity", "123456.789"),
    "numeric(12,2)": ("0", "1", "-1", "0.5", "-0.5", "2.50", "1.25", "99.99", "9999999999.99", "-9999999999.99"),
    "numeric(20,6)": ("0", "1", "0.000001", "-1.234567", "2.5", "99999999999999.999999", "123.456"),
    "text": ("", "a", "A", "abc", "Hello World", " a b ", "xyx", "ÄÖü ß ñ", "a\nb", "a_b%", "\\", "123", "-1.50",
             "true", "日本語", "a.b.c", "o'neil-SMITH x2y 3rd", "x" * 300, "😀z", "2024-02-29", "10:30", "[1, 2]", "t"),
    "varchar(10)": ("", "a", "a ", "Abc", "ÄÖü", "0"),
    "char(5)": ("", "a", "abc", "ÄÖ", "abcde"),
    "date": ("2026-01-01", "1969-12-31", "0400-01-01", "9999-12-31", "2000-02-29", "2024-12-30", "2021-01-03",
             "2026-03-31", "1582-10-10", "1900-12-31"),
    "time": ("00:00", "23:59:59.999999", "12:30", "01:02:03.5"),
    "timestamp": ("2026-01-01 00:00", "1969-12-31 23:59:59.5", "0400-01-01", "9999-12-31 23:59:59.999999",
                  "2000-02-29 12:34:56.789012", "2024-12-30 06:07:06.879877", "1883-11-18 12:03:58",
                  "2026-03-29 02:30"),
    "timestamptz": ("2026-01-01 00:00+00", "1969-12-31 23:59:59.5+00", "2000-02-29 12:34:56.789012+00",
                    "2024-12-30 06:07:08+00", "2026-03-29 01:30+00", "1500-03-01 00:00+00", "9999-12-30 00:00+00"),
    "bytea": ("", r"\x00", r"\xff80", r"\x61", r"\x616263"),
    "int4[]": ("{}", "{1}", "{3,1,2}", "{1,NULL}", "{NULL}", "{5,5}"),
    "text[]": ("{}", "{a}", "{a,b}", "{b,NULL}", '{"a b","c,d"}', '{""}'),
    "uuid": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000",
             "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "mood": ("sad", "ok", "happy", "Happy"),
    "jsonb": ('{"a": 1, "b": {"c": [1, 2.50, "x"]}}', "[]", "10", "9.0", '"x"', "null", '{"a": null}'),
    "interval": ("1 mon", "30 days", "-1 day", "00:00:00.5"),
    "numeric": ("1.0", "1.00", "10", "9", "-2", "0.10"),
    "inet": ("10.0.0.1", "9.0.0.0/8", "::1"),
}  # fmt: skip
COLUMNS = {
    "bool": ("b1", "b2"), "int2": ("s1", "s2"), "int4": ("i1", "i2"), "int8": ("l1", "l2"), "float4": ("r1", "r2"),
    "float8": ("f1", "f2"), "numeric(12,2)": ("n1", "n2"), "numeric(20,6)": ("m1", "m2"), "text": ("t1", "t2"),
    "varchar(10)": ("v1", "v2"), "char(5)": ("c1", "c2"), "date": ("d1", "d2"), "time": ("h1", "h2"),
    "timestamp": ("p1", "p2"), "timestamptz": ("z1", "z2"), "bytea": ("y1", "y2"), "int4[]": ("ia1", "ia2"),
    "text[]": ("ta1", "ta2"), "uuid": ("u1", "u2"), "mood": ("e1", "e2"), "jsonb": ("j1", "j2"),
    "interval": ("iv1", "iv2"), "numeric": ("nb1", "nb2"), "inet": ("a1", "a2"),
}  # fmt: skip
"""The names of the columns of a type."""


def _number(low: int, high: int, scale: int = 0) -> Callable[[random.Random], str]:
    return lambda rng: (
        f"{rng.randint(low, high)}" + (f".{rng.randrange(10**scale):0{scale}}" if scale else "")
    )


_RANDOM: dict[str, Callable[[random.Random], str]] = {
    "int2": _number(-40, 40),
    "int4": _number(-1000, 1000),
    "int8": _number(-(10**12), 10**12),
    "float4": lambda rng: f"{rng.uniform(-1000, 1000):.3f}",
    "float8": lambda rng: repr(rng.uniform(-1e4, 1e4)),
    "numeric(12,2)": _number(-1000, 1000, 2),
    "numeric(20,6)": _number(-100_000, 100_000, 6),
    "text": lambda rng: "".join(rng.choices(_LETTERS, k=rng.randrange(12))),
    "date": lambda rng: f"{rng.randint(1900, 2100)}-{rng.randint(1, 12)}-{rng.randint(1, 28)}",
    "timestamp": lambda rng: (
        f"{rng.randint(1900, 2100)}-{rng.randint(1, 12)}-{rng.randint(1, 28)} {rng.randrange(24)}:{rng.randrange(60)}"
        f":{rng.randrange(60)}.{rng.randrange(10**6):06}"
    ),
    "timestamptz": lambda rng: f"{rng.randint(1900, 2100)}-03-{rng.randint(1, 28)} {rng.randrange(24)}:30+00",
}


def fill_rows(dsn: str, seed: int) -> None:
    """The table ``x``: edges first, then random values; one in eight is NULL."""
    rng = random.Random(seed)
    names = [(name, kind) for kind, names in COLUMNS.items() for name in names]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_CREATED.encode())
        declared = ", ".join(f"{name} {kind}" for name, kind in names)
        connection.execute(f"CREATE TABLE x (id bigint PRIMARY KEY, {declared})".encode())
        places = ", ".join(f"%s::text::{kind}" for _, kind in names)
        for row in range(ROWS):
            values = [value(rng, kind) for _, kind in names]
            connection.execute(sql.SQL(f"INSERT INTO x VALUES ({row}, {places})"), values)  # noqa: S608


def value(rng: random.Random, kind: str) -> str | None:
    """The text of one value; None is NULL."""
    if not rng.randrange(8):
        return None
    make = _RANDOM.get(kind)
    return make(rng) if make and rng.random() < 0.4 else rng.choice(EDGES[kind])
