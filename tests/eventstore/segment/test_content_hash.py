"""The content of rows: what the readable definition says, however they are cut, chunked, encoded or compressed."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.segment import content_hash
from tailrace.eventstore.segment.content_hash import Content, content_of
from tailrace.eventstore.segment.segment import stored_schema
from tests.fixtures.scale import Scale

ALL = (1 << 64) - 1
ZERO = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = {
    "flag": (16, -1, st.booleans()),
    "small": (21, -1, st.integers(-(2**15), 2**15 - 1)),
    "number": (23, -1, st.integers(-(2**31), 2**31 - 1)),
    "large": (20, -1, st.integers(-(2**63), 2**63 - 1)),
    "real": (700, -1, st.floats(width=32)),
    "double": (701, -1, st.floats()),
    "day": (1082, -1, st.dates(date(1, 1, 1), date(9999, 1, 1))),
    "hour": (1083, -1, st.times()),
    "moment": (1184, -1, st.integers(-(2**50), 2**50).map(lambda n: ZERO + timedelta(microseconds=n))),
    "price": (1700, (20 << 16 | 2) + 4, st.decimals(-(10**17), 10**17, places=2)),
    "text": (25, -1, st.text(max_size=8) | st.text("ab", min_size=60, max_size=70)),
    "bytes": (17, -1, st.binary(max_size=70)),
    "numbers": (1007, -1, st.lists(st.none() | st.integers(-9, 9), max_size=4)),
    "texts": (1009, -1, st.lists(st.none() | st.text(max_size=3), max_size=3)),
    "flags": (1000, -1, st.lists(st.none() | st.booleans(), max_size=3)),
}
SCHEMA = TopicSchema(
    1, tuple(Column(at, name, oid, mod, key=at == 3) for at, (name, (oid, mod, _)) in enumerate(COLUMNS.items(), 1))
)  # fmt: skip
CELLS = st.fixed_dictionaries({name: st.none() | values for name, (_, _, values) in COLUMNS.items()})
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.fixed_dictionaries({"number": st.integers(0, 9)}),
            "after": st.none() | CELLS,
            "before": st.none() | CELLS,
            "_unchanged": st.none() | st.lists(st.integers(0, 9), max_size=3),
            "_raw": st.none() | st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=4)), max_size=3),
            "_lsn": st.integers(0, 2**62),
            "_op": st.sampled_from("cud"),
        }
    ),
    max_size=12,
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    fixed = {"_partition": 1, "_epoch": 7, "_hash": 5, "_txn": 3, "_ordinal": 0, "_commit_ts": None}
    return pa.Table.from_pylist(
        [{**fixed, "_offset": at, **row} for at, row in enumerate(rows)], schema=stored_schema(SCHEMA)
    )


def definition(rows: pa.Table) -> Content:
    total = Content()
    for at in range(rows.num_rows):
        row = sum(cell(rows[name][at], name) for name in rows.column_names)
        first = mixed(row & ALL, content_hash._MIX)
        total += Content(first, mixed(first, content_hash._SECOND))
    return total


def mixed(value: int, factor: int) -> int:
    value ^= value >> 32
    value = value * factor & ALL
    return value ^ value >> 29


def key(path: str) -> int:
    return int(xxhash.xxh3_64_intdigest(path.encode())) | 1


def cell(scalar: Any, path: str) -> int:
    if not scalar.is_valid:
        return 0
    if pa.types.is_struct(scalar.type):
        inner = [
            cell(scalar[at], f"{path}/{(field.metadata or {})[b'PARQUET:field_id'].decode()}")
            for at, field in enumerate(scalar.type)
        ]
        return (key(path) + sum(inner)) & ALL
    return mixed((value(scalar) + content_hash._PRESENT) * key(path) & ALL, content_hash._MIX)


def value(scalar: Any) -> int:
    kind = scalar.type
    if pa.types.is_map(kind):
        terms = [element(k, "element") + element(v, "item") for k, v in zip(*pairs(scalar), strict=True)]
        return polynomial(terms)
    if pa.types.is_list(kind):
        return polynomial([element(each, "element") for each in scalar.values])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        data = scalar.as_buffer().to_pybytes()
        return polynomial(data) if len(data) <= 64 else xxhash.xxh3_64_intdigest(data)
    if pa.types.is_decimal(kind):
        unscaled = int(scalar.as_py().scaleb(kind.scale)) & (1 << 128) - 1
        return ((unscaled & ALL) * content_hash._SECOND & ALL) ^ unscaled >> 64
    if pa.types.is_floating(kind):
        bits = np.array([scalar.as_py()], f"f{kind.bit_width // 8}").view(f"i{kind.bit_width // 8}")
        return int(bits[0]) & ALL
    return (
        int(scalar.as_py() if pa.types.is_boolean(kind) or pa.types.is_integer(kind) else scalar.value) & ALL
    )


def pairs(scalar: Any) -> tuple[pa.Array, pa.Array]:
    return scalar.values.field(0), scalar.values.field(1)


def element(scalar: Any, path: str) -> int:
    return cell(scalar, path) if scalar.is_valid else content_hash._NULL_ELEMENT


def polynomial(terms: Any) -> int:
    powers: int = sum(term * pow(content_hash._BASE, at, 1 << 64) for at, term in enumerate(terms))
    return (powers + len(terms) * content_hash._SECOND) & ALL


def test_it_is_what_the_definition_says_however_rows_are_cut_and_stored(scale: Scale) -> None:
    @settings(max_examples=scale.pick(smoke=25, full=1000))
    @given(rows=ROWS, at=st.integers(0, 12))
    def holds(rows: list[dict[str, Any]], at: int) -> None:
        whole = table(rows)
        expected = definition(whole)
        assert content_of(whole) == expected
        assert content_of(whole.slice(0, at)) + content_of(whole.slice(at)) == expected
        assert content_of(whole) - content_of(whole.slice(at)) == content_of(whole.slice(0, at))
        backwards = whole.take(pa.array(range(len(rows) - 1, -1, -1), pa.int64()))
        assert content_of(pa.concat_tables([backwards.slice(0, at), backwards.slice(at)])) == expected
        stored = pa.BufferOutputStream()
        pq.write_table(whole, stored, store_decimal_as_integer=True)
        assert content_of(pq.read_table(pa.BufferReader(stored.getvalue()))) == expected
        assert Content.parse(expected.text) == expected

    holds()


def test_any_other_cell_is_another_content(scale: Scale) -> None:
    @settings(max_examples=scale.pick(smoke=40, full=2000))
    @given(
        row=CELLS,
        other=CELLS,
        name=st.sampled_from(sorted(COLUMNS)),
        struct=st.sampled_from(["after", "before"]),
    )
    def differs(row: dict[str, Any], other: dict[str, Any], name: str, struct: str) -> None:
        base = {"_lsn": 1, "_op": "u"}
        one, two = table([{**base, struct: row}]), table([{**base, struct: {**row, name: other[name]}}])
        if repr(row[name]) != "nan":
            assert (content_of(one) == content_of(two)) == (repr(row[name]) == repr(other[name]))
        assert content_of(one) != content_of(table([{**base, struct: None}]))
        assert content_of(one) != content_of(table([{**base, struct: row}] * 2))

    differs()


def test_a_column_that_a_file_lacks_is_one_that_is_all_null() -> None:
    cells = dict.fromkeys(COLUMNS) | {"text": "x", "price": Decimal(3), "hour": time(1)}
    wide = table([{"_lsn": 1, "_op": "c", "after": cells}])
    after = wide["after"].combine_chunks()
    kept = [at for at, name in enumerate(COLUMNS) if cells[name] is not None]
    fields = [after.type.field(at) for at in kept]
    narrow = pa.StructArray.from_arrays([after.field(at) for at in kept], fields=fields)
    place = wide.schema.get_field_index("after")
    less = wide.set_column(place, pa.field("after", narrow.type), narrow).drop_columns(["_raw", "_unchanged"])
    assert content_of(less) == content_of(wide)
    renamed = [field.with_name(f"{field.name}_too") for field in fields]
    other = pa.StructArray.from_arrays([after.field(at) for at in kept], fields=renamed)
    assert content_of(wide.set_column(place, pa.field("after", other.type), other)) == content_of(wide)


def test_the_key_of_a_table_without_one_is_the_same_as_files_hold_it() -> None:
    """Parquet has no struct without fields: whether there is one stands in its place."""
    key = pa.StructArray.from_buffers(pa.struct([]), 3, [pa.py_buffer(b"\x05")])
    assert content_of(pa.table({"key": key})) == content_of(pa.table({"key": [True, False, True]}))
    assert content_of(pa.table({"key": key})) != content_of(pa.table({"key": [True, True, True]}))
