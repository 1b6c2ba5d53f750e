"""Text to Arrow: exact, or reported as what does not fit; the edges of each type by name."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdc.columnar.array_literals import parse
from tailrace.cdc.columnar.values import LoadStamp, convert, loaded_rows
from tailrace.cdc.policy.policies import Policies
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import Column, TopicSchema, change_schema

BOOL, BYTEA, INT8, INT2, INT4, TEXT, FLOAT4, FLOAT8, CHAR, VARCHAR = (
    16,
    17,
    20,
    21,
    23,
    25,
    700,
    701,
    1042,
    1043,
)
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID = 1082, 1083, 1114, 1184, 1700, 2950
BOOLS, BYTEAS, INT4S, TEXTS, FLOAT8S, DATES, TIMESTAMPTZS, NUMERICS = (
    1000,
    1001,
    1007,
    1009,
    1022,
    1182,
    1185,
    1231,
)


def numeric(precision: int, scale: int) -> int:
    """The typmod of numeric(precision, scale)."""
    return (precision << 16 | scale) + 4


def typed(type_oid: int, texts: list[Any], typmod: int = -1) -> tuple[list[Any], list[int] | None]:
    """The same whether the texts come as binary (stream) or string (first load), large or not, sliced or not."""
    column = Column(1, "x", type_oid, typmod)
    cells = [text.encode() if isinstance(text, str) else text for text in texts]
    results = []
    for kind in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()):
        try:
            whole = pa.array(cells, pa.binary()).cast(kind)
        except pa.ArrowInvalid:
            continue  # not UTF-8: cannot come as string
        sliced = pa.concat_arrays([whole[:1], whole, whole[:1]])[1:-1] if cells else whole
        for array in (whole, sliced):
            values, unfit = convert(array, column)
            values.validate(full=True)
            assert values.type == column.arrow
            assert len(values) == len(cells)
            results.append((repr(values.to_pylist()), unfit, values))
    assert len({result[:1] for result in results}) == 1
    assert all(result[1] == results[0][1] for result in results)
    return results[0][2].to_pylist(), results[0][1]


FITS: list[tuple[int, int, str, Any]] = [
    (BOOL, -1, "t", True),
    (BOOL, -1, "f", False),
    (INT2, -1, "-32768", -32768),
    (INT4, -1, "2147483647", 2**31 - 1),
    (INT8, -1, "-9223372036854775808", -(2**63)),
    (FLOAT4, -1, "0.1", 0.10000000149011612),
    (FLOAT4, -1, "3.4028235e+38", 3.4028234663852886e38),
    (FLOAT4, -1, "1e-45", 1.401298464324817e-45),
    (FLOAT8, -1, "0.1", 0.1),
    (FLOAT8, -1, "1.7976931348623157e+308", 1.7976931348623157e308),
    (FLOAT8, -1, "5e-324", 5e-324),
    (FLOAT8, -1, "Infinity", math.inf),
    (FLOAT8, -1, "-Infinity", -math.inf),
    (NUMERIC, numeric(12, 2), "-9999999999.99", Decimal("-9999999999.99")),
    (NUMERIC, numeric(38, 0), "9" * 38, Decimal("9" * 38)),
    (NUMERIC, numeric(38, 38), "0." + "9" * 38, Decimal("0." + "9" * 38)),
    (TEXT, -1, "", ""),
    (TEXT, -1, "NULL", "NULL"),
    (TEXT, -1, "ä€😀\n\t\\", "ä€😀\n\t\\"),
    (CHAR, 14, "ab        ", "ab        "),
    (VARCHAR, -1, " ", " "),
    (UUID, -1, "not even looked at", "not even looked at"),
    (NUMERIC, -1, "NaN", "NaN"),
    (BYTEA, -1, "\\x", b""),
    (BYTEA, -1, "\\x00ff5c", b"\0\xff\\"),
    (DATE, -1, "0001-01-01", date(1, 1, 1)),
    (DATE, -1, "9999-12-31", date(9999, 12, 31)),
    (DATE, -1, "2024-02-29", date(2024, 2, 29)),
    (TIME, -1, "00:00:00", time(0)),
    (TIME, -1, "23:59:59.999999", time(23, 59, 59, 999_999)),
    (TIME, -1, "12:34:56.5", time(12, 34, 56, 500_000)),
    (TIMESTAMP, -1, "0001-01-01 00:00:00", datetime(1, 1, 1)),  # noqa: DTZ001
    (TIMESTAMP, -1, "9999-12-31 23:59:59.999999", datetime(9999, 12, 31, 23, 59, 59, 999_999)),  # noqa: DTZ001
    (TIMESTAMP, -1, "1969-12-31 23:59:59.00001", datetime(1969, 12, 31, 23, 59, 59, 10)),  # noqa: DTZ001
    (TIMESTAMPTZ, -1, "2026-11-20 12:34:56.123+00", datetime(2026, 11, 20, 12, 34, 56, 123_000, tzinfo=UTC)),
    (TIMESTAMPTZ, -1, "0001-01-01 00:00:00+00", datetime(1, 1, 1, tzinfo=UTC)),
    (INT4S, -1, "{}", []),
    (INT4S, -1, "{1,NULL,-3}", [1, None, -3]),
    (
        TEXTS,
        -1,
        '{a,"b,c","",NULL,"NULL","{}","\\"\\\\","x y"}',
        ["a", "b,c", "", None, "NULL", "{}", '"\\', "x y"],
    ),
    (TEXTS, -1, "{ä€😀}", ["ä€😀"]),
    (TEXTS, -1, "{\u00a0x\u2003,\u0085}", ["\u00a0x\u2003", "\u0085"]),  # written without quotes
    (BYTEAS, -1, '{"\\\\x00ff",NULL,"\\\\x"}', [b"\0\xff", None, b""]),
    (BOOLS, -1, "{t,f,NULL}", [True, False, None]),
    (DATES, -1, "{2026-11-20}", [date(2026, 11, 20)]),
    (NUMERICS, numeric(5, 2), "{1.50,NULL}", [Decimal("1.50"), None]),
    (TIMESTAMPTZS, -1, '{"2026-11-20 12:00:00+00",NULL}', [datetime(2026, 11, 20, 12, tzinfo=UTC), None]),
]

UNFIT: list[tuple[int, int, str | bytes]] = [
    (BOOL, -1, "true"),
    (INT2, -1, "32768"),
    (INT4, -1, ""),
    (FLOAT8, -1, "1e400"),
    (FLOAT4, -1, "1e39"),
    (NUMERIC, numeric(12, 2), "NaN"),
    (NUMERIC, numeric(12, 2), "Infinity"),
    (NUMERIC, numeric(12, 2), "1.234"),
    (NUMERIC, numeric(12, 2), "99999999999.99"),
    (TEXT, -1, b"caf\xe9"),
    (TEXT, -1, b"\xed\xa0\x80"),
    (BYTEA, -1, "\\000abc"),
    (BYTEA, -1, "\\x0"),
    (BYTEA, -1, "\\xzz"),
    (BYTEA, -1, "\\x0 0a"),
    (BYTEA, -1, ""),
    (DATE, -1, "infinity"),
    (DATE, -1, "-infinity"),
    (DATE, -1, "0044-03-15 BC"),
    (DATE, -1, "10000-01-01"),
    (DATE, -1, "5874897-12-31"),
    (TIME, -1, "24:00:00"),
    (TIMESTAMP, -1, "infinity"),
    (TIMESTAMP, -1, "0001-12-31 23:59:59 BC"),
    (TIMESTAMP, -1, "294276-12-31 23:59:59.999999"),
    (TIMESTAMPTZ, -1, "-infinity"),
    (TIMESTAMPTZ, -1, "4713-01-01 00:00:00+00 BC"),
    (TIMESTAMPTZ, -1, "12026-11-20 00:00:00+00"),
    (INT4S, -1, "{{1,2},{3,4}}"),
    (INT4S, -1, "[0:1]={1,2}"),
    (INT4S, -1, "[2:2]={1}"),
    (DATES, -1, "{2026-11-20,infinity}"),
    (TEXTS, -1, b"{a,caf\xe9}"),
    (TEXTS, -1, '{{"a"},{"b"}}'),
]


@pytest.mark.parametrize(("oid", "typmod", "text", "value"), FITS)
def test_what_fits_is_exact(oid: int, typmod: int, text: str, value: Any) -> None:
    assert typed(oid, [text], typmod) == ([value], None)


@pytest.mark.parametrize(("oid", "typmod", "text"), UNFIT)
def test_what_does_not_fit_is_reported_and_disturbs_no_other_cell(
    oid: int, typmod: int, text: str | bytes
) -> None:
    assert typed(oid, [text], typmod) == ([None], [0])
    good, value = next((good, value) for other, mod, good, value in FITS if (other, mod) == (oid, typmod))
    values, unfit = typed(oid, [None, text, good, text, None, good], typmod)
    assert unfit == [1, 3]
    assert values == [None, None, value, None, None, value]


def test_zero_keeps_its_sign_and_nan_is_a_value() -> None:
    for oid in (FLOAT4, FLOAT8):
        (negative, nan), unfit = typed(oid, ["-0", "NaN"])
        assert unfit is None
        assert math.copysign(1, negative) == -1
        assert math.isnan(nan)


@pytest.mark.parametrize("oid", [BOOL, BYTEA, INT4, FLOAT8, TEXT, DATE, TIME, TIMESTAMPTZ, INT4S, TEXTS])
def test_null_is_null_in_every_type(oid: int) -> None:
    assert typed(oid, [None, None]) == ([None, None], None)
    assert typed(oid, []) == ([], None)


def test_an_empty_text_is_not_null() -> None:
    assert typed(TEXT, ["", None, ""]) == (["", None, ""], None)
    assert typed(TEXTS, ['{""}', "{NULL}", "{}", None]) == ([[""], [None], [], None], None)


@given(st.lists(st.none() | st.binary(max_size=9), max_size=30))
def test_any_bytes_come_out_of_their_hex(content: list[bytes | None]) -> None:
    assert typed(BYTEA, [None if data is None else "\\x" + data.hex() for data in content]) == (content, None)


def quoted(element: str | None) -> str:
    """As array_out writes it when it quotes everything it may."""
    if element is None:
        return "NULL"
    return '"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"'


elements = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)


@given(st.lists(elements, max_size=5))
def test_any_quoted_elements_are_taken_apart(content: list[str | None]) -> None:
    assert parse("{" + ",".join(map(quoted, content)) + "}") == content


@given(st.text('{}",\\ aN[]=:', max_size=12))
def test_any_text_is_an_array_or_is_not(text: str) -> None:
    """Never a hang, never another error; what is taken apart writes the same array again."""
    content = parse(text)
    if content is not None:
        assert parse("{" + ",".join(map(quoted, content)) + "}") == content


@given(
    st.sampled_from([BOOL, INT4, FLOAT8, BYTEA, DATE, TIME, TIMESTAMPTZ, INT4S, TEXTS]),
    st.lists(st.binary(max_size=12)),
)
@settings(max_examples=300)
def test_any_bytes_fit_or_are_reported(oid: int, texts: list[bytes]) -> None:
    values, unfit = typed(oid, texts)
    assert [row for row, value in enumerate(values) if value is None] == (unfit or [])


def test_a_first_load_has_the_schema_of_changes() -> None:
    schema = TopicSchema(1, (Column(1, "id", INT4, key=True), Column(2, "day", DATE)))
    texts = [pa.array(["1", "2"]), pa.array(["infinity", None])]
    table = loaded_rows(texts, schema, Policies(), LoadStamp(lsn=41, first_ordinal=10))
    table.validate(full=True)
    assert table.schema.equals(change_schema(schema), check_metadata=True)
    assert table["_raw"].to_pylist() == [[(2, b"infinity")], None]
    assert table["_ordinal"].to_pylist() == [10, 11]
    assert set(table["_lsn"].to_pylist()) == {41}
    assert table["_commit_ts"].null_count == 2


def test_a_first_load_of_nothing_is_empty() -> None:
    schema = TopicSchema(1, (Column(1, "id", INT4, key=True), Column(2, "day", DATE)))
    table = loaded_rows([pa.array([], pa.string())] * 2, schema, Policies(), LoadStamp(lsn=41))
    assert table.num_rows == 0
    assert table.schema.equals(change_schema(schema), check_metadata=True)


def test_a_first_load_without_key_is_an_operators_matter() -> None:
    schema = TopicSchema(1, (Column(1, "a", INT4),))
    with pytest.raises(OperatorError, match="no key"):
        loaded_rows([pa.array(["1"])], schema, Policies(), LoadStamp(lsn=41))
