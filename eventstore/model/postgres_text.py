"""Postgres' output text of typed cells: the inverse of capture's reading, for readers that want a column as text.

The forms are those of the session settings capture uses (DateStyle ISO, TimeZone UTC, extra_float_digits >= 1,
bytea_output hex), so a typed cell and a cell kept as text look the same.
Sources: float8out/float4out (utils/adt/float.c, common/d2s.c, f2s.c), array_out (arrayfuncs.c), datetime.c.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

# From this decimal exponent on the shortest-exact output switches to scientific notation (d2s.c, f2s.c).
_SCIENTIFIC_DOUBLE = 15
_SCIENTIFIC_FLOAT = 6
_SCIENTIFIC_BELOW = -4
_QUOTED_ITEM = r'^$|^(?i:null)$|[{}",\\ \t\n\r\v\f]'  # array_isspace knows no other


def postgres_texts(column: pa.Array) -> pa.Array:
    """The text Postgres prints for each cell, as a string array; NULL stays NULL."""
    kind = column.type
    kinds = pa.types
    if kinds.is_string(kind):
        return column
    if kinds.is_integer(kind) or kinds.is_date(kind):
        return pc.cast(column, pa.string())
    if kinds.is_boolean(kind):
        return pc.if_else(column, pa.scalar("t"), pa.scalar("f"))
    if kinds.is_timestamp(kind):
        plain = _trim_fraction(pc.cast(pc.cast(column, pa.timestamp("us")), pa.string()))
        return plain if kind.tz is None else pc.binary_join_element_wise(plain, pa.scalar("+00"), "")
    if kinds.is_time(kind):
        return _trim_fraction(pc.cast(column, pa.string()))
    if kinds.is_list(kind):
        return _arrays(column)
    return pa.array([_text(value, kind) for value in column.to_pylist()], pa.string())


def _trim_fraction(texts: pa.Array) -> pa.Array:
    """Without the zeros at the end of a six-digit fraction."""
    whole = pc.replace_substring_regex(texts, r"\.0{6}$", "")
    return pc.replace_substring_regex(whole, r"(\.\d*[1-9])0+$", r"\1")


def _text(value: Any, kind: pa.DataType) -> str | None:
    match value:
        case None:
            return None
        case bytes():
            return "\\x" + value.hex()
        case Decimal():
            return format(value, "f")
        case float():
            return float_text(value, single=pa.types.is_float32(kind))
    raise TypeError(f"no Postgres text for {kind}")


def float_text(value: float, *, single: bool = False) -> str:
    """float8out (or float4out of a value that fits in single precision) with shortest exact digits."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    shortest = _digits(np.float32(value) if single else np.float64(value))
    mantissa, _, exponent_text = shortest.partition("e")
    exponent = int(exponent_text)
    if not _SCIENTIFIC_BELOW <= exponent < (_SCIENTIFIC_FLOAT if single else _SCIENTIFIC_DOUBLE):
        sign = "-" if exponent < 0 else "+"
        return f"{mantissa}e{sign}{abs(exponent):02d}"
    return format(Decimal(shortest), "f") if value else ("-0" if mantissa.startswith("-") else "0")


def _digits(value: np.float32 | np.float64) -> str:
    """The fewest digits that lie strictly between the midpoints to the neighbours. Others accept the midpoints, which
    round to even; Postgres does not (d2s.c: ``acceptBounds``)."""
    shortest = np.format_float_scientific(value, trim="-")
    precision = int(np.finfo(value.dtype).nmant) + 1
    if abs(value) < 2**precision:
        return shortest  # below, a midpoint has more digits than any shortest form
    exact = Fraction(abs(float(value)))
    fraction, exponent = math.frexp(float(exact))
    away = Fraction(2) ** (exponent - precision - 1)  # half the distance to the next larger number
    back = away / 2 if fraction == 0.5 else away
    digits = len(shortest.partition("e")[0].replace(".", "").lstrip("-"))
    while not exact - back < abs(Fraction(shortest)) < exact + away:
        shortest = f"{Decimal(float(value)):.{digits}e}"  # correctly rounded, one digit more
        digits += 1
    return shortest


def _arrays(column: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    texts = array_texts(offsets, postgres_texts(pc.list_flatten(column)))
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, texts.type))


def array_texts(offsets: NDArray[np.int32], items: pa.Array) -> pa.Array:
    """array_out of one dimension, of the texts of all elements, null for NULL; the ``offsets``
    say where each array begins and ends."""
    plain = pc.fill_null(items, "NULL")
    quoted = pc.fill_null(pc.match_substring_regex(items, _QUOTED_ITEM), False)
    if pc.any(quoted, min_count=0).as_py():
        escaped = pc.replace_substring(pc.replace_substring(plain, "\\", "\\\\"), '"', '\\"')
        plain = pc.if_else(quoted, pc.binary_join_element_wise('"', escaped, '"', ""), plain)
    inner = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), plain), ",")
    return pc.binary_join_element_wise("{", inner, "}", "")
