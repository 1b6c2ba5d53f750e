"""Postgres is the oracle: random values of each type go through its output function, into Arrow, and back.

A value that fits, given back to the server as a parameter, prints the same text again; one that does not is reported,
and only for the reasons that are known. Texts are those of the output functions (COPY and pgoutput send them), not of
a cast to text, which differs for boolean and character(n). The seed is in the test's name.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.pq import Format

from tailrace.cdc.columnar.values import convert
from tailrace.embedded import PostgresServer
from tailrace.eventstore.model.schema import Column, arrow_type
from tests.fixtures.scale import Scale

Random = random.Random
Make = Callable[[Random], str]

SESSION = (
    "-c DateStyle=ISO -c TimeZone=UTC -c extra_float_digits=3 -c bytea_output=hex -c IntervalStyle=postgres"
    " -c client_encoding=UTF8"
)
DAYS = ["infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "0001-01-01", "9999-12-31", "10000-01-01",
        "1969-12-31", "1970-01-01", "2000-02-29"]  # fmt: skip
ALPHABET = "ab ,{}\"\\\t\n'NUL0-äß€漢😀\u0301\u200b"


def integer(bits: int) -> Make:
    edges = [0, -1, 1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]

    def make(rng: Random) -> str:
        return str(rng.choice([*edges, rng.getrandbits(rng.randint(1, bits - 1)) * rng.choice([1, -1])]))

    return make


def floating(code: str) -> Make:
    size = struct.calcsize(code)

    def make(rng: Random) -> str:
        if rng.random() < 0.3:
            return rng.choice(["NaN", "Infinity", "-Infinity", "-0", "0", "0.1", "1e-30", "123456.789"])
        return repr(struct.unpack(code, rng.randbytes(size))[0]).replace("inf", "Infinity")

    return make


def decimal(precision: int, scale: int) -> Make:
    def make(rng: Random) -> str:
        if rng.random() < 0.05:
            return "NaN"
        digits = str(rng.getrandbits(rng.randint(1, 125)))[-precision:].rjust(scale + 1, "0")
        sign = rng.choice(["", "-"])
        return sign + digits[: len(digits) - scale] + ("." + digits[len(digits) - scale :] if scale else "")

    return make


def text(length: int) -> Make:
    return lambda rng: "".join(
        rng.choice(ALPHABET) for _ in range(rng.choice([0, 1, 2, rng.randint(0, length)]))
    )


def hex_bytes(rng: Random) -> str:
    return "\\x" + rng.randbytes(rng.choice([0, 1, 3, 40])).hex()


def day(rng: Random) -> str:
    if rng.random() < 0.3:
        return rng.choice([*DAYS, "5874897-12-31"])
    return f"{rng.randint(1, 9999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def clock(rng: Random) -> str:
    if rng.random() < 0.2:
        return rng.choice(["24:00:00", "00:00:00", "23:59:59.999999"])
    fraction = f".{rng.randint(0, 999_999):06}"[: rng.choice([0, 2, 4, 7])]
    return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}{fraction}"


def moment(rng: Random) -> str:
    if rng.random() < 0.2:
        return rng.choice(["infinity", "-infinity", "294276-12-31 23:59:59.999999", "4713-01-01 00:00:00 BC"])
    year = rng.choice(["0001", "0044", "1969", "2026", "9999", "12026"])
    era = rng.choice(["", "", "", " BC"]) if year == "0044" else ""
    return f"{year}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} {clock(rng)}{era}"


def choice(*options: str) -> Make:
    return lambda rng: rng.choice(options)


def array(element: Make) -> Make:
    """An array literal; sometimes with several dimensions or bounds of its own."""

    def one(rng: Random) -> str:
        if rng.random() < 0.15:
            return "NULL"
        return '"' + element(rng).replace("\\", "\\\\").replace('"', '\\"') + '"'

    def make(rng: Random) -> str:
        count = rng.choice([0, 1, 1, 2, 3, 7])
        flat = "{" + ",".join(one(rng) for _ in range(count)) + "}"
        if rng.random() < 0.05 and count:
            return f"{{{flat},{flat}}}"
        if rng.random() < 0.05 and count:
            return f"[0:{count - 1}]={flat}"
        return flat

    return make


SCALARS: dict[str, Make] = {
    "boolean": choice("t", "f"),
    "smallint": integer(16),
    "integer": integer(32),
    "bigint": integer(64),
    "real": floating(">f"),
    "double precision": floating(">d"),
    "numeric(12,2)": decimal(12, 2),
    "numeric(5,0)": decimal(5, 0),
    "numeric(38,10)": decimal(38, 10),
    "numeric(38,38)": decimal(38, 38),
    "text": text(200),
    "varchar(20)": text(20),
    "char(10)": text(10),
    "name": text(10),
    '"char"': choice("a", "", " ", "\\", '"'),
    "bytea": hex_bytes,
    "date": day,
    "time": clock,
    "timestamp": moment,
    "timestamptz": moment,
}
TEXTUAL: dict[str, Make] = {
    "numeric": choice("NaN", "Infinity", "-0.00", "1e100", "1.50", "0.1"),
    "numeric(5,-2)": choice("12300", "-9900"),
    "uuid": choice("0b7f0b7f-0b7f-0b7f-0b7f-0b7f0b7f0b7f"),
    "jsonb": choice("{}", '{"b": 1, "a": [null, "ä"]}', "null"),
    "json": choice('{"b" : 1,"b":2}', "1e2"),
    "interval": choice("1 year 2 mons -3 days 04:05:06.7", "infinity"),
    "timetz": choice("24:00:00+00", "01:02:03.4+05:30"),
    "int4range": choice("empty", "[1,5)"),
    "inet": choice("10.0.0.1/8", "::1"),
    "bit(3)": choice("101"),
    "point": choice("(1,2.5)"),
    "oid": choice("4294967295"),
    "uuid[]": choice("{0b7f0b7f-0b7f-0b7f-0b7f-0b7f0b7f0b7f,NULL}"),
}

# Why a value may not fit. A reason that is not here is a lost value.
NO_PLACE = re.compile(rb"infinity|BC|\b[0-9]{5,}-[0-9]{2}-[0-9]{2}|24:00:00|NaN|^\[[0-9]+:[0-9]+\]=|^\{\{")


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """Nothing is written: the server's own database serves all these tests."""
    with psycopg.connect(postgres.dsn(), autocommit=True, options=SESSION) as connection:
        yield connection


def output(
    server: psycopg.Connection[Any], type_name: str, values: list[Any]
) -> tuple[list[bytes | None], int, int]:
    """What the type's output function prints for each value; the type's oid and typmod."""
    query = "VALUES " + ",".join([f"(%s::{type_name})"] * len(values))
    cursor = server.execute(query.encode(), values)
    result = cursor.pgresult
    assert result is not None
    assert result.fformat(0) == Format.TEXT
    texts = [result.get_value(row, 0) for row in range(result.ntuples)]
    return texts, result.ftype(0), result.fmod(0)


def check_type(server: psycopg.Connection[Any], type_name: str, make: Make, seed: int, count: int) -> int:
    rng = Random(f"{type_name} {seed}")
    texts, oid, typmod = output(server, type_name, [None, *(make(rng) for _ in range(count))])
    column = Column(1, "x", oid, typmod)
    typed, unfit = convert(pa.array(texts, pa.binary()), column)
    typed.validate(full=True)
    kept = set(unfit or ())
    for row, (text, value) in enumerate(zip(texts, typed, strict=True)):
        assert value.is_valid == (text is not None and row not in kept), text
        if row in kept:
            assert text is not None
            assert NO_PLACE.search(text), text
    fitting = [row for row in range(len(texts)) if row not in kept]
    values = typed.to_pylist()
    back, _, _ = output(server, type_name, [values[row] for row in fitting])
    assert back == [texts[row] for row in fitting]
    return len(fitting)


@pytest.mark.parametrize("seed", [20_261_121])
@pytest.mark.parametrize("type_name", SCALARS)
def test_values_come_back_as_they_were(
    server: psycopg.Connection[Any], scale: Scale, type_name: str, seed: int
) -> None:
    count = scale.pick(smoke=300, full=20_000)
    for part in range(0, count, 2000):
        size = min(count, 2000)
        assert check_type(server, type_name, SCALARS[type_name], seed + part, size) > size * 0.4
    is_text = arrow_type(*output(server, type_name, [None])[1:]) == pa.string()
    assert is_text == (type_name in ("text", "varchar(20)", "char(10)", "name", '"char"'))


@pytest.mark.parametrize("seed", [20_261_121])
@pytest.mark.parametrize("type_name", SCALARS)
def test_arrays_come_back_as_they_were(
    server: psycopg.Connection[Any], scale: Scale, type_name: str, seed: int
) -> None:
    count = scale.pick(smoke=200, full=10_000)
    for part in range(0, count, 1000):
        size = min(count, 1000)
        assert check_type(server, f"{type_name}[]", array(SCALARS[type_name]), seed + part, size) > size * 0.2
    assert pa.types.is_list(arrow_type(*output(server, f"{type_name}[]", [None])[1:]))


@pytest.mark.parametrize("type_name", TEXTUAL)
def test_types_without_an_arrow_twin_are_kept_as_text(
    server: psycopg.Connection[Any], type_name: str
) -> None:
    check_type(server, type_name, TEXTUAL[type_name], 1, 20)
    assert arrow_type(*output(server, type_name, [None])[1:]) == pa.string()
