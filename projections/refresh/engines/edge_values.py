"""Rows in which two engines are most likely to differ: real ones, with values at the edge of their types in some cells.
Pure."""

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
    """The ``rows`` with edge values of their types, or NULL, in place of some of their cells: in as few columns of a
    row as leave room for all values of all columns, so that rows still match each other in the others. The ``keys``
    stay, by which rows differ. Without ``extremes`` no number is so large that sums of it may overflow."""
    count = rows.num_rows
    edges = {
        at: [*edge_values(field.type, extremes=extremes), None]
        for at, field in enumerate(rows.schema)
        if field.name not in keys
    }
    if not count or not edges:
        return rows
    at_once = min(len(edges), -(-sum(map(len, edges.values())) // count))
    for place, (at, values) in enumerate(edges.items()):
        cells = rows.column(at).to_pylist()
        mine = [row for row in range(count) if (row - place) % len(edges) < at_once]
        for number, row in enumerate(mine):
            cells[row] = values[number % len(values)]
        field = rows.schema.field(at)
        rows = rows.set_column(at, field, pa.array(cells, field.type))
    return rows.combine_chunks()


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
            yield from (largest, largest.copy_negate())  # minus rounds to 28 digits
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
