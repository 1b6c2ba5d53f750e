"""What would give another result each time, or a wrong one, is named before any row is read: where, which column, and
what to do."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from datetime import datetime as dt
from functools import cache
from random import Random, random
from time import strftime, time
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import WindowSpec

from tailrace.projections import Changes, Projection, State, projection
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tests.projections.analysis import mistaken
from tests.projections.conftest import Analyse, Deploy
from tests.projections.lifecycle.test_lifecycle import rows_of
from tests.projections.refresh.gallery import CUSTOMERS, LAKE, ORDERS, PRODUCTS
from tests.projections.shoplog import ShopLog

Function = Callable[[DataFrame], DataFrame]


def of_orders(function: Function, **more: Any) -> Projection:
    def listed(orders: DataFrame) -> DataFrame:
        return function(orders)

    return projection(key="customer_id", sink=LAKE, orders=State(ORDERS, affects="customer_id"), **more)(
        listed
    )


def of_readings(function: Function, cast: dict[str, str] | None = None, **more: Any) -> Projection:
    def listed(readings: DataFrame) -> DataFrame:
        return function(readings)

    readings = State("shop.public.readings", affects="meter", cast=cast or {})
    return projection(key="meter", sink=LAKE, readings=readings, **more)(listed)


def of_changes(function: Function) -> Projection:
    def listed(changes: DataFrame) -> DataFrame:
        return function(changes)

    return projection(key="meter", sink=LAKE, changes=Changes("shop.public.readings", affects="meter"))(
        listed
    )


def each(*columns: str) -> Function:
    """Per customer."""
    return lambda orders: orders.groupBy("customer_id").agg(*map(F.expr, columns))


def over(column: str) -> WindowSpec:
    return Window.partitionBy("customer_id").orderBy(column)


STARTED = dt.now(UTC)
SEEDED = Random(7).random()
MADE: list[int] = []


def in_helper() -> float:
    return time()


if MADE is not None:
    BEGUN = dt.now(UTC)


def since(day: date = date.today()) -> int:  # noqa: B008, DTZ011
    return day.year


@cache
def remembered() -> float:
    return time()


def in_helpers_helper() -> Column:
    return F.lit(in_helper())


def hidden(made: list[int]) -> int:
    """A clock that no source shows: the plan of a second call does."""
    made.append(0)
    return len(made)


def doubled(number: Any) -> Any:
    return 2 * number


def of_sql(query: str) -> Projection:
    """Over the orders ``{o}``."""
    return of_orders(lambda orders: orders.sparkSession.sql(query, o=orders))


def beside_whole(query: str, **more: Any) -> Projection:
    """Over the orders ``{o}`` and products ``{p}``, of which nobody says what they affect."""

    def listed(orders: DataFrame, products: DataFrame) -> DataFrame:
        return orders.sparkSession.sql(query, o=orders, p=products)

    inputs: dict[str, Any] = {"orders": State(ORDERS, affects="customer_id"), "products": State(PRODUCTS)}
    return projection(key="customer_id", sink=LAKE, **inputs, **more)(listed)


def by_status(query: str) -> Projection:
    """Over a table ``each`` of whichever statuses there are first for each product of a customer."""
    each = "SELECT customer_id, product_id, first(status) AS st, first(status) = 'paid' AS paid FROM {o} GROUP BY 1, 2"
    return of_sql(f"WITH each AS ({each}) {query}")


FIRST = "first(status) takes whichever row comes"
LISTED = "collect_list(status) has its elements in any order"
TEXT = "readings.price is numeric without a precision, text in the log, and {}"
FAULTS: dict[str, tuple[Projection, str, str]] = {
    "the clock": (
        of_orders(lambda orders: orders.withColumn("age", F.current_date())), "fail",
        "current_date() is another time in each refresh",
    ),
    "a random number": (
        of_orders(lambda orders: orders.where(F.rand() < 0.5)), "fail", "rand() gives another value in each refresh",
    ),
    "a number of the row's place": (
        of_orders(lambda orders: orders.withColumn("n", F.monotonically_increasing_id())), "fail",
        "monotonically_increasing_id() gives another value in each refresh",
    ),
    "the first of many": (
        of_orders(each("first(status)")), "warn", FIRST,
    ),
    "a list": (
        of_orders(each("collect_list(status) AS all")), "warn", LISTED,
    ),
    "a list that becomes a text later": (
        of_orders(lambda orders: each("collect_set(status) AS all")(orders).withColumn(
            "all", F.concat_ws(",", "all"))),
        "warn", "collect_set(status) has its elements in any order",
    ),
    "a list of a common table expression": (
        of_orders(lambda orders: orders.sparkSession.sql(
            "WITH each AS (SELECT customer_id, collect_list(status) AS all FROM {o} GROUP BY customer_id)"
            " SELECT a.customer_id, a.all FROM each a JOIN each b ON a.customer_id = b.customer_id", o=orders)),
        "warn", LISTED,
    ),
    "a list in a later part of a union": (
        of_orders(lambda orders: orders.select("customer_id", F.array("status").alias("all")).union(
            each("collect_list(status) AS all")(orders))),
        "warn", LISTED,
    ),
    "the first of another place of a common table expression": (
        of_orders(lambda orders: orders.sparkSession.sql(
            "WITH o AS (SELECT id, customer_id, status FROM {o})"
            " SELECT a.customer_id, a.id, first(b.status) AS other"
            " FROM o a JOIN o b ON a.customer_id = b.customer_id GROUP BY a.customer_id, a.id", o=orders)),
        "warn", FIRST,
    ),
    "the value of the highest, of which there may be several": (
        of_orders(each("max_by(status, amount)")), "warn", "max_by(status, amount) takes whichever row comes",
    ),
    "numbers by an order that is not unique": (
        of_orders(lambda orders: orders.withColumn("n", F.row_number().over(over("status")))), "warn",
        "row_number() goes by the order of status",
    ),
    "sums of so many rows by an order that is not unique": (
        of_orders(lambda orders: orders.select("*", F.sum("amount").over(over("status").rowsBetween(-1, 0)))), "warn",
        "sum() goes by the order of status",
    ),
    "any row of many": (
        of_orders(lambda orders: orders.dropDuplicates(["customer_id"])), "warn",
        "dropDuplicates(customer_id) keeps whichever row comes first",
    ),
    "the most frequent, of which there may be several": (
        of_orders(each("mode(status)")), "warn", "mode(status) takes whichever",
    ),
    "an estimate": (
        of_orders(each("percentile_approx(quantity, 0.5)")), "warn", "percentile_approx(quantity) is estimated",
    ),
    "a clock in a text": (
        of_orders(lambda orders: orders.withColumn("seen", F.expr("TIMESTAMP'now'"))), "fail",
        "TIMESTAMP'now' is another time in each refresh",
    ),
    "a clock in a text that is cast": (
        of_orders(lambda orders: orders.withColumn("seen", F.lit(" Now ").cast("timestamp"))), "fail",
        "'Now' read as a timestamp is another time in each refresh",
    ),
    "a clock in a text that is parsed": (
        of_orders(lambda orders: orders.withColumn("seen", F.to_timestamp(F.lit("now")))), "fail",
        "'now' read as a timestamp is another time in each refresh",
    ),
    "a day in a text that a function reads": (
        of_orders(each("max(date('today')) AS day")), "fail", "'today' read as a date is another time in each refresh",
    ),
    "a day in a text of parts": (
        of_orders(lambda orders: orders.withColumn("day", F.expr("cast(upper('to' || 'day') AS timestamp_ntz)"))),
        "fail", "'today' read as a timestamp_ntz is another time in each refresh",
    ),
    "who computes it": (
        of_orders(lambda orders: orders.withColumn("who", F.current_user())), "fail",
        "current_user() is another value where somebody else runs the refresh",
    ),
    "where it is computed": (
        of_orders(each("max(current_catalog()) AS catalog")), "fail",
        "current_catalog() is another value where somebody else runs the refresh",
    ),
    "in which database it is computed": (
        of_orders(each("max(current_schema()) AS db")), "fail",
        "current_database() is another value where somebody else runs the refresh",
    ),
    "a sum of floats": (
        of_readings(lambda readings: readings.groupBy("meter").agg(F.sum("level").alias("sum"))), "warn",
        "sum(level) adds floating-point numbers",
    ),
    "a sum of floats of changes": (
        of_changes(lambda changes: changes.groupBy("after.meter").agg(F.sum("after.level").alias("sum"))), "warn",
        "sum(after.level) adds floating-point numbers",
    ),
    "a sum of floats that a condition chooses": (
        of_readings(lambda readings: readings.groupBy("meter").agg(
            F.expr("sum(CASE WHEN id > 1 THEN 0 ELSE level END) AS sum"))), "warn",
        "sum(id, level) adds floating-point numbers",
    ),
    "numeric text as a number": (
        of_readings(lambda readings: readings.select("meter", (F.col("price") * 2).alias("double"))), "fail",
        "readings.price is numeric without a precision, text in the log, and is read as ",
    ),
    "numeric text in an order": (
        of_readings(lambda readings: readings.groupBy("meter").agg(F.max("price"))), "fail",
        "readings.price is numeric without a precision, text in the log, and is compared as text (max)",
    ),
    "numeric text between numbers": (
        of_readings(lambda readings: readings.where("price BETWEEN 9 AND 20")), "fail", TEXT.format("is read as long"),
    ),
    "numeric text in a sum of some": (
        of_readings(lambda readings: readings.groupBy("meter").agg(F.sum(F.when(F.col("id") > 1, F.col("price"))))),
        "fail", TEXT.format("is read as double"),
    ),
    "numeric text of changes": (
        of_changes(lambda changes: changes.groupBy("after.meter").agg(F.sum("after.price").alias("sum"))), "fail",
        TEXT.replace("readings.price", "changes.after.price").format("is read as double"),
    ),
    "numeric text first in a struct": (
        of_readings(lambda readings: readings.groupBy("meter").agg(F.expr("max_by(level, struct(price, id))"))),
        "fail", TEXT.format("is compared as text (max_by)"),
    ),
    "numeric text in a sorted list": (
        of_readings(lambda readings: readings.groupBy("meter").agg(F.expr("sort_array(collect_list(price))"))),
        "fail", TEXT.format("is compared as text (sort_array)"),
    ),
    "numeric text of a column made before": (
        of_readings(lambda readings: readings.withColumn("paid", F.coalesce("price", F.lit("0"))).where("paid = '1'")),
        "fail", TEXT.format("is compared as text (=)"),
    ),
    "a join by numeric text": (
        of_readings(lambda readings: readings.join(readings.select("meter", "price"), ["meter", "price"])),
        "fail", TEXT.format("is compared as text (=)"),
    ),
    "groups of numeric text": (
        of_readings(lambda readings: readings.groupBy("meter", "price").count()),
        "fail", TEXT.format("is compared as text (groupBy)"),
    ),
    "groups of numeric text with a default": (
        of_readings(lambda readings: readings.groupBy("meter", F.coalesce("price", F.lit("0")).alias("paid")).count()),
        "fail", TEXT.format("is compared as text (groupBy)"),
    ),
    "groups of numeric text of a common table expression": (
        of_readings(lambda readings: readings.sparkSession.sql(
            "WITH paid AS (SELECT meter, coalesce(price, '0') AS paid FROM {r})"
            " SELECT meter, paid, count(*) AS n FROM paid GROUP BY meter, paid", r=readings)),
        "fail", TEXT.format("is compared as text (groupBy)"),
    ),
    "distinct numeric text": (
        of_readings(lambda readings: readings.select("meter", "price").distinct()),
        "fail", TEXT.format("is compared as text (distinct)"),
    ),
    "how many different numeric texts": (
        of_readings(lambda readings: readings.groupBy("meter").agg(F.count_distinct("price"))),
        "fail", TEXT.format("is compared as text (distinct)"),
    ),
    "a set of numeric text": (
        of_readings(lambda readings: readings.groupBy("meter").agg(F.size(F.collect_set("price")))),
        "fail", TEXT.format("is compared as text (collect_set)"),
    ),
    "a window for each numeric text": (
        of_readings(lambda readings: readings.withColumn(
            "n", F.count("id").over(Window.partitionBy("meter", "price")))),
        "fail", TEXT.format("is compared as text (partitionBy)"),
    ),
    "numeric text that others have not": (
        of_readings(lambda readings: readings.select("meter", "price").exceptAll(
            readings.where("id > 5").select("meter", "price"))),
        "fail", TEXT.format("is compared as text (except)"),
    ),
    "numeric text of a subquery": (
        of_readings(lambda readings: readings.sparkSession.sql(
            "SELECT meter, (SELECT price FROM {r} WHERE id = 1) * 2 AS double FROM {r}", r=readings), trust=True),
        "fail", TEXT.format("is read as "),
    ),
    "numeric text among that of a subquery": (
        of_readings(lambda readings: readings.sparkSession.sql(
            "SELECT meter FROM {r} WHERE '1' IN (SELECT price FROM {r})", r=readings), trust=True),
        "fail", TEXT.format("is compared as text (in)"),
    ),
    "the first in a subquery": (
        beside_whole("SELECT customer_id, (SELECT first(name) FROM {p}) AS name FROM {o}"), "warn",
        "first(name) takes whichever row comes",
    ),
    "rows that are among the first of others": (
        beside_whole("SELECT customer_id FROM {o} WHERE id IN (SELECT first(id) FROM {p} GROUP BY name)"), "warn",
        "first(id) takes whichever row comes",
    ),
    "groups of the first": (
        by_status("SELECT customer_id, count(*) AS n FROM each GROUP BY customer_id, st"), "warn", FIRST,
    ),
    "totals above groups of the first": (
        by_status("SELECT customer_id, n FROM (SELECT customer_id, st, count(*) AS n FROM each GROUP BY GROUPING SETS"
                  " ((customer_id), (customer_id, st)))"), "warn", FIRST,
    ),
    "a condition that is the first": (by_status("SELECT customer_id FROM each WHERE paid"), "warn", FIRST),
    "distinct firsts": (
        by_status("SELECT customer_id FROM (SELECT DISTINCT customer_id, st FROM each)"), "warn", FIRST,
    ),
    "a window for each first": (
        by_status("SELECT customer_id, count(*) OVER (PARTITION BY customer_id, st) AS n FROM each"), "warn", FIRST,
    ),
    "a limit by the first": (
        beside_whole("SELECT customer_id FROM {o} JOIN (SELECT * FROM (SELECT price, first(name) AS name FROM {p}"
                     " GROUP BY price) ORDER BY name, price LIMIT 3) ON amount = price"),
        "warn", "first(name) takes whichever row comes",
    ),
    "the value of the highest in a window": (
        of_orders(lambda orders: orders.withColumn(
            "s", F.expr("max_by(status, amount) OVER (PARTITION BY customer_id)"))),
        "warn", "max_by(status, amount) takes whichever row comes",
    ),
    "whether a list has the first": (of_orders(each("array_contains(array('a'), first(status)) AS n")), "warn", FIRST),
    "a sorted part of a list": (
        of_orders(each("sort_array(slice(collect_list(status), 1, 3)) AS all")), "warn", LISTED,
    ),
    "a list sorted by an order of its own": (
        of_orders(each("array_sort(collect_list(status), (a, b) -> length(a) - length(b)) AS all")), "warn", LISTED,
    ),
    "the values of the highest, of which there may be several": (
        of_orders(each("max_by(status, amount, 2)")), "warn", "max_by(status, amount) takes whichever row comes",
    ),
    "the values of the lowest, of which there may be several": (
        of_orders(each("min_by(status, amount, 2)")), "warn", "min_by(status, amount) takes whichever row comes",
    ),
    "a slope": (
        of_readings(lambda readings: readings.groupBy("meter").agg(F.regr_slope("level", "id").alias("n"))), "warn",
        "regr_slope(level, id) adds floating-point numbers",
    ),
    "so many rows, sorted in parts": (
        beside_whole("SELECT customer_id FROM {o} JOIN (SELECT id FROM {p} SORT BY id LIMIT 3) USING (id)"), "warn",
        "limit takes whichever rows come first",
    ),
    "a cast that cuts": (
        of_readings(lambda readings: readings.select("meter", "price"), cast={"price": "decimal"}), "warn",
        "input 'readings': decimal is decimal(10,0) in Spark: price loses what is behind its point",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_what_is_not_the_same_each_time_is_named(analysed: Analyse, case: str) -> None:
    wrong, level, words = FAULTS[case]
    (found,) = analysed(wrong).findings
    assert found.what.startswith(words)
    assert found.level == level
    assert found.hint
    assert found.place.startswith("tests/projections/analysis/test_determinism.py:")


@projection(key="meter", sink=LAKE, readings=State("shop.public.readings", affects="meter"))
def one_row_of_each_price(readings: DataFrame) -> DataFrame:
    priced = readings.where("level > 1")
    return priced.dropDuplicates(["meter", "price"])


def test_rows_that_numeric_text_tells_apart_are_named_where_that_is_written(analysed: Analyse) -> None:
    (found,) = [each for each in analysed(one_row_of_each_price).findings if each.level == "fail"]
    assert found.what == TEXT.format("is compared as text (dropDuplicates)")
    assert found.hint == 'say its type: readings=State(…, cast={"price": "decimal(20,4)"})'
    line = one_row_of_each_price.line + 3
    assert found.place == f"tests/projections/analysis/test_determinism.py:{line}"


SOUND: dict[str, Projection] = {
    "the most frequent, the same of equals": of_orders(each("mode(status, true)")),
    "the same number each time": of_orders(lambda orders: orders.withColumn("n", F.lit(SEEDED))),
    "a day that is a text": of_orders(lambda orders: orders.withColumn("n", F.lit("today"))),
    "a day that is always the same": of_orders(
        lambda orders: orders.withColumn("day", F.expr("date('epoch') + datediff(date('2020-01-01'), '2019-12-31')"))
    ),
    "texts that are no clock in a column": of_orders(
        lambda orders: orders.withColumn("day", F.expr("try_cast(status AS date)"))
    ),
    "a sorted list": of_orders(each("sort_array(collect_list(status))")),
    "a list sorted later": of_orders(
        lambda orders: each("collect_list(status) AS all")(orders).select(
            "customer_id", F.size("all"), F.array_sort("all")
        )
    ),
    "a tie broken by the key": of_orders(each("max_by(status, struct(amount, id))")),
    "a sum so far by values": of_orders(
        lambda orders: orders.withColumn("s", F.sum("amount").over(over("status")))
    ),
    "numbers by a unique order": of_orders(
        lambda orders: orders.withColumn("n", F.row_number().over(over("id"))).where("n <= 3")
    ),
    "the last rows of each by a unique order": of_orders(
        lambda orders: orders.withColumn("before", F.lag("amount").over(over("id")))
    ),
    "a float as it is": of_readings(lambda readings: readings.groupBy("meter").agg(F.max("level"))),
    "a sum of floats that may differ": of_readings(
        lambda readings: readings.groupBy("meter").agg(F.sum("level").alias("sum")), tolerance={"sum": 1e-6}
    ),
    "a whole number that a float chooses": of_readings(
        lambda readings: readings.groupBy("meter").agg(
            F.expr("sum(CASE WHEN level > 0.5D THEN id END) AS high"), F.expr("sum(if(isnan(level), 1, 0)) AS none")
        )
    ),
    "numeric text of a declared type": of_readings(
        lambda readings: readings.groupBy("meter").agg(F.max("price"), F.sum("price")), cast={"price": "decimal(20,4)"}
    ),
    "numeric text behind a unique column": of_readings(
        lambda readings: readings.groupBy("meter").agg(F.expr("max(struct(id, price)).price AS newest"))
    ),
    "numeric text that is cast": of_readings(
        lambda readings: readings.groupBy("meter").agg(F.sum(F.col("price").cast("decimal(20,4)")).alias("sum"))
    ),
    "groups of numeric text that is cast": of_readings(
        lambda readings: readings.groupBy("meter", F.col("price").cast("decimal(20,4)").alias("price")).count()
    ),
    "groups of the key with numeric text beside it": of_readings(
        lambda readings: readings.groupBy("meter", "id", "price").count()
    ),
    "distinct rows with their key": of_readings(
        lambda readings: readings.select("id", "meter", "price").distinct()
    ),
    "rows with their key that others have not": of_readings(
        lambda readings: readings.subtract(readings.where("id > 5"))
    ),
    "a window for each key with numeric text beside it": of_readings(
        lambda readings: readings.withColumn(
            "n", F.count("id").over(Window.partitionBy("meter", "id", "price"))
        )
    ),
    "a subquery of values that are the same each time": beside_whole(
        "SELECT customer_id, (SELECT max(name) FROM {p}) AS name FROM {o} WHERE id IN (SELECT id FROM {p})"
    ),
    "the length of a list of a subquery": beside_whole(
        "SELECT customer_id, size((SELECT collect_list(name) FROM {p})) AS n FROM {o}"
    ),
    "that others are there, whichever": beside_whole(
        "SELECT customer_id FROM {o} WHERE EXISTS (SELECT first(name) FROM {p})"
    ),
    "the value of the highest in a window, of which there is one": of_orders(
        lambda orders: orders.withColumn("s", F.expr("max_by(status, id) OVER (PARTITION BY customer_id)"))
    ),
    "a sorted list of a window": of_orders(
        lambda orders: orders.withColumn(
            "s", F.expr("sort_array(collect_list(status) OVER (PARTITION BY customer_id))")
        )
    ),
    "what is the same of a list in any order": of_orders(
        each("array_contains(collect_list(status), 'paid') AS paid", "size(collect_list(status)) AS n")
    ),
    "rows of a list": of_orders(
        lambda orders: each("collect_list(status) AS all")(orders).select("customer_id", F.explode("all"))
    ),
    "the number of pairs": of_readings(lambda r: r.groupBy("meter").agg(F.regr_count("level", "id"))),
    "so many rows, sorted": beside_whole(
        "SELECT customer_id FROM {o} JOIN (SELECT id FROM {p} ORDER BY id LIMIT 3) USING (id)"
    ),
    "numeric text as text": of_readings(lambda readings: readings.select("meter", "price")),
}  # fmt: skip


@pytest.mark.parametrize("case", SOUND)
def test_what_is_the_same_each_time_passes(analysed: Analyse, case: str) -> None:
    found = analysed(SOUND[case])
    assert (found.findings, found.reason) == ((), None)


UNPROVED: dict[str, tuple[Projection, str]] = {
    "a list that is sorted after it was transformed": (
        of_orders(each("sort_array(transform(collect_list(status), s -> upper(s))) AS all")), LISTED,
    ),
    "a text that begins with random bytes": (
        of_orders(lambda orders: orders.withColumn("s", F.expr("aes_encrypt(status, '0000111122223333')"))),
        "aes_encrypt(status) begins with random bytes unless it is given an iv",
    ),
    "texts with a collation": (
        of_orders(each("count(DISTINCT collate(status, 'UTF8_LCASE')) AS n")), "a text has a collation",
    ),
    "texts with a collation made one": (
        of_orders(each("max(lower(collate(status, 'UTF8_LCASE'))) AS st")), "a text has a collation",
    ),
    "a sketch of how many": (of_orders(each("hll_sketch_agg(id)")), "hll_sketch_agg(id) may depend on the order"),
    "lists that are one sorted list later": (
        of_orders(lambda orders: orders.groupBy("customer_id", "product_id").agg(F.expr("collect_list(status) AS all"))
                  .groupBy("customer_id").agg(F.sort_array(F.flatten(F.collect_list("all"))))), LISTED,
    ),
    "groups that others tell apart already": (
        by_status("SELECT customer_id, product_id, count(*) AS n FROM each GROUP BY customer_id, product_id, st"),
        FIRST,
    ),
    "a time as a text": (of_orders(lambda orders: orders.withColumn("n", F.lit(strftime("%Y")))), "strftime()"),
    "a time of one's own": (
        of_orders(lambda orders: orders.withColumn("n", F.lit(strftime("%Y", clock.gmtime(7))))), "gmtime()",
    ),
    "a default": (
        of_orders(lambda orders: orders.where(F.col("amount") > since())), "since holds date.today()",
    ),
}  # fmt: skip
"""Shapes that are rare: right or not, nobody has shown it."""


@pytest.mark.parametrize("case", UNPROVED)
def test_what_is_not_proved_is_said_and_not_followed_by_key(analysed: Analyse, case: str) -> None:
    unproved, words = UNPROVED[case]
    found = analysed(unproved)
    assert found.findings and {each.level for each in found.findings} == {"warn"}
    assert any(each.what.startswith(words) and each.hint for each in found.findings)
    assert found.reason in [each.what for each in found.findings]


COUNTS = """
    from datetime import date
    from pyspark.sql import functions as F
    from tailrace.projections import PostgresTable, State, projection

    def least(of=date.today().year):
        return of

    @projection(key="customer_id", sink=PostgresTable("mart", "counts"),
        orders=State("shop.public.orders", affects="customer_id"))
    def counts(orders):
        return {}
"""


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ('orders.groupBy("customer_id").agg(F.max(F.lower(F.collate("status", "UTF8_LCASE"))).alias("n"))',
         "a text has a collation, by which different texts are equal: not proved, so computed in full"),
        ('orders.groupBy("customer_id").agg(F.hll_sketch_estimate(F.hll_sketch_agg("id")).alias("n"))',
         "hll_sketch_agg(id) may depend on the order of rows: not proved, so computed in full"),
        ('orders.where(F.col("id") > least(0)).groupBy("customer_id").agg(F.count("id").alias("n"))',
         "least holds date.today(), another value in each process"),
    ],
    ids=["a collation", "a sketch", "a default"],
)  # fmt: skip
def test_what_is_not_proved_is_computed_in_full_and_right(
    shop: ShopLog, deploy: Deploy, counts: str, words: str
) -> None:
    ctx = deploy(COUNTS.format(counts))
    rebuild(ctx, "counts")
    shop.commit({"orders": [("c", shop.order(900, customer_id=1))]})
    (outcome,) = refresh(ctx, ["counts"])
    assert outcome.error is None and outcome.reason.startswith("full:") and words in outcome.reason
    orders = list(shop.state["orders"].values())
    of_each = {row["customer_id"]: [one["status"] for one in orders if one["customer_id"] == row["customer_id"]]
               for row in orders}  # fmt: skip
    assert {row["customer_id"]: row["n"] for row in rows_of(ctx, "counts")} == {
        customer: max(each.lower() for each in texts) if "collate" in counts else len(texts)
        for customer, texts in of_each.items()
    }


@projection(
    key="customer_id",
    sink=LAKE,
    customers=State(CUSTOMERS, affects={"customer_id": "id"}),
    orders=State(ORDERS, affects="customer_id"),
)
def first_of_the_same(customers: DataFrame, orders: DataFrame) -> DataFrame:
    joined = customers.join(orders, customers.id == orders.customer_id, "left")
    return joined.groupBy(customers.id.alias("customer_id")).agg(
        F.first("name").alias("name"), F.count(orders.id).alias("orders")
    )


def test_the_first_of_values_that_are_all_the_same_passes(analysed: Analyse) -> None:
    assert analysed(first_of_the_same).findings == ()


@pytest.mark.filterwarnings("ignore:Cannot infer the eval type")
def test_a_function_of_python_is_not_followed_by_key_unless_it_is_trusted(analysed: Analyse) -> None:
    with_function = lambda orders: orders.select("customer_id", F.udf(doubled, "int")("quantity"))  # noqa: E731
    doubtful, trusted = analysed(of_orders(with_function)), analysed(of_orders(with_function, trust=True))
    assert doubtful.reason == "nobody can see whether the Python function doubled gives the same each time"
    assert (doubtful.findings, trusted.reason) == ((), None)


def in_python(
    orders: DataFrame, products: DataFrame, *, grouped: bool = False, of_table: bool = False
) -> DataFrame:
    """The products go through a function of Python."""
    if of_table:

        class Numbers:
            def eval(self) -> Iterator[tuple[int]]:
                yield (1,)

        function: Any = F.udtf(Numbers, returnType="n bigint")
        made: Any = function()
        return orders.join(made, F.col("n") == orders.id)
    if grouped:
        made = products.groupBy("id").applyInPandas(lambda frame: frame, products.schema)
    else:
        made = products.mapInPandas(lambda frames: frames, products.schema)
    return orders.join(made, made.id == orders.product_id).select("customer_id", made.name)


@pytest.mark.parametrize("how", [{}, {"grouped": True}, {"of_table": True}], ids=str)
def test_a_function_of_python_over_what_is_read_whole_is_not_followed_either(
    analysed: Analyse, how: dict[str, bool]
) -> None:
    def of_both(*, trust: bool) -> Projection:
        def listed(orders: DataFrame, products: DataFrame) -> DataFrame:
            return in_python(orders, products, **how)

        inputs: dict[str, Any] = {"orders": State(ORDERS, affects="customer_id"), "products": State(PRODUCTS)}
        return projection(key="customer_id", sink=LAKE, trust=trust, **inputs)(listed)

    doubtful, trusted = analysed(of_both(trust=False)), analysed(of_both(trust=True))
    assert doubtful.reason is not None
    assert doubtful.reason.startswith("nobody can see whether the Python function ")
    assert (doubtful.findings, doubtful.not_local, trusted.reason) == ((), (), None)


@projection(key="customer_id", sink=LAKE, orders=State(ORDERS, affects="customer_id"))
def several_faults(orders: DataFrame) -> DataFrame:
    seen = orders.withColumn("seen", F.current_timestamp())
    return (
        seen
        .groupBy("customer_id")
        .agg(
            F.first("status"),
            F.max("seen"),
        )
    )  # fmt: skip


@projection(key="customer_id", sink=LAKE, orders=State(ORDERS, affects="customer_id"))
def asks_pythons_clock(orders: DataFrame) -> DataFrame:
    return orders.select("customer_id", F.lit(datetime.now(UTC)).alias("seen"))


OF_PYTHON: dict[str, tuple[Function, str]] = {
    "by another name": (lambda orders: orders.withColumn("at", F.lit(dt.now(UTC))), "datetime.now()"),
    "imported by its name": (lambda orders: orders.withColumn("n", F.lit(random())), "random()"),
    "of a helper": (lambda orders: orders.withColumn("n", F.lit(in_helper())), "time()"),
    "of a helper's helper": (lambda orders: orders.withColumn("n", in_helpers_helper()), "time()"),
    "in a constant": (lambda orders: orders.withColumn("at", F.lit(STARTED)), "STARTED holds dt.now()"),
    "in a constant of a module": (
        lambda orders: orders.withColumn("at", F.lit(mistaken.LOADED)),
        "LOADED holds datetime.now()",
    ),
    "of a helper that remembers": (lambda orders: orders.withColumn("n", F.lit(remembered())), "time()"),
    "in a constant of one case": (
        lambda orders: orders.withColumn("at", F.lit(BEGUN)),
        "BEGUN holds dt.now()",
    ),
    "that no source shows": (
        lambda orders: orders.withColumn("n", F.lit(hidden(MADE))),
        "a value in its plan is another one",
    ),
}


@pytest.mark.parametrize("case", OF_PYTHON)
def test_clocks_and_random_numbers_of_python_are_found_wherever_they_are(
    analysed: Analyse, case: str
) -> None:
    function, words = OF_PYTHON[case]
    found = analysed(of_orders(function))
    (clock,) = found.findings
    assert clock.what.startswith(words) and clock.level == "fail"
    assert clock.place.startswith("tests/projections/analysis/")
    assert found.reason == clock.what


def test_a_clock_of_python_is_found_in_the_source(analysed: Analyse) -> None:
    found = analysed(asks_pythons_clock)
    (clock,) = found.findings
    assert clock.what == "datetime.now() is another value each time the function is called"
    assert clock.place == f"tests/projections/analysis/test_determinism.py:{asks_pythons_clock.line + 2}"
    assert found.reason == clock.what


def test_faults_are_placed_at_the_calls_that_made_them(analysed: Analyse) -> None:
    here = several_faults.line
    places = {
        found.what.split("(")[0]: int(found.place.rpartition(":")[2])
        for found in analysed(several_faults).findings
    }
    assert places == {"current_timestamp": here + 2, "first": here + 7}
