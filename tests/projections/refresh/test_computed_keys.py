"""A key that is computed is followed like a column: the keys that changed rows have and had, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.eventstore.settings import Settings
from tailrace.eventstore.state.key_lookup import TooLarge
from tailrace.eventstore.store import Store
from tailrace.projections import Computed, State, Through, load_projections
from tailrace.projections.compute import read_plan
from tailrace.projections.compute.engine import SparkEngine
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.lineage import lineage_of
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.by_key.restricted_inputs import Inputs
from tests.projections.conftest import Deploy
from tests.projections.refresh.handmade import Handmade, affected, handmade, reading, refusal, set_of
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


SIZE = State("shop.public.orders", columns=("id", "amount"), affects=Computed("quantity + 1"))
CUSTOMERS = State("shop.public.customers", affects=Through("orders", {"id": "customer_id"}))


@pytest.fixture
def made(tmp_path: Path, spark: SparkSession) -> Iterator[Handmade]:
    with handmade(tmp_path, context=ProjectionContext) as each:
        each.log.fill()
        yield each


def test_rows_of_computed_keys_are_found_by_spark_and_what_belongs_to_them_by_their_values(
    made: Handmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    projection = reading(["size"], orders=SIZE, customers=CUSTOMERS)
    orders = [row for row in made.log.state["orders"].values() if row["quantity"] + 1 in (3, 9)]
    store, topic = made.ctx.store, SIZE.topic_id
    found = Inputs(made.ctx, SparkEngine(made.ctx), projection, lineage_of(projection), store.cut())
    monkeypatch.setattr(read_plan, "INLINE_LIMIT", 0)
    rows = found.rows_of_keys(set_of([3, 9]))
    assert all(ref.inline is None for ref in store.segments(topic, store.cut())), "no task carries blobs"
    frame, customers = rows["orders"], rows["customers"]
    assert isinstance(customers, pa.Table) and not isinstance(frame, pa.Table)
    assert sorted(customers["id"].to_pylist()) == sorted({row["customer_id"] for row in orders})
    given = frame.select("orders.*").toArrow()
    assert given.column_names == ["id", "amount"], "what the function sees"
    assert sorted(given["id"].to_pylist()) == [row["id"] for row in orders]


def test_what_leads_from_rows_of_computed_keys_to_others_may_be_too_much(
    made: Handmade, spark: SparkSession
) -> None:
    projection = reading(["size"], orders=SIZE)
    lineage, cut = lineage_of(projection), made.ctx.store.cut()
    frame = spark.createDataFrame(pa.table({"a.b": [1, 2, 2], "c": [0, 0, 0]}))
    (column,) = Inputs(made.ctx, SparkEngine(made.ctx), projection, lineage, cut)._links(frame, ["a.b"])
    assert sorted(column.to_pylist()) == [1, 2]
    assert Inputs(made.limited(column.nbytes), SparkEngine(made.ctx), projection, lineage, cut)._links(
        frame, ["a.b"]
    )
    with pytest.raises(TooLarge, match="what leads to their rows takes 0 MiB"):
        Inputs(made.limited(column.nbytes - 1), SparkEngine(made.ctx), projection, lineage, cut)._links(
            frame, ["a.b"]
        )


def test_changed_rows_affect_the_keys_that_are_computed_of_them(made: Handmade) -> None:
    since, order = made.ctx.store.cut().epoch, made.log.state["orders"]
    made.log.commit({"orders": [("u", order[1] | {"quantity": 7})]})
    orders = "shop.public.orders"
    by_size = reading(["size"], orders=SIZE)
    assert affected(made, by_size, since, size=pa.int32()) == ([3, 8], False, set())
    total = reading(["all"], orders=State(orders, affects=Computed("'all'")))
    assert affected(made, total, since, all=pa.string()) == (["all"], False, set())
    other = State("shop.public.customers", affects="id")
    mixed = reading(["id"], orders=State(orders, affects=Computed("cast(id as string)")), customers=other)
    assert refusal(made, mixed, since, id=pa.int64()) == (
        "its inputs say that the key is of different types",
        "definition",
    )
