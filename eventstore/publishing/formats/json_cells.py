"""Columns of values as JSON texts, a column at a time.

Numbers, times and dates are written as Debezium writes them with ``decimal.handling.mode=string``,
``interval.handling.mode=string`` and its other settings as they are by default: exact, and read without a schema by who
knows the table. What has no JSON form there (ranges, network addresses …) is Postgres' text, as a string.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model.postgres_text import postgres_texts
from tailrace.eventstore.model.schema import Column
from tailrace.eventstore.publishing.formats.text_types import form_of

TEXT = pa.large_string()
_MILLISECONDS = 3  # times and timestamps with at most so many digits are sent in milliseconds
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_CONTROL = r"[\x00-\x1f]"
_EMPTY, _NULL = pa.scalar("", TEXT), pa.scalar("null", TEXT)


def text(value: str) -> pa.Scalar:
    return pa.scalar(value, TEXT)


def join(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Texts put together; null where a part is."""
    return pc.binary_join_element_wise(*parts, _EMPTY)


def json_column(column: Column, cells: pa.Array) -> pa.Array:
    """The JSON text of each cell; null is null."""
    form = form_of(column) if pa.types.is_string(cells.type) else None
    if form is None:
        return _json(cells, column.meant_typmod)
    return _each(cells, lambda value: form(value) or json.dumps(value, ensure_ascii=False))


def strings(cells: pa.Array) -> pa.Array:
    """JSON strings of texts."""
    found = cells.cast(TEXT)
    if pc.any(pc.match_substring_regex(found, r'[\x00-\x1f"\\]'), min_count=0).as_py():
        for plain, escaped in _ESCAPES:
            found = pc.replace_substring(found, plain, escaped)
        if pc.any(pc.match_substring_regex(found, _CONTROL), min_count=0).as_py():
            found = pa.array([_quoted(each) for each in cells.to_pylist()], TEXT)
    return join(text('"'), found, text('"'))


def _quoted(value: str | None) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)[1:-1]


def or_null(texts: pa.Array) -> pa.Array:
    """With the JSON null where there is none."""
    return pc.fill_null(texts, _NULL) if texts.null_count else texts


def objects(members: Sequence[tuple[str, pa.Array, pa.Array | None]], count: int) -> pa.Array:
    """JSON objects of so many rows: by member its name, its JSON texts (null: the JSON null), and in which rows it is
    (None: in all)."""
    pieces: list[pa.Array | pa.Scalar] = []
    for name, texts, present in members:
        piece = join(text(f",{json.dumps(name, ensure_ascii=False)}:"), or_null(texts))
        pieces.append(piece if present is None else pc.if_else(present, piece, _EMPTY))
    if not pieces:
        return pa.array(["{}"] * count, TEXT)
    return join(text("{"), pc.utf8_slice_codeunits(join(*pieces), 1), text("}"))


def _json(cells: pa.Array, typmod: int) -> pa.Array:
    kind, types = cells.type, pa.types
    if types.is_boolean(kind) or types.is_integer(kind):
        return cells.cast(TEXT)
    if types.is_floating(kind):
        return _floats(cells)
    if types.is_binary(kind):
        return _each(cells, lambda value: f'"{base64.b64encode(value).decode()}"')
    if types.is_date(kind):
        return cells.cast(pa.int32()).cast(TEXT)
    if types.is_time(kind) or (types.is_timestamp(kind) and kind.tz is None):
        return _counted(cells.cast(pa.int64()), typmod)
    if types.is_timestamp(kind):
        return _moments(cells)
    if types.is_list(kind):
        return _arrays(cells, typmod)
    return strings(postgres_texts(cells))


def _floats(cells: pa.Array) -> pa.Array:
    found = cells.cast(TEXT)
    if pc.any(pc.invert(pc.is_finite(cells)), min_count=0).as_py():
        for said, meant in (
            ("nan", '"NaN"'),
            ("-nan", '"NaN"'),
            ("inf", '"Infinity"'),
            ("-inf", '"-Infinity"'),
        ):
            found = pc.if_else(pc.equal(found, said), text(meant), found)
    return found


def _counted(micros: pa.Array, typmod: int) -> pa.Array:
    if 0 <= typmod <= _MILLISECONDS:
        micros = pa.array(np.floor_divide(pc.fill_null(micros, 0).to_numpy(), 1000), mask=_nulls(micros))
    return micros.cast(TEXT)


def _moments(cells: pa.Array) -> pa.Array:
    """ISO 8601 in UTC, without zeros at the end of the fraction."""
    texts = pc.cast(pc.cast(cells, pa.timestamp("us")), TEXT)
    whole = pc.replace_substring_regex(texts, r"\.0{6}$", "")
    trimmed = pc.replace_substring_regex(whole, r"(\.\d*[1-9])0+$", r"\1")
    return join(text('"'), pc.replace_substring(trimmed, " ", "T"), text('Z"'))


def _arrays(cells: pa.Array, typmod: int) -> pa.Array:
    items = or_null(_json(pc.list_flatten(cells), typmod)).to_pylist()
    found: list[str | None] = []
    at = 0
    for length in pc.list_value_length(cells).to_pylist():
        found.append(None if length is None else f"[{','.join(items[at : at + length])}]")
        at += length or 0
    return pa.array(found, TEXT)


def _each(cells: pa.Array, made: Any) -> pa.Array:
    return pa.array([None if value is None else made(value) for value in cells.to_pylist()], TEXT)


def _nulls(cells: pa.Array) -> Any:
    return cells.is_null().to_numpy(zero_copy_only=False)
