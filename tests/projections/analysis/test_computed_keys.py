"""Keys that are computed of columns: which plans compute them as ``affects`` says, and keep them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tailrace.projections import Computed, Projection, State, Through, projection
from tests.projections.conftest import Analyse
from tests.projections.refresh.gallery import CUSTOMERS, LAKE, ORDERS

CITY = Computed("coalesce(city, 'unknown')")
ORDERS_BY_CUSTOMER = State(ORDERS, affects=Through("customers", {"customer_id": "id"}))


def of_customers(function: Callable[[DataFrame], DataFrame], computed: Computed = CITY) -> Projection:
    def listed(customers: DataFrame) -> DataFrame:
        return function(customers)

    return projection(key="place", sink=LAKE, customers=State(CUSTOMERS, affects=computed))(listed)


def of_both(function: Callable[[DataFrame, DataFrame], DataFrame]) -> Projection:
    def listed(customers: DataFrame, orders: DataFrame) -> DataFrame:
        return function(customers, orders)

    return projection(
        key="place", sink=LAKE, customers=State(CUSTOMERS, affects=CITY), orders=ORDERS_BY_CUSTOMER
    )(listed)


def place() -> Any:
    return F.coalesce(F.col("city"), F.lit("unknown"))


LOCAL: dict[str, Callable[[], Projection]] = {
    "grouped by it": lambda: of_customers(lambda c: c.groupBy(place().alias("place")).count()),
    "computed first, grouped later": lambda: of_customers(
        lambda c: c.withColumn("place", place()).where("name IS NOT NULL").groupBy("place").count()
    ),
    "grouped by the column that it is of": lambda: of_customers(
        lambda c: c.groupBy("city").count().groupBy(place().alias("place")).agg(F.sum("count").alias("count"))
    ),
    "a window of it": lambda: of_customers(
        lambda c: c.select(place().alias("place"), F.rank().over(Window.partitionBy(place()).orderBy("id")).alias("n"))
        .where("n = 1")
    ),
    "distinct": lambda: of_customers(lambda c: c.select(place().alias("place")).distinct()),
    "one total": lambda: of_customers(
        lambda c: c.agg(F.count("*").alias("customers")).select(F.lit("all").alias("place"), "customers"),
        Computed("'all'"),
    ),
    "spelled in another case": lambda: of_customers(
        lambda c: c.groupBy(F.expr("SUBSTRING(name, 1, 2)").alias("place")).count(), Computed("substring(name,1,2)")
    ),
    "through a join": lambda: of_both(
        lambda c, o: c.join(o, c.id == o.customer_id).groupBy(place().alias("place")).agg(F.sum("amount").alias("s"))
    ),
    "through a left join": lambda: of_both(
        lambda c, o: c.join(o, c.id == o.customer_id, "left").groupBy(place().alias("place")).agg(F.max("amount"))
    ),
}  # fmt: skip
NOT_LOCAL: dict[str, Callable[[], Projection]] = {
    "another constant": lambda: of_customers(
        lambda c: c.groupBy(F.coalesce("city", F.lit("none")).alias("place")).count()
    ),
    "another column": lambda: of_customers(
        lambda c: c.groupBy(F.coalesce("name", F.lit("unknown")).alias("place")).count()
    ),
    "of what an outer join made NULL": lambda: of_both(
        lambda c, o: (
            o.join(c, c.id == o.customer_id, "left")
            .groupBy(place().alias("place"))
            .agg(F.count("*").alias("n"))
        )
    ),
    "of an aggregate": lambda: of_customers(
        lambda c: c.groupBy("id").agg(F.max("city").alias("city")).groupBy(place().alias("place")).count()
    ),
    "one total of some groups": lambda: of_customers(
        lambda c: c.groupBy("city").count().select(F.lit("other").alias("place"), "count"), Computed("'all'")
    ),
}


@pytest.mark.parametrize("case", LOCAL)
def test_a_key_that_is_computed_as_affects_says_is_followed(analysed: Analyse, case: str) -> None:
    found = analysed(LOCAL[case]())
    assert [each.what for each in found.not_local] == []
    assert found.never_null == (case not in ("spelled in another case",))


def test_what_is_no_key_is_said(analysed: Analyse) -> None:
    half = of_customers(lambda c: c.select(F.expr("id / 2").alias("place"), "name"), Computed("id / 2"))
    assert [each.what for each in analysed(half).not_local] == [
        "affects of customers is (id / 2), which cannot be followed"
    ]


@pytest.mark.parametrize("case", NOT_LOCAL)
def test_a_key_that_is_computed_otherwise_is_not_followed(analysed: Analyse, case: str) -> None:
    assert analysed(NOT_LOCAL[case]()).not_local
