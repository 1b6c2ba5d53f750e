"""Cells of Arrow columns as Python values, several times as fast as ``to_pylist``."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def dicts(table: pa.Table) -> list[dict[str, Any]]:
    """``table.to_pylist()`` of a table with columns, several times as fast: ``to_pylist`` makes an Arrow scalar of each
    cell first, numpy makes the values of a whole column at once."""
    columns = [[cell for chunk in column.chunks for cell in values(chunk)] for column in table.columns]
    return _dicts(table.column_names, columns)


def _dicts(names: list[str], columns: list[list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def values(column: pa.Array) -> list[Any]:
    """``column.to_pylist()``."""
    kind, types = column.type, pa.types
    if column.null_count == len(column):
        return [None] * len(column)
    if types.is_struct(kind) and kind.num_fields:
        names = [field.name for field in kind]
        return _set_nulls(column, _dicts(names, [values(column.field(at)) for at in range(len(names))]))
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind):
        # numpy has no NULL among numbers, and would make floats of whole ones.
        filled = pc.fill_null(column, pa.scalar(0, pa.int8()).cast(kind)) if column.null_count else column
        return _set_nulls(column, filled.to_numpy(zero_copy_only=False).tolist())
    if types.is_string(kind) or types.is_binary(kind):
        texts: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return texts
    if kind == pa.timestamp("us", "UTC"):
        return _times(column)
    plain: list[Any] = column.to_pylist()
    return plain


def _set_nulls(column: pa.Array, cells: list[Any]) -> list[Any]:
    if column.null_count:
        for at in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            cells[at] = None
    return cells


def _times(column: pa.Array) -> list[Any]:
    naive = column.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).tolist()
    try:
        return [None if moment is None else moment.replace(tzinfo=UTC) for moment in naive]
    except (AttributeError, TypeError):  # numpy gives a number where Python has no such year
        plain: list[Any] = column.to_pylist()
        return plain
