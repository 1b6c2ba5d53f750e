"""Which Python values are values of a key column: one rule, so that every reader finds the same rows.

Sinks never convert keys: Postgres would round 1.5 to key 2, and read a timestamp in its session's time zone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import pyarrow as pa

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model import keys
from tailrace.projections.sinks.columns import is_bytes, is_text
from tailrace.projections.sinks.contract import join_key
from tailrace.projections.sinks.reader import in_utc

# Of what kind of column, what to give, and its classes (numpy's numbers are among Integral and Real).
_GIVEN = (
    (pa.types.is_boolean, "a bool", (bool,)),
    (pa.types.is_integer, "an int", (Integral,)),
    (pa.types.is_floating, "a float or an int, exact in that type", (Real,)),
    (pa.types.is_decimal, "a Decimal or an int, exact in that type", (Decimal, Integral)),
    (is_text, "a str", (str,)),
    (is_bytes, "bytes", (bytes, bytearray, memoryview)),
    (pa.types.is_date, "a date, not a datetime", (date,)),
    (pa.types.is_time, "a time without a time zone", (time,)),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz, "a datetime with a time zone", (datetime,)),
    (pa.types.is_timestamp, "a datetime without a time zone", (datetime,)),
)


def typed_key(key: object, columns: Sequence[str], schema: pa.Schema, projection: str) -> tuple[object, ...]:
    """A key as values of its columns' types, ``Decimal("1.5")`` as 1.50. Raises UsageError for values of other
    types."""
    cells = key if isinstance(key, tuple) else (key,)
    if len(cells) != len(columns):
        raise UsageError(
            f"a key of projection {projection!r} has {len(columns)} values, {len(cells)} given",
            hint="give one value, or a tuple of as many values as the key has columns",
        )
    if any(cell is None for cell in cells):
        raise UsageError(f"a key of projection {projection!r} cannot be NULL", hint="give every value")
    return tuple(
        _to_type(cell, schema.field(name), projection) for cell, name in zip(cells, columns, strict=True)
    )


def key_name(key: object, columns: Sequence[str], schema: pa.Schema, projection: str) -> tuple[int, str]:
    """The hash of a key, and its text inside a generation, as the sink has them."""
    texts = [str(keys.text(cell)) for cell in typed_key(key, columns, schema, projection)]
    return keys.hash_texts(texts), join_key(texts)


def _to_type(cell: object, column: pa.Field, projection: str) -> object:
    kind = column.type
    words, classes = next((words, classes) for is_it, words, classes in _GIVEN if is_it(kind))
    try:
        if _is_one_of(cell, classes, kind):
            # In UTC first: a moment of an hour that a time zone has twice equals none of another zone (PEP 495).
            wanted = in_utc(cell)
            typed = pa.scalar(wanted, kind).as_py()
            if _is_same(in_utc(typed), wanted):
                return typed
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    raise UsageError(
        f"{disclosure.value(cell)} is not a value of key column {column.name!r} ({kind}) of projection {projection!r}",
        hint=f"give {words}",
    )


def _is_one_of(cell: object, classes: tuple[type, ...], kind: pa.DataType) -> bool:
    """Whether a value is of these classes. True is no 1, a datetime is no date, and a datetime has a time zone if its
    column has one."""
    match cell:
        case bool():
            return bool in classes
        case datetime():
            return datetime in classes and (cell.utcoffset() is None) == (kind.tz is None)
        case _:
            return isinstance(cell, classes)


def _is_same(typed: Any, given: Any) -> bool:
    """Whether nothing was lost; NaN is itself."""
    return bool(typed == given or (typed != typed and given != given))
