"""Arrow tables in COPY's binary format, made column by column: no Python object for each cell, and no text that the
server has to parse.

Format: <https://www.postgresql.org/docs/18/sql-copy.html#SQL-COPY-BINARY-FORMAT>. Values are as the receive functions
of their types read them (``numeric_recv``, ``array_recv`` …).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.projections.sinks.columns import is_bytes, is_list, is_text, require_common_years
from tailrace.projections.sinks.rows import join_bytes

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)

_NULL = struct.pack(">i", -1)
_EPOCH_DAYS = 10_957  # 2000-01-01, from which Postgres counts
_EPOCH_MICROS = _EPOCH_DAYS * 86_400_000_000
_FIRST_INDEX = struct.pack(">i", 1)
_NEGATIVE = 0x4000
_LIMB = np.uint64(32)
_LIMB_MASK = np.uint64(2**32 - 1)
_DIGITS = np.uint64(10_000)  # of a numeric: its digits have the base 10,000


def copy_rows(rows: pa.Table) -> pa.BinaryArray:
    """Each row as COPY takes it between HEADER and TRAILER. Raises UsageError for a year outside 1–9999."""
    fields = (_field(column.combine_chunks()) for column in rows.columns)
    pieces = (piece for field in fields for piece in field)
    return join_bytes(struct.pack(">h", rows.num_columns), *pieces)


def _field(column: pa.Array) -> tuple[bytes | pa.BinaryArray, ...]:
    """Length and value of each cell; NULL's length where it is NULL."""
    values, width = _values(column)
    length = _fixed_width(pc.binary_length(values), ">i4") if width is None else struct.pack(">i", width)
    if not column.null_count:
        return length, values
    return (pc.if_else(column.is_valid(), join_bytes(length, values), _NULL),)


def _values(column: pa.Array) -> tuple[pa.BinaryArray, int | None]:
    """The value of each cell (anything where it is NULL), and the length of every value, unless lengths differ."""
    kind, types = column.type, pa.types
    if is_list(kind):
        return _arrays(column), None
    if is_text(kind) or is_bytes(kind):
        return column.cast(pa.string() if is_text(kind) else pa.binary()).cast(pa.binary()).fill_null(
            b""
        ), None
    if types.is_decimal(kind):
        return _numerics(column)
    if types.is_boolean(kind):
        return _fixed_width(column.cast(pa.int8()), ">i1"), 1
    if types.is_date(kind):
        require_common_years(column)
        return _fixed_width(pc.subtract(column.cast(pa.int32()), _EPOCH_DAYS), ">i4"), 4
    if types.is_timestamp(kind):
        require_common_years(column)
        micros = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        return _fixed_width(pc.subtract(micros, _EPOCH_MICROS), ">i8"), 8
    if types.is_time(kind):
        return _fixed_width(column.cast(pa.int64()), ">i8"), 8
    width = max(2, kind.bit_width // 8)
    return _fixed_width(column, f">{'f' if types.is_floating(kind) else 'i'}{width}"), width


def _fixed_width(column: pa.Array, form: str) -> pa.BinaryArray:
    """Numbers as numpy's format has them."""
    return _cells(column.fill_null(0).to_numpy(zero_copy_only=False).astype(form))


def _cells(data: np.ndarray[Any, Any]) -> pa.BinaryArray:
    """The bytes of each number, or of each row of numbers."""
    width = data.nbytes // max(1, len(data))
    ends = np.arange(len(data) + 1, dtype=np.int32) * width
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data.tobytes())]
    return pa.BinaryArray.from_buffers(pa.binary(), len(data), buffers)


def _arrays(column: pa.Array) -> pa.BinaryArray:
    """One-dimensional arrays; an empty one has no dimension."""
    items = column.flatten()
    item_type = struct.pack(">iI", bool(items.null_count), _oid(items.type))
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    inner = pc.binary_join(pa.ListArray.from_arrays(ends, join_bytes(*_field(items))), b"")
    filled = join_bytes(struct.pack(">i", 1), item_type, _fixed_width(lengths, ">i4"), _FIRST_INDEX, inner)
    return pc.if_else(pc.greater(lengths, 0), filled, struct.pack(">i", 0) + item_type)


def _numerics(column: pa.Array) -> tuple[pa.BinaryArray, int]:
    """Every value with all digits that the type has room for. The server removes zeros at both ends."""
    precision, scale = column.type.precision, column.type.scale
    after = -(-scale // 4)
    before = max(1, -(-(precision - scale) // 4))
    words = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)[column.offset :][: len(column)]
    low, high = words[:, 0], words[:, 1]
    negative = high >> np.uint64(63) == 1
    high = np.where(negative, ~high + (low == 0), high)
    low = np.where(negative, ~low + np.uint64(1), low)
    parts = np.zeros((len(column), 4 + before + after), ">i2")
    parts[:, :4] = np.column_stack(
        np.broadcast_arrays(before + after, before - 1, np.where(negative, _NEGATIVE, 0), scale)
    )
    write_digits(parts[:, 4:], low, high, 10 ** (4 * after - scale))
    return _cells(parts), parts.shape[1] * 2


def write_digits(
    digits: np.ndarray[Any, Any], low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], factor: int
) -> None:
    """The digits to base 10,000 of (2^64 high + low) times factor, lowest last. The factor is at most 1000."""
    if not high.any() and (low < 2**64 // factor).all():
        limbs = [low * np.uint64(factor)]
    else:
        limbs, carry = [], np.zeros_like(low)
        for limb in (low & _LIMB_MASK, low >> _LIMB, high & _LIMB_MASK, high >> _LIMB):
            product = limb * np.uint64(factor) + carry
            limbs.append(product & _LIMB_MASK)
            carry = product >> _LIMB
        limbs.append(carry)
    for place in range(digits.shape[1] - 1, -1, -1):
        rest = np.zeros_like(low)
        for at in range(len(limbs) - 1, -1, -1):
            dividend = limbs[at] if len(limbs) == 1 else (rest << _LIMB) | limbs[at]
            limbs[at] = dividend // _DIGITS
            rest = dividend - limbs[at] * _DIGITS
        digits[:, place] = rest


def _oid(kind: pa.DataType) -> int:
    """The server's number of the type that ``column_type`` names."""
    if pa.types.is_decimal(kind):
        return 1700
    if is_text(kind):
        return 25
    if is_bytes(kind):
        return 17
    if pa.types.is_timestamp(kind):
        return 1184 if kind.tz else 1114
    return {
        pa.bool_(): 16,
        pa.int8(): 21,
        pa.int16(): 21,
        pa.int32(): 23,
        pa.int64(): 20,
        pa.float32(): 700,
        pa.float64(): 701,
        pa.date32(): 1082,
        pa.time64("us"): 1083,
    }[kind]
