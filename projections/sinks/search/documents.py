"""Rows as tantivy's documents: JSON text made column by column, which tantivy parses faster than it takes documents
built field by field in Python. Cells that JSON cannot carry exactly are built field by field."""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tantivy

from tailrace.projections.sinks.columns import is_list, to_texts
from tailrace.projections.sinks.rows import (
    content,
    dump,
    join_pieces,
    json_cells,
    json_objects,
    to_json_texts,
)
from tailrace.projections.sinks.search.folder import IS_ROW, KEY, KIND, ROW
from tailrace.projections.sinks.specs import FieldKind

_FIRST_MOMENT = datetime(1677, 9, 22, tzinfo=UTC)  # 64 bits of nanoseconds around 1970
_LAST_MOMENT = datetime(2262, 4, 11, tzinfo=UTC)
# serde_json reads a number of more digits, or with an exponent, as a neighbour of the nearest float.
_EXACT_SIGNS = 15
_PADDING = pa.array(["", " ", "  "])


def json_documents(fields: Mapping[str, FieldKind], keys: pa.StringArray, rows: pa.Table) -> pa.StringArray:
    """A document for each row; null for a row that ``document`` has to build."""
    pieces: list[str | pa.Array] = [f'{{"{KEY}":', *json_cells(keys), f',"{KIND}":"{IS_ROW}","{ROW}":"']
    pieces += [_base64(json_objects(rows)), '"']
    for name, kind in fields.items():
        pieces += _field(name, kind, rows.column(name).combine_chunks())
    return join_pieces(*pieces, "}")


def documents(
    fields: Mapping[str, FieldKind], keys: pa.StringArray, rows: pa.Table
) -> list[tantivy.Document]:
    """The same, made field by field."""
    cells = {name: rows.column(name).to_pylist() for name in fields}
    made = []
    for i, (key, row) in enumerate(zip(keys.to_pylist(), to_json_texts(rows), strict=True)):
        document = tantivy.Document()
        document.add_text(KEY, key)
        document.add_text(KIND, IS_ROW)
        document.add_bytes(ROW, row.encode())
        for name, kind in fields.items():
            _add_values(document, name, kind, cells[name][i])
        made.append(document)
    return made


def _base64(texts: pa.StringArray) -> pa.StringArray:
    """Each text in base64, as JSON has bytes. Blanks at the end make each a multiple of three bytes, which JSON allows.
    So all are encoded at once, and none ends in padding."""
    lengths = pc.binary_length(texts).to_numpy()
    padded = join_pieces(texts, _PADDING.take(pa.array(-lengths % 3)))
    lengths = pc.binary_length(padded).to_numpy() // 3 * 4
    ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    data = binascii.b2a_base64(content(padded).data, newline=False)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(data))


def _field(name: str, kind: FieldKind, column: pa.Array) -> list[str | pa.Array]:
    """A column in the documents: nothing for NULL and NaN, null where JSON cannot carry the value."""
    head = f",{dump(name)}:"
    if is_list(column.type):
        cells = pa.array([_list(kind, value) for value in column.to_pylist()], pa.string())
        return [pc.if_else(column.is_valid(), join_pieces(head, cells), "")]
    match kind:
        case "f64" if not pa.types.is_signed_integer(column.type):
            return _floats(head, column)
        case "date":
            pieces = [head + '"', _moments(column), '"']
        case _:
            before, cells, after = json_cells(column)
            pieces = [head + before, cells, after]
    return [pc.if_else(column.is_valid(), join_pieces(*pieces), "")] if column.null_count else pieces


def _floats(head: str, column: pa.Array) -> list[str | pa.Array]:
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())
    texts = to_texts(column).cast(pa.string())
    exact = pc.fill_null(_is_exact(texts), True)
    missing = column.is_null(nan_is_null=pa.types.is_floating(column.type))
    if pc.all(exact).as_py() and not pc.any(missing).as_py():
        return [head, texts]
    return [pc.if_else(missing, "", pc.if_else(exact, join_pieces(head, texts), None))]


def _is_exact(texts: pa.StringArray) -> pa.BooleanArray:
    """Whether JSON tells the number."""
    short = pc.less_equal(pc.binary_length(texts), _EXACT_SIGNS)
    if (content(texts) > ord("9")).any():  # letters: an exponent, an infinity
        return pc.and_(short, pc.invert(pc.match_substring_regex(texts, "[a-zE]")))
    return short


def _moments(column: pa.Array) -> pa.StringArray:
    """RFC 3339. A moment that the index cannot hold is found at the nearest end."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    wall = (
        column.cast(pa.timestamp(column.type.unit, "UTC")).cast(pa.timestamp("us"))
        if column.type.tz
        else column.cast(pa.timestamp("us"))
    )
    first, last = (
        pa.scalar(each.replace(tzinfo=None), pa.timestamp("us")) for each in (_FIRST_MOMENT, _LAST_MOMENT)
    )
    held = pc.max_element_wise(first, pc.min_element_wise(last, wall, skip_nulls=False), skip_nulls=False)
    return join_pieces(pc.replace_substring(held.cast(pa.string()), " ", "T"), "Z")


def _list(kind: FieldKind, value: list[Any] | None) -> str | None:
    """Several values of one field."""
    cells = [cell for cell in value or () if cell is not None]
    return None if cells and kind in ("f64", "date") else dump(cells)


def _add_values(document: tantivy.Document, name: str, kind: FieldKind, value: Any) -> None:
    """Add the searchable form of a cell. NULL and NaN have none; the stored row keeps them."""
    for cell in value if isinstance(value, list) else [value]:
        if cell is None:
            continue
        match kind:
            case "text" | "string":
                document.add_text(name, cell)
            case "i64":
                document.add_integer(name, cell)
            case "f64":
                if not math.isnan(cell):
                    document.add_float(name, float(cell))
            case "bool":
                document.add_boolean(name, cell)
            case "date":
                document.add_date(name, _moment(cell))


def _moment(value: date | datetime) -> datetime:
    """As ``_moments``."""
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    elif value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return max(_FIRST_MOMENT, min(value, _LAST_MOMENT))
