"""``char(n)`` has no padding in a projection, also where only the keys of changes are followed."""

from __future__ import annotations

import pytest

from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.state.state import state
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tests.projections.conftest import Deploy
from tests.projections.shoplog import TABLES, Row, ShopLog, topic

CHAR_8 = 8 + 4
SEGMENTS = """
from pyspark.sql import functions as F
from tailrace.projections import Changes, PostgresTable, State, Through, projection

@projection(key="city", sink=PostgresTable("mart", "segments"),
    customers=State("shop.public.customers", affects="city"),
    orders=State("shop.public.orders", affects=Through("customers", {"customer_id": "id"})))
def segments(customers, orders):
    joined = customers.join(orders, customers.id == orders.customer_id, "left").where("city IS NOT NULL")
    return joined.groupBy("city").agg(F.count(orders.id).alias("orders"),
                                      F.max(F.length("city")).alias("letters"))

@projection(key="city", sink=PostgresTable("mart", "moves"), changes=Changes("shop.public.customers"))
def moves(changes):
    return changes.where("after IS NOT NULL").groupBy("after.city").count()
"""


@pytest.mark.slow
def test_its_keys_are_followed_without_their_blanks(shop: ShopLog, deploy: Deploy) -> None:
    columns = [
        Column(each.id, each.name, 1042, CHAR_8, "character(8)") if each.name == "city" else each
        for each in TABLES["customers"].columns
    ]
    for row in shop.state["customers"].values():
        row["city"] = row["city"].ljust(8)
    shop.read_again("customers", TopicSchema(2, tuple(columns)))
    ctx = deploy(SEGMENTS)
    refresh(ctx, ["segments", "moves"])
    customer = shop.state["customers"]
    shop.commit(
        {"customers": [("u", customer[2] | {"city": "Oulu".ljust(8)})], "orders": [("c", shop.order(900))]}
    )
    assert step(ctx, "segments").startswith("incremental: ")
    step(ctx, "moves")
    for name in ("segments", "moves"):
        compared = verify(ctx, name)
        assert (compared.only_in_log, compared.only_in_sink, compared.different) == (0, 0, 0), name
    cities = {row["city"]: row["letters"] for row in rows_of(ctx, "segments")}
    assert cities == {city: len(city) for city in ("Brno", "Lund", "Oulu", "Turku")}
    assert {row["city"] for row in rows_of(ctx, "moves")} == {"Brno", "Lund", "Oulu", "Turku"}
    (kept,) = [row for each in state(shop.store, topic("customers"), shop.store.cut()) for row in each.to_pylist()
               if row["id"] == 2]  # fmt: skip
    assert kept["city"] == "Oulu    ", "the log has it as the source does"


def rows_of(ctx: ProjectionContext, name: str) -> list[Row]:
    generation = ctx.live(name)
    assert generation is not None
    batches = ctx.sink(generation).scan(ctx.target(generation))
    return [row for batch in batches for row in batch.to_pylist()]


def step(ctx: ProjectionContext, name: str) -> str:
    (outcome,) = refresh(ctx, [name])
    assert outcome.error is None, outcome.error
    return outcome.reason
