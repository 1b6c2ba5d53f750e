"""Values are those that Arrow gives."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailrace.eventstore.subscriptions.rows.cells import dicts, values

MOMENTS: list[Any] = [
    datetime(1, 1, 1, tzinfo=UTC),
    None,
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]
STRUCT = pa.struct([("n", pa.int64()), ("s", pa.string()), ("in", pa.struct([("b", pa.bool_())]))])
CELLS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [(1 << 62) + 1, None, -(1 << 63)]),
    (pa.int32(), [1, 2, 3]),
    (pa.bool_(), [True, None, False]),
    (pa.float64(), [0.1, None, float("inf")]),
    (pa.float32(), [0.1, -0.0, 1e30]),
    (pa.string(), ["", None, "ü\0"]),
    (pa.binary(), [b"\xff", None, b""]),
    (pa.timestamp("us", "UTC"), MOMENTS),
    (pa.timestamp("us"), [MOMENTS[0].replace(tzinfo=None), None, None]),
    (pa.date32(), [date(2024, 2, 29), None, None]),
    (pa.decimal128(12, 2), [Decimal("1.50"), None, Decimal(-3)]),
    (pa.list_(pa.int32()), [[1, None], None, []]),
    (pa.map_(pa.int32(), pa.binary()), [[(1, b"x"), (2, None)], None, []]),
    (STRUCT, [{"n": 1, "s": None, "in": None}, None, {"n": None, "s": "x", "in": {"b": True}}]),
    (pa.struct([]), [{}, None, {}]),
    (pa.int64(), [None, None, None]),
]


@pytest.mark.parametrize("first", [0, 1])
def test_every_kind_of_cell_is_what_arrow_makes_of_it(first: int) -> None:
    names = [f"{at}" for at in range(len(CELLS))]
    arrays = [pa.array(cells, kind).slice(first) for kind, cells in CELLS]
    table = pa.Table.from_arrays(arrays, names=names)
    for made in (table, pa.concat_tables([table, table.slice(1)])):
        found = dicts(made)
        assert found == made.to_pylist()
        assert [[type(cell) for cell in row.values()] for row in found] == [
            [type(cell) for cell in row.values()] for row in made.to_pylist()
        ]


def test_a_time_that_python_lacks_is_refused_as_arrow_refuses_it() -> None:
    column = pa.array([1 << 60, 0], pa.timestamp("us", "UTC"))
    with pytest.raises((ValueError, OverflowError)) as expected:
        column.to_pylist()
    with pytest.raises(type(expected.value)):
        values(column)
