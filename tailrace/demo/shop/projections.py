"""The shop's projections: a materialized view, a cache and a search index, each a function of the log's state."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tailrace import PostgresTable, RedisCache, SearchIndex, State, Through, projection


@projection(
    key="customer_id",
    sink=PostgresTable("mart", "customer_totals"),
    customers=State("shop.public.customers", affects={"customer_id": "id"}),
    orders=State("shop.public.orders", affects="customer_id"),
)
def customer_totals(customers: DataFrame, orders: DataFrame) -> DataFrame:
    """What each customer has ordered and not cancelled."""
    counted = orders.where(orders.status != "cancelled")
    joined = customers.join(counted, customers.id == counted.customer_id, "left")
    return joined.groupBy(customers.id.alias("customer_id"), customers.name, customers.city).agg(
        F.count(counted.id).alias("orders"),
        F.coalesce(F.sum(counted.amount), F.lit(0)).cast("decimal(20,2)").alias("total"),
    )


@projection(
    key="order_id",
    sink=RedisCache("cache"),
    orders=State("shop.public.orders", affects={"order_id": "id"}),
    customers=State("shop.public.customers", affects=Through("orders", {"id": "customer_id"})),
    products=State("shop.public.products", affects=Through("orders", {"id": "product_id"})),
)
def order_cache(orders: DataFrame, customers: DataFrame, products: DataFrame) -> DataFrame:
    """What the order page shows, in one look-up."""
    joined = orders.join(customers, orders.customer_id == customers.id).join(
        products, orders.product_id == products.id
    )
    return joined.select(
        orders.id.alias("order_id"),
        orders.status,
        orders.quantity,
        orders.amount,
        customers.name.alias("customer"),
        products.name.alias("product"),
    )


@projection(
    key="product_id",
    sink=SearchIndex("search", fields={"name": "text", "description": "text"}),
    products=State("shop.public.products", affects={"product_id": "id"}),
)
def product_search(products: DataFrame) -> DataFrame:
    """The catalogue, to be searched."""
    return products.select(products.id.alias("product_id"), "name", "description", "price")
