"""Sets of keys: equal where Spark's joins are, never across families, and NULL is in none."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tailrace.eventstore.model import keys
from tailrace.eventstore.model.keys import hash_texts
from tailrace.projections.generations.key_set import KeySet, family


def test_one_family_is_one_key_whatever_the_width() -> None:
    some = KeySet.of([pa.array([5, 5, None, -1], pa.int32())])
    assert len(some) == 2
    assert some.matches([pa.array([5, 6, None], pa.int64())]).tolist() == [True, False, False]
    assert sorted(some.hashes.tolist()) == sorted([hash_texts(["5"]), hash_texts(["-1"])])
    texts = KeySet.of([pa.array(["a", "ü"], pa.large_string())])
    assert texts.matches([pa.array(["ü", "", None], pa.string())]).tolist() == [True, False, False]


def test_keys_of_several_columns_match_as_a_whole() -> None:
    some = KeySet.of([pa.array([1, 2, None]), pa.array(["a", "b", "c"])])
    rows = [pa.chunked_array([[1, 1], [2, 2, 9]]), pa.chunked_array([["a", "b"], ["b", None, "a"]])]
    assert len(some) == 2
    assert some.matches(rows).tolist() == [True, False, True, False, False]


def test_a_union_has_the_keys_of_all() -> None:
    union = KeySet.union([KeySet.of([pa.array([1, 2])]), KeySet.of([pa.array([2, 3], pa.int16())])])
    assert sorted(union.table.to_pydict()["0"]) == [1, 2, 3]
    assert not KeySet.of([pa.array([], pa.int64())]).matches([pa.array([1])]).any()


def test_whether_rows_had_no_key_is_kept_and_is_not_of_the_keys_taken() -> None:
    whole, some = KeySet.of([pa.array([1, 2])]), KeySet.of([pa.array([1, None]), pa.array(["a", "b"])])
    assert (whole.nulls, some.nulls, len(some)) == (False, True, 1)
    assert some.take([0]).nulls is False and some.take([0]).table.equals(some.table)
    assert KeySet.union([whole, KeySet.of([pa.array([None], pa.int64())])]).nulls
    assert not KeySet.union([whole, whole]).nulls
    with pytest.raises(TypeError, match="a column of double is no key"):
        KeySet.of([pa.array([1.5])])


@pytest.mark.parametrize(
    "value",
    [
        True,
        Decimal("1.50"),
        dt.date(2026, 1, 1),
        dt.datetime.fromisoformat("2026-01-01T01:01:01.000005"),
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        dt.time(1, 2, 3),
        b"\x00\xff",
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_type_that_can_be_a_key_finds_itself(value: object) -> None:
    column = pa.array([value, None])
    some = KeySet.of([column])
    assert some.matches([column]).tolist() == [True, False]
    assert len(some.hashes) == 1 and some.hashes.dtype == np.int64


def test_what_only_prints_alike_is_not_comparable() -> None:
    assert family(pa.decimal128(10, 2)) == family(pa.decimal128(38, 2)) != family(pa.decimal128(10, 3))
    assert family(pa.timestamp("us")) != family(pa.timestamp("us", "UTC"))
    assert family(pa.int16()) == family(pa.int64()) != family(pa.string())
    for kind in (pa.float64(), pa.list_(pa.int32()), pa.struct([])):
        assert family(kind) is None


def test_a_row_that_only_has_the_hash_of_a_key_is_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_alike(columns: list[pa.Array]) -> pa.Array:
        return pa.array([7] * len(columns[0]), pa.int64())

    monkeypatch.setattr(keys, "hash_columns", all_alike)
    left, right = pa.array([1, 1, 2, 2], pa.int64()), pa.array(["a", "b", "a", "b"])
    for wanted in ([0], [3], [1, 2], [0, 2, 3]):
        some = KeySet.of([left.take(pa.array(wanted)), right.take(pa.array(wanted))])
        assert np.flatnonzero(some.matches([left, right])).tolist() == wanted
