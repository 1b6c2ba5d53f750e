"""Whole rows as JSON objects or as text fields, and back, in the schema they came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from projections.sinks.columns import from_json, from_texts, is_bytes, is_list, to_json, to_texts

Cell = str | bytes | None
_CONTROLS = r"[\x00-\x1f]"


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def to_json_texts(rows: pa.Table, head: str = "{") -> list[str]:
    """One JSON object per row with every column, NULL as null, as ``dump`` writes it: made column by column, which
    takes a third of the time. ``head`` stands in place of the opening brace."""
    pieces: list[str | pa.Array] = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        pieces += [f"{',' if pieces else head}{dump(name)}:", _json_cells(column.combine_chunks())]
    return list(pc.binary_join_element_wise(*pieces, "}", "").to_pylist())


def _json_cells(column: pa.Array) -> pa.Array:
    """Each cell as JSON text, NULL as ``null``."""
    kind = column.type
    if is_list(kind) or pa.types.is_floating(kind):
        return pa.array([dump(cell) for cell in to_json(column)], pa.string())
    texts = to_texts(column).cast(pa.string())
    if not (pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind)):
        texts = _quoted(texts)
    return texts.fill_null("null")


def _quoted(texts: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(texts, _CONTROLS)).as_py():
        return pa.array([None if text is None else dump(text) for text in texts.to_pylist()], pa.string())
    for sign in ("\\", '"'):
        texts = pc.replace_substring(texts, sign, "\\" + sign)
    return pc.binary_join_element_wise('"', texts, '"', "")


def from_objects(objects: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of ``to_json_texts``, of decoded objects; other members are ignored, a missing one is NULL."""
    columns = [from_json([row.get(field.name) for row in objects], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def to_fields(rows: pa.Table) -> list[list[str | bytes]]:
    """Per row a flat list name, value, name, value …; a NULL is left out, so that it differs from an empty text.

    Bytes stay bytes and lists are JSON; the rest is text as in ``columns``.
    """
    columns = [_cells(column.combine_chunks()) for column in rows.columns]
    names = rows.column_names
    flat = []
    for cells in zip(*columns, strict=True):
        row: list[str | bytes] = []
        for name, cell in zip(names, cells, strict=True):
            if cell is not None:
                row += (name, cell)
        flat.append(row)
    return flat


def from_fields(rows: Sequence[dict[bytes, bytes]], schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of ``to_fields``, from mappings of name to value; other fields are ignored."""
    columns = []
    for field in schema:
        name = field.name.encode()
        columns.append(_column([row.get(name) for row in rows], field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cells(column: pa.Array) -> list[Cell]:
    if is_bytes(column.type):
        return list(column.to_pylist())
    if is_list(column.type):
        return [None if value is None else dump(value) for value in to_json(column)]
    return list(to_texts(column).to_pylist())


def _column(cells: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    if is_bytes(kind):
        return pa.array(cells, kind)
    if is_list(kind):
        return from_json([None if cell is None else json.loads(cell) for cell in cells], kind)
    return from_texts(pa.array(cells, pa.binary()).cast(pa.string()), kind)


def schema_to_text(schema: pa.Schema) -> str:
    """An Arrow schema as hexadecimal digits, for places that hold text."""
    return str(schema.serialize().to_pybytes().hex())


def schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))
