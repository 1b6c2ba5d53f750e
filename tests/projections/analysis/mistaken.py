"""Projections with mistakes that one does not see before they run, for ``test_examine``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tailrace.projections import Events, ParquetFolder, PostgresTable, State, projection

LOADED = datetime.now(UTC)
LAKE = ParquetFolder("lake")
CUSTOMERS = State("shop.public.customers", affects={"customer_id": "id"})
ORDERS = State("shop.public.orders", affects="customer_id")


@projection(
    key="customer_id", sink=LAKE, customers=CUSTOMERS, orders=ORDERS, products=State("shop.public.products")
)
def sound(customers: DataFrame, orders: DataFrame, products: DataFrame) -> DataFrame:
    lines = orders.join(products, orders.product_id == products.id)
    joined = customers.join(lines, customers.id == lines.customer_id, "left")
    return joined.groupBy(customers.id.alias("customer_id")).agg(F.sum("amount").alias("total"))


@projection(key="customer_id", sink=ParquetFolder("lake", partition_by=("citty", "ciity")), orders=ORDERS)
def messy(orders: DataFrame) -> DataFrame:
    newest = orders.orderBy("id").limit(100)
    return newest.groupBy("customer_id").agg(
        F.first("status").alias("status"), F.sum(F.col("amount").cast("double")).alias("total")
    )


@projection(
    key="id",
    sink=PostgresTable("marts", "lost"),
    orders=State("shop.public.ordes"),
    customers=State("shop.public.customers", columns=("id", "nmae"), cast={"citi": "string"}),
    placed=Events("shop.public.products"),
)
def lost(orders: DataFrame, customers: DataFrame, placed: DataFrame) -> DataFrame:
    return orders


@projection(key="id", sink=LAKE, orders=State("shop.public.orders"))
def raising(orders: DataFrame) -> DataFrame:
    return orders.select("id", "custmer_id")


@projection(key="order_id", sink=LAKE, orders=State("shop.public.orders"))
def keyless(orders: DataFrame) -> DataFrame:
    return orders.select("id", "status")


@projection(key="id", sink=LAKE, orders=State("shop.public.orders"))
def unfollowed(orders: DataFrame) -> DataFrame:
    return orders.select("id", "status")


@projection(key="id", sink=LAKE, orders=State("shop.public.orders", cast={"status": "nonsense"}))
def miscast(orders: DataFrame) -> DataFrame:
    return orders


@projection(key="id", sink=LAKE, orders=State("shop.public.orders", affects="id"))
def looking(orders: DataFrame) -> DataFrame:
    return orders.where(orders.id < len(orders.toPandas()))


@dataclass(frozen=True)
class Unopened:
    def open_sink(self, settings: object) -> Any:
        raise KeyError("sink")

    def open_reader(self, settings: object, store: str, projection: str) -> Any:
        raise NotImplementedError


@projection(key="id", sink=Unopened(), orders=State("shop.public.orders", affects="id"))
def unopened(orders: DataFrame) -> DataFrame:
    return orders


@projection(
    key=("order_id", "day"),
    sink=ParquetFolder("lake", partition_by=("citty",)),
    customers=State("shop.public.customers", affects={"order_id": "id"}, cast={"citi": "string"}),
    orders=State("shop.public.orders", affects={"order_id": "id"}),
)
def all_at_once(customers: DataFrame, orders: DataFrame) -> DataFrame:
    joined = customers.join(orders, customers.id == orders.customr_id)
    newest = joined.where("statuss = 'paid'").orderBy("name").limit(100)
    return newest.groupBy(orders.id.alias("order_id")).agg(
        F.first("name").alias("status"),
        F.sum("ammount").alias("total"),
        F.max(F.current_date()).alias("seen"),
    )


@projection(key="id", sink=LAKE, orders=State("shop.public.orders", affects="id"))
def untyped(orders: DataFrame) -> DataFrame:
    return orders.select("id", F.lit(None).alias("note"))
