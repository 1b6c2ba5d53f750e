"""Arrow tables as COPY data and back, column by column, and the Postgres types that hold Arrow's exactly.

CSV, because it tells NULL (nothing) from an empty string (``""``) and Arrow writes and reads it without making a
Python object per cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
from psycopg import sql

from projections.sinks.columns import from_texts, is_bytes, is_list, is_text, to_texts

_ROWS_AT_ONCE = 32_768  # keeps one piece of COPY data around a few MiB
_BYTES_AT_ONCE = 8 << 20
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}]+)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def column_type(kind: pa.DataType) -> str:
    """The Postgres type for an Arrow type, spelled as format_type spells it."""
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
    return {
        pa.bool_(): "boolean",
        pa.int8(): "smallint",
        pa.int16(): "smallint",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.float32(): "real",
        pa.float64(): "double precision",
        pa.date32(): "date",
        pa.time64("us"): "time without time zone",
    }[kind]


def copy_in(cursor: psycopg.Cursor[Any], relation: sql.Composable, rows: pa.Table) -> None:
    """COPY rows into a table that has their columns (in any order)."""
    if not rows.num_rows:
        return
    names = sql.SQL(", ").join(sql.Identifier(name) for name in rows.column_names)
    with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(relation, names)) as copy:
        for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
            copy.write(copy_data(rows.slice(start, _ROWS_AT_ONCE)))


def copy_data(rows: pa.Table) -> bytes:
    """Rows as CSV without a header. Raises UsageError for a year outside 1–9999."""
    texts = [_to_texts(column.combine_chunks()) for column in rows.columns]
    out = pa.BufferOutputStream()
    arrow_csv.write_csv(
        pa.table(texts, [str(i) for i in range(len(texts))]),
        out,
        arrow_csv.WriteOptions(include_header=False),
    )
    return bytes(out.getvalue())


def copy_out(
    cursor: psycopg.Cursor[Any], relation: sql.Composable, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """All rows of a table, read by one COPY (one snapshot), in ``schema``."""
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
    """The inverse of ``copy_data``, for Postgres' own output."""
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


def _to_texts(column: pa.Array) -> pa.Array:
    if not is_list(column.type):
        return to_texts(column)
    cells = to_texts(column.flatten()).cast(pa.string())
    escaped = pc.replace_substring(pc.replace_substring(cells, "\\", "\\\\"), '"', '\\"')
    quoted = pc.coalesce(pc.binary_join_element_wise('"', escaped, '"', ""), "NULL")
    lengths = pc.coalesce(pc.list_value_length(column), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    inner = pc.binary_join(pa.ListArray.from_arrays(offsets, quoted), ",")
    return pc.if_else(column.is_valid(), pc.binary_join_element_wise("{", inner, "}", ""), None)


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
