"""From which JSON values a column of each type is read, and what would have to be guessed."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.cdc.kafka.decoded import Place
from tailrace.cdc.kafka.decoding.plain.decode import decode_plain
from tests.cdc.kafka.decoding.plain.test_plain_rows import TOPIC, declared
from tests.cdc.kafka.decoding.recorded import rows_of, table_of

READ: dict[str, dict[str, object]] = {
    "boolean": {"true": True, "false": False},
    "smallint": {"-7": -7, '"12"': 12, "32767": 32767},
    "integer": {"7": 7},
    "bigint": {"9223372036854775807": 9223372036854775807, '"-9223372036854775808"': -9223372036854775808},
    "real": {"0.1": 0.10000000149011612, "1": 1.0, "16777217": 16777216.0},
    "double precision": {"1e3": 1000.0, '"-Infinity"': float("-inf")},
    "numeric(6,2)": {"1.5": "1.50", '"-0.07"': "-0.07", "15e-1": "1.50", "1.500": "1.50"},
    "numeric": {"12345678901234567890.123": "12345678901234567890.123", "1E2": "100", '"1.50"': "1.50"},
    "date": {'"2024-02-29"': "2024-02-29"},
    "time": {'"10:30:00.5"': "10:30:00.500000", '"10:30"': "10:30:00"},
    "timestamp": {
        '"2026-03-01T10:30:00.123456789"': "2026-03-01 10:30:00.123456",
        '"2026-03-01 10:30:00"': "2026-03-01 10:30:00",
    },
    "timestamp with time zone": {
        '"2026-03-01T10:30:00Z"': "2026-03-01 10:30:00+00:00",
        '"2026-03-01T10:30:00.5+05:30"': "2026-03-01 05:00:00.500000+00:00",
        '"2026-03-01 00:30:00-0100"': "2026-03-01 01:30:00+00:00",
    },
    "uuid": {'"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"': "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
    "bytea": {'"AQL/"': "b'\\x01\\x02\\xff'", '"\\\\x0102ff"': "b'\\x01\\x02\\xff'", '""': "b''"},
    "json": {'{"a": 1.10}': '{"a": 1.10}', '"tea"': '"tea"', '"a\\n\\"b"': '"a\\n\\"b"', "[1, null]": "[1, null]"},
    "jsonb": {'"{\\"a\\":1}"': '"{\\"a\\":1}"'},
    "text": {'"a"': "a", '"\\u00e9\\n"': "é\n", '""': ""},
    "varchar(2)": {'"éé"': "éé"},
    "char(3)": {'"a"': "a  "},
    "integer[]": {"[1, null, 3]": [1, None, 3], "[]": []},
    "text[]": {'["a", "NULL", "b,c", ""]': ["a", "NULL", "b,c", ""]},
    "timestamp with time zone[]": {'["2026-03-01T10:30:00Z"]': ["2026-03-01 10:30:00+00:00"]},
    "inet": {'"10.0.0.1"': "10.0.0.1"},
    "public.mood": {'"happy"': "happy"},
}  # fmt: skip
REFUSED = {
    "boolean": ["1", '"true"', "0", "[]"],
    "smallint": ["32768", "1.0", "1e2", '""', '" 1"', "true", '"x"'],
    "integer": ["2147483648", "{}", '"1_000"', '"+1"'],
    "bigint": ["9223372036854775808", "1.5"],
    "real": ["1e39", '"1"', "true"],
    "double precision": ["1e309", '"1_0"', '"nan"', '"1.5"'],
    "numeric(6,2)": ["1.555", "12345.67", '"NaN"', '" 1"', "1e9999", '"1,5"', "true"],
    "numeric": ["1e9999", '"infinity"', '"0x1"'],
    "date": ['"2023-02-29"', "19782", '"2024-02-29T00:00:00Z"', '"infinity"', '"29.02.2024"'],
    "time": ['"25:00:00"', '"24:00:00"', "1"],
    "timestamp": ['"2026-03-01T10:30:00Z"', "1700000000000", '"2026-02-30T00:00:00"', '"2026-03-01"', '"now"'],
    "timestamp with time zone": ['"2026-03-01T10:30:00"', "1700000000000", '"2026-03-01T10:30:00 Europe/Paris"'],
    "uuid": ['"a0eebc999c0b4ef8bb6d6bb9bd380a11"', "1", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1g"'],
    "bytea": ['"a b"', '"\\\\x0"', '"é"', "[1, 2]"],
    "text": ["1", "true", "{}", '["a"]'],
    "varchar(2)": ['"abc"'],
    "char(3)": ['"abcd"'],
    "integer[]": ['"{1}"', "[[1]]", '["x"]', "[2147483648]"],
}  # fmt: skip


def read(kind: str, value: str, unit: float | None = None) -> tuple[object, str]:
    """What is read of a value and, where nothing is, why."""
    record = {"key": None, "value": f'{{"id": 1, "v": {value}}}'.encode()}
    declaration = declared({"id": "integer", "v": kind}, events=True, unit=unit)
    found = decode_plain(table_of([record]), TOPIC, declaration, None, Place(1))
    if found.parked:
        return None, found.parked[0].reason
    return rows_of(found)[0]["after"]["v"], ""


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind in READ for value in READ[kind]])
def test_a_value_is_read_as(kind: str, value: str) -> None:
    assert read(kind, value) == (READ[kind][value], "")
    assert read(kind, "null") == (None, "")


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind in REFUSED for value in REFUSED[kind]])
def test_a_value_that_would_have_to_be_guessed_is_refused_with_its_member(kind: str, value: str) -> None:
    found, reason = read(kind, value)
    assert found is None and reason.startswith("its member 'v' is no "), (found, reason)


def test_numbers_are_moments_where_their_unit_is_said() -> None:
    for unit, number in ((1_000_000, 1_772_361_000), (1000, 1_772_361_000_000), (1, 1_772_361_000_000_000)):
        assert read("timestamptz", str(number), unit=unit) == ("2026-03-01 10:30:00+00:00", "")
        assert read("timestamp", str(number), unit=unit) == ("2026-03-01 10:30:00", "")
    assert read("timestamptz", '"2026-03-01T10:30:00Z"', unit=1000) == ("2026-03-01 10:30:00+00:00", "")
    for wrong in ("1.5", "99999999999999999999", "true", '"1772361000"'):
        assert read("timestamptz", wrong, unit=1000)[1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.one_of(st.binary(max_size=40), JSON), min_size=1, max_size=6), st.binary(max_size=8))
@example([{"v": {}}, {"v": "\x00"}, b"\xff"], b"{}")
def test_whatever_comes_each_record_is_a_row_or_parked(values: list[object], key: bytes) -> None:
    kinds = {kind: kind for kind in READ}
    declaration = declared({"id": "integer", **kinds}, ("id",), closed=False)
    records = [
        {
            "key": key,
            "value": value if isinstance(value, bytes) else json.dumps(dict.fromkeys(kinds, value)).encode(),
        }
        for value in values
    ]
    found = decode_plain(table_of(records), TOPIC, declaration, None, Place(1))
    rows = sum(each.rows.num_rows for each in found.rows)
    assert rows + len(found.parked) == len(values) and found.origins.num_rows == rows
