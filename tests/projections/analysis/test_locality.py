"""The guards on plans as Spark analyses them: what is local in its key passes, everything else is named in the user's
words. No row is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tailrace.cli.projection.check import describe_verdict
from tailrace.projections import Projection, State, Through, load_projections, projection
from tailrace.projections.analysis.check import examine
from tailrace.projections.context import ProjectionContext
from tests.projections.conftest import Analyse
from tests.projections.refresh import gallery
from tests.projections.refresh.gallery import CUSTOMERS, LAKE, ORDERS, PRODUCTS
from tests.support import REPOSITORY

EACH = [each for each in vars(gallery).values() if isinstance(each, Projection) and not each.reads]


@pytest.mark.slow
def test_every_projection_of_the_gallery_and_the_demo_is_local_and_the_same_each_time(
    analysed: Analyse,
) -> None:
    sql = ["tests/projections/refresh/queries", "examples/sql"]
    more = load_projections(["tailrace.demo.shop.projections"], REPOSITORY, sql)
    found = {each.name: analysed(each) for each in (*EACH, *more.values()) if not each.reads}
    assert {name: each.reason for name, each in found.items()} == dict.fromkeys(found)
    assert {name: each.findings for name, each in found.items()} == dict.fromkeys(found, ())
    assert len(EACH) >= 12
    assert [name for name, each in found.items() if not each.never_null] == ["crowded_cities"]


by_customer = State(ORDERS, affects="customer_id")
customers_by_id = State(CUSTOMERS, affects={"customer_id": "id"})


def of_orders(function: Callable[[DataFrame], DataFrame], **more: Any) -> Projection:
    """A projection by customer of orders alone."""

    def listed(orders: DataFrame) -> DataFrame:
        return function(orders)

    return projection(key="customer_id", sink=LAKE, orders=by_customer, **more)(listed)


@projection(key="customer_id", sink=LAKE, orders=State(ORDERS, affects={"customer_id": "product_id"}))
def names_another_column(orders: DataFrame) -> DataFrame:
    return orders.select("customer_id", "product_id").groupBy("customer_id").count()


@projection(key="buyer", sink=LAKE, orders=State(ORDERS, affects={"buyer": "id"}))
def keeps_another_column(orders: DataFrame) -> DataFrame:
    return orders.select(F.col("customer_id").alias("buyer"), "status")


@projection(
    key="order_id",
    sink=LAKE,
    orders=State(ORDERS, affects={"order_id": "id"}),
    customers=State(CUSTOMERS, affects=Through("orders", {"id": "product_id"})),
)
def goes_through_another_column(orders: DataFrame, customers: DataFrame) -> DataFrame:
    joined = orders.join(customers, orders.customer_id == customers.id)
    return joined.select(orders.id.alias("order_id"), customers.name)


@projection(key="customer_id", sink=LAKE, customers=customers_by_id, orders=State(ORDERS))
def leaves_out_an_input(customers: DataFrame, orders: DataFrame) -> DataFrame:
    joined = customers.join(orders, customers.id == orders.customer_id, "full")
    return joined.select(F.coalesce(customers.id, orders.customer_id).alias("customer_id")).distinct()


@projection(key="customer_id", sink=LAKE, customers=customers_by_id, orders=by_customer)
def joins_by_another_column(customers: DataFrame, orders: DataFrame) -> DataFrame:
    joined = customers.join(orders, customers.id == orders.product_id)
    return joined.groupBy(customers.id.alias("customer_id")).agg(F.count("*").alias("orders"))


@projection(key="customer_id", sink=LAKE, customers=customers_by_id, orders=by_customer)
def takes_the_key_of_the_other_side(customers: DataFrame, orders: DataFrame) -> DataFrame:
    joined = customers.join(orders, customers.id == orders.customer_id, "left")
    return joined.select(orders.customer_id, customers.name)


@projection(key="city", sink=LAKE, customers=State(CUSTOMERS, affects="city"))
def computes_its_key(customers: DataFrame) -> DataFrame:
    return customers.groupBy(F.upper("city").alias("city")).count()


@projection(
    key="order_id",
    sink=LAKE,
    orders=State(ORDERS, affects={"order_id": "id"}),
    products=State(PRODUCTS, affects=Through("orders", {"id": "product_id"})),
)
def never_meets_what_it_goes_through(orders: DataFrame, products: DataFrame) -> DataFrame:
    return products.select(F.col("id").alias("order_id"), "name")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            names_another_column,
            "it groups by customer_id, so that rows of different keys fall into one group",
        ),
        (keeps_another_column, "its key buyer is orders.customer_id, while affects says orders.id"),
        (
            goes_through_another_column,
            "rows of customers are found through orders, but not joined with the product_id",
        ),
        (
            leaves_out_an_input,
            "an outer or semi join keeps rows of orders, which is read whole, that match nothing",
        ),
        (joins_by_another_column, "the join does not demand customers.id = orders.customer_id"),
        (takes_the_key_of_the_other_side, "its key customer_id is NULL in rows that an outer join keeps"),
        (computes_its_key, "it groups by city, so that rows of different keys fall into one group"),
        (
            never_meets_what_it_goes_through,
            "its key order_id is never joined with orders, through which its rows",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Projection) else "",
)
def test_a_lineage_that_is_wrong_is_caught_by_the_plan(
    analysed: Analyse, wrong: Projection, words: str
) -> None:
    found = analysed(wrong)
    assert len(found.not_local) == 1
    assert words in found.not_local[0].what
    assert found.not_local[0].place.startswith("tests/projections/analysis/test_locality.py:")


NOT_LOCAL: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "an aggregate over everything": (
        lambda orders: orders.agg(F.max("customer_id").alias("customer_id")),
        "it aggregates over all rows",
    ),
    "a limit": (
        lambda orders: orders.orderBy("id").limit(10),
        "it takes a number of rows of the whole result, not of each key",
    ),
    "a window over everything": (
        lambda orders: orders.withColumn("place", F.rank().over(Window.orderBy("amount"))),
        "a window without partitionBy spans all rows",
    ),
    "a window of another column": (
        lambda orders: orders.withColumn(
            "place", F.rank().over(Window.partitionBy("status").orderBy("amount"))
        ),
        "a window partitioned by status spans rows of different keys",
    ),
    "rows told apart by another column": (
        lambda orders: orders.dropDuplicates(["status"]),
        "dropDuplicates(status) compares rows of different keys",
    ),
    "a distinct without the key": (
        lambda orders: orders.select("status").distinct().select(F.lit(1).alias("customer_id"), "status"),
        "distinct compares rows without their key",
    ),
    "a rollup": (
        lambda orders: orders.rollup("customer_id").count(),
        "it groups by customer_id",
    ),
    "a self-join by another column": (
        lambda orders: (
            orders.alias("o").join(orders.alias("p"), F.expr("o.id = p.product_id")).select("o.customer_id")
        ),
        "rows of different keys meet",
    ),
    "a subquery": (
        lambda orders: orders.sparkSession.sql(
            "SELECT customer_id FROM {orders} WHERE id IN (SELECT product_id FROM {orders})", orders=orders
        ),
        "rows of different keys meet: the join does not demand orders.customer_id",
    ),
    "a Python function of many rows": (
        lambda orders: orders.mapInPandas(lambda frames: frames, orders.schema),
        "mapInPandas sees rows of different keys",
    ),
    "files beside its inputs": (
        lambda orders: orders.join(
            orders.sparkSession.read.schema("customer_id bigint").csv(__file__), "customer_id"
        ),
        "it reads files or tables beside its inputs",
    ),
}


@pytest.mark.parametrize("case", NOT_LOCAL)
def test_what_mixes_rows_of_different_keys_is_named(analysed: Analyse, case: str) -> None:
    function, words = NOT_LOCAL[case]
    found = [each.what for each in analysed(of_orders(function)).not_local]
    assert [what for what in found if words in what], found


LOCAL: dict[str, Callable[[DataFrame], DataFrame]] = {
    "rows one by one": lambda orders: orders.select(
        "customer_id", F.explode(F.array("id", "product_id")).alias("n")
    ),
    "a rename, a wider integer and a filter": lambda orders: orders.where("amount > 3").select(
        F.col("customer_id").cast("bigint").alias("customer_id")
    ),
    "a pivot": lambda orders: (
        orders.groupBy("customer_id").pivot("status", ["paid", "sent"]).agg(F.sum("amount"))
    ),
    "rows without those of another set": lambda orders: orders.select("customer_id", "product_id").exceptAll(
        orders.where("status = 'paid'").select("customer_id", "product_id")
    ),
    "common table expressions of SQL": lambda orders: orders.sparkSession.sql(
        "WITH paid AS (SELECT * FROM {orders} WHERE status = 'paid'), first AS (SELECT customer_id, min(id) AS id"
        " FROM paid GROUP BY 1) SELECT first.customer_id, paid.amount FROM first JOIN paid USING (customer_id)",
        orders=orders,
    ),
    "a unique order": lambda orders: orders.withColumn(
        "n", F.row_number().over(Window.partitionBy("customer_id").orderBy("amount", "id"))
    ),
    "rows of Python's values beside it": lambda orders: orders.join(
        orders.sparkSession.createDataFrame([("paid", 1)], "status string, place int"), "status"
    ),
    "an unpivot": lambda orders: orders.unpivot("customer_id", ["id", "product_id"], "name", "value"),
}


@pytest.mark.parametrize("case", LOCAL)
def test_what_keeps_keys_apart_is_local(analysed: Analyse, case: str) -> None:
    found = analysed(of_orders(LOCAL[case]))
    assert (found.not_local, found.findings) == ((), ())


CONSTANT = {
    "of the input around it": (
        "SELECT customer_id, id FROM {orders} WHERE amount > (SELECT min(amount) FROM {orders})",
        {"(SELECT min(amount) FROM orders)": ("orders",)},
    ),
    "that a common table expression computes": (
        "WITH most AS (SELECT max(amount) AS amount FROM {orders} o) SELECT customer_id, id FROM {orders} o"
        " WHERE amount >= (SELECT amount FROM most)",
        {"(SELECT amount FROM most)": ("orders",)},
    ),
    "of a common table expression that is read around it, too": (
        "WITH spent AS (SELECT customer_id, sum(amount) AS amount FROM {orders} o GROUP BY customer_id)"
        " SELECT customer_id FROM spent WHERE amount = (SELECT max(amount) FROM spent)",
        {"(SELECT max(amount) FROM spent)": ("orders",)},
    ),
    "within a query of each row": (
        "SELECT o.customer_id FROM {orders} o WHERE EXISTS (SELECT 1 FROM {orders} p WHERE"
        " p.customer_id = o.customer_id AND p.amount > (SELECT max(amount) FROM {orders} q WHERE q.quantity > 1))",
        {"(SELECT max(amount) FROM orders q WHERE q.quantity > 1)": ("orders",)},
    ),
    "that reads nothing": ("SELECT customer_id, id FROM {orders} WHERE id > (SELECT 3)", {"(SELECT 3)": ()}),
}


@pytest.mark.parametrize("case", CONSTANT)
def test_the_value_of_a_query_that_names_nothing_around_it_is_a_constant(
    analysed: Analyse, case: str
) -> None:
    text, subqueries = CONSTANT[case]
    found = analysed(of_orders(lambda orders: orders.sparkSession.sql(text, orders=orders)))
    assert (found.reason, found.findings, found.subqueries, found.apart) == (None, (), subqueries, ())


def test_a_constant_reads_nothing_beside_the_inputs_and_is_the_same_each_time(analysed: Analyse) -> None:
    def of_files(orders: DataFrame) -> DataFrame:
        files = orders.sparkSession.read.schema("n bigint").csv(__file__)
        return orders.where(orders.id > files.agg(F.max("n")).scalar())

    (found,) = analysed(of_orders(of_files)).not_local
    assert found.what == "it reads files or tables beside its inputs"
    some = analysed(of_orders(lambda orders: orders.where(orders.id > orders.limit(1).select("id").scalar())))
    assert some.reason == "limit takes whichever rows come first, and rows come in any order"


@projection(key="customer_id", sink=LAKE, orders=by_customer, products=State(PRODUCTS))
def dearer_than_all(orders: DataFrame, products: DataFrame) -> DataFrame:
    dear = orders.where(orders.amount > products.agg(F.max("price")).scalar())
    return dear.groupBy("customer_id").count()


def test_an_input_that_only_constants_read_need_not_say_what_it_affects(
    empty_shop: ProjectionContext,
) -> None:
    found = examine(empty_shop, dearer_than_all)
    words = "a scalar subquery over products"
    assert (found.incremental, found.reasons, found.whole, found.subqueries) == (True, (), (), (words,))
    assert describe_verdict(found) == f": full when the value of {words} changes, incremental otherwise"


def test_trust_takes_the_place_of_the_proof_but_not_of_the_rest(analysed: Analyse) -> None:
    trusted = analysed(of_orders(lambda orders: orders.limit(3), trust=True))
    assert trusted.not_local == ()
    assert [each.what for each in trusted.findings] == [
        "limit takes whichever rows come first, and rows come in any order"
    ]


def test_a_plan_that_depends_on_rows_is_not_local_and_none_is_read(analysed: Analyse) -> None:
    found = analysed(of_orders(lambda orders: orders.groupBy("customer_id").pivot("status").count()))
    assert found.schema is None
    assert found.reason == "it looks at rows while it defines its result"


ROWS_AT_HAND: dict[str, Callable[[DataFrame], DataFrame]] = {
    "rows that are kept": lambda orders: orders.localCheckpoint(eager=False),
    "rows as Python has them": lambda orders: orders.sparkSession.createDataFrame(orders.rdd, orders.schema),
    "rows that are kept, in a subquery": lambda orders: orders.sparkSession.sql(
        "SELECT customer_id FROM {orders} WHERE id IN (SELECT id FROM {kept})",
        orders=orders,
        kept=orders.localCheckpoint(eager=False),
    ),
}


@pytest.mark.parametrize("case", ROWS_AT_HAND)
def test_rows_whose_plan_is_not_told_prove_nothing(analysed: Analyse, case: str) -> None:
    found = analysed(of_orders(ROWS_AT_HAND[case]))
    assert found.reason == "it looks at rows while it defines its result"
    assert found.not_local[0].place.startswith("tests/projections/analysis/test_locality.py:")


orders_by_id = State(ORDERS, affects="id")
earlier_orders = State(ORDERS, affects=Through("orders", {"id": "product_id"}))


@projection(key="id", sink=LAKE, orders=orders_by_id)
def with_itself(orders: DataFrame) -> DataFrame:
    later, before = orders.alias("later"), orders.alias("before")
    joined = later.join(before, F.col("later.product_id") == F.col("before.id"), "left")
    return joined.select("later.id", F.col("before.amount").alias("amount"))


@projection(key="id", sink=LAKE, orders=orders_by_id, earlier=earlier_orders)
def with_its_table_again(orders: DataFrame, earlier: DataFrame) -> DataFrame:
    joined = orders.join(earlier, orders.product_id == earlier.id, "left")
    return joined.select(orders.id, earlier.amount)


def test_a_self_join_is_told_how_to_name_the_other_side(analysed: Analyse) -> None:
    (found,) = analysed(with_itself).not_local
    assert found.what == "orders is joined with itself, so that rows of different keys meet"
    assert "an affects that goes through orders by id = orders.product_id" in found.hint
    assert analysed(with_its_table_again).reason is None


@projection(key="customer_id", sink=LAKE, customers=customers_by_id, orders=by_customer)
def groups_by_the_other_side(customers: DataFrame, orders: DataFrame) -> DataFrame:
    joined = customers.join(orders, customers.id == orders.customer_id, "left")
    return joined.groupBy(orders.customer_id).count()


def test_a_grouping_by_the_side_that_an_outer_join_fills_with_null_is_named(analysed: Analyse) -> None:
    (found,) = analysed(groups_by_the_other_side).not_local
    assert found.what.endswith("it is NULL in rows that an outer join keeps")
    assert found.hint == "carry the key along: customers.id has to be among these columns"
