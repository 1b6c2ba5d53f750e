"""Everyday queries are followed by key as they are written: in Postgres' SQL, no word about what inputs affect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.projections import Projection
from tailrace.projections.analysis.followed import followed
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.sql.load import load_sql
from tests.projections.conftest import Analyse
from tests.projections.shoplog import topic

SALES = TopicSchema(
    1,
    (
        Column(1, "id", 20, type_name="bigint", key=True),
        Column(2, "customer_id", 20, type_name="bigint"),
        Column(3, "placed_at", 1184, type_name="timestamp with time zone"),
        Column(4, "amount", 1700, (12 << 16 | 2) + 4, "numeric(12,2)"),
    ),
)
BUYERS = TopicSchema(
    1,
    (
        Column(1, "id", 20, type_name="bigint", key=True),
        Column(2, "country", 25, type_name="text"),
        Column(3, "phone", 25, type_name="text"),
    ),
)


VISITS = TopicSchema(
    1,
    (
        Column(1, "visit_id", 20, type_name="bigint", key=True),
        Column(2, "customer_id", 20, type_name="bigint"),
        Column(3, "seen_at", 1184, type_name="timestamp with time zone"),
    ),
)
COUNTRIES = TopicSchema(
    1,
    (
        Column(1, "code", 25, type_name="text", key=True),
        Column(2, "continent", 25, type_name="text"),
    ),
)
TABLES = {"sales": SALES, "buyers": BUYERS, "visits": VISITS, "countries": COUNTRIES}


@pytest.fixture(scope="module", autouse=True)
def tables(empty_shop: ProjectionContext) -> None:
    for name, schema in TABLES.items():
        register_topic(empty_shop.store, topic(name), schema)


def written(folder: Path, key: str, query: str, dialect: str = "postgres") -> Projection:
    names = [name for name in TABLES if name in query.lower()]
    inputs = "\n".join(f'{name} = "shop.public.{name}"' for name in names)
    head = f'key = "{key}"\ndialect = "{dialect}"\nsink = {{ kind = "parquet", sink = "lake" }}\n[inputs]\n{inputs}'
    (folder / "view.sql").write_text(f"/* projection\n{head}\n*/\n{query}")
    loaded = load_sql(folder / "view.sql")
    assert loaded.projection is not None and not loaded.findings, loaded.findings
    return loaded.projection


FOLLOWED = {
    "more than half of the most": (
        "id", "SELECT s.id, s.amount FROM sales s WHERE s.amount > (SELECT max(o.amount) / 2 FROM sales o)",
    ),
    "revenue per day": ("day", "SELECT placed_at::date AS day, sum(amount) AS paid FROM sales GROUP BY 1"),
    "per day, by a call": ("day", "SELECT date(placed_at) AS day, count(*) FROM sales GROUP BY date(placed_at)"),
    "per prefix of the phone": (
        "prefix",
        "SELECT substring(phone FROM 1 FOR 2) AS prefix, count(*) FROM buyers GROUP BY substring(phone FROM 1 FOR 2)",
    ),
    "per first letters": ("start", "SELECT left(phone, 2) AS start, count(*) FROM buyers GROUP BY 1"),
    "per month": ("month", "SELECT date_trunc('month', placed_at) AS month, sum(amount) FROM sales GROUP BY month"),
    "per month as a date": (
        "month", "SELECT date_trunc('month', placed_at)::date AS month, sum(amount) FROM sales GROUP BY 1",
    ),
    "per month in words": ("month", "SELECT to_char(placed_at, 'YYYY-MM') AS month, sum(amount) FROM sales GROUP BY 1"),
    "per size": (
        "size",
        "SELECT CASE WHEN amount > 100 THEN 'large' ELSE 'small' END AS size, count(*) FROM sales GROUP BY 1",
    ),
    "per tenth": ("tenth", "SELECT id % 10 AS tenth, sum(amount) FROM sales GROUP BY id % 10"),
    "per country, known or not": (
        "country", "SELECT coalesce(country, 'unknown') AS country, count(*) FROM buyers GROUP BY 1",
    ),
    "per year": ("year", "SELECT extract(year FROM placed_at) AS year, sum(amount) FROM sales GROUP BY 1"),
    "per text of a value": ("k", "SELECT phone::text AS k, count(*) FROM buyers WHERE phone > '' GROUP BY phone::text"),
    "one total": ("of", "SELECT 'all' AS of, sum(amount) AS paid FROM sales"),
    "how many per customer": (
        "id",
        "SELECT b.id, count(s.id) AS n FROM buyers b LEFT JOIN sales s ON s.customer_id = b.id GROUP BY b.id",
    ),
    "sales per country": (
        "country",
        "SELECT b.country, sum(s.amount) FROM sales s JOIN buyers b ON s.customer_id = b.id GROUP BY b.country",
    ),
    "sales per country, known or not": (
        "country",
        "SELECT coalesce(b.country, 'unknown') AS country, sum(s.amount)"
        " FROM sales s JOIN buyers b ON s.customer_id = b.id GROUP BY 1",
    ),
    "who bought": (
        "id", "SELECT id, country FROM buyers b WHERE EXISTS (SELECT 1 FROM sales s WHERE s.customer_id = b.id)",
    ),
    "who did not": (
        "id",
        "SELECT id, country FROM buyers b WHERE NOT EXISTS (SELECT 1 FROM sales s WHERE s.customer_id = b.id)",
    ),
    "who is among": ("id", "SELECT id FROM buyers b WHERE b.id IN (SELECT s.customer_id FROM sales s)"),
    "who bought for much": (
        "id",
        "SELECT b.id FROM buyers b WHERE b.id IN"
        " (SELECT customer_id FROM sales GROUP BY customer_id HAVING sum(amount) > 100)",
    ),
    "a value of each row": (
        "id",
        "SELECT b.id, (SELECT max(s.amount) FROM sales s WHERE s.customer_id = b.id) AS most FROM buyers b",
    ),
    "WITH": (
        "customer_id",
        "WITH large AS (SELECT * FROM sales WHERE amount > 10)"
        " SELECT customer_id, count(*) FROM large WHERE customer_id IS NOT NULL GROUP BY customer_id",
    ),
    "tables with commas": (
        "id",
        "SELECT b.id, sum(s.amount) FROM sales s, buyers b WHERE b.id = s.customer_id AND b.country = 'SE'"
        " GROUP BY b.id",
    ),
}  # fmt: skip
WITHOUT_TABLES = {
    "tables with commas, names without tables": (
        "country",
        "SELECT country, sum(amount) AS paid FROM sales, buyers WHERE customer_id = buyers.id GROUP BY country",
    ),
    "a join, names without tables": (
        "customer_id",
        "SELECT customer_id, country, count(*) FROM visits JOIN buyers ON customer_id = id"
        " WHERE seen_at IS NOT NULL GROUP BY customer_id, country",
    ),
    "USING, names without tables": (
        "customer_id",
        "SELECT customer_id, count(*), max(amount) FROM sales JOIN visits USING (customer_id)"
        " WHERE amount > 10 GROUP BY customer_id",
    ),
    "NATURAL JOIN, names without tables": (
        "customer_id", "SELECT customer_id, count(*) FROM sales NATURAL JOIN visits GROUP BY customer_id",
    ),
    "WITH, names without tables": (
        "customer_id",
        "WITH large AS (SELECT customer_id, amount FROM sales WHERE amount > 10),"
        " seen AS (SELECT customer_id AS visitor, max(seen_at) AS last FROM visits GROUP BY visitor)"
        " SELECT customer_id, last, sum(amount) FROM large, seen WHERE customer_id = visitor GROUP BY 1, 2",
    ),
    "a query in FROM, names without tables": (
        "country",
        "SELECT country, sum(paid) FROM (SELECT customer_id, sum(amount) AS paid FROM sales GROUP BY 1) AS totals"
        " JOIN buyers ON customer_id = id GROUP BY country",
    ),
    "every column, names without tables": (
        "visit_id", "SELECT * FROM visits, (SELECT id AS buyer, phone FROM buyers) AS b WHERE customer_id = buyer",
    ),
    "every column of a union, names without tables": (
        "id",
        "SELECT id, count(*) FROM (SELECT * FROM buyers UNION ALL SELECT customer_id, 'none', 'none' FROM visits) AS b"
        " GROUP BY id",
    ),
    "EXISTS, names without tables": (
        "id", "SELECT id, phone FROM buyers WHERE EXISTS (SELECT * FROM visits WHERE customer_id = id)",
    ),
    "a value of each row, names without tables": (
        "id", "SELECT id, (SELECT max(seen_at) FROM visits WHERE customer_id = id) AS last FROM buyers",
    ),
    "what is computed, names without tables": (
        "day",
        "SELECT seen_at::date AS day, country, count(*) FROM visits, buyers WHERE customer_id = id"
        " AND seen_at IS NOT NULL GROUP BY day, country",
    ),
    "a chain of tables": (
        "continent",
        "SELECT continent, sum(amount) FROM countries JOIN buyers ON country = code"
        " JOIN sales ON customer_id = buyers.id GROUP BY continent",
    ),
    "a chain of tables that may match nothing": (
        "continent",
        "SELECT continent, count(amount), max(visit_id) FROM countries LEFT JOIN buyers ON country = code"
        " LEFT JOIN visits ON customer_id = id LEFT JOIN sales USING (customer_id) GROUP BY continent",
    ),
    "tables with commas, in any order": (
        "continent",
        "SELECT continent, count(*) FROM visits, countries, sales, buyers WHERE visits.customer_id = buyers.id"
        " AND country = code AND buyers.id = sales.customer_id GROUP BY continent",
    ),
    "a query in a query's condition": (
        "id",
        "SELECT id, phone FROM buyers WHERE id IN (SELECT customer_id FROM sales WHERE placed_at <"
        " (SELECT max(seen_at) FROM visits WHERE visits.customer_id = sales.customer_id))",
    ),
    "joins in parentheses": (
        "country",
        "SELECT country, sum(amount) FROM (visits JOIN buyers ON customer_id = id)"
        " JOIN sales ON sales.customer_id = buyers.id GROUP BY country",
    ),
    "columns with other names": (
        "place",
        "SELECT place, count(*) FROM visits, buyers AS b (buyer, place) WHERE customer_id = buyer GROUP BY place",
    ),
    "a share of all": (
        "country",
        "SELECT country, count(*) FROM visits, buyers WHERE customer_id = id GROUP BY country"
        " HAVING count(*) > (SELECT count(*) * 0.01 FROM visits, buyers WHERE customer_id = id)",
    ),
    "capitals, names without tables": (
        "country",
        "SELECT Country, count(*) FROM Visits, Buyers WHERE Customer_Id = Id GROUP BY COUNTRY",
    ),
}  # fmt: skip
"""Names of columns as they are mostly written: only the columns of the tables say whose they are."""
IN_SPARK = {
    "per day": ("day", "SELECT date(placed_at) AS day, count(*) FROM sales GROUP BY date(placed_at)"),
    "per prefix of the phone": (
        "prefix", "SELECT substring(phone, 1, 2) AS prefix, count(*) FROM buyers GROUP BY substring(phone, 1, 2)",
    ),
    "per month": ("month", "SELECT date_trunc('month', placed_at) AS month, sum(amount) FROM sales GROUP BY month"),
    "per country, known or not": (
        "country", "SELECT ifnull(b.country, 'unknown') AS country, count(*) FROM buyers b GROUP BY 1",
    ),
    "names without tables": (
        "country", "SELECT country, count(*) FROM visits JOIN buyers ON customer_id = id GROUP BY country",
    ),
}  # fmt: skip
NOT_FOLLOWED = {
    "NOT IN, which one NULL makes empty": (
        "id", "SELECT b.id FROM buyers b WHERE b.id NOT IN (SELECT s.customer_id FROM sales s)",
    ),
    "a limit of all": ("id", "SELECT id, amount FROM sales ORDER BY amount DESC, id LIMIT 10"),
    "a key of two tables": (
        "k", "SELECT b.country || s.id::text AS k, s.amount FROM sales s JOIN buyers b ON b.id = s.customer_id",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [*FOLLOWED, *WITHOUT_TABLES])
def test_an_everyday_query_is_followed_by_key(
    analysed: Analyse, empty_shop: ProjectionContext, tmp_path: Path, case: str
) -> None:
    defined = followed(empty_shop.store, written(tmp_path, *(FOLLOWED | WITHOUT_TABLES)[case]))
    assert [each.what for each in defined.unfollowed] == []
    assert [each.what for each in analysed(defined).not_local] == []


@pytest.mark.parametrize("case", IN_SPARK)
def test_an_everyday_query_in_sparks_sql_is_followed_by_key(
    analysed: Analyse, empty_shop: ProjectionContext, tmp_path: Path, case: str
) -> None:
    defined = followed(empty_shop.store, written(tmp_path, *IN_SPARK[case], dialect="spark"))
    assert [each.what for each in (*defined.unfollowed, *analysed(defined).not_local)] == []


@pytest.mark.parametrize("case", NOT_FOLLOWED)
def test_what_no_key_keeps_apart_is_not_followed(
    analysed: Analyse, empty_shop: ProjectionContext, tmp_path: Path, case: str
) -> None:
    defined = followed(empty_shop.store, written(tmp_path, *NOT_FOLLOWED[case]))
    assert defined.unfollowed or analysed(defined).not_local
