"""Values as Debezium writes them, against what Python makes of the same values."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.columnar.array_literals import parse
from tailrace.cdc.kafka.decoding.values import arrays, numbers, texts, times
from tailrace.cdc.kafka.decoding.values.cells import Cells, Reader
from tailrace.cdc.kernels import json_text

DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (the type has no zone)


def read(reader: Reader, kind: int, cells: list[str | None]) -> tuple[list[str | None], list[int]]:
    kinds = np.array([json_text.NULL if text is None else kind for text in cells], np.uint8)
    found = reader(Cells(pa.array(cells, pa.string()).cast(pa.binary()), kinds))
    return found.texts.cast(pa.string()).to_pylist(), list(found.bad)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


@given(
    st.lists(
        st.one_of(st.none(), st.lists(st.one_of(st.none(), TEXT, st.just("null")), max_size=4)), max_size=5
    )
)
def test_arrays_are_literals_of_their_elements(rows: list[list[str | None] | None]) -> None:
    for ascii_only in (False, True):
        given_as = [None if row is None else json.dumps(row, ensure_ascii=ascii_only) for row in rows]
        found, bad = read(arrays.array(texts.string), json_text.ARRAY, given_as)
        assert bad == []
        assert [None if text is None else parse(text) for text in found] == rows


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-9, 9), st.floats(-1, 1), st.sampled_from(["", "a", ']"', "\\"])
    ),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3), st.dictionaries(st.sampled_from("ab]"), inside, max_size=2)
    ),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=6))
def test_only_arrays_of_numbers_are_arrays_of_numbers(rows: list[Any]) -> None:
    kinds = {list: json_text.ARRAY, dict: json_text.OBJECT, str: json_text.STRING, type(None): json_text.NULL}
    written = [row if isinstance(row, str) else None if row is None else json.dumps(row) for row in rows]
    of_kinds = np.array([kinds.get(type(row), json_text.NUMBER) for row in rows], np.uint8)
    found = arrays.array(numbers.integer)(Cells(pa.array(written, pa.string()).cast(pa.binary()), of_kinds))
    literals = found.texts.cast(pa.string()).to_pylist()
    for number, row in enumerate(rows):
        good = isinstance(row, list) and all(
            item is None or (isinstance(item, int | float) and not isinstance(item, bool)) for item in row
        )
        assert (number in found.bad) == (row is not None and not good)
        if good:
            items = parse(literals[number])
            assert items is not None
            assert [None if item is None else json.loads(item) for item in items] == row


def in_base64(number: int) -> str:
    """As Java's BigInteger.toByteArray."""
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def exact(number: int, scale: int) -> str:
    with localcontext(prec=10_000):
        return format(Decimal(number).scaleb(-scale), "f")


WHOLE = st.one_of(
    st.integers(-(10**20), 10**20), st.integers(-(2**60), 2**60), st.integers(-300, 300), st.integers()
)


@given(st.lists(st.one_of(st.none(), WHOLE), max_size=8), st.integers(0, 40))
def test_decimals_are_those_of_python(digits: list[int | None], scale: int) -> None:
    texts = [None if number is None else in_base64(number) for number in digits]
    expected = [None if number is None else exact(number, scale) for number in digits]
    assert read(numbers.decimal(scale), json_text.STRING, texts) == (expected, [])
    pairs = [None if text is None else f'{{"scale": {scale}, "value": "{text}"}}' for text in texts]
    assert read(numbers.variable_decimal, json_text.OBJECT, pairs) == (expected, [])


@given(st.lists(st.text(alphabet="AQ9/+=-_ é", max_size=16), max_size=5))
def test_what_is_not_base64_is_bad(texts: list[str]) -> None:
    found, bad = read(numbers.decimal(2), json_text.STRING, list(texts))
    for row, text in enumerate(texts):
        if row in bad:
            assert found[row] is None
            continue
        plain = text.replace("-", "+").replace("_", "/")
        data = base64.b64decode(plain.rstrip("=") + "=" * (-len(plain.rstrip("=")) % 4), validate=True)
        assert found[row] == exact(int.from_bytes(data, "big", signed=True), 2)


@given(st.lists(st.one_of(st.none(), st.dates()), max_size=8))
def test_days_are_dates(days: list[date | None]) -> None:
    texts = [None if day is None else str((day - EPOCH.date()).days) for day in days]
    expected = [None if day is None else day.isoformat() for day in days]
    assert read(times.day, json_text.NUMBER, texts) == (expected, [])
    iso = [None if day is None else f"{day.isoformat()}Z" for day in days]
    assert read(times.iso_day, json_text.STRING, iso) == (expected, [])


@given(st.lists(st.one_of(st.none(), st.datetimes()), max_size=8))
def test_numbers_of_microseconds_are_timestamps(moments: list[datetime | None]) -> None:
    texts = [None if each is None else str((each - EPOCH) // timedelta(microseconds=1)) for each in moments]
    expected = [None if each is None else printed(each) for each in moments]
    assert read(times.stamp(1), json_text.NUMBER, texts) == (expected, [])
    iso = [None if each is None else each.isoformat() + "Z" for each in moments]
    assert read(times.iso_stamp(), json_text.STRING, iso) == (expected, [])
    zoned = [None if each is None else f"{text}+00" for each, text in zip(moments, expected, strict=True)]
    assert read(times.iso_stamp("+00"), json_text.STRING, iso) == (zoned, [])


def printed(moment: datetime) -> str:
    whole, point, fraction = moment.isoformat(" ").partition(".")
    return (whole + point + fraction).rstrip("0") if point else whole


@given(st.integers())
def test_a_number_of_any_size_is_a_text(number: int) -> None:
    for reader in (
        times.day,
        times.clock(1000),
        times.clock(0.001),
        times.stamp(1000),
        times.stamp(1),
        times.stamp(0.001),
    ):
        found, bad = read(reader, json_text.NUMBER, [str(number)])
        assert found[0] or bad == [0]
