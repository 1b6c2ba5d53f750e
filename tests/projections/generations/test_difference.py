"""The difference between two results is exactly what turns the one into the other."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.eventstore.model import keys
from tailrace.projections.generations.difference import (
    HASH,
    difference,
    equal,
    null_keys,
    repeated_keys,
    sort_rows,
)

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("total", pa.float64())])


def table(rows: list[dict[str, Any]], *, hash_bits: int = 64) -> pa.Table:
    """Rows with their hash. Few ``hash_bits`` make different keys collide."""
    plain = pa.Table.from_pylist(rows, schema=SCHEMA)
    hashes = [keys.hash_texts([str(row["id"])]) % (1 << hash_bits) for row in rows]
    return sort_rows(plain.add_column(0, HASH, pa.array(hashes, pa.int64())), ["id"])


cells = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "b", None]),
        "total": st.sampled_from([None, 0.0, -0.0, 1.5, math.nan, math.inf]),
    }
)
states = st.dictionaries(st.integers(0, 30), cells, max_size=20)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return bool(left == right)


@given(states, states, st.sampled_from([62, 2, 0]))
def test_applying_the_difference_gives_the_new_table_and_touches_nothing_else(
    old: dict[int, dict[str, Any]], new: dict[int, dict[str, Any]], hash_bits: int
) -> None:
    def rows(state: dict[int, dict[str, Any]]) -> pa.Table:
        return table([{"id": key, **row} for key, row in state.items()], hash_bits=hash_bits)

    found = difference(rows(old), rows(new), ["id"])

    different = {
        key
        for key, row in new.items()
        if key not in old or not all(same(row[name], old[key][name]) for name in row)
    }
    assert set(found.upserts["id"].to_pylist()) == different
    assert set(found.deletes["id"].to_pylist()) == old.keys() - new.keys()
    assert set(found.added["id"].to_pylist()) == new.keys() - old.keys()
    assert set(found.changed["id"].to_pylist()) == different & old.keys()
    kept = {key: (new if key in different else old)[key] for key in new}
    expected = rows(kept)
    # As texts, which tell −0 from 0: rows that count as equal are kept as they were.
    assert repr(found.result.to_pylist()) == repr(expected.to_pylist())


def test_a_row_within_tolerance_is_kept_as_the_sink_has_it() -> None:
    old = table([{"id": 1, "name": "a", "total": 1.0}, {"id": 2, "name": "a", "total": 1.0}])
    new = table([{"id": 1, "name": "a", "total": 1.0 + 1e-12}, {"id": 2, "name": "a", "total": 1.1}])

    found = difference(old, new, ["id"], {"total": 1e-9})

    assert found.upserts["id"].to_pylist() == [2]
    assert sorted(found.result["total"].to_pylist()) == [1.0, 1.1]


def test_a_key_held_twice_counts_as_one_row_too_many() -> None:
    row = {"id": 1, "name": "a", "total": 1.0}

    found = difference(table([row, row]), table([row]), ["id"])

    assert (found.upserts.num_rows, found.deletes.num_rows) == (0, 1)


@pytest.mark.parametrize("hash_bits", [64, 0])
def test_repeated_and_null_keys_are_found(hash_bits: int) -> None:
    rows = table(
        [{"id": key, "name": "a", "total": 0.0} for key in (3, 1, 3, 2, 3)], hash_bits=min(hash_bits, 62)
    )
    nulls = pa.table({HASH: [1, 2], "id": pa.array([None, 5], pa.int64())})

    assert [rows["id"][row].as_py() for row in repeated_keys(rows, ["id"])] == [3, 3]
    assert null_keys(nulls, ["id"]).tolist() == [0]


def test_nested_values_are_compared_by_value() -> None:
    kind = pa.list_(pa.struct([("x", pa.float64())]))
    left = pa.chunked_array([pa.array([[{"x": math.nan}], [{"x": 1.0}], None, []], kind)])
    right = pa.chunked_array([pa.array([[{"x": math.nan}], [{"x": 2.0}], None, None], kind)])

    assert equal(left, right).tolist() == [True, False, True, False]
