"""A refresh computes the keys that changes affect and no others, to the same result; what it cannot do so, it says."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.projections import ProjectionFailed, State
from tailrace.projections.analysis.guards import declaration_refusal
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.lineage import lineage_of
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.by_key.incremental import restricted_result
from tailrace.projections.refresh.plan import Full, Incremental
from tailrace.projections.refresh.plan_all import plans
from tailrace.projections.refresh.refresh import RefreshOutcome
from tests.projections.conftest import Deploy
from tests.projections.lifecycle.test_lifecycle import TOTALS, rows_of
from tests.projections.refresh.handmade import handmade, reading, set_of
from tests.projections.shoplog import TABLES, Row, ShopLog, standing_still

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEAD = """
    from pyspark.sql import functions as F
    from tailrace.projections import Changes, Events, PostgresTable, State, Through, projection
"""
PER_CITY = (
    HEAD
    + """
    @projection(
        key="city", sink=PostgresTable("mart", "per_city"),
        customers=State("shop.public.customers", affects="city"),
        orders=State("shop.public.orders", affects=Through("customers", {"customer_id": "id"})))
    def per_city(customers, orders):
        joined = customers.join(orders, customers.id == orders.customer_id, "left")
        return joined.where("city IS NOT NULL").groupBy("city").agg(
            F.count_distinct(customers.id).alias("customers"),
            F.count(orders.id).alias("orders"), F.max("amount").alias("largest"))
"""
)
BOUGHT = (
    HEAD
    + """
    @projection(
        key=("customer_id", "product_id"), sink=PostgresTable("mart", "bought"),
        orders=State("shop.public.orders", affects=("customer_id", "product_id")),
        customers=State("shop.public.customers", affects={"customer_id": "id"}),
        products=State("shop.public.products"))
    def bought(orders, customers, products):
        return (orders.join(customers, orders.customer_id == customers.id)
            .join(products, orders.product_id == products.id)
            .groupBy("customer_id", "product_id", customers.name.alias("customer"), products.name.alias("product"))
            .agg(F.sum("quantity").alias("pieces")))
"""
)


def reason_for_full(ctx: ProjectionContext) -> str:
    (planned,) = plans(ctx)
    assert isinstance(planned.plan, Full), planned.plan
    return planned.plan.reason


def step(ctx: ProjectionContext, name: str) -> RefreshOutcome:
    (outcome,) = refresh(ctx, [name])
    assert outcome.error is None, outcome.error
    return outcome


def incremental(ctx: ProjectionContext, name: str) -> RefreshOutcome:
    outcome = step(ctx, name)
    assert outcome.reason.startswith("incremental:"), outcome.reason
    return outcome


def test_changes_are_followed_to_the_keys_they_affect(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy()
    name = "customer_totals"
    refresh(ctx, [name])
    order, customer = shop.state["orders"], shop.state["customers"]

    shop.commit({"orders": [("c", shop.order(900, customer_id=3))]})
    shop.commit({"orders": [("u", order[1] | {"customer_id": 5, "status": "paid"})]})
    outcome = incremental(ctx, name)
    assert outcome.reason == "incremental: shop.public.orders changed, which affects 3 keys"
    assert outcome.upserts == 3
    assert rows_of(ctx, name) == shop.expected(name)

    shop.commit({
        "customers": [("d", {"id": 4}), ("c", {"id": 90, "name": "Eve", "city": "Graz"}),
                      ("u", customer[5] | {"name": "Renamed"})],
        "orders": [("d", {"id": 900}), ("u", order[2] | {"customer_id": 90})],
    })  # fmt: skip
    outcome = incremental(ctx, name)
    assert outcome.reason.endswith("which affects 4 keys") and (outcome.upserts, outcome.deletes) == (3, 1)
    assert rows_of(ctx, name) == shop.expected(name)

    shop.commit({"customers": [("d", {"id": 5}), ("c", customer[5] | {"id": 50})]})  # a key change
    shop.commit({"orders": [("u", order[3] | {"status": order[3]["status"]})]})  # nothing but an epoch
    outcome = incremental(ctx, name)
    assert (outcome.upserts, outcome.deletes) == (1, 1)
    assert rows_of(ctx, name) == shop.expected(name)
    assert verify(ctx, name).equal
    record = ctx.store.run_records.latest(name, kinds=["incremental"])[0]
    assert (record.kind, record.keys, record.seconds) == ("incremental", 3, standing_still())
    assert ctx.store.run_records.latest(name)[-1].kind == "full"


def rows_by(ctx: ProjectionContext, name: str, key: str) -> dict[object, Row]:
    """What the sink holds."""
    generation = ctx.generation(name, 1)
    batches = ctx.sink(generation).scan(ctx.target(generation))
    return {row[key]: row for batch in batches for row in batch.to_pylist()}


def per_city(shop: ShopLog) -> dict[object, Row]:
    """``PER_CITY`` in Python."""
    customers, found = shop.state["customers"], {}
    for city in {row["city"] for row in customers.values()} - {None}:
        here = {row["id"] for row in customers.values() if row["city"] == city}
        amounts = [row["amount"] for row in shop.state["orders"].values() if row["customer_id"] in here]
        found[city] = {"city": city, "customers": len(here), "orders": len(amounts),
                       "largest": max(amounts, default=None)}  # fmt: skip
    return found


@pytest.mark.slow
def test_rows_go_where_those_go_that_they_belong_to(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy(PER_CITY)
    step(ctx, "per_city")

    def check(keys: str) -> None:
        outcome = incremental(ctx, "per_city")
        assert outcome.reason.endswith(f"which affects {keys}"), outcome.reason
        assert rows_by(ctx, "per_city", "city") == per_city(shop)

    shop.commit({"orders": [("c", shop.order(900, customer_id=3, amount=Decimal(5000)))]})
    check("1 key")
    customer = shop.state["customers"]
    shop.commit({"customers": [("u", customer[3] | {"city": "Graz"})]})
    check("2 keys")
    shop.commit({"orders": [("u", shop.state["orders"][900] | {"customer_id": 1})]})
    check("2 keys")
    shop.commit({"customers": [("u", customer[3] | {"city": None}), ("d", {"id": 1})]})
    check("2 keys")
    shop.commit({"orders": [("u", shop.state["orders"][900] | {"customer_id": 3})]})
    check("0 keys")
    assert verify(ctx, "per_city").equal


@pytest.mark.slow
def test_where_a_missing_link_leads_is_not_taken_on_trust(shop: ShopLog, deploy: Deploy) -> None:
    """Orders of nobody are counted as the first customer's, which the plan would not have let pass."""
    nobodys = PER_CITY.replace("customers.id == orders", "customers.id == F.coalesce(orders").replace(
        'customer_id, "left"', 'customer_id, F.lit(1)), "left"'
    )
    ctx = deploy(nobodys.replace("sink=", "trust=True, sink="))
    step(ctx, "per_city")
    order = shop.state["orders"][3] | {"amount": Decimal(5000)}
    for customer in (None, 3):
        shop.commit({"orders": [("u", order | {"customer_id": customer})]})
        outcome = step(ctx, "per_city")
        assert (outcome.kind, outcome.cause) == ("full", "proof"), "a row has none now, or had none before"
        assert "changed rows of orders have a NULL link to another input" in outcome.reason


@pytest.mark.slow
def test_a_part_of_the_key_is_enough_and_an_input_without_lineage_is_given_whole(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(BOUGHT)
    step(ctx, "bought")
    shop.commit({"orders": [("c", shop.order(900, customer_id=3, product_id=2))],
                 "customers": [("u", shop.state["customers"][7] | {"name": "N"})]})  # fmt: skip
    outcome = incremental(ctx, "bought")
    assert outcome.reason.endswith("which affects 2 keys"), "of customers: what all lineages give"

    shop.commit({"products": [("u", shop.state["products"][2] | {"name": "Stool"})]})
    (planned,) = plans(ctx)
    assert isinstance(planned.plan, Full)
    assert planned.plan.reason == (
        "shop.public.products changed, and input products does not say what it affects"
    )
    assert step(ctx, "bought").reason.startswith("full: shop.public.products changed")
    assert verify(ctx, "bought").equal


def test_a_row_of_a_key_that_no_change_concerns_shows_that_the_lineage_is_wrong(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(
        TOTALS.replace(
            'groupBy("customer_id")', 'groupBy((F.col("customer_id") + 1).alias("customer_id"))'
        ).replace("sink=", "trust=True, sink=")
    )
    step(ctx, "totals")
    shop.commit({"orders": [("c", shop.order(900, customer_id=3))]})
    assert "rows with keys that no changed row affects" in reason_for_full(ctx), "samples show it already"
    before, files = rows_of(ctx, "totals"), set(ctx.store.storage.list("derived"))
    checked = ctx.generation("totals", 1).checked
    assert checked is not None
    passed = replace(checked, failed=None).to_json()
    ctx.store.derived.set_checked("totals", 1, passed)  # as if no sample had shown it

    (outcome,) = refresh(ctx)

    assert outcome.status == "failed" and isinstance(outcome.error, ProjectionFailed)
    assert "it gave 1 rows with keys that no changed row affects" in outcome.error.message
    assert "affects=" in outcome.error.hint and ".py:" in outcome.error.message
    assert rows_of(ctx, "totals") == before
    assert set(ctx.store.storage.list("derived")) == files


@pytest.mark.slow
def test_rows_without_a_key_are_refused_as_a_full_refresh_does_unless_the_plan_leaves_them_out(
    shop: ShopLog, deploy: Deploy
) -> None:
    kept = TOTALS.replace("def totals", "def kept_totals").replace('"mart", "totals"', '"mart", "kept"')
    kept = kept.replace("orders.groupBy", 'orders.where("customer_id > 0").groupBy')
    ctx = deploy(TOTALS + kept[kept.index("    @projection") :])
    for name in ("totals", "kept_totals"):
        step(ctx, name)
    before, files = rows_of(ctx, "totals"), set(ctx.store.storage.list("derived"))
    order = shop.state["orders"][3]
    shop.commit({"orders": [("u", order | {"customer_id": None})]})

    (outcome,) = refresh(ctx, ["totals"])

    assert outcome.status == "failed" and isinstance(outcome.error, ProjectionFailed)
    assert "1 rows have NULL in their key (customer_id)" in outcome.error.message
    assert rows_of(ctx, "totals") == before and set(ctx.store.storage.list("derived")) == files
    assert incremental(ctx, "kept_totals").reason.endswith("which affects 1 key")
    assert verify(ctx, "kept_totals").equal

    shop.commit({"orders": [("u", order | {"customer_id": 5})]})
    assert incremental(ctx, "totals").reason.endswith("which affects 2 keys")
    assert verify(ctx, "totals").equal


EVENTS_PER_ORDER = (
    HEAD
    + """
    @projection(
        key="stream", sink=PostgresTable("mart", "history"),
        events=Events("shop.order", affects="stream"),
        customers=Changes("shop.public.customers", affects={"stream": "id"}))
    def history(events, customers):
        return events.groupBy("stream").agg(F.count("*").alias("events"))
"""
)


def event(stream: str, version: int) -> Row:
    return {"stream": stream, "version": version, "type": "Placed", "schema_version": 1, "data": "{}",
            "metadata": "{}", "event_id": f"{stream}-{version}"}  # fmt: skip


def test_of_events_the_new_ones_say_which_keys_are_affected(shop: ShopLog, deploy: Deploy) -> None:
    source = EVENTS_PER_ORDER.replace(', affects={"stream": "id"}', "")
    shop.commit({}, events=[event("a", 1), event("b", 1)])
    ctx = deploy(source)
    step(ctx, "history")
    shop.commit({}, events=[event("a", 2), event("c", 1)])
    assert incremental(ctx, "history").upserts == 2
    assert verify(ctx, "history").equal


WRONG = (
    HEAD
    + """
    @projection(
        key="city", sink=PostgresTable("mart", "by_city"),
        customers=State("shop.public.customers", affects="city"),
        orders=State("shop.public.orders", affects={"city": "status"}))
    def by_city(customers, orders):
        joined = customers.join(orders, customers.id == orders.customer_id)
        return joined.groupBy("city").agg(F.count("*").alias("orders"))
"""
)


def test_the_plan_shows_a_wrong_lineage_and_samples_one_that_its_author_vouches_for(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(WRONG)
    step(ctx, "by_city")
    shop.commit({"orders": [("c", shop.order(900, customer_id=3))]})
    assert "the join does not demand customers.city = orders.status" in reason_for_full(ctx)

    ctx = deploy(WRONG.replace("sink=", "trust=True, sink="))  # the same code: the generation goes on
    assert "keys are followed after the next full refresh" in reason_for_full(ctx)
    step(ctx, "by_city")
    shop.commit({"orders": [("c", shop.order(901, customer_id=3))]})
    reason = reason_for_full(ctx)
    assert "sampled keys have another result than computed from all rows" in reason, reason
    assert step(ctx, "by_city").reason == f"full: {reason}"
    assert verify(ctx, "by_city").equal


def test_why_everything_is_computed_is_said_beforehand_where_it_can_be(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy(TOTALS)
    step(ctx, "totals")
    shop.commit({"orders": [("c", shop.order(900))]})
    (planned,) = plans(ctx)
    assert isinstance(planned.plan, Incremental) and planned.plan.reason == "shop.public.orders changed"

    text = TABLES["orders"]
    wider = TopicSchema(2, (*text.columns, Column(7, "note", 25, type_name="text")))
    shop.commit({"orders": [("c", shop.order(901) | {"note": None})]}, new_schemas={"orders": wider})
    assert reason_for_full(ctx) == "shop.public.orders changed; the columns of shop.public.orders changed"
    assert step(ctx, "totals").reason.startswith("full: shop.public.orders changed; the columns")

    for old, new, words in (
        (', affects="customer_id"', "", "no input says what it affects"),
        ("def totals(orders)", "def totals(orders, now)", "depends on the time"),
    ):
        (other,) = deploy(TOTALS.replace(old, new)).projections.values()
        assert words in (declaration_refusal(other) or "")


def test_what_shows_only_in_the_rows_is_said_afterwards(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy(TOTALS)
    step(ctx, "totals")
    shop.truncate("orders")
    shop.commit({"orders": [("c", shop.order(900, customer_id=1, amount=Decimal(7)))]})
    outcome = step(ctx, "totals")
    assert outcome.reason == "full: shop.public.orders changed; shop.public.orders was truncated"
    assert rows_of(ctx, "totals") == [{"customer_id": 1, "total": Decimal("7.00")}]

    small = ctx.settings.projections.model_copy(update={"incremental_bytes": 10})
    ctx.settings = ctx.settings.model_copy(update={"projections": small})
    shop.commit({"orders": [("c", shop.order(n, customer_id=1)) for n in range(901, 950)]})
    assert "full: shop.public.orders changed; the rows of" in step(ctx, "totals").reason
    assert verify(ctx, "totals").equal


def test_the_function_gets_the_rows_of_some_keys_and_inputs_without_lineage_whole(
    tmp_path: Path, spark: SparkSession
) -> None:
    orders = State("shop.public.orders", affects="customer_id")
    customers = State("shop.public.customers", affects={"customer_id": "id"})

    def counted(orders: DataFrame, customers: DataFrame, products: DataFrame) -> DataFrame:
        joined = orders.join(customers, orders.customer_id == customers.id)
        return joined.groupBy("customer_id").count().crossJoin(products.selectExpr("count(*) AS products"))

    projection = replace(
        reading(["customer_id"], orders=orders, customers=customers, products=State("shop.public.products")),
        function=counted,
    )
    with handmade(tmp_path, context=ProjectionContext) as made:
        made.log.fill(products=6)
        rows = {
            "orders": pa.table({"customer_id": [3, 3, 4]}),
            "customers": spark.createDataFrame(pa.table({"id": [3, 4]})),
        }
        lineage, wanted = lineage_of(projection), set_of([3, 4])
        step = made.step(projection, customer_id=pa.int64(), count=pa.int64(), products=pa.int64())
        found = restricted_result(step, lineage, rows, wanted).sort_by("customer_id")
        assert found.to_pylist() == [
            {"customer_id": 3, "count": 2, "products": 6},
            {"customer_id": 4, "count": 1, "products": 6},
        ]
        assert made.said[-1] == ("computing mine from 3 rows", 0, None, ""), "of those that are held here"
        with pytest.raises(ProjectionFailed, match="1 rows with keys that no changed row affects"):
            restricted_result(step, lineage, rows, set_of([3]))
        narrower = made.step(projection, customer_id=pa.int64(), count=pa.int32(), products=pa.int64())
        with pytest.raises(ProjectionFailed, match="its output columns are no longer those of"):
            restricted_result(narrower, lineage, rows, wanted)
