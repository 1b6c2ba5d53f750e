"""What would give another result each time, or a wrong one, is named before any row is read: where, which column, and
what to do."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from datetime import datetime as dt
from functools import cache
from random import Random, random
from time import strftime, time
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tailrace.projections import Changes, Projection, State, projection
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tests.projections.analysis import mistaken
from tests.projections.conftest import Analyse, Deploy
from tests.projections.lifecycle.test_lifecycle import rows_of
from tests.projections.refresh.gallery import LAKE, ORDERS, PRODUCTS
from tests.projections.shoplog import ShopLog

Function = Callable[[DataFrame], DataFrame]
Cases = dict[str, tuple[Projection, str]]


def of_orders(function: Function, **more: Any) -> Projection:
    def listed(orders: DataFrame) -> DataFrame:
        return function(orders)

    inputs: dict[str, Any] = {"orders": State(ORDERS, affects="customer_id")}
    return projection(key="customer_id", sink=LAKE, **inputs, **more)(listed)


def of_readings(function: Function, cast: dict[str, str] | None = None, **more: Any) -> Projection:
    def listed(readings: DataFrame) -> DataFrame:
        return function(readings)

    inputs: dict[str, Any] = {"readings": State("shop.public.readings", affects="meter", cast=cast or {})}
    return projection(key="meter", sink=LAKE, **inputs, **more)(listed)


def of_both(function: Callable[[DataFrame, DataFrame], DataFrame], **more: Any) -> Projection:
    """Of orders, and of products of which nobody says what they affect."""

    def listed(orders: DataFrame, products: DataFrame) -> DataFrame:
        return function(orders, products)

    inputs: dict[str, Any] = {"orders": State(ORDERS, affects="customer_id"), "products": State(PRODUCTS)}
    return projection(key="customer_id", sink=LAKE, **inputs, **more)(listed)


def of_changes(column: str) -> Projection:
    def listed(changes: DataFrame) -> DataFrame:
        return changes.groupBy("after.meter").agg(F.expr(column).alias("n"))

    inputs: dict[str, Any] = {"changes": Changes("shop.public.readings", affects="meter")}
    return projection(key="meter", sink=LAKE, **inputs)(listed)


def beside(column: str) -> Projection:
    """Beside the columns of each order."""
    return of_orders(lambda orders: orders.withColumn("n", F.expr(column)))


def per_customer(column: str) -> Projection:
    return of_orders(lambda orders: orders.groupBy("customer_id").agg(F.expr(column).alias("n")))


def per_meter(column: str, **more: Any) -> Projection:
    return of_readings(lambda readings: readings.groupBy("meter").agg(F.expr(column).alias("n")), **more)


def sql(query: str) -> Projection:
    """Over the orders ``{o}`` and products ``{p}``; ``each`` are whichever statuses there are first, and all of them,
    for each product of a customer."""
    each = "SELECT customer_id, product_id, first(status) AS st, collect_list(status) AS li FROM {o} GROUP BY 1, 2"
    query = f"WITH each AS ({each}) {query}" if " each" in query else query
    return of_both(lambda orders, products: orders.sparkSession.sql(query, o=orders, p=products))


def of_texts(query: str) -> Projection:
    """Over the readings ``{r}``, whose price is numeric text."""
    trust = query.count("{r}") > 1  # rows of several meters may meet
    return of_readings(lambda readings: readings.sparkSession.sql(query, r=readings), trust=trust)


def unpivoted(column: Column, frame: DataFrame) -> DataFrame:
    """In rows of the first column of a frame."""
    return frame.unpivot([frame.columns[0]], [column.alias("one"), F.lit(None).alias("other")], "name", "n")


def cases(made: Callable[[str], Projection], words: Mapping[str, str]) -> Cases:
    return {text: (made(text), said) for text, said in words.items()}


def text_in(use: str) -> str:
    return f"readings.price is numeric without a precision, text in the log, and is compared as text ({use})"


FIRST = "first(status) takes whichever row comes"
LISTED = "collect_list(status) has its elements in any order"
READ = "readings.price is numeric without a precision, text in the log, and is read as "
FAIL: Cases = {
    **cases(beside, {
        "current_date()": "current_date() is another time in each refresh",
        "if(rand() < 0.5, 1, 2)": "rand() gives another value in each refresh",
        "monotonically_increasing_id()": "monotonically_increasing_id() gives another value in each refresh",
        "current_user()": "current_user() is another value where somebody else runs the refresh",
        "TIMESTAMP'now'": "TIMESTAMP'now' is another time in each refresh",
        "cast(' Now ' AS timestamp)": "'Now' read as a timestamp is another time in each refresh",
        "to_timestamp('now')": "'now' read as a timestamp is another time in each refresh",
        "cast(upper('to' || 'day') AS timestamp_ntz)": "'today' read as a timestamp_ntz is another time",
    }),
    **cases(per_customer, {
        "max(date('today'))": "'today' read as a date is another time in each refresh",
        "max(current_catalog())": "current_catalog() is another value where somebody else runs the refresh",
        "max(current_schema())": "current_database() is another value where somebody else runs the refresh",
    }),
    **cases(per_meter, {
        "max(price)": text_in("max"), "count(DISTINCT price)": text_in("distinct"),
        "size(collect_set(price))": text_in("collect_set"), "sort_array(collect_list(price))": text_in("sort_array"),
        "max_by(level, struct(price, id))": text_in("max_by"),
        "sum(coalesce(price, '0'))": READ + "double", "sum(nvl2(price, price, '0'))": READ + "double",
        "sum(CASE WHEN id > 1 THEN price END)": READ + "double",
    }),
    **cases(of_changes, {"sum(after.price)": READ.replace("readings.price", "changes.after.price")}),
    **cases(of_texts, {
        "SELECT meter, price * 2 AS n FROM {r}": READ,
        "SELECT meter FROM {r} WHERE price BETWEEN 9 AND 20": READ + "long",
        "SELECT meter FROM (SELECT *, coalesce(price, '0') AS p FROM {r}) WHERE p = '1'": text_in("="),
        "SELECT a.meter FROM {r} a JOIN {r} b ON a.meter = b.meter AND a.price = b.price": text_in("="),
        "SELECT meter, count(*) AS n FROM {r} GROUP BY meter, price": text_in("groupBy"),
        "SELECT meter, count(*) AS n FROM {r} GROUP BY CUBE (meter, price)": text_in("groupBy"),
        "WITH c AS (SELECT meter, coalesce(price, '0') AS p FROM {r}) SELECT meter, p FROM c GROUP BY meter, p":
            text_in("groupBy"),
        "SELECT meter, count(id) OVER (PARTITION BY meter, price) AS n FROM {r}": text_in("partitionBy"),
        "SELECT DISTINCT meter, price FROM {r}": text_in("distinct"),
        "SELECT meter, price FROM {r} UNION SELECT meter, price FROM {r}": text_in("distinct"),
        "SELECT meter, price FROM {r} EXCEPT ALL SELECT meter, price FROM {r} WHERE id > 5": text_in("except"),
        "SELECT meter, price FROM {r} INTERSECT SELECT meter, price FROM {r} WHERE id > 5": text_in("intersect"),
        "SELECT meter, (SELECT price FROM {r} WHERE id = 1) * 2 AS n FROM {r}": READ,
        "SELECT meter FROM {r} WHERE '1' IN (SELECT price FROM {r})": text_in("in"),
        "SELECT meter, (SELECT max(id) FROM {r} b WHERE b.meter = a.price) AS n FROM {r} a":
            READ.replace("is read as ", "is compared with a subquery's rows"),
    }),
    "a random number in an unpivot": (
        of_orders(lambda orders: unpivoted(F.rand(), orders.select("customer_id"))), "rand() gives another value",
    ),
    "a clock in an unpivot": (
        of_orders(lambda orders: unpivoted(F.current_date(), orders.select("customer_id"))), "current_date() is",
    ),
    "numeric text in an unpivot": (
        of_readings(lambda readings: unpivoted(F.coalesce("price", F.lit("0")), readings.select("meter", "price"))
                    .groupBy("meter").agg(F.max("n"))), text_in("max"),
    ),
}  # fmt: skip
WARN: Cases = {
    **cases(per_customer, {
        "first(status)": FIRST, "collect_list(status)": LISTED, "mode(status)": "mode(status) takes whichever",
        "max_by(status, amount)": "max_by(status, amount) takes whichever row comes",
        "max_by(status, amount, 2)": "max_by(status, amount) takes whichever row comes",
        "min_by(status, amount, 2)": "min_by(status, amount) takes whichever row comes",
    }),
    **cases(beside, {
        "max_by(status, amount) OVER (PARTITION BY customer_id)": "max_by(status, amount) takes whichever row comes",
        "row_number() OVER (PARTITION BY customer_id ORDER BY status)": "row_number() goes by the order of status",
        "sum(amount) OVER (PARTITION BY customer_id ORDER BY status ROWS 1 PRECEDING)": "sum() goes by the order of",
    }),
    **cases(per_meter, {
        "sum(level)": "sum(level) adds floating-point numbers", "stddev(id)": "stddev(id) adds floating-point numbers",
        "sum(CASE WHEN id > 1 THEN 0 ELSE level END)": "sum(id, level) adds floating-point numbers",
    }),
    **cases(of_changes, {"sum(after.level)": "sum(after.level) adds floating-point numbers"}),
    **cases(sql, dict.fromkeys((
        "SELECT customer_id, concat_ws(',', li) AS li FROM each",
        "SELECT a.customer_id, a.li FROM each a JOIN each b ON a.customer_id = b.customer_id",
        "SELECT customer_id, array(status) AS li FROM {o} UNION ALL SELECT customer_id, li FROM each",
    ), LISTED)),
    **cases(sql, dict.fromkeys((
        "SELECT a.id, a.customer_id, first(b.status) AS n FROM {o} a JOIN {o} b USING (customer_id) GROUP BY 1, 2",
        "SELECT customer_id, count(*) AS n FROM each GROUP BY customer_id, st",
        "SELECT customer_id, n FROM (SELECT customer_id, st, count(*) AS n FROM each GROUP BY ROLLUP (1, 2))",
        "SELECT customer_id FROM each WHERE st = 'paid'",
        "SELECT customer_id FROM (SELECT DISTINCT customer_id, st FROM each)",
        "SELECT customer_id, count(*) OVER (PARTITION BY customer_id, st) AS n FROM each",
        "SELECT customer_id FROM (SELECT customer_id, st FROM each UNION SELECT customer_id, status FROM {o})",
        "SELECT customer_id FROM (SELECT customer_id, status FROM {o} EXCEPT SELECT customer_id, st FROM each)",
        "SELECT customer_id FROM (SELECT customer_id, st FROM each INTERSECT SELECT customer_id, status FROM {o})",
        "SELECT customer_id, n FROM (SELECT customer_id, st, '' AS no FROM each) UNPIVOT (n FOR k IN (st, no))",
        "SELECT customer_id FROM each WHERE EXISTS (SELECT 1 FROM {p} p WHERE p.name = each.st)",
        "SELECT customer_id, array_contains(array('a'), st) AS n FROM each",
    ), FIRST)),
    **cases(sql, {
        "SELECT customer_id, (SELECT first(name) FROM {p}) AS name FROM {o}": "first(name) takes",
        "SELECT customer_id FROM {o} WHERE id IN (SELECT first(id) FROM {p} GROUP BY name)": "first(id) takes",
        "SELECT customer_id FROM {o} WHERE EXISTS (SELECT 1 FROM {p} HAVING first(id) = 3)": "first(id) takes",
        "SELECT customer_id FROM {o} JOIN (SELECT price, first(name) AS name FROM {p} GROUP BY 1 ORDER BY name, price"
        " LIMIT 3) ON amount = price": "first(name) takes",
        "SELECT customer_id FROM {o} JOIN (SELECT id FROM {p} SORT BY id LIMIT 3) USING (id)": "limit takes whichever",
    }),
    "what a trusted function is given": (
        of_both(lambda orders, products: orders.join(
            products.groupBy("price").agg(F.first("name")).mapInPandas(lambda frames: frames, "amount decimal(12,2)"),
            "amount", "left_semi"), trust=True), "first(name) takes",
    ),
    "any row of many": (
        of_orders(lambda orders: orders.dropDuplicates(["customer_id"])),
        "dropDuplicates(customer_id) keeps whichever row comes first",
    ),
    "a cast that cuts": (
        of_readings(lambda readings: readings.select("meter", "price"), cast={"price": "decimal"}),
        "input 'readings': decimal is decimal(10,0) in Spark: price loses what is behind its point",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("level", "case"), [*(("fail", case) for case in FAIL), *(("warn", case) for case in WARN)]
)
def test_what_is_not_the_same_each_time_is_named(analysed: Analyse, level: str, case: str) -> None:
    wrong, words = (FAIL if level == "fail" else WARN)[case]
    (found,) = analysed(wrong).findings
    assert found.what.startswith(words)
    assert (found.level, bool(found.hint)) == (level, True)
    assert found.place.startswith("tests/projections/analysis/test_determinism.py:")


SEEDED = Random(7).random()
SOUND: dict[str, Projection] = {
    **{column: per_customer(column) for column in (
        "mode(status, true)", "sort_array(collect_list(status))", "size(collect_list(status))",
        "array_sort(coalesce(collect_set(status), array('a')))", "array_contains(collect_list(status), 'paid')",
        "max_by(status, struct(amount, id))", "max_by(status, struct(amount, status), 2)",
    )},
    **{column: beside(column) for column in (
        "'today'", "date('epoch') + datediff(date('2020-01-01'), '2019-12-31')", "try_cast(status AS date)",
        "sum(amount) OVER (PARTITION BY customer_id ORDER BY status)",
        "row_number() OVER (PARTITION BY customer_id ORDER BY id)",
        "lag(amount) OVER (PARTITION BY customer_id ORDER BY amount, id)",
        "max_by(status, id) OVER (PARTITION BY customer_id)", "x'00ff'", "array(x'00', x'ff')",
    )},
    **{column: per_meter(column) for column in (
        "max(level)", "sum(CASE WHEN level > 0.5D THEN id END)", "sum(if(isnan(level), 1, 0))", "regr_count(level, id)",
        "max(struct(id, price)).price", "sum(cast(coalesce(price, '0') AS decimal(20, 4)))",
    )},
    **{query: sql(query) for query in (
        "SELECT customer_id, array_sort(li) AS li, size(li) AS n FROM each",
        "SELECT customer_id, explode(li) AS status FROM each",
        "SELECT customer_id, o.id, first(status) AS st FROM {o} o JOIN {p} p ON p.id = product_id GROUP BY 1, 2",
        "SELECT customer_id, (SELECT max(name) FROM {p}) AS name FROM {o} WHERE id IN (SELECT id FROM {p})",
        "SELECT customer_id, size((SELECT collect_list(name) FROM {p})) AS n FROM {o}",
        "SELECT customer_id FROM {o} WHERE EXISTS (SELECT first(name) FROM {p})",
        "SELECT customer_id FROM {o} JOIN (SELECT id FROM {p} ORDER BY id LIMIT 3) USING (id)",
        # An order by the key of a table is unique in what is grouped by it, whatever else of its row is grouped by.
        "SELECT customer_id, id, row_number() OVER (PARTITION BY customer_id ORDER BY sum(amount) DESC, id) AS n"
        " FROM {o} GROUP BY id, customer_id, status",
        "SELECT *, row_number() OVER (PARTITION BY customer_id ORDER BY sold DESC, id) AS n FROM (SELECT customer_id,"
        " p.id, name, description, sum(amount) AS sold FROM {o} o JOIN {p} p ON p.id = product_id GROUP BY ALL)",
        "SELECT *, row_number() OVER (PARTITION BY customer_id ORDER BY sold DESC, word) AS n FROM"
        " (SELECT customer_id, upper(status) AS word, sum(amount) AS sold FROM {o} GROUP BY 1, 2)",
    )},
    **{query: of_texts(query) for query in (
        "SELECT meter, price FROM {r}", "SELECT DISTINCT id, meter, price FROM {r}",
        "SELECT meter, id, price, count(*) AS n FROM {r} GROUP BY meter, id, price",
        "SELECT meter, cast(price AS decimal(20, 4)) AS p, count(*) AS n FROM {r} GROUP BY 1, 2",
        "SELECT * FROM {r} EXCEPT SELECT * FROM {r} WHERE id > 5",
        "SELECT meter, count(id) OVER (PARTITION BY meter, id, price) AS n FROM {r}",
    )},
    "the same number each time": of_orders(lambda orders: orders.withColumn("n", F.lit(SEEDED))),
    "a sum of floats that may differ": per_meter("sum(level)", tolerance={"n": 1e-6}),
    "numeric text of a declared type": per_meter("max(price) + sum(price)", cast={"price": "decimal(20,4)"}),
}  # fmt: skip


@pytest.mark.parametrize("case", SOUND)
def test_what_is_the_same_each_time_passes(analysed: Analyse, case: str) -> None:
    found = analysed(SOUND[case])
    assert (found.findings, found.reason) == ((), None)


def since(day: date = date.today()) -> int:  # noqa: B008, DTZ011
    return day.year


class Started:
    AT = dt.now(UTC)


UNPROVED: Cases = {
    **cases(per_customer, {
        **dict.fromkeys((
            "sort_array(transform(collect_list(status), s -> upper(s)))",
            "sort_array(filter(collect_list(status), s -> s <> ''))",
            "sort_array(array_distinct(collect_list(status)))",
            "sort_array(flatten(collect_list(array(status))))",
            "sort_array(collect_list(status) || array('a'))",
            "sort_array(slice(collect_list(status), 1, 3))",
            "array_sort(collect_list(status), (a, b) -> length(a) - length(b))",
        ), LISTED),
        "count(DISTINCT collate(status, 'UTF8_LCASE'))": "collate(status) holds different texts to be equal",
        "hll_sketch_agg(id)": "hll_sketch_agg(id) may depend on the order",
        "percentile_approx(quantity, 0.5)": "percentile_approx(quantity) may depend on the order",
        "listagg(status) WITHIN GROUP (ORDER BY amount)": "listagg(status, amount) may depend on the order",
    }),
    **cases(beside, {
        "aes_encrypt(status, '0000111122223333')": "aes_encrypt(status) begins with random bytes",
        "sort_array(collect_list(status) OVER (PARTITION BY customer_id))": "collect_list() goes by the order of",
    }),
    **cases(per_meter, {"regr_slope(level, id)": "regr_slope(level, id) may depend on the order"}),
    **cases(sql, {
        "SELECT customer_id, product_id, count(*) AS n FROM each GROUP BY customer_id, product_id, st": FIRST,
    }),
    "an unpivot that computes": (
        of_orders(lambda orders: unpivoted(
            F.upper("n"), orders.groupBy("customer_id").agg(F.first("status").alias("n")))), FIRST,
    ),
    "a time as a text": (of_orders(lambda orders: orders.withColumn("n", F.lit(strftime("%Y")))), "time.strftime()"),
    "a time of one's own": (
        of_orders(lambda orders: orders.withColumn("n", F.lit(strftime("%Y", clock.gmtime(7))))), "time.gmtime()",
    ),
    "a default": (of_orders(lambda orders: orders.where(F.col("amount") > since())), "since holds what a clock gave"),
    "a value of a class": (
        of_orders(lambda orders: orders.withColumn("at", F.lit(Started.AT))), "Started holds what a clock gave",
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
        return orders.where(F.col("id") > {}).groupBy("customer_id").agg({}.alias("n"))
"""


@pytest.mark.parametrize(
    ("least", "count", "words"),
    [
        ("0", 'F.hll_sketch_estimate(F.hll_sketch_agg("id"))',
         "hll_sketch_agg(id) may depend on the order of rows: not proved, so computed in full"),
        ("least(0)", 'F.count("id")', "least holds what a clock gave before, another value in each process"),
    ],
    ids=["a sketch", "a default"],
)  # fmt: skip
def test_what_is_not_proved_is_computed_in_full_and_right(
    shop: ShopLog, deploy: Deploy, least: str, count: str, words: str
) -> None:
    ctx = deploy(COUNTS.format(least, count))
    rebuild(ctx, "counts")
    shop.commit({"orders": [("c", shop.order(900, customer_id=1))]})
    (outcome,) = refresh(ctx, ["counts"])
    assert outcome.error is None and outcome.reason.startswith("full:") and words in outcome.reason
    customers = [row["customer_id"] for row in shop.state["orders"].values()]
    assert {row["customer_id"]: row["n"] for row in rows_of(ctx, "counts")} == {
        customer: customers.count(customer) for customer in customers
    }


class Numbers:
    def eval(self) -> Iterator[tuple[int]]:
        yield (1,)


def doubled(number: Any) -> Any:
    return 2 * number


numbers: Any = F.udtf(Numbers, returnType="n bigint")
IN_PYTHON: dict[str, Function] = {
    "of values": lambda products: products.select(F.udf(doubled, "bigint")("id").alias("n")),
    "of a table": lambda products: numbers(),
    "of rows": lambda products: products.mapInPandas(lambda frames: frames, products.schema),
    "of groups": lambda products: products.groupBy("id").applyInPandas(lambda frame: frame, products.schema),
}


@pytest.mark.filterwarnings("ignore:Cannot infer the eval type")
@pytest.mark.parametrize("kind", IN_PYTHON)
def test_a_function_of_python_is_not_followed_by_key_unless_it_is_trusted(
    analysed: Analyse, kind: str
) -> None:
    def joined(orders: DataFrame, products: DataFrame) -> DataFrame:
        made = IN_PYTHON[kind](products)
        return orders.join(made, orders.product_id == made[made.columns[0]]).select("customer_id", "quantity")

    doubtful, trusted = analysed(of_both(joined)), analysed(of_both(joined, trust=True))
    assert (doubtful.reason or "").startswith("nobody can see whether the Python function ")
    assert (doubtful.findings, doubtful.not_local, trusted.reason) == ((), (), None)


def begun() -> datetime:
    return dt.now(UTC)


def in_helper() -> float:
    return time()


@cache
def remembered() -> float:
    return in_helper()


def hidden(made: list[int]) -> int:
    """A clock that no source shows: the plan of a second call does."""
    made.append(0)
    return len(made)


remembered()
DAY = "DATE'today'"
MADE: list[int] = []
STARTED = dt.now(UTC)
ONE = OTHER = dt.now(UTC)
PART, REST = dt.now(UTC), 1
BY_HELPER = begun()
if MADE is not None:
    BEGUN = dt.now(UTC)
OF_PYTHON: dict[str, tuple[Callable[[], Any], str]] = {
    "by another name": (lambda: dt.now(UTC), "datetime.now() is another value"),
    "imported by its name": (random, "random.random() is another value"),
    "in Python itself": (lambda: str(uuid4()), "uuid.uuid4() is another value"),
    "of a helper's helper": (lambda: in_helper() + 1, "time.time() is another value"),
    "a day in a text": (lambda: F.expr(DAY), "DATE'today' is another time in each refresh"),
    "in a constant": (lambda: STARTED, "STARTED holds what a clock gave"),
    "in a constant of a module": (lambda: mistaken.LOADED, "LOADED holds what a clock gave"),
    "in two constants": (lambda: OTHER, "OTHER holds what a clock gave"),
    "in a part of a constant": (lambda: PART, "PART holds what a clock gave"),
    "in a constant that a helper made": (lambda: BY_HELPER, "BY_HELPER holds what a clock gave"),
    "in a constant of one case": (lambda: BEGUN, "BEGUN holds what a clock gave"),
    "of a helper that remembers": (lambda: remembered(), "remembered holds what a clock gave"),
    "that no source shows": (lambda: hidden(MADE), "a value in its plan is another one"),
}  # fmt: skip


@pytest.mark.parametrize("case", OF_PYTHON)
def test_clocks_and_random_numbers_of_python_are_found_wherever_they_are(
    analysed: Analyse, case: str
) -> None:
    value, words = OF_PYTHON[case]
    found = analysed(of_orders(lambda orders: orders.withColumn("n", F.lit(value()))))
    (clock,) = found.findings
    assert clock.what.startswith(words) and clock.level == "fail"
    assert clock.place.startswith("tests/projections/analysis/")
    assert found.reason == clock.what


@projection(key="meter", sink=LAKE, readings=State("shop.public.readings", affects="meter"))
def several_faults(readings: DataFrame) -> DataFrame:
    seen = readings.withColumn("seen", F.current_timestamp()).withColumn("day", F.lit(date.today()))  # noqa: DTZ011
    one_of_each = seen.dropDuplicates(["meter", "price"])
    return one_of_each.groupBy("meter").agg(
        F.first("id"),
        F.max("seen"),
    )


def test_faults_are_placed_at_the_calls_that_made_them(analysed: Analyse) -> None:
    here = several_faults.line
    found = {each.what: each for each in analysed(several_faults).findings}
    places = {}
    for what, each in found.items():
        _, line, *column = each.place.split(":")
        places[what.split("(")[0]] = (int(line) - here, *map(int, column))
    text = text_in("dropDuplicates")
    assert places == {
        "current_timestamp": (2, 42), "date.today": (2, 87), text.split("(")[0]: (3, 24),
        "dropDuplicates": (3, 24), "first": (5, 11),
    }  # fmt: skip
    assert found[text].hint == 'say its type: readings=State(…, cast={"price": "decimal(20,4)"})'
