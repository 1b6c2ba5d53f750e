"""The bytes of a result's file give back its rows, and the rows of some keys alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.projections.generations import result_file
from tailrace.projections.generations.difference import HASH, Mask
from tailrace.projections.generations.key_subset import KeySubset
from tailrace.projections.generations.result_file import decode, encode

PLAIN = pa.schema({HASH: pa.int64(), "id": pa.int64(), "text": pa.string(), "more": pa.list_(pa.int32())})
STRUCTS = PLAIN.set(3, pa.field("more", pa.list_(pa.struct({"n": pa.int32()}))))
INT64 = st.integers(-(2**63), 2**63 - 1)
HASHES = st.sampled_from([-(2**63), -7, 0, 1, 2, 2**63 - 1]) | INT64
ROWS = st.lists(
    st.tuples(
        HASHES, INT64, st.none() | st.text(max_size=3), st.none() | st.lists(st.integers(0, 9), max_size=2)
    ),
    max_size=40,
)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_file, "_GROUP_ROWS", 3)
    monkeypatch.setattr(result_file, "_PIECE_ROWS", 4)


def table_of(rows: list[tuple[Any, ...]], *, ordered: bool, structs: bool = False) -> pa.Table:
    schema = STRUCTS if structs else PLAIN
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    if structs:
        columns[3] = tuple(cell and [{"n": each} for each in cell] for cell in columns[3])
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    table = pa.table(arrays, schema=schema)
    return table.sort_by(HASH) if ordered else table


def in_parquet(table: pa.Table) -> pa.Buffer:
    """As releases before wrote it."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=3, use_dictionary=False, write_statistics=[HASH])
    return sink.getvalue()


@given(ROWS, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.lists(HASHES, max_size=6))
def test_all_rows_and_those_of_some_keys_are_what_was_written(
    rows: list[tuple[Any, ...]], ordered: bool, mapped: bool, structs: bool, before: bool, wanted: list[int]
) -> None:
    table = table_of(rows, ordered=ordered, structs=structs)
    assume(rows or not (before or structs))  # a file without rows is not written
    data = in_parquet(table) if before else encode(table, mapped=mapped)
    assert decode(data).equals(table)
    hashes = np.unique(np.array(wanted, np.int64))
    expected = table.filter(pc.is_in(table[HASH], value_set=pa.array(hashes)))

    def has(found: pa.Table) -> Mask:
        return np.isin(found[HASH].to_numpy(), hashes)

    for some in (KeySubset(has, hashes), KeySubset(has)):
        assert some.filter(decode(data, some)).equals(expected)


@given(ROWS, st.booleans())
def test_bytes_depend_on_the_rows_alone(rows: list[tuple[Any, ...]], mapped: bool) -> None:
    table = table_of(rows, ordered=True)
    in_pieces = pa.concat_tables([table.slice(0, 5), table.slice(5)]) if len(rows) > 5 else table
    given = encode(in_pieces.replace_schema_metadata({"from": "elsewhere"}), mapped=mapped)
    assert given == encode(table, mapped=mapped)


@pytest.mark.parametrize("mapped", [True, False])
def test_rows_too_large_for_an_array_are_written_too(mapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_file, "_BATCH_BYTES_MOST", 200)
    small, large = pa.array(["a"] * 9), pa.array(["a"] * 8 + ["b" * 300])
    for column, first in ((small, b"ARROW1"), (large, b"PAR1")):
        table = pa.table({HASH: range(9), "column": column})
        data = encode(table, mapped=mapped)
        assert bytes(data).startswith(first) and decode(data).equals(table)


def test_pieces_of_large_rows_have_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_file, "_PIECE_ROWS", 1 << 20)
    monkeypatch.setattr(result_file, "_PIECE_BYTES", 1000)
    table = pa.table({HASH: range(64), "column": ["c" * 92] * 64})
    assert pa.ipc.open_file(encode(table, mapped=True)).num_record_batches == 8


SECRET, NUMBER = "Augusta Ada", 0x41646141646141


def under_null(values: pa.Array) -> pa.Array:
    """The same, with NULL over the second one, which Arrow keeps."""
    return pa.Array.from_buffers(values.type, 3, [pa.py_buffer(b"\x05"), *values.buffers()[1:]])


@pytest.mark.parametrize(
    "column",
    [
        under_null(pa.array(["a", SECRET, "b"])),
        under_null(pa.array([b"aaa", SECRET[:3].encode(), b"bbb"], pa.binary(3))),
        under_null(pa.array([1, NUMBER, 3])),
        pa.ListArray.from_arrays([0, 1, 2, 3], ["a", SECRET, "b"], mask=pa.array([False, True, False])),
        pa.StructArray.from_arrays(
            [pa.array(["a", SECRET, "b"])], ["name"], mask=pa.array([False, True, False])
        ),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("mapped", [True, False])
def test_what_lies_under_a_null_is_not_written(column: pa.Array, mapped: bool) -> None:
    secrets = [SECRET[:3].encode(), NUMBER.to_bytes(8, "little")]
    assert any(secret in memory_of(column) for secret in secrets)
    data = encode(pa.table({HASH: [1, 2, 3], "column": column}), mapped=mapped)
    (found,) = decode(data)["column"].chunks
    assert found.to_pylist() == column.to_pylist()
    assert not any(secret in memory_of(found) + bytes(data) for secret in secrets)


def memory_of(column: pa.Array) -> bytes:
    return b"".join(bytes(buffer) for buffer in column.buffers() if buffer is not None)
