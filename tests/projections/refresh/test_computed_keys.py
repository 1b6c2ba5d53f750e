"""A key that is computed is followed like a column: the keys that changed rows have and had, and no others."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections import load_projections
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.verify import verify
from tests.projections.conftest import Deploy
from tests.projections.refresh.test_incremental import HEAD, incremental, step
from tests.projections.shoplog import ShopLog, standing_still

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHOSEN = ("sql_overall", "sql_places")
SIZES = (
    HEAD.replace("Changes,", "Changes, Computed,")
    + """
    @projection(
        key=("customer_id", "size"), sink=PostgresTable("mart", "sizes"),
        orders=State("shop.public.orders", columns=("id", "customer_id", "amount"), affects={
            "customer_id": "customer_id", "size": Computed("cast(100 / (amount - 13) as int)")}))
    def sizes(orders):
        size = F.expr("cast(100 / (amount - 13) as int)").alias("size")
        sound = orders.where("amount <> 13 AND customer_id IS NOT NULL")
        return sound.groupBy("customer_id", size).count()
"""
)


@pytest.mark.slow
def test_a_computed_key_is_followed_to_the_keys_that_changed_rows_have_and_had(
    shop: ShopLog, store: Store, settings: Settings, spark: SparkSession
) -> None:
    defined = load_projections([], Path(__file__).parent, ["queries"])
    ctx = ProjectionContext(store, settings, {name: defined[name] for name in CHOSEN}, clock=standing_still)
    for name in CHOSEN:
        step(ctx, name)

    def check(**keys: int) -> None:
        for name in CHOSEN:
            outcome = incremental(ctx, name)
            words = f"which affects {keys[name]} key{'s' if keys[name] != 1 else ''}"
            assert outcome.reason.endswith(words), (name, outcome.reason)

    order, customer = shop.state["orders"], shop.state["customers"]
    shop.commit({"orders": [("c", shop.order(900, customer_id=3, amount=Decimal(5000), status="paid"))]})
    check(sql_overall=1, sql_places=1)
    shop.commit({
        "customers": [("u", customer[3] | {"city": None}), ("d", {"id": 4})],
        "orders": [("u", order[900] | {"amount": Decimal("0.50"), "status": "sent"})],
    })  # fmt: skip
    check(sql_overall=1, sql_places=3)  # its new place and both that they had
    assert all(verify(ctx, name).equal for name in CHOSEN)


@pytest.mark.slow
def test_a_row_whose_key_cannot_be_computed_and_that_the_function_leaves_out_stops_no_refresh(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(SIZES)
    step(ctx, "sizes")
    shop.commit({"orders": [("c", shop.order(900, customer_id=3, amount=Decimal(20)))]})
    assert incremental(ctx, "sizes").upserts == 1
    shop.commit({"orders": [("c", shop.order(901, customer_id=3, amount=Decimal(13)))]})
    outcome = step(ctx, "sizes")
    assert "full" in outcome.reason and "its key cannot be computed of each row" in outcome.reason, (
        outcome.reason
    )
    shop.commit({"orders": [("c", shop.order(902, customer_id=3, amount=Decimal(20)))]})
    assert step(ctx, "sizes").upserts == 1 and verify(ctx, "sizes").equal


def test_on_trust_a_computed_key_of_another_type_is_computed_in_full(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy(
        HEAD.replace("Changes,", "Changes, Computed,")
        + """
    @projection(
        key="half", sink=PostgresTable("mart", "halves"), trust=True,
        orders=State("shop.public.orders", affects=Computed("cast(id as double)")))
    def halves(orders):
        return orders.select(F.col("id").alias("half"), "status")
"""
    )
    step(ctx, "halves")
    shop.commit({"orders": [("c", shop.order(900))]})
    outcome = step(ctx, "halves")
    assert "is a double, which is no key" in outcome.reason and outcome.upserts == 1, outcome.reason
