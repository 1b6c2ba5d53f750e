"""A query as partial results and a query over these gives, in Postgres itself, the rows of the query as it is written;
what has no such form is refused with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql
from sqlglot import exp

from tailrace.embedded import PostgresServer
from tailrace.projections.definition.model import Additive, InputFacts
from tailrace.projections.definition.sql.postgres.functions.partials import MEAN, TOTAL
from tailrace.projections.definition.sql.postgres.translate import parse
from tailrace.projections.definition.sql.stages import choose
from tailrace.projections.definition.sql.stages.plain import with_plain_columns
from tailrace.projections.definition.sql.stages.split import ROWS, NotSplit, split
from tailrace.projections.refresh.by_key.sums import added, plain_sums

_INTS = {"id", "owner", "h", "n"}
_TABLES = {
    "orders": ("id", "owner", "g", "h", "x", "n", "b"),
    "people": ("id", "name", "h"),
}
_FACTS = InputFacts(
    {
        name: pa.schema([(column, pa.int32() if column in _INTS else pa.string()) for column in columns])
        for name, columns in _TABLES.items()
    },
    {"orders": ("id",), "people": ("id",)},
    {"orders": 1000, "people": 100},
)
_FROM = (
    "orders o",
    "orders o JOIN people p ON p.id = o.owner",
    "people p LEFT JOIN orders o ON p.id = o.owner",
    "(SELECT id, owner, g, h, x, n, b FROM orders WHERE n > 2) o",
)
_GROUPS = ("o.g", "o.h", "coalesce(o.g, 'none')", "o.h % 2", "o.b")
_AGGREGATES = (
    "count(*)", "count(o.x)", "sum(o.x)", "sum(o.n)", "min(o.g)", "max(o.x)", "avg(o.x)", "bool_or(o.b)",
    "count(DISTINCT o.h)", "sum(o.x) FILTER (WHERE o.n > 3)", "100 * sum(o.x) / nullif(sum(o.n), 0)",
    "CASE WHEN count(*) > 2 THEN max(o.n) ELSE 0 END",
)  # fmt: skip
_SUMMED = {"x": pa.decimal128(10, 2), "n": pa.int32()}
_HAVING = ("", " HAVING count(*) > 1", " HAVING sum(o.n) > 5 OR max(o.x) IS NULL")


@st.composite
def _queries(draw: st.DrawFn) -> str:
    groups = draw(st.lists(st.sampled_from(_GROUPS), max_size=3, unique=True))
    aggregates = draw(st.lists(st.sampled_from(_AGGREGATES), min_size=1, max_size=4, unique=True))
    items = [f"{each} AS c{at}" for at, each in enumerate([*groups, *aggregates])]
    names = [f"c{at}" for at in range(len(items))]
    where = draw(st.sampled_from(("", " WHERE o.n <> 4")))
    by = f" GROUP BY {', '.join(groups)}" if groups else ""
    order = f" ORDER BY {', '.join([aggregates[0], *names])}"
    limit = draw(st.sampled_from(("", " LIMIT 3", " LIMIT 2 OFFSET 1")))
    text = f"SELECT {', '.join(items)} FROM {draw(st.sampled_from(_FROM))}{where}{by}"  # noqa: S608
    return text + draw(st.sampled_from(_HAVING)) + order + limit


@pytest.fixture(scope="module")
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.dsn(), autocommit=True) as opened:
        opened.execute("CREATE TEMP TABLE people (id int PRIMARY KEY, name text, h int)")
        opened.execute(
            "CREATE TEMP TABLE orders (id int PRIMARY KEY, owner int, g text, h int, x numeric(10,2), n int, b bool)"
        )
        random = Random(7)
        for number in range(20):
            opened.execute("INSERT INTO people VALUES (%s, %s, %s)", (number, f"p{number % 5}", number % 3))
        for number in range(300):
            row = (
                number, random.choice([None, *range(25)]), random.choice([None, "a", "b", "c"]),
                random.choice([None, 0, 1, 2, 3]), random.choice([None, Decimal(random.randint(-999, 999)) / 100]),
                random.choice([None, *range(8)]), random.choice([None, True, False]),
            )  # fmt: skip
            opened.execute("INSERT INTO orders VALUES (%s, %s, %s, %s, %s, %s, %s)", row)
        yield opened


def _in_postgres(text: str) -> str:
    """With Postgres' own aggregates for those of partial aggregates."""
    text = re.sub(rf"{MEAN}\(([^,()]+), ([^()]+)\)", r"(sum(\1) / nullif(sum(\2), 0))", text, flags=re.I)
    return re.sub(rf"{TOTAL}\(", "sum(", text, flags=re.I)


def _rows(connection: psycopg.Connection[Any], text: str) -> list[Sequence[Any]]:
    return [
        [round(value, 6) if isinstance(value, Decimal) else value for value in row]
        for row in connection.execute(sql.SQL(text)).fetchall()
    ]


@given(query=_queries())
def test_partial_results_by_any_key_give_the_rows_of_the_query(
    connection: psycopg.Connection[Any], query: str
) -> None:
    tree = parse(query)
    assert isinstance(tree, exp.Select)
    expected = _rows(connection, query)
    ways = list(choose._ways(tree, _FACTS, 64))
    made = 0
    for each in ways:
        try:
            found = split(each.select, ("c0",), each.part, choose._may_have(tree, _FACTS))
        except NotSplit:
            assert each.part is None and "GROUP BY" not in query
            continue
        made += 1
        text = f"WITH stage AS ({choose._text(found.stage)}) {_in_postgres(choose._text(found.query))}"
        assert _rows(connection, text) == expected, text
        keys = ", ".join(f'"{name}"' for name in found.key)
        if found.key == tuple(dict.fromkeys(found.key)) and "c0" not in query.partition("GROUP BY")[2]:
            counted = f"WITH stage AS ({choose._text(found.stage)}) SELECT {keys} FROM stage"  # noqa: S608
            held = connection.execute(sql.SQL(counted)).fetchall()
            assert len(held) == len(set(held))
    assert made >= 2


_NOW = (
    "SELECT id, owner, CASE WHEN h = 1 THEN 'd' ELSE g END AS g, h, x * 2 AS x, n + 1 AS n, b"
    " FROM orders WHERE id % 7 = 3 AND id % 2 = 0"
)
_ROWS = {
    "held": "SELECT * FROM orders",
    "before": "SELECT * FROM orders WHERE id % 7 = 3",
    "now": _NOW,
    "after": f"SELECT * FROM orders WHERE id % 7 <> 3 UNION ALL {_NOW}",  # noqa: S608
}


@given(query=_queries())
def test_partial_results_add_up_of_what_changed_rows_gave_and_give(
    connection: psycopg.Connection[Any], query: str
) -> None:
    tree = parse(query)
    assert isinstance(tree, exp.Select)
    alone = choose._only_input(tree, _FACTS)
    assert (alone == "orders") == ("JOIN" not in query and "FROM (" not in query)
    try:
        may_have = choose._may_have(tree, _FACTS)
        found = split(tree, ("c0",), choose._one_part(tree, "orders", _FACTS), may_have, adds=True)
    except NotSplit:
        assert re.search("min|max|bool_or|DISTINCT", query)
        return
    if alone is None:
        return

    def partial_results(rows: str) -> pa.Table:
        text = f"WITH orders AS ({_ROWS[rows]}) {choose._text(found.stage)}"
        with connection.execute(sql.SQL(text)) as cursor:
            names = [column.name for column in cursor.description or ()]
            kinds = {name: pa.string() if name in found.key else pa.decimal128(38, 4) for name in names}
            cells = [
                {name: value if value is None or name not in found.key else str(value) for name, value in
                 zip(names, row, strict=True)}
                for row in cursor
            ]  # fmt: skip
        return pa.Table.from_pylist(cells, pa.schema(kinds))

    def plain_results(rows: str) -> pa.Table:
        with connection.execute(sql.SQL(_ROWS[rows])) as cursor:
            names = [column.name for column in cursor.description or ()]
            cells = [
                {name: value if value is None or name in _SUMMED else str(value) for name, value in
                 zip(names, row, strict=True)}
                for row in cursor
            ]  # fmt: skip
        table = pa.Table.from_pylist(
            cells, pa.schema({name: _SUMMED.get(name, pa.string()) for name in names})
        )
        made = plain_sums(table, additive, held.schema, found.key)
        assert made is not None
        return made

    additive = with_plain_columns(Additive("orders", ROWS, found.counted), found.stage, _TABLES["orders"])
    held, before, now = map(partial_results, ("held", "before", "now"))
    order = [(name, "ascending") for name in found.key]
    after = partial_results("after").sort_by(order)
    assert added(held, before, now, additive, found.key).sort_by(order).equals(after)
    is_plain = "GROUP BY" in query and not re.search("WHERE|coalesce|%", query)
    assert bool(additive.columns) == is_plain
    if is_plain:
        before, now = map(plain_results, ("before", "now"))
        assert added(held, before, now, additive, found.key).sort_by(order).equals(after)


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ('SELECT o.g, sum("n") AS s FROM orders o GROUP BY 1', {"group_0": "g", "partial_0": "n"}),
        ("SELECT G, sum(Orders.N) AS s FROM Orders GROUP BY G", {"group_0": "g", "partial_0": "n"}),
        ("SELECT g, sum(n) AS s FROM orders AS o(n, g, id) GROUP BY g", {}),
        ("SELECT g, sum(n) AS s FROM orders WHERE true GROUP BY g", {}),
        ("SELECT g, sum(n) FILTER (WHERE b) AS s FROM orders GROUP BY g", {}),
        ("SELECT g, sum(-n) AS s FROM orders GROUP BY g", {}),
        ('SELECT g, sum("N") AS s FROM orders GROUP BY g', {}),
        ("SELECT orders, sum(n) AS s FROM orders GROUP BY orders", {}),
    ],
)
def test_only_columns_as_they_are_need_no_engine(query: str, columns: dict[str, str]) -> None:
    tree = parse(query)
    assert isinstance(tree, exp.Select)
    found = split(tree, ("g",), None, choose._may_have(tree, _FACTS), adds=True)
    additive = with_plain_columns(Additive("orders", ROWS, found.counted), found.stage, _TABLES["orders"])
    assert additive.columns == columns
    assert additive.counts == ({"partial_1": "n", "rows": None} if columns else {})


@given(query=_queries())
def test_a_query_that_picks_columns_of_its_partial_results_has_their_rows(
    connection: psycopg.Connection[Any], query: str
) -> None:
    tree = parse(query)
    assert isinstance(tree, exp.Select)
    group = tree.args.get("group")
    keys = tuple(f"c{at}" for at in range(len(group.expressions) if group is not None else 0))
    try:
        found = split(tree, keys, None, choose._may_have(tree, _FACTS), adds=True)
    except NotSplit:
        return
    if not found.picks:
        assert re.search("HAVING|LIMIT|avg|/ nullif", query) or "GROUP BY" not in query
        return
    columns = ", ".join(f'"{column}" AS "{name}"' for name, column in found.picks.items())
    text = f"WITH stage AS ({choose._text(found.stage)}) SELECT {columns} FROM stage"  # noqa: S608
    assert sorted(_rows(connection, text), key=str) == sorted(_rows(connection, query), key=str)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT g, string_agg(g, ',') AS l FROM orders GROUP BY g", "string_agg of a group does not follow"),
        ("SELECT g, stddev(x) AS d FROM orders GROUP BY g", "stddev of a group does not follow"),
        ("SELECT g, count(*) AS c FROM orders GROUP BY ROLLUP (g)", "grouping sets"),
        ("SELECT g, rank() OVER (ORDER BY count(*)) AS r FROM orders GROUP BY g", "WINDOW over its groups"),
        ("SELECT DISTINCT g FROM orders", "DISTINCT"),
        ("SELECT g, x FROM orders", "no groups"),
        ("SELECT id, g FROM orders GROUP BY id", "g is neither grouped nor aggregated"),
        ("SELECT g, (SELECT max(h) FROM people) AS m, count(*) AS c FROM orders GROUP BY g", "SUBQUERY over"),
        (
            "SELECT g, count(DISTINCT h) AS a, count(DISTINCT n) AS b FROM orders GROUP BY g",
            "several columns",
        ),
        ("SELECT g, sum(DISTINCT n) AS a FROM orders GROUP BY g", r"sum\(DISTINCT"),
        ("SELECT *, 1 AS one FROM orders ORDER BY x LIMIT 3", "selects"),
    ],
)
def test_what_has_no_partial_results_is_refused_with_its_reason(query: str, why: str) -> None:
    tree = parse(query)
    assert isinstance(tree, exp.Select)
    part = None if "LIMIT" in query else exp.column("id", table="orders")
    with pytest.raises(NotSplit, match=why):
        split(tree, ("g",), part, choose._may_have(tree, _FACTS))
