"""Erasing cells of rows in the log's layout. Pure.

A cell of ``after``, and of a whole ``before``, becomes null, and its entry in ``_raw`` one without a text
(``tailrace.eventstore.model.redacted``). What is NULL becomes so too: that somebody has no address may be personal
as well. Keys stay,
and cells that hold nothing: those that were not sent (``_unchanged``), those of a ``before`` that is only a key.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model.schema import TopicSchema

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def erase_cells(table: pa.Table, version: TopicSchema, ids: Collection[int], rows: Mask) -> pa.Table:
    """The table with the cells of columns ``ids`` of ``rows`` erased: the very table when none is left to erase."""
    names = {column.id: column.name for column in version.columns if column.id in ids}
    after = _combine(table["after"])
    before = _combine(table["before"])
    has_after = _valid_mask(after) & rows
    has_before = _valid_mask(before) & rows & _to_mask(pc.equal(_combine(table["_before"]), "full"))
    raw = _combine(table["_raw"])
    marks = raw.to_pylist()
    unchanged = table["_unchanged"]
    changed = False
    hidden: dict[int, Mask] = {column: np.zeros(len(rows), np.bool_) for column in names}
    for at in np.flatnonzero(has_after | has_before).tolist():
        unsent = set(unchanged[at].as_py() or ()) if has_after[at] else set()
        places = [column for column in names if column not in unsent] if has_after[at] else []
        for column in places:
            hidden[column][at] = True
        places += [-column for column in names] if has_before[at] else []
        entries = dict(marks[at] or ())
        following = entries | dict.fromkeys(places)
        if following != entries:
            marks[at], changed = sorted(following.items()), True
    if not changed:
        return table
    columns = {
        "after": _hide_cells(after, {names[column]: mask for column, mask in hidden.items()}),
        "before": _hide_cells(before, dict.fromkeys(names.values(), has_before)),
        "_raw": pa.array(marks, raw.type),
    }
    arrays = [columns.get(field.name, table[field.name]) for field in table.schema]
    return pa.Table.from_arrays(arrays, schema=table.schema)


def _hide_cells(structs: pa.Array, hidden: dict[str, Mask]) -> pa.Array:
    """The structs with null cells where ``hidden`` says so, by field."""
    kind = structs.type
    if not pa.types.is_struct(kind):  # one without fields, as files hold it
        return structs
    cells = []
    for at, field in enumerate(kind):
        cell = structs.field(at)
        mask = hidden.get(field.name)
        if mask is not None and mask.any():
            cell = pc.if_else(pa.array(mask), pa.scalar(None, field.type), cell)
        cells.append(cell)
    return pa.StructArray.from_arrays(cells, fields=list(kind), mask=pc.is_null(structs))


def _combine(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _valid_mask(column: pa.Array) -> Mask:
    return _to_mask(pc.is_valid(column))


def _to_mask(column: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return mask
