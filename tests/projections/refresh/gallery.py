"""Projections of every kind that can be followed by key, over the shop of ``shoplog``. The guards have to let each of
them pass, and each has to be the same whether it was computed by keys or as a whole."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tailrace.projections import Changes, Events, ParquetFolder, Result, State, Through, projection

LAKE = ParquetFolder("lake")
CUSTOMERS = "shop.public.customers"
PRODUCTS = "shop.public.products"
ORDERS = "shop.public.orders"


@projection(
    key="customer_id",
    sink=LAKE,
    customers=State(CUSTOMERS, affects={"customer_id": "id"}),
    orders=State(ORDERS, affects="customer_id"),
)
def left_join_totals(customers: DataFrame, orders: DataFrame) -> DataFrame:
    """Left join, then every plain aggregate."""
    joined = customers.join(orders, customers.id == orders.customer_id, "left")
    return joined.groupBy(customers.id.alias("customer_id"), customers.name).agg(
        F.sum("amount").alias("total"),
        F.count(orders.id).alias("orders"),
        F.min("amount").alias("least"),
        F.max("amount").alias("most"),
        F.countDistinct("product_id").alias("products"),
    )


@projection(
    key="order_id",
    sink=LAKE,
    orders=State(ORDERS, affects={"order_id": "id"}),
    customers=State(CUSTOMERS, affects=Through("orders", {"id": "customer_id"})),
    products=State(PRODUCTS, affects=Through("orders", {"id": "product_id"})),
)
def inner_join_page(orders: DataFrame, customers: DataFrame, products: DataFrame) -> DataFrame:
    """Inner joins with what each row points to; one has its condition in a filter."""
    page = orders.join(customers, orders.customer_id == customers.id).crossJoin(products)
    return page.where(orders.product_id == products.id).select(
        orders.id.alias("order_id"),
        "status",
        customers.name.alias("customer"),
        products.name.alias("product"),
        (F.col("quantity") * F.col("price")).alias("worth"),
    )


@projection(
    key="customer_id",
    sink=LAKE,
    customers=State(CUSTOMERS, affects={"customer_id": "id"}),
    orders=State(ORDERS, affects="customer_id"),
)
def right_join_last(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """Right join with an aggregate; the newest row by a unique order."""
    newest = orders.groupBy("customer_id").agg(F.max_by("status", "id").alias("last_status"))
    return newest.join(customers, newest.customer_id == customers.id, "right").select(
        customers.id.alias("customer_id"), "city", "last_status"
    )


@projection(
    key="customer_id",
    sink=LAKE,
    customers=State(CUSTOMERS, affects={"customer_id": "id"}),
    orders=State(ORDERS, affects="customer_id"),
)
def full_join_either(customers: DataFrame, orders: DataFrame) -> DataFrame:
    """Full join by a common name: the key is whichever side has it."""
    known = customers.select(F.col("id").alias("customer_id"), "name")
    ordered = orders.where("customer_id IS NOT NULL").groupBy("customer_id").agg(F.count("*").alias("orders"))
    return known.join(ordered, "customer_id", "full")


@projection(
    key="customer_id",
    sink=LAKE,
    customers=State(CUSTOMERS, affects={"customer_id": "id"}),
    orders=State(ORDERS, affects="customer_id"),
)
def semi_join_buyers(customers: DataFrame, orders: DataFrame) -> DataFrame:
    """Semi join: customers that have paid for something."""
    paid = orders.where("status = 'paid'")
    found = customers.join(paid, customers.id == paid.customer_id, "left_semi")
    return found.select(F.col("id").alias("customer_id"), "name", "city")


@projection(
    key="customer_id",
    sink=LAKE,
    customers=State(CUSTOMERS, affects={"customer_id": "id"}),
    orders=State(ORDERS, affects="customer_id"),
)
def anti_join_idle(customers: DataFrame, orders: DataFrame) -> DataFrame:
    """Anti join: customers without an order."""
    idle = customers.join(orders, customers.id == orders.customer_id, "left_anti")
    return idle.select(F.col("id").alias("customer_id"), "name")


@projection(
    key=("customer_id", "product_id"), sink=LAKE, orders=State(ORDERS, affects=("customer_id", "product_id"))
)
def distinct_pairs(orders: DataFrame) -> DataFrame:
    """Distinct rows under a key of two columns."""
    return orders.select("customer_id", "product_id").dropna().distinct()


@projection(
    key=("customer_id", "order_id"), sink=LAKE, orders=State(ORDERS, affects={"customer_id": "customer_id"})
)
def window_numbers(orders: DataFrame) -> DataFrame:
    """Windows partitioned by one of the key's two columns, the only one of which the lineage is known."""
    each = Window.partitionBy("customer_id").orderBy("id")
    by_amount = Window.partitionBy("customer_id").orderBy("amount")
    return orders.where("customer_id IS NOT NULL").select(
        "customer_id",
        F.col("id").alias("order_id"),
        F.row_number().over(each).alias("number"),
        F.rank().over(by_amount).alias("rank"),
        F.lag("amount").over(each).alias("before"),
        F.sum("amount").over(each).alias("so_far"),
    )


@projection(
    key="customer_id",
    sink=LAKE,
    customers=State(CUSTOMERS, affects={"customer_id": "id"}),
    orders=State(ORDERS, affects="customer_id"),
)
def union_mentions(customers: DataFrame, orders: DataFrame) -> DataFrame:
    """A union of three, counted."""
    mentions = (
        customers.select(F.col("id").alias("customer_id"), F.lit(1).alias("points"))
        .union(orders.where("status = 'paid'").select("customer_id", F.lit(10)))
        .unionByName(orders.select(F.lit(100).alias("points"), "customer_id"))
    )
    return (
        mentions.where("customer_id IS NOT NULL").groupBy("customer_id").agg(F.sum("points").alias("points"))
    )


@projection(
    key="order_id",
    sink=LAKE,
    orders=State(ORDERS, affects={"order_id": "id"}),
    others=State(ORDERS, affects=Through("orders", {"product_id": "product_id"})),
)
def self_join_rivals(orders: DataFrame, others: DataFrame) -> DataFrame:
    """Self-join by another column than the key: other orders of the same product."""
    rivals = (orders.product_id == others.product_id) & (orders.id != others.id)
    joined = orders.join(others, rivals, "left")
    return joined.groupBy(orders.id.alias("order_id")).agg(
        F.count(others.id).alias("rivals"), F.max(others.amount).alias("dearest")
    )


@projection(
    key="customer_id",
    sink=LAKE,
    customers=State(CUSTOMERS, affects={"customer_id": "id"}),
    orders=State(ORDERS, affects=Through("customers", {"customer_id": "id"})),
    products=State(PRODUCTS, affects=Through("orders", {"id": "product_id"})),
)
def path_of_two_joins(customers: DataFrame, orders: DataFrame, products: DataFrame) -> DataFrame:
    """A product leads to its orders, these to their customer."""
    lines = orders.join(products, orders.product_id == products.id, "left").select(
        "customer_id", (orders.quantity * products.price).alias("worth"), products.name.alias("product")
    )
    joined = customers.join(lines, customers.id == lines.customer_id)
    return joined.groupBy(customers.id.alias("customer_id")).agg(
        F.sum("worth").alias("worth"), F.array_sort(F.collect_set("product")).alias("bought")
    )


@projection(
    key="city",
    sink=LAKE,
    customers=State(CUSTOMERS, affects="city"),
    orders=State(ORDERS, affects=Through("customers", {"customer_id": "id"})),
)
def cities(customers: DataFrame, orders: DataFrame) -> DataFrame:
    """The key is a column that changes; orders are summed before they meet it."""
    per_customer = orders.groupBy("customer_id").agg(F.sum("amount").alias("amount"))
    joined = customers.join(per_customer, customers.id == per_customer.customer_id, "left")
    return (
        joined.where("city IS NOT NULL")
        .groupBy("city")
        .agg(F.count("*").alias("customers"), F.sum("amount").alias("total"))
    )


@projection(
    key="city",
    sink=LAKE,
    customers=State(CUSTOMERS, affects="city"),
    orders=State(ORDERS, affects=Through("customers", {"customer_id": "id"})),
)
def crowded_cities(customers: DataFrame, orders: DataFrame) -> DataFrame:
    """Nothing leaves rows without a key out: several customers without a city are a row without one."""
    joined = customers.join(orders, customers.id == orders.customer_id, "left").groupBy("city")
    counted = joined.agg(F.countDistinct(customers.id).alias("customers"), F.sum("amount").alias("total"))
    return counted.where("customers >= 2")


@projection(key="order_id", sink=LAKE, changes=Changes(ORDERS, affects={"order_id": "id"}))
def changes_of_orders(changes: DataFrame) -> DataFrame:
    """Every change of a row: how many, and the highest amount there ever was."""
    rows = changes.where("_op != 't'").select(F.col("key.id").alias("order_id"), "after.amount")
    return rows.groupBy("order_id").agg(F.count("*").alias("changes"), F.max("amount").alias("highest"))


@projection(key="stream", sink=LAKE, events=Events("shop.order", affects="stream"))
def events_of_streams(events: DataFrame) -> DataFrame:
    """Domain events, counted; the type of the last one."""
    return events.groupBy("stream").agg(
        F.count("*").alias("events"), F.max_by("type", "version").alias("last")
    )


@projection(
    key="customer_id",
    sink=LAKE,
    customers=State(CUSTOMERS, affects={"customer_id": "id"}),
    orders=State(ORDERS, affects="customer_id"),
    products=State(PRODUCTS),
)
def beside_a_whole_input(customers: DataFrame, orders: DataFrame, products: DataFrame) -> DataFrame:
    """An input of which nobody says what it affects is given whole: changes of the others are followed by key."""
    dear = products.agg(F.round(F.avg("price"), 2).alias("mean"))
    lines = orders.join(products, orders.product_id == products.id).crossJoin(dear).where("price >= mean")
    joined = customers.join(lines, customers.id == lines.customer_id, "left")
    return joined.groupBy(customers.id.alias("customer_id")).agg(
        F.count(lines.customer_id).alias("dear_orders")
    )


@projection(
    key="customer_id",
    sink=LAKE,
    totals=Result("sql_totals", affects="customer_id"),
    idle=Result("anti_join_idle", affects="customer_id"),
)
def diamond(totals: DataFrame, idle: DataFrame) -> DataFrame:
    """Two other results, both of the same tables: a customer is idle exactly when there are no orders."""
    marked = idle.select(F.col("customer_id").alias("idle"))
    joined = totals.join(marked, totals.customer_id == marked.idle, "left")
    return joined.select("customer_id", "orders", "total", "idle")
