"""The rows of the contract suite: every type that sinks hold, and the values that are easily lost."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("region", pa.string()),
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("ok", pa.bool_()),
        pa.field("small", pa.int16()),
        pa.field("count", pa.int64()),
        pa.field("ratio", pa.float64()),
        pa.field("ratio4", pa.float32()),
        pa.field("total", pa.decimal128(38, 10)),
        pa.field("content", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.time64("us")),
        pa.field("local", pa.timestamp("us")),
        pa.field("moment", pa.timestamp("us", "UTC")),
        pa.field("words", pa.list_(pa.string())),
        pa.field("numbers", pa.list_(pa.int32())),
    ]
)

AWKWARD: dict[str, list[Any]] = {  # by the name of a column of SCHEMA; every list also has NULL
    "region": ["eu", "", "a:b", "a\\", "north {west}", "münchen ☃", '"', "null", "\\N", " "],
    "id": [0, 1, -1, 7, 2**63 - 1, -(2**63)],
    "name": ["", "x", "a,b", 'say "hi"', "two\nlines\r\n", "tab\t\\.", "\\N", "NULL", "☃𐍈", " ", "null"],
    "ok": [True, False],
    "small": [0, 2**15 - 1, -(2**15)],
    "count": [0, 2**53 + 1, 2**63 - 1, -(2**63)],
    "ratio": [0.0, -0.0, 0.1, 1e300, 5e-324, float("inf"), float("-inf"), float("nan")],
    "ratio4": [0.0, 1.1, float("nan"), float("-inf")],
    "total": [Decimal(0), Decimal("1E-10"), Decimal("-12.5"), Decimal("9" * 28 + "." + "9" * 10)],
    "content": [b"", b"\0", b"\xff\xfe", b"plain", b"\\x00"],
    "day": [date(1, 1, 1), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
    "at": [time(0), time(23, 59, 59, 999_999), time(12, 0, 0, 1)],
    "local": [
        datetime.fromisoformat("0001-01-01"),
        datetime.fromisoformat("2024-03-31T02:30:00.000001"),
        datetime.fromisoformat("9999-12-31T23:59:59.999999"),
    ],
    "moment": [datetime(1, 1, 2, tzinfo=UTC), datetime(2038, 1, 19, 3, 14, 8, 5, tzinfo=UTC)],
    "words": [[], [""], [None], ["a", None, 'b"\\,{}', "NULL", " "]],
    "numbers": [[], [None], [1, None, -(2**31)]],
}


def value_of(field: pa.Field, draw: random.Random) -> Any:
    """A value for a column: one of the awkward ones, or an ordinary one, or NULL."""
    awkward = AWKWARD.get(field.name, [])
    if draw.random() < 0.15:
        return None
    if awkward and draw.random() < 0.7:
        return draw.choice(awkward)
    return _ordinary(field.type, draw)


def _ordinary(kind: pa.DataType, draw: random.Random) -> Any:
    if pa.types.is_list(kind):
        return [_ordinary(kind.value_type, draw) for _ in range(draw.randrange(4))]
    if pa.types.is_boolean(kind):
        return draw.random() < 0.5
    if pa.types.is_integer(kind):
        return draw.randrange(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1))
    if pa.types.is_floating(kind):
        return draw.gauss(0, 1000)
    if pa.types.is_decimal(kind):
        return Decimal(draw.randrange(10 ** min(kind.precision, 18))).scaleb(-kind.scale)
    if pa.types.is_binary(kind):
        return draw.randbytes(draw.randrange(12))
    moment = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=draw.randrange(10**15))
    if pa.types.is_date(kind):
        return moment.date()
    if pa.types.is_time(kind):
        return moment.time()
    if pa.types.is_timestamp(kind):
        return moment if kind.tz else moment.replace(tzinfo=None)
    return "".join(draw.choices("abc ☃:,'\"{}\\", k=draw.randrange(9)))
