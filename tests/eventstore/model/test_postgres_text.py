"""Typed cells as text are exactly what a real Postgres prints for them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql

from tailrace.eventstore.model.postgres_text import float_text, postgres_texts

DAYS = st.dates(date(1, 1, 1), date(9999, 12, 31))
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 - timestamp without time zone
PLAIN = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=6)
ODD = st.sampled_from(["null", "a b", '"', "\\", "{}", ""])
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "smallint": (pa.int16(), st.integers(-(1 << 15), (1 << 15) - 1)),
    "bigint": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "real": (pa.float32(), st.floats(width=32)),
    "double precision": (pa.float64(), st.floats()),
    "numeric(20,7)": (pa.decimal128(20, 7), st.decimals(-(10**12), 10**12, places=7)),
    "bytea": (pa.binary(), st.binary(max_size=6)),
    "date": (pa.date32(), DAYS),
    "time": (pa.time64("us"), st.times()),
    "timestamp": (pa.timestamp("us"), MOMENTS),
    "timestamptz": (pa.timestamp("us", "UTC"), MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))),
    "text": (pa.string(), PLAIN),
    "text[]": (pa.list_(pa.string()), st.lists(st.none() | PLAIN | ODD, max_size=3)),
    "double precision[]": (pa.list_(pa.float64()), st.lists(st.none() | st.floats(), max_size=3)),
}


@pytest.fixture(scope="module")
def connection(postgres: Any) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET bytea_output = 'hex'")
        yield connection


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=30)
@given(data=st.data())
def test_texts_are_those_of_postgres(
    connection: psycopg.Connection[Any], kind: str, data: st.DataObject
) -> None:
    arrow, values = TYPES[kind]
    cells = data.draw(st.lists(st.none() | values, min_size=1, max_size=20))
    # format() calls the type's output function; a cast to text would print booleans in another way.
    query = "SELECT CASE WHEN x IS NOT NULL THEN format('%%s', x) END FROM (SELECT %s::{} AS x) t"
    statement = sql.SQL(query).format(sql.SQL(kind))
    printed = [connection.execute(statement, [cell]).fetchone() for cell in cells]
    assert [(text,) for text in postgres_texts(pa.array(cells, arrow)).to_pylist()] == printed


@pytest.mark.parametrize("kind", ["real", "double precision"])
def test_digits_of_large_floats_are_those_of_postgres(connection: psycopg.Connection[Any], kind: str) -> None:
    single = kind == "real"
    values = [float(5**power * 2**shift) for power in range(10, 26) for shift in range(0, 60, 3)]
    values = [float(np.float32(value)) if single else value for value in values]
    values += [4.1965269646720784e16, 9007199254740993.0, 1e22, 1e23, -5.2063631643954464e16]
    statement = sql.SQL("SELECT (%s::{}[])::text[]").format(sql.SQL(kind))
    row = connection.execute(statement, [values]).fetchone()
    assert row == ([float_text(value, single=single) for value in values],)


@given(st.floats(allow_nan=False))
def test_a_double_reads_back_as_itself(value: float) -> None:
    assert float(float_text(value)) == value


def test_decimals_keep_their_scale() -> None:
    cells = pa.array([Decimal("0.0000000"), Decimal("-1.5"), None], pa.decimal128(20, 7))
    assert postgres_texts(cells).to_pylist() == ["0.0000000", "-1.5000000", None]


def test_times_lose_no_digit() -> None:
    assert postgres_texts(pa.array([time(1, 2, 3, 40), time(10)])).to_pylist() == [
        "01:02:03.00004",
        "10:00:00",
    ]
