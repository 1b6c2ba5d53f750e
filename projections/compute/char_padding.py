"""``char(n)`` as projections see it: without the blanks that fill it up.

They mean nothing to Postgres, which compares, groups and orders such values without them and leaves them out of every
cast to text. The log keeps them, because a row's key is hashed as the source prints it, and ``verify --source``
compares every byte. Spark and key sets compare texts as they are, so the blanks go where rows are read for a
projection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model.schema import Column

_CHARACTER, _CHARACTERS = 1042, 1014  # character(n) and its array
_ROWS = ("key", "after", "before", "_moved_from")


def is_padded(column: Column) -> bool:
    """Whether blanks at the end of its values, or of their elements, mean nothing. A policy's words are no values."""
    return column.meant_oid in (_CHARACTER, _CHARACTERS) and not column.policy


def has_log_hashes(key: Sequence[Column]) -> bool:
    """Whether the log has hashed the texts of these columns that a ``KeySet`` of them hashes."""
    return all(
        pa.types.is_integer(column.arrow) or (pa.types.is_string(column.arrow) and not is_padded(column))
        for column in key
    )


def unpad(rows: pa.Table, columns: Iterable[Column]) -> pa.Table:
    """Rows of a state without the padding of these columns."""
    for column in columns:
        if is_padded(column) and column.name in rows.column_names:
            at = rows.column_names.index(column.name)
            rows = rows.set_column(at, rows.schema.field(at), unpad_cells(rows[column.name]))
    return rows


def unpad_changes(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Changes without the padding of these columns of the row's table."""
    names = {column.name for column in columns if is_padded(column)}
    for at, field in enumerate(rows.schema):
        if field.name in _ROWS and names:
            chunks = [_unpad_struct(chunk, names) for chunk in rows[field.name].chunks]
            rows = rows.set_column(at, field, pa.chunked_array(chunks, field.type))
    return rows


def unpad_cells(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts, or lists of them, without blanks at their ends."""
    return pa.chunked_array([_unpad(chunk) for chunk in cells.chunks], cells.type)


def _unpad(cells: pa.Array) -> pa.Array:
    if not pa.types.is_list(cells.type):
        return pc.utf8_rtrim(cells, " ")
    lengths = pc.fill_null(pc.list_value_length(cells), 0).to_numpy()
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    elements = pc.utf8_rtrim(pc.list_flatten(cells), " ")
    return pa.ListArray.from_arrays(offsets, elements, type=cells.type, mask=pc.is_null(cells))


def _unpad_struct(rows: pa.StructArray, names: set[str]) -> pa.StructArray:
    fields = list(rows.type)
    cells = [
        _unpad(pc.struct_field(rows, field.name))
        if field.name in names
        else pc.struct_field(rows, field.name)
        for field in fields
    ]
    return pa.StructArray.from_arrays(cells, fields=fields, mask=pc.is_null(rows))
