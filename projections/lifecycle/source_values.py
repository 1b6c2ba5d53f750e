"""What Postgres prints, as values of a sink's column: equal ones become equal. Pure.

A text that is no value of the column's type, or one with more digits than it has, is *unlike*: no value of a projection
equals it. The nearest float stands for a number, a moment in UTC for a timestamp with and without a zone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.projections.generations.difference import Mask
from tailrace.projections.sinks.columns import from_texts, is_bytes, is_list

_FLOAT4, _FLOAT4_LIST = 700, 1021
_EXACT = Context(prec=150_000)  # as many digits as a numeric may have
_ZONE = r"[+-][0-9]{2}(:[0-9]{2}){0,2}$"
_WRONG = (pa.ArrowInvalid, ValueError, TypeError, InvalidOperation)


def values_of(texts: pa.Array, kind: pa.DataType, oid: int) -> tuple[pa.Array, Mask]:
    """The texts as an array of ``kind`` (of lists their JSON), and which of them are unlike; these are NULL. ``oid`` is
    the type in Postgres."""
    none = np.zeros(len(texts), np.bool_)
    try:
        return _read(texts, kind, oid), none
    except _WRONG:
        pass
    cells: list[pa.Array] = []
    for at, text in enumerate(texts.to_pylist()):
        try:
            cells.append(_read(pa.array([text], pa.string()), kind, oid))
        except _WRONG:
            none[at] = True
            cells.append(pa.nulls(1, kind))
    return pa.concat_arrays(cells), none


def _read(texts: pa.Array, kind: pa.DataType, oid: int) -> pa.Array:
    """Raises one of ``_WRONG``."""
    if is_list(kind):
        return _lists(texts.to_pylist(), kind, _FLOAT4 if oid == _FLOAT4_LIST else oid)
    if pa.types.is_boolean(kind):
        return _require(texts, r"^(t|f|true|false)$", kind)
    if is_bytes(kind):
        return _require(texts, r"^\\x", kind)
    if pa.types.is_timestamp(kind):
        return from_texts(_in_utc(texts, zoned=bool(kind.tz)), kind)
    if pa.types.is_float64(kind) and oid == _FLOAT4:
        return from_texts(texts, pa.float32()).cast(kind)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        try:
            return from_texts(texts, kind)
        except pa.ArrowInvalid:
            return pa.array(
                [None if text is None else _number(text, kind) for text in texts.to_pylist()], kind
            )
    return from_texts(texts, kind)


def _require(texts: pa.Array, pattern: str, kind: pa.DataType) -> pa.Array:
    if not pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py():
        raise ValueError
    return from_texts(texts, kind)


def _in_utc(texts: pa.Array, *, zoned: bool) -> pa.Array:
    """Timestamps, with their zone or without one; what has none is in UTC."""
    has = pc.match_substring_regex(texts, _ZONE)
    if zoned:
        return pc.if_else(has, texts, pc.binary_join_element_wise(texts, "+00", ""))
    return pc.replace_substring_regex(texts, r"\+00$", "")


def _number(text: str, kind: pa.DataType) -> int | Decimal:
    """A number that is written with other digits behind the point than the type has."""
    number = Decimal(text)
    whole = number.to_integral_value()
    if pa.types.is_integer(kind):
        if number != whole:
            raise ValueError
        return int(whole)
    return number.normalize(_EXACT)


def _lists(texts: Sequence[str | None], kind: pa.DataType, oid: int) -> pa.Array:
    """``oid``: as which type numbers among the elements are read."""
    given = [None if text is None else json.loads(text, parse_float=str, parse_int=str) for text in texts]
    inner = kind.value_type
    cells = [_element(cell, inner) for value in given for cell in value or ()]
    values, unlike = values_of(pa.array(cells, pa.string()), inner, oid)
    if unlike.any():
        raise ValueError
    read = iter(values.to_pylist())
    return pa.array([None if value is None else [next(read) for _ in value] for value in given], kind)


def _element(cell: Any, kind: pa.DataType) -> str | None:
    if isinstance(cell, bool):
        return "t" if cell else "f"
    if cell is None:
        return None
    if not isinstance(cell, str):
        raise ValueError  # an array of several dimensions
    return cell.replace("T", " ") if pa.types.is_timestamp(kind) else cell
