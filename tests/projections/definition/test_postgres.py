"""A query in Postgres' SQL becomes one of the same meaning in Spark's, or is refused at its place. No Spark: what it
answers is compared in ``meaning``."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.projections.definition.sql.load import load_sql
from tailrace.projections.definition.sql.postgres.functions import TABLE
from tailrace.projections.definition.sql.postgres.functions.table import Absent, Row, choose
from tailrace.projections.definition.sql.postgres.refusal import NotInTable, Refused
from tailrace.projections.definition.sql.postgres.scope import Columns
from tailrace.projections.definition.sql.postgres.translate import TRANSLATION, parse, translate
from tailrace.projections.definition.sql.postgres.types.types import (
    DATE,
    FLOAT8,
    INT4,
    INT8,
    TEXT,
    TIMESTAMPTZ,
    PgType,
    numeric,
)
from tailrace.projections.definition.sql.postgres.types.values import Value

INPUTS: dict[str, Columns] = {
    "t": (
        ("id", INT4),
        ("name", TEXT),
        ("price", numeric(10, 2)),
        ("day", DATE),
        ("at", TIMESTAMPTZ),
        ("f", FLOAT8),
    ),
    "o": (("id", INT4), ("t_id", INT8), ("Name", TEXT)),
}


def spark(query: str, zone: str = "UTC") -> str:
    """The translation without its lines and the quotes of names."""
    text = translate(parse(query), INPUTS, zone).text
    return " ".join(text.replace("`", "").split()).replace("( ", "(")


TRANSLATED = {
    "integers are divided without a remainder": ("id / 2", "CAST((t.id DIV 2) AS INT)"),
    "a numeric is rounded half up": ("price::int", "CAST(round(t.price, 0) AS INT)"),
    "a float is rounded half to even": ("f::int", "CAST(rint(t.f) AS INT)"),
    "a whole number beside a numeric has its digits": ("2 - price * 100", "(2BD - (t.price * 100BD))"),
    "a number negated twice": ("round(- -3, 1)", "round(3BD, 1)"),
    "a quoted name is a column": ("\"name\" = 'ab'", "(t.name = 'ab')"),
    "a backslash is a character": (r"name = 'a\b'", r"(t.name = 'a\\b')"),
    "a backslash after E is none": (r"name = E'a\tb'", "(t.name = 'a\tb')".replace("\t", " ")),
    "a date and a number": ("day + 1", "date_add(t.day, 1)"),
    "a month later": ("day + interval '1 month'", "(CAST(t.day AS TIMESTAMP_NTZ) + INTERVAL '1' MONTH)"),
    "an interval of several units": (
        "day - interval '1 day 02:30'",
        "((CAST(t.day AS TIMESTAMP_NTZ) + INTERVAL '-1' DAY) + INTERVAL '-9000' SECOND)",
    ),
    "a text as a number": (
        "name::int",
        r"CAST(regexp_extract(t.name, '\\A\\s*(?:\\s*[+-]?\\d+\\s*)\\s*\\z', 0) AS INT)",
    ),
    "a power": ("id ^ 2", "power(CAST(t.id AS DOUBLE), CAST(2 AS DOUBLE))"),
    "a minus before a power": ("-f ^ 2", "power((- t.f), CAST(2 AS DOUBLE))"),
}


@pytest.mark.parametrize("case", TRANSLATED)
def test_an_expression_is_translated_by_the_types_of_its_operands(case: str) -> None:
    query, expected = TRANSLATED[case]
    found = spark(f"SELECT {query} AS v FROM t")  # noqa: S608
    assert found == f"SELECT {expected} AS v FROM {{i0}} AS t"  # noqa: S608


def test_a_query_that_becomes_another_text_has_another_version() -> None:
    queries = [f"SELECT {query} AS v FROM t" for query, _ in TRANSLATED.values()]  # noqa: S608
    queries += [
        "SELECT DISTINCT ON (id) id, name FROM t ORDER BY id, day DESC",
        "SELECT t.id, string_agg(o.\"Name\", ',' ORDER BY o.id) AS v FROM t LEFT JOIN o USING (id) GROUP BY t.id",
        "SELECT id, rank() OVER (ORDER BY name ROWS 2 PRECEDING) AS v FROM t WHERE id IN (SELECT t_id FROM o) LIMIT 1",
    ]
    digest = hashlib.sha256("\n".join(map(spark, queries)).encode()).hexdigest()[:12]
    assert (TRANSLATION, digest) == ("2", "e2d5ce4ed150"), "raise TRANSLATION, and take this digest"


def test_nulls_are_last_in_ascending_order_and_first_in_descending() -> None:
    assert spark("SELECT id FROM t ORDER BY name, day DESC, 1").endswith(
        "ORDER BY t.name ASC NULLS LAST, t.day DESC NULLS FIRST, id ASC NULLS LAST"
    )


REFUSED = {
    "a function that is in no table": ("SELECT foo(id) FROM t", "the function foo() is not translated", 7),
    "two types": ("SELECT id FROM t WHERE name = 3", "text = integer is not translated", 23),
    "constants without a type": ("SELECT '1' + '2' AS v", "an untyped constant + an untyped constant", 7),
    "an unknown column": ("SELECT id,\n nam FROM t", "there is no column nam", 12),
    "words between arguments": (
        "SELECT substring(name FROM 'x.') FROM t",
        "substring(text, text) is not translated",
        7,
    ),
    "a clock": ("SELECT CURRENT_DATE AS d FROM t", "CURRENT_DATE is not translated", 7),
    "an unquoted name in capitals": ("SELECT Name FROM o", "there is no column Name", 7),
    "an operator that binds otherwise": (
        "SELECT name ~ 'a' || 'b' AS v FROM t",
        "~ beside another operator",
        7,
    ),
    "a clause": ("SELECT id FROM t FOR UPDATE", "FOR UPDATE is not translated", 7),
    "a join of Spark's": (
        "SELECT id FROM t LEFT SEMI JOIN o ON true",
        "LEFT SEMI JOIN is none of Postgres'",
        32,
    ),
    "NOT IN with rows": (
        'SELECT id FROM t WHERE (id, name) NOT IN (SELECT id, "Name" FROM o)',
        "NOT IN with several columns",
        24,
    ),
    "a text of unknown digits": ("SELECT (price / 3)::text AS v FROM t", "the text of a numeric", 8),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_faithful_translation_is_refused_at_its_place_with_a_way_out(case: str) -> None:
    query, words, offset = REFUSED[case]
    with pytest.raises(Refused) as refused:
        spark(query)
    assert words in refused.value.what and refused.value.hint
    assert refused.value.offset == offset


SEVERAL = {
    "columns and conditions": (
        "SELECT a AS v, id, b AS w FROM t WHERE c = 1 AND (id = 2 OR d = 3) HAVING e > 4",
        ["a", "b", "c", "d", "e"],
    ),
    "both sides of a UNION": ("SELECT a FROM t UNION SELECT b FROM t", ["a", "b"]),
    "queries inside": (
        "SELECT (SELECT a FROM o LIMIT 1) AS v FROM t WHERE EXISTS (SELECT 1 FROM o WHERE b)", ["a", "b"],
    ),
    "of WITH, but for those that read what is refused": (
        "WITH p AS (SELECT a FROM t), q AS (SELECT z FROM p), r AS (SELECT b FROM t) SELECT y FROM r", ["a", "b"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SEVERAL)
def test_all_that_is_refused_of_a_query_is_said_at_once_in_the_order_of_its_text(case: str) -> None:
    query, names = SEVERAL[case]
    with pytest.raises(Refused) as refused:
        spark(query)
    found = [refused.value, *refused.value.others]
    assert [each.what for each in found] == [f"there is no column {name}" for name in names]
    places = [each.offset for each in found]
    assert [query[place : place + 1] for place in places if place is not None] == names


@pytest.mark.parametrize(
    "row",
    [row for rows in TABLE.values() for row in rows if isinstance(row.spark, Absent)],
    ids=lambda row: f"{row.name}({', '.join(row.takes)})",
)
def test_a_function_without_a_counterpart_is_refused_with_what_to_write(row: Row) -> None:
    assert isinstance(row.spark, Absent)
    arguments = [
        Value("x", PgType(each.rstrip("*"), element=TEXT if each == "array" else None)) for each in row.takes
    ]
    chosen = choose(TABLE[row.name], arguments)
    assert chosen is not None and chosen[0] is row, "no other row of the name takes what it takes"
    with pytest.raises(NotInTable) as refused:
        row.result(arguments)
    assert refused.value.hint == row.spark.hint


HEADER = """/* projection
key = "id"
sink = { kind = "parquet", sink = "lake" }

[inputs]
t = "shop.public.t"
*/
"""
CORPUS = [
    "WITH p AS (SELECT id, price FROM t WHERE name IN ('a', 'b')) SELECT id, sum(price) AS s FROM p GROUP BY id",
    "SELECT t.id, count(*) FILTER (WHERE o.\"Name\" ~ 'x') AS n FROM t LEFT JOIN o ON o.t_id = t.id GROUP BY t.id",
    "SELECT DISTINCT ON (id) id, name ->> 'a' AS a FROM t WHERE NOT EXISTS (SELECT 1 FROM o) ORDER BY id DESC, 2",
    "SELECT id, rank() OVER (PARTITION BY name ORDER BY at ROWS 1 PRECEDING) AS r FROM t HAVING sum(price) > 1",
    "SELECT CASE WHEN id BETWEEN 1 AND 2 THEN at AT TIME ZONE 'UTC' ELSE at - interval '1 day' END::date AS d FROM t",
    "SELECT extract(year FROM day)::int AS y, substring(name FROM 1 FOR 2) || E'\\n' AS s FROM t UNION VALUES (1, '2')",
    "SELECT (ARRAY[1, 2])[1] AS e, f ^ 2 AS p, name ? 'a' AS q FROM t, LATERAL unnest(x) AS u",
]
PIECES = [
    *"()[],.;:*+-/%^|&#~!@<>=?'\"$\\",
    "::", "->>", "@>", "||", " IN ", " NOT ", " AS ", " SELECT ", " FROM ", " NULL ", "1e9", ":now",
]  # fmt: skip


def test_a_query_that_is_nested_too_deeply_is_refused() -> None:
    query = f"SELECT {' + '.join(['id'] * 2000)} AS v FROM t"  # noqa: S608
    with pytest.raises(Refused, match="nested too deeply"):
        translate(parse(query), INPUTS, "UTC")


@given(st.sampled_from(CORPUS), st.data())
def test_a_text_that_is_no_query_is_refused_with_words_and_never_ends_in_another_error(
    query: str, data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(query)))
        end = data.draw(st.integers(start, min(len(query), start + 12)))
        query = query[:start] + data.draw(st.sampled_from(["", *PIECES])) + query[end:]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "q.sql"
        file.write_text(HEADER + query)
        loaded = load_sql(file)
    if loaded.projection is None:
        assert loaded.findings
        return
    with suppress(Refused):
        translate(parse(query), INPUTS, "UTC")
