"""Whole rows as MessagePack maps, and back, in the schema they came from.

Floats and bytes have MessagePack's own types, in lists too; all other values are as in JSON (``columns``). Maps are
written column by column, byte for byte as the msgpack package does:
<https://github.com/msgpack/msgpack/blob/master/spec.md>.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.projections.sinks.columns import from_json, is_bytes, is_list, to_json, to_texts
from tailrace.projections.sinks.rows import join_bytes

_NIL, _FALSE, _TRUE, _DOUBLE = b"\xc0", b"\xc2", b"\xc3", b"\xcb"
# Integers from each of these bounds on have the next type; those of fixed width, from -32 on, are their own type byte.
_BOUNDS = np.array([-(2**31), -(2**15), -(2**7), -(2**5), 2**7, 2**8, 2**16, 2**32])
_TYPES = np.array([0xD3, 0xD2, 0xD1, 0xD0, 0, 0xCC, 0xCD, 0xCE, 0xCF], np.uint8)
_WIDTHS = np.array([8, 4, 2, 1, 0, 1, 2, 4, 8])
_OWN_BYTE = 4


def to_packed(rows: pa.Table, head: bytes) -> list[bytes]:
    """A map for each row with every column, NULL as nil. ``head`` is one packed entry before them."""
    return list(packed_maps(rows, head).to_pylist())


def packed_maps(rows: pa.Table, head: bytes) -> pa.BinaryArray:
    """``to_packed`` as an array."""
    pieces: list[bytes | pa.BinaryArray] = [msgpack.Packer().pack_map_header(rows.num_columns + 1), head]
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        pieces += [msgpack.packb(name), _pack(column.combine_chunks())]
    return join_bytes(*pieces)


def from_packed(maps: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of ``to_packed``, from unpacked maps. Other entries are ignored; a missing one is NULL."""
    columns = [_column([row.get(field.name) for row in maps], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _pack(column: pa.Array) -> pa.BinaryArray:
    kind, types = column.type, pa.types
    if is_list(kind):
        values = column.to_pylist() if _is_native(kind) else to_json(column)
        return pa.array([msgpack.packb(value) for value in values], pa.binary())
    if types.is_boolean(kind):
        cells = pc.if_else(column, _constant(_TRUE), _constant(_FALSE))
    elif types.is_signed_integer(kind):
        cells = _integers(column)
    elif types.is_floating(kind):
        cells = join_bytes(_DOUBLE, _big_endian(column.cast(pa.float64()), ">f8"))
    elif is_bytes(kind):
        cells = _with_headers(column.cast(pa.binary()), _bin_header)
    else:
        cells = _with_headers(to_texts(column).cast(pa.string()).cast(pa.binary()), _str_header)
    return cells.fill_null(_NIL)


def _constant(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


def _with_headers(cells: pa.BinaryArray, header: Callable[[int], bytes]) -> pa.BinaryArray:
    """Cells behind what tells their length."""
    lengths = pc.binary_length(cells).dictionary_encode()
    headers = pa.array([header(length) for length in lengths.dictionary.to_pylist()], pa.binary())
    return join_bytes(headers.take(lengths.indices), cells)


def _str_header(length: int) -> bytes:
    if length < 2**5:
        return bytes([0xA0 | length])
    return b"\xd9%c" % length if length < 2**8 else _header(b"\xda", b"\xdb", length)


def _bin_header(length: int) -> bytes:
    return b"\xc4%c" % length if length < 2**8 else _header(b"\xc5", b"\xc6", length)


def _header(short: bytes, long: bytes, length: int) -> bytes:
    return short + length.to_bytes(2, "big") if length < 2**16 else long + length.to_bytes(4, "big")


def _big_endian(column: pa.Array, form: str) -> pa.BinaryArray:
    """The eight bytes of each value; null for null."""
    data = column.fill_null(0).to_numpy().astype(form)
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(8), len(column), [None, pa.py_buffer(data.tobytes())]
    )
    return pc.if_else(column.is_valid(), fixed.cast(pa.binary()), None)


def _integers(column: pa.Array) -> pa.BinaryArray:
    """Each in as few bytes as it needs: its type, then the last of its eight bytes."""
    values = column.cast(pa.int64()).fill_null(0).to_numpy()
    classes = np.searchsorted(_BOUNDS, values, side="right")
    widths = _WIDTHS[classes]
    signs = np.empty((len(values), 9), np.uint8)
    signs[:, 0] = np.where(classes == _OWN_BYTE, values.astype(np.uint8), _TYPES[classes])
    signs[:, 1:] = values.astype(">i8").view(np.uint8).reshape(-1, 8)
    taken = np.arange(9) >= 9 - widths[:, None]
    taken[:, 0] = True
    ends = np.concatenate(([0], np.cumsum(widths + 1))).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(signs[taken])]
    cells = pa.BinaryArray.from_buffers(pa.binary(), len(values), buffers)
    return pc.if_else(column.is_valid(), cells, None)


def _column(cells: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(cells, kind) if _is_native(kind) else from_json(cells, kind)


def _is_native(kind: pa.DataType) -> bool:
    inner = kind.value_type if is_list(kind) else kind
    return bool(pa.types.is_floating(inner) or is_bytes(inner))
