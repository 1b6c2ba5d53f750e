"""Rows in which two engines are most likely to differ: copies of real ones with a value at the edge of its type in one
column each. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

_TEXTS = (
    "",
    " ",
    "a ",
    "A",
    "ä",
    "ß",
    "😀",
    "e\u0301",
    "%",
    "_",
    "\\",
    "'",
    "0",
    "-1",
    "1e3",
    "null",
    "x" * 300,
)
_WIDE = Context(prec=80)
_MICROSECOND = datetime.timedelta(microseconds=1)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MOMENTS = (
    datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
    _EPOCH - _MICROSECOND,
    datetime.datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=datetime.UTC),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC),
)


def edge_rows(rows: pa.Table, keys: Collection[str], *, extremes: bool) -> pa.Table:
    """For each column and each edge value of its type one of the ``rows`` with that value: NULL too, but not in
    ``keys``, which the source has NOT NULL. Without ``extremes`` no number is so large that sums of it may overflow. At
    first come the rows themselves."""
    pieces = [rows]
    for at, field in enumerate(rows.schema):
        values = [*edge_values(field.type, extremes=extremes), *([] if field.name in keys else [None])]
        if not rows.num_rows or not values:
            continue
        copied = rows.take(pa.array([(at + each) % rows.num_rows for each in range(len(values))]))
        pieces.append(copied.set_column(at, field, pa.array(values, field.type)))
    return pa.concat_tables(pieces).combine_chunks()


def edge_values(kind: pa.DataType, *, extremes: bool) -> list[Any]:
    """Values of a type at which implementations differ; none for types that no case is made of."""
    return list(_values(kind, extremes))


def _values(kind: pa.DataType, extremes: bool) -> Iterator[Any]:
    if pa.types.is_integer(kind):
        yield from (0, -1)
        if extremes:
            yield from (-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
    elif pa.types.is_floating(kind):
        yield from (0.0, -0.0, 0.1, float("nan"))
        if extremes:
            yield from (float("inf"), float("-inf"))
    elif pa.types.is_decimal(kind):
        unit = Decimal(1).scaleb(-kind.scale)
        yield from (Decimal(0), unit, -unit)
        if extremes:
            largest = Decimal(10**kind.precision - 1).scaleb(-kind.scale, _WIDE)
            yield from (largest, -largest)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield from _TEXTS
    elif pa.types.is_boolean(kind):
        yield from (True, False)
    elif pa.types.is_date(kind):
        yield from (moment.date() for moment in _MOMENTS)
    elif pa.types.is_timestamp(kind):
        yield from (moment if kind.tz else moment.replace(tzinfo=None) for moment in _MOMENTS)
    elif pa.types.is_time(kind):
        yield from (datetime.time(0), datetime.time(23, 59, 59, 999_999))
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        yield from (b"", b"\x00\xff")
    elif pa.types.is_list(kind):
        yield from ([], [None])
