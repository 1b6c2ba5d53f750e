"""What Postgres prints becomes values of a sink's columns; what cannot be one is told from all of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailrace.projections.lifecycle.source_values import values_of


@pytest.mark.parametrize(
    ("kind", "texts", "values", "unlike"),
    [
        (pa.int64(), ["3", "3.00", "3.5", None, "x"], [3, 3, None, None, None], [2, 4]),
        (pa.decimal128(10, 2), ["1.5", "1.500", "1.505"], ["1.50", "1.50", None], [2]),
        (
            pa.decimal128(38, 2),
            [f"{'123456789' * 4}.1{'0' * 30}", f"{'123456789' * 4}.{'0' * 30}1"],
            [f"{'123456789' * 4}.10", None],
            [1],
        ),
        (pa.float64(), ["0.1", "1", "NaN"], [0.1, 1.0, float("nan")], []),
        (pa.bool_(), ["t", "false", "tomato"], [True, False, None], [2]),
        (pa.date32(), ["2026-01-01", "infinity"], ["2026-01-01", None], [1]),
        (pa.binary(), ["\\x61", "a"], [b"a", None], [1]),
        (pa.list_(pa.int32()), ["[1,null]", "[[1]]", "[1.5]"], [[1, None], None, None], [1, 2]),
    ],
)
def test_what_postgres_prints_is_a_value_of_the_column_or_like_none(
    kind: pa.DataType, texts: list[str | None], values: list[Any], unlike: list[int]
) -> None:
    found, mask = values_of(pa.array(texts, pa.string()), kind, 0)
    assert [str(cell) for cell in found.to_pylist()] == [str(value) for value in values]
    assert mask.nonzero()[0].tolist() == unlike


def test_a_moment_is_the_same_with_a_zone_and_without_one() -> None:
    texts = pa.array(
        ["2026-01-01 12:00:00", "2026-01-01 13:00:00+01", "2026-01-01 12:00:00+00", "infinity", None]
    )
    zoned, unlike = values_of(texts, pa.timestamp("us", "UTC"), 0)
    assert zoned.cast(pa.int64()).to_pylist() == [1_767_268_800_000_000] * 3 + [None] * 2
    assert unlike.nonzero()[0].tolist() == [3]
    plain, unlike = values_of(texts, pa.timestamp("us"), 0)
    assert plain.cast(pa.int64()).to_pylist()[::2] == [1_767_268_800_000_000] * 2 + [None]
    assert unlike.nonzero()[0].tolist() == [1, 3], "its wall clock is another"


def test_a_real_is_itself_among_doubles() -> None:
    found, _ = values_of(pa.array(["1.1"]), pa.float64(), 700)
    assert found[0].as_py() == pa.scalar(1.1, pa.float32()).as_py()
    found, _ = values_of(pa.array(["1.1"]), pa.float64(), 701)
    assert found[0].as_py() == 1.1
    lists, _ = values_of(pa.array(["[1.1]"]), pa.list_(pa.float64()), 1021)
    assert lists[0].as_py() == [pa.scalar(1.1, pa.float32()).as_py()]


def test_lists_hold_what_their_elements_would_be() -> None:
    texts = pa.array(['["2026-01-01T00:00:00+00:00",null]', "[]", None, '["x"]'])
    found, unlike = values_of(texts, pa.list_(pa.timestamp("us", "UTC")), 1185)
    assert [None if each is None else len(each) for each in found.to_pylist()] == [2, 0, None, None]
    assert unlike.nonzero()[0].tolist() == [3]
    found, unlike = values_of(pa.array(["[true,false,null]", '["a,b","T"]']), pa.list_(pa.bool_()), 1000)
    assert found.to_pylist() == [[True, False, None], None] and unlike.tolist() == [False, True]
    found, _ = values_of(pa.array(['["a,b","T",""]']), pa.list_(pa.string()), 1009)
    assert found.to_pylist() == [["a,b", "T", ""]]
