"""Arrow tables into Postgres by COPY and back, and the Postgres types that hold Arrow's exactly.

In goes the binary format (``binary_copy``). Out comes CSV: it tells NULL (nothing) from an empty string (``""``), and
Arrow reads it without a Python object for each cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as arrow_csv
from psycopg import sql

from tailrace.projections.sinks.columns import from_texts, is_bytes, is_list, is_text
from tailrace.projections.sinks.postgres.binary_copy import HEADER, TRAILER, copy_rows
from tailrace.projections.sinks.rows import content, pieces

_BYTES_AT_ONCE = 8 << 20
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}]+)', re.DOTALL)
_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.date32(): "date",
    pa.time64("us"): "time without time zone",
}
_KINDS = {name: kind for kind, name in _NAMES.items()} | {
    "text": pa.string(),
    "bytea": pa.binary(),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "timestamp without time zone": pa.timestamp("us"),
}
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def column_type(kind: pa.DataType) -> str:
    """The Postgres type for an Arrow type, as format_type writes it."""
    if is_list(kind):
        return column_type(kind.value_type) + "[]"
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if is_text(kind):
        return "text"
    if is_bytes(kind):
        return "bytea"
    if pa.types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    return _NAMES[kind]


def arrow_type(name: str) -> pa.DataType | None:
    """The Arrow type whose ``column_type`` is ``name`` (the wider one of two that are a smallint). None for a list, and
    for a type that no column of ours has."""
    if found := _NUMERIC.fullmatch(name):
        return pa.decimal128(int(found[1]), int(found[2]))
    return _KINDS.get(name)


def copy_in(cursor: psycopg.Cursor[Any], relation: sql.Composable, rows: pa.Table) -> None:
    """COPY rows into a table that has their columns, in any order and of exactly the types of ``column_type``. Raises
    UsageError for a year outside 1–9999."""
    if not rows.num_rows:
        return
    names = sql.SQL(", ").join(sql.Identifier(name) for name in rows.column_names)
    with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(relation, names)) as copy:
        copy.write(HEADER)
        for piece in pieces(rows):
            copy.write(content(copy_rows(piece)).data)
        copy.write(TRAILER)


def copy_out(
    cursor: psycopg.Cursor[Any], relation: sql.Composable, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """All rows of a table in ``schema``, read by one COPY: one snapshot."""
    names = sql.SQL(", ").join(sql.Identifier(name) for name in schema.names)
    with cursor.copy(
        sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(names, relation)
    ) as copy:
        lines: list[bytes] = []
        size = 0
        for line in copy:  # the server sends one message per row, so pieces end where rows end
            lines.append(bytes(line))
            size += len(line)
            if size >= _BYTES_AT_ONCE:
                yield parse_data(b"".join(lines), schema)
                lines, size = [], 0
        if lines:
            yield parse_data(b"".join(lines), schema)


def parse_data(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """CSV as Postgres writes it, in ``schema``."""
    names = [str(i) for i in range(len(schema))]
    table = arrow_csv.read_csv(
        pa.BufferReader(data),
        arrow_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
        arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    columns = [
        _from_texts(column.combine_chunks(), field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _from_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if not is_list(kind):
        return from_texts(texts, kind)
    cells: list[str | None] = []
    offsets: list[int | None] = []
    for text in texts.to_pylist():
        offsets.append(None if text is None else len(cells))
        for quoted, plain in _ELEMENT.findall(text[1:-1] if text else ""):
            if plain:
                cells.append(None if plain == "NULL" else plain)
            else:
                cells.append(_ESCAPED.sub(r"\1", quoted))
    values = from_texts(pa.array(cells, pa.string()), kind.value_type)
    large = pa.types.is_large_list(kind)
    ends = pa.array([*offsets, len(cells)], pa.int64() if large else pa.int32())
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(ends, values).cast(kind)
