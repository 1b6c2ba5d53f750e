"""The types every sink can hold, and their values as text and as JSON, both ways without loss.

Text: ISO 8601 for dates and times (UTC for zoned ones), shortest exact decimal text for floats, ``\\x`` and hex
digits for bytes, ``true``/``false``. JSON: booleans, integers, finite floats, text and lists as themselves, all
others as text.
"""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import UsageError

_FIRST_DAY = (
    -719_162
)  # 0001-01-01 and 9999-12-31, in days since 1970: what Python, Postgres and ISO 8601 all have
_LAST_DAY = 2_932_896
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def unsupported_columns(schema: pa.Schema) -> list[str]:
    """A sentence for each column whose type some sink cannot hold exactly."""
    return [
        f"column {field.name!r} has type {field.type}: {_advice(field.type)}"
        for field in schema
        if not (is_scalar(field.type) or (is_list(field.type) and is_scalar(field.type.value_type)))
    ]


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_scalar(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64(), pa.date32(), pa.time64("us"))
        or (pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision)
        or is_text(kind)
        or is_bytes(kind)
        or (pa.types.is_timestamp(kind) and kind.unit in _PER_DAY)
    )


def _advice(kind: pa.DataType) -> str:
    if pa.types.is_null(kind):
        return "cast it, for example to string"
    if pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_nested(kind):
        return "use to_json(column)"
    if pa.types.is_timestamp(kind):
        return "cast it to microseconds"
    return "cast it to a type Postgres has"


def to_texts(column: pa.Array) -> pa.Array:
    """The text of every value as a string array; NULL stays null. Raises UsageError for a year outside 1–9999."""
    kind = column.type
    if is_text(kind):
        return column
    if is_bytes(kind):
        return pa.array([None if v is None else "\\x" + v.hex() for v in column.to_pylist()], pa.string())
    if pa.types.is_timestamp(kind):
        require_common_years(column)
        if kind.tz:  # Arrow takes 20 times as long for zoned ones, to find out what UTC is
            wall = pc.cast(
                column.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit)), pa.string()
            )
            return pc.binary_join_element_wise(wall, "Z", "")
    elif kind == pa.date32():
        require_common_years(column)
    return pc.cast(column, pa.string())


def require_common_years(column: pa.Array) -> None:
    """Raises UsageError for dates or timestamps outside the years 1–9999."""
    per_day = 1 if pa.types.is_date(column.type) else _PER_DAY[column.type.unit]
    raw = column.cast(pa.int32() if per_day == 1 else pa.int64())
    span = pc.min_max(raw)
    low, high = span["min"].as_py(), span["max"].as_py()
    if low is not None and (low < _FIRST_DAY * per_day or high >= (_LAST_DAY + 1) * per_day):
        raise UsageError(
            f"a {column.type} outside the years 1 to 9999 cannot be written to a sink",
            hint="filter or cap such values in the projection",
        )


def from_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The inverse of ``to_texts``; also reads Postgres' own output (``t``/``f``, ``+00``, ``Infinity``).

    Raises pyarrow.ArrowInvalid for a text that is no value of the type.
    """
    if is_text(kind):
        return texts.cast(kind)
    if is_bytes(kind):
        return pa.array([None if v is None else bytes.fromhex(v[2:]) for v in texts.to_pylist()], kind)
    if pa.types.is_boolean(kind):
        return pc.starts_with(texts, "t")
    if kind == pa.time64("us"):
        stamps = pc.cast(pc.binary_join_element_wise("1970-01-01", texts, " "), pa.timestamp("us"))
        return pc.cast(stamps, kind)
    if pa.types.is_timestamp(kind):
        return pc.cast(pc.cast(texts, pa.timestamp("us", "UTC" if kind.tz else None)), kind)
    return pc.cast(texts, kind)


def to_json(column: pa.Array) -> list[Any]:
    """One JSON value per row (None for null)."""
    kind = column.type
    if is_list(kind):
        cells = iter(to_json(column.flatten()))
        lengths = pc.list_value_length(column).to_pylist()
        return [None if n is None else [next(cells) for _ in range(n)] for n in lengths]
    if kind in (pa.float32(), pa.float64()):
        return [v if v is None or math.isfinite(v) else str(v) for v in column.to_pylist()]
    if pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind) or is_text(kind):
        return list(column.to_pylist())
    return list(to_texts(column).to_pylist())


def from_json(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The inverse of ``to_json``. Raises pyarrow.ArrowInvalid, TypeError or ValueError for other values."""
    if is_list(kind):
        cells = from_json([cell for value in values for cell in value or ()], kind.value_type)
        offsets, at = [], 0
        for value in values:
            offsets.append(None if value is None else at)
            at += len(value or ())
        size = pa.int64() if pa.types.is_large_list(kind) else pa.int32()
        lists = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        return lists.from_arrays(pa.array([*offsets, at], size), cells).cast(kind)
    if kind in (pa.float32(), pa.float64()):
        return pa.array([None if v is None else float(v) for v in values], kind)
    if pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind) or is_text(kind):
        return pa.array(values, kind)
    return from_texts(pa.array(values, pa.string()), kind)
