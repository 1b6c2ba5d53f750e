"""Whole rows as JSON objects or as text fields, and back, in the schema they came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from projections.sinks.columns import from_json, from_texts, is_bytes, is_list, to_json, to_texts

Cell = str | bytes | None


def to_objects(rows: pa.Table) -> list[dict[str, Any]]:
    """One JSON object per row with every column, NULL as null."""
    columns = [to_json(column.combine_chunks()) for column in rows.columns]
    return [dict(zip(rows.column_names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def from_objects(objects: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of ``to_objects``; other members are ignored, a missing one is NULL."""
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
