"""Everyday queries are followed by key as they are written: in Postgres' SQL, no word about what inputs affect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.projections import Projection
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


@pytest.fixture(scope="module", autouse=True)
def tables(empty_shop: ProjectionContext) -> None:
    register_topic(empty_shop.store, topic("sales"), SALES)
    register_topic(empty_shop.store, topic("buyers"), BUYERS)


def written(folder: Path, key: str, query: str, dialect: str = "postgres") -> Projection:
    names = [name for name in ("sales", "buyers") if name in query]
    inputs = "\n".join(f'{name} = "shop.public.{name}"' for name in names)
    head = f'key = "{key}"\ndialect = "{dialect}"\nsink = {{ kind = "parquet", sink = "lake" }}\n[inputs]\n{inputs}'
    (folder / "view.sql").write_text(f"/* projection\n{head}\n*/\n{query}")
    loaded = load_sql(folder / "view.sql")
    assert loaded.projection is not None and not loaded.findings, loaded.findings
    return loaded.projection


FOLLOWED = {
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
    "per size": (
        "size",
        "SELECT CASE WHEN amount > 100 THEN 'large' ELSE 'small' END AS size, count(*) FROM sales GROUP BY 1",
    ),
    "per tenth": ("tenth", "SELECT id % 10 AS tenth, sum(amount) FROM sales GROUP BY id % 10"),
    "per country, known or not": (
        "country", "SELECT coalesce(country, 'unknown') AS country, count(*) FROM buyers GROUP BY 1",
    ),
    "per year": ("year", "SELECT extract(year FROM placed_at) AS year, sum(amount) FROM sales GROUP BY 1"),
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
IN_SPARK = {
    "per day": ("day", "SELECT date(placed_at) AS day, count(*) FROM sales GROUP BY date(placed_at)"),
    "per prefix of the phone": (
        "prefix", "SELECT substring(phone, 1, 2) AS prefix, count(*) FROM buyers GROUP BY substring(phone, 1, 2)",
    ),
    "per month": ("month", "SELECT date_trunc('month', placed_at) AS month, sum(amount) FROM sales GROUP BY month"),
    "per country, known or not": (
        "country", "SELECT ifnull(b.country, 'unknown') AS country, count(*) FROM buyers b GROUP BY 1",
    ),
}  # fmt: skip
NOT_FOLLOWED = {
    "NOT IN, which one NULL makes empty": (
        "id", "SELECT b.id FROM buyers b WHERE b.id NOT IN (SELECT s.customer_id FROM sales s)",
    ),
    "a limit of all": ("id", "SELECT id, amount FROM sales ORDER BY amount DESC, id LIMIT 10"),
    "a mean of all": (
        "id", "SELECT s.id, s.amount FROM sales s WHERE s.amount > (SELECT max(o.amount) / 2 FROM sales o)",
    ),
    "a key of two tables": (
        "k", "SELECT b.country || s.id::text AS k, s.amount FROM sales s JOIN buyers b ON b.id = s.customer_id",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLLOWED)
def test_an_everyday_query_is_followed_by_key(analysed: Analyse, tmp_path: Path, case: str) -> None:
    defined = written(tmp_path, *FOLLOWED[case])
    assert [each.what for each in defined.unfollowed] == []
    assert [each.what for each in analysed(defined).not_local] == []


@pytest.mark.parametrize("case", IN_SPARK)
def test_an_everyday_query_in_sparks_sql_is_followed_by_key(
    analysed: Analyse, tmp_path: Path, case: str
) -> None:
    defined = written(tmp_path, *IN_SPARK[case], dialect="spark")
    assert [each.what for each in (*defined.unfollowed, *analysed(defined).not_local)] == []


@pytest.mark.parametrize("case", NOT_FOLLOWED)
def test_what_no_key_keeps_apart_is_not_followed(analysed: Analyse, tmp_path: Path, case: str) -> None:
    defined = written(tmp_path, *NOT_FOLLOWED[case])
    assert defined.unfollowed or analysed(defined).not_local
