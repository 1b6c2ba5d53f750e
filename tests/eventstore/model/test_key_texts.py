"""The text of a key's column is that of each of its values, however it is made."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.eventstore.model import keys

KINDS = {
    pa.date32(): st.dates(),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(20, 3): st.decimals(-(10**12), 10**12, places=3),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_a_column_has_the_texts_of_its_values(kind: pa.DataType, data: st.DataObject) -> None:
    values: list[Any] = data.draw(st.lists(st.none() | KINDS[kind], max_size=5))
    column = pa.array(values, kind)
    assert keys.column_texts(column).to_pylist() == [keys.text(value) for value in column.to_pylist()]
