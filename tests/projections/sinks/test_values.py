"""Values on their way into a sink and back: nothing changes, whatever Arrow can hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

import msgpack
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql

from tailrace.eventstore.errors import UsageError
from tailrace.projections.sinks.columns import from_json, from_texts, to_json, to_texts, unsupported_columns
from tailrace.projections.sinks.postgres.binary_copy import write_digits
from tailrace.projections.sinks.postgres.copy import column_type, copy_in, copy_out
from tailrace.projections.sinks.redis.msgpack import from_packed, to_packed
from tailrace.projections.sinks.rows import (
    dump,
    from_fields,
    from_objects,
    schema_from_text,
    schema_to_text,
    to_fields,
    to_json_texts,
)

# Postgres has no U+0000 in text (the sinks say so); surrogates are no Unicode text at all.
WIDE = Context(prec=40)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    (pa.decimal128(5, 0), st.decimals(-99999, 99999, places=0)),
    (pa.decimal128(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    (pa.decimal128(38, 0), st.integers(1 - 10**38, 10**38 - 1).map(Decimal)),
    (pa.decimal128(38, 38), st.integers(1 - 10**38, 10**38 - 1).map(lambda n: Decimal(n).scaleb(-38, WIDE))),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), st.binary()),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("ms"), st.integers(-(10**13), 10**14)),
    (pa.timestamp("s", "UTC"), st.integers(-(10**10), 10**11)),
    (pa.timestamp("us", "UTC"), st.integers(-(10**16), 10**17)),
    (pa.timestamp("us", "Asia/Kolkata"), st.integers(-(10**16), 10**17)),
]
COLUMNS = SCALARS + [(pa.list_(kind), st.lists(st.none() | values, max_size=4)) for kind, values in SCALARS]


@st.composite
def arrays(draw: st.DrawFn, columns: list[tuple[pa.DataType, st.SearchStrategy[Any]]]) -> pa.Array:
    kind, values = draw(st.sampled_from(columns))
    cells = draw(st.lists(st.none() | values, max_size=8))
    array = pa.array([None, *cells], kind)
    return array.slice(draw(st.integers(0, 1)))  # a slice has an offset


def same(one: pa.Array, two: pa.Array) -> bool:
    return bool(one.type == two.type) and repr(one.to_pylist()) == repr(two.to_pylist())


def same_rows(one: pa.RecordBatch, two: pa.Table) -> bool:
    return all(same(one.column(i), two.column(i).combine_chunks()) for i in range(two.num_columns))


@given(arrays(SCALARS))
def test_text_gives_back_every_value(column: pa.Array) -> None:
    assert same(from_texts(to_texts(column).cast(pa.string()), column.type), column)


@given(arrays(COLUMNS))
def test_json_gives_back_every_value(column: pa.Array) -> None:
    values = json.loads(json.dumps(to_json(column), allow_nan=False))
    assert same(from_json(values, column.type), column)


@given(st.lists(arrays(COLUMNS), min_size=1, max_size=3), st.text())
def test_json_texts_are_those_of_the_values_row_by_row(columns: list[pa.Array], name: str) -> None:
    shortest = min(map(len, columns))
    rows = pa.table({f"{name}{i}": column[:shortest] for i, column in enumerate(columns)})
    values = [to_json(column.combine_chunks()) for column in rows.columns]
    objects = [dict(zip(rows.column_names, cells, strict=True)) for cells in zip(*values, strict=True)]
    texts = to_json_texts(rows)
    assert texts == [dump(each) for each in objects]
    assert same_rows(from_objects([json.loads(text) for text in texts], rows.schema), rows)
    assert to_json_texts(rows, '{"_epoch":7,') == [dump({"_epoch": 7, **each}) for each in objects]


@given(st.text())
def test_any_text_is_quoted_as_json_has_it(text: str) -> None:
    column = pa.array([text.encode(errors="replace").decode(), None], pa.string())
    assert to_json_texts(pa.table({"c": column})) == [dump({"c": cell}) for cell in column.to_pylist()]


@given(arrays(COLUMNS))
def test_fields_give_back_every_value(column: pa.Array) -> None:
    rows = pa.table({"c": column})
    flat = to_fields(rows)
    fields = [dict(zip(map(_bytes, row[::2]), map(_bytes, row[1::2]), strict=True)) for row in flat]
    assert same(from_fields(fields, rows.schema).column(0), column)


@given(st.lists(arrays(COLUMNS), min_size=1, max_size=20), st.integers(0, 2**53))
def test_packed_rows_give_back_every_value(columns: list[pa.Array], epoch: int) -> None:
    shortest = min(map(len, columns))
    rows = pa.table({f"c{i}": column[:shortest] for i, column in enumerate(columns)})
    head: bytes = msgpack.packb("_epoch") + msgpack.packb(epoch)
    texts = to_packed(rows, head)
    maps = [msgpack.unpackb(packed) for packed in texts]
    assert texts == [msgpack.packb(each) for each in maps]
    assert all(next(iter(each)) == "_epoch" and each["_epoch"] == epoch for each in maps)
    assert same_rows(from_packed(maps, rows.schema), rows)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_packed_cells_of_any_length_are_those_of_msgpack(kind: pa.DataType) -> None:
    sizes = [0, 1, 2**5 - 1, 2**5, 2**8 - 1, 2**8, 2**16 - 1, 2**16]
    cells = pa.array(["x" * size for size in sizes]).cast(kind)
    packed = to_packed(pa.table({"c": cells}), b"\x00\x00")
    assert packed == [msgpack.packb({0: 0, "c": cell}) for cell in cells.to_pylist()]


@given(st.lists(st.sampled_from([5, 7, 8, 15, 16, 31, 32, 63]), min_size=1), st.integers(-1, 1))
def test_packed_integers_are_those_of_msgpack(bits: list[int], off: int) -> None:
    cells = [sign * min(2**each + off, 2**63 - 1) for each in bits for sign in (1, -1)] + [-(2**63), 0]
    packed = to_packed(pa.table({"c": pa.array(cells, pa.int64())}), b"\x00\x00")
    assert packed == [msgpack.packb({0: 0, "c": cell}) for cell in cells]


@pytest.fixture
def cursor(database: str) -> Iterator[psycopg.Cursor[Any]]:
    with psycopg.connect(database) as connection:
        # What the sink's own transactions set.
        connection.execute("SET timezone = 'UTC'; SET datestyle = 'ISO, YMD'; SET bytea_output = 'hex'")
        yield connection.cursor()


@settings(max_examples=150)
@given(st.lists(arrays(COLUMNS), min_size=1, max_size=3))
def test_postgres_gives_back_every_value(cursor: psycopg.Cursor[Any], columns: list[pa.Array]) -> None:
    shortest = min(map(len, columns))
    names = [f'column "{i}"' for i in range(len(columns))]
    rows = pa.table([column.slice(0, shortest) for column in columns], names)
    table = sql.Identifier("pg_temp", "values")
    kinds = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(column_type(field.type)))
        for field in rows.schema
    )
    cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
    cursor.execute(sql.SQL("CREATE TEMP TABLE {} ({})").format(sql.Identifier("values"), kinds))
    copy_in(cursor, table, rows)
    batches = list(copy_out(cursor, table, rows.schema))
    back = pa.Table.from_batches(batches, rows.schema)
    for name in names:
        assert same(back.column(name).combine_chunks(), rows.column(name).combine_chunks())


@pytest.mark.parametrize("factor", [1, 10, 100, 1000])
def test_the_digits_of_a_numeric_are_those_of_its_value(factor: int) -> None:
    """Around where numbers need another 32 bits, and where they end."""
    edges = [2**bits for bits in (0, 14, 32, 53, 64, 96, 126)] + [(2**64 - 1) // factor, 10**38 // factor]
    values = [edge + off for edge in edges for off in (-1, 0, 1)]
    for some in (values, [value for value in values if value < 2**64 // factor]):
        digits = np.zeros((len(some), 11), ">i2")
        low, high = (np.array([value >> bits & 2**64 - 1 for value in some], np.uint64) for bits in (0, 64))
        write_digits(digits, low, high, factor)
        assert [sum(int(each) * 10_000**place for place, each in enumerate(row[::-1])) for row in digits] == [
            value * factor for value in some
        ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([3_000_000], pa.int32()).cast(pa.date32()),
        pa.array([-800_000], pa.int32()).cast(pa.date32()),
        pa.array([2**62], pa.timestamp("us")),
        pa.array([-(2**62)], pa.timestamp("us", "UTC")),
    ],
)
def test_years_that_have_no_common_text_are_refused(column: pa.Array) -> None:
    with pytest.raises(UsageError, match="years 1 to 9999"):
        to_texts(column)


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.struct([("a", pa.int32())]),
        pa.map_(pa.string(), pa.int32()),
        pa.list_(pa.list_(pa.int32())),
        pa.timestamp("ns"),
        pa.uint64(),
        pa.float16(),
        pa.duration("us"),
        pa.decimal256(50, 2),
    ],
)
def test_types_no_sink_holds_are_named_with_advice(kind: pa.DataType) -> None:
    (said,) = unsupported_columns(pa.schema([("total", kind)]))
    assert "'total'" in said
    assert ":" in said


def test_a_schema_survives_as_text() -> None:
    schema = pa.schema([pa.field(f"c{i}", kind) for i, (kind, _) in enumerate(COLUMNS)])
    assert schema_from_text(schema_to_text(schema)).equals(schema)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
