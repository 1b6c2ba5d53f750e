"""While the value of a scalar subquery stays, a refresh follows keys; when it changes, everything is computed."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from tailrace.cli.projection.check import describe_reason
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections import load_projections
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.plan import Full, Incremental
from tailrace.projections.refresh.plan_all import plans
from tests.projections.conftest import Deploy
from tests.projections.refresh.test_incremental import HEAD, incremental, rows_by, step
from tests.projections.shoplog import ShopLog, standing_still, topic

DEAR = """/* projection
key = "id"
sink = { kind = "postgres", sink = "mart", table = "dear" }

[inputs]
orders = "shop.public.orders"
products = "shop.public.products"
*/
SELECT id, amount, (SELECT min(amount) FROM orders) AS least
FROM orders
WHERE amount > (
    SELECT max(price)
    FROM products -- of all that are sold
)
"""
PRICE = "(SELECT max(price) FROM products)"
LEAST = "(SELECT min(amount) FROM orders)"
CITIES = (
    HEAD
    + """
    from tailrace.projections import Result
    @projection(key="city", sink=PostgresTable("mart", "cities"),
        customers=State("shop.public.customers", affects="city"))
    def cities(customers):
        return customers.where("city IS NOT NULL").groupBy("city").count()

    @projection(key="city", sink=PostgresTable("mart", "large_cities"),
        customers=State("shop.public.customers", affects="city"), cities=Result("cities"))
    def large_cities(customers, cities):
        counted = customers.where("city IS NOT NULL").groupBy("city").agg(F.count("*").alias("customers"))
        return counted.where(F.col("customers") >= cities.agg(F.max("count")).scalar())
"""
)


def dear(shop: ShopLog) -> dict[object, dict[str, object]]:
    """``DEAR`` in Python."""
    amounts = {n: row["amount"] for n, row in shop.state["orders"].items()}
    prices = [row["price"] for row in shop.state["products"].values() if row["price"] is not None]
    known = [amount for amount in amounts.values() if amount is not None]
    return {
        n: {"id": n, "amount": amount, "least": min(known)}
        for n, amount in amounts.items()
        if prices and amount is not None and amount > max(prices)
    }


def deployed(store: Store, settings: Settings, folder: Path, text: str) -> ProjectionContext:
    (folder / "queries").mkdir()
    (folder / "queries" / "dear.sql").write_text(text)
    return ProjectionContext(store, settings, load_projections([], folder, ["queries"]), clock=standing_still)


@pytest.fixture
def ctx(store: Store, settings: Settings, shop: ShopLog, tmp_path: Path, spark: object) -> ProjectionContext:
    found = deployed(store, settings, tmp_path, DEAR)
    step(found, "dear")
    return found


def planned_words(ctx: ProjectionContext) -> str:
    (planned,) = plans(ctx)
    return f"{planned.plan.kind}: {describe_reason(planned.plan)}"


def check(ctx: ProjectionContext, shop: ShopLog) -> None:
    """The sink has what a computation of everything gives."""
    assert rows_by(ctx, "dear", "id") == dear(shop)
    assert verify(ctx, "dear").equal


@pytest.mark.slow
def test_a_value_that_stays_leaves_a_refresh_to_the_keys(ctx: ProjectionContext, shop: ShopLog) -> None:
    product, order = shop.state["products"], shop.state["orders"]
    shop.commit({"products": [("u", product[2] | {"price": Decimal("0.10")})]})
    assert (
        planned_words(ctx)
        == f"incremental: shop.public.products changed; full when the value of {PRICE} changed too"
    )
    outcome = incremental(ctx, "dear")
    assert outcome.reason.endswith(
        f"products changed, which affects 0 keys; the value of {PRICE} did not change"
    )
    assert (outcome.keys, outcome.upserts, outcome.deletes) == (0, 0, 0)

    shop.commit(
        {"orders": [("c", shop.order(900, amount=Decimal(77))), ("u", order[40] | {"amount": Decimal(2)})]}
    )
    outcome = incremental(ctx, "dear")
    assert outcome.reason.endswith(
        f"orders changed, which affects 2 keys; the value of {LEAST} did not change"
    )
    assert (outcome.upserts, outcome.deletes) == (1, 1)
    check(ctx, shop)

    shop.commit({"products": [("u", product[6] | {"price": Decimal(8)})], "orders": [("d", {"id": 900})]})
    assert planned_words(ctx).endswith(f"full when the value of {LEAST} or {PRICE} changed too")
    outcome = step(ctx, "dear")
    assert (outcome.kind, outcome.cause) == ("full", "subquery")
    assert outcome.reason.endswith(f"products changed; the value of {PRICE} changed")
    check(ctx, shop)


@pytest.mark.slow
def test_a_value_may_be_null_and_an_input_may_be_read_inside_and_outside(
    ctx: ProjectionContext, shop: ShopLog
) -> None:
    order = shop.state["orders"]

    def expect(kind: str, keys: int | None) -> None:
        outcome = step(ctx, "dear")
        assert (outcome.kind, outcome.keys) == (kind, keys), outcome.reason
        check(ctx, shop)

    shop.commit({"products": [("u", row | {"price": None}) for row in shop.state["products"].values()]})
    expect("full", None)
    shop.commit({"products": [("c", {"id": 77, "name": "x", "description": None, "price": None})]})
    expect("incremental", 0)  # NULL is no other NULL
    shop.commit({"products": [("d", {"id": n}) for n in list(shop.state["products"])]})
    expect("incremental", 0)  # and of no rows there is none
    shop.commit({"products": [("c", {"id": 1, "name": "x", "description": None, "price": Decimal(5)})]})
    expect("full", None)
    shop.commit({"orders": [("u", order[40] | {"amount": Decimal("0.25")})]})  # as small as the smallest
    expect("incremental", 1)
    shop.commit({"orders": [("d", {"id": 1})]})  # which was the smallest
    expect("incremental", 1)
    shop.commit({"orders": [("d", {"id": 40})]})  # now there is none so small any more
    expect("full", None)
    shop.truncate("products")
    expect("full", None)


@pytest.mark.slow
def test_a_value_over_files_that_were_put_together_is_that_of_before_and_one_that_was_erased_has_all_computed(
    ctx: ProjectionContext, shop: ShopLog
) -> None:
    product = shop.state["products"]
    shop.commit({"products": [("u", product[6] | {"price": Decimal("5.50")})]})
    ctx.store.seal()
    ctx.store.compact()
    assert step(ctx, "dear").cause == "subquery"
    check(ctx, shop)
    shop.commit({"products": [("u", product[6] | {"name": "another"})]})
    ctx.store.seal()
    ctx.store.compact()
    assert incremental(ctx, "dear").keys == 0

    redact(ctx.store, RedactionRequest(topic("products"), ["6"], ["price"]))
    shop.state["products"][6] = product[6] | {"price": None}
    assert planned_words(ctx) == "full: rows of shop.public.products were erased"
    assert step(ctx, "dear").cause == "erased"
    check(ctx, shop)


@pytest.mark.slow
def test_a_value_that_changes_each_time_is_not_compared_each_time(
    ctx: ProjectionContext, shop: ShopLog
) -> None:
    def taken() -> str:
        reason = step(ctx, "dear").reason
        check(ctx, shop)
        return reason.partition("products changed; ")[2]

    product = shop.state["products"]
    said = []
    for price in (7, 8, 6, 6, 6):
        shop.commit({"products": [("u", product[6] | {"price": Decimal(price)})]})
        said.append(taken())
    changed = f"the value of {PRICE} changed"
    guessed = f"the value of {PRICE} is taken to have changed, as values of its subqueries did in the last refreshes"
    assert said == [changed, changed, changed, guessed, ""]


@pytest.mark.slow
def test_a_value_that_cannot_be_told_fails_as_a_computation_of_everything_does(
    store: Store, settings: Settings, shop: ShopLog, tmp_path: Path, spark: object
) -> None:
    ctx = deployed(store, settings, tmp_path, DEAR.replace("max(price)", "max(5 / price)"))
    step(ctx, "dear")
    before, product = rows_by(ctx, "dear", "id"), dict(shop.state["products"][2])
    shop.commit({"products": [("u", product | {"price": Decimal(0)})]})
    (failed,) = refresh(ctx)
    assert failed.error is not None and "failed computing its result (" in failed.error.message
    assert rows_by(ctx, "dear", "id") == before
    shop.commit({"products": [("u", product)]})
    outcome = incremental(ctx, "dear")
    assert outcome.reason.endswith("; the value of (SELECT max(5 / price) FROM products) did not change")
    assert verify(ctx, "dear").equal


@pytest.mark.slow
def test_the_value_over_a_result_of_another_projection_in_a_dataframe_is_followed(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(CITIES)
    refresh(ctx)
    words = "the value of a scalar subquery over cities"

    def taken() -> str:
        outcome = next(each for each in refresh(ctx) if each.projection == "large_cities")
        assert verify(ctx, "large_cities").equal
        return outcome.reason

    assert verify(ctx, "large_cities").rows
    shop.commit({"customers": [("c", {"id": 90, "name": "Eve", "city": "Graz"})]})
    changed = "shop.public.customers, projection cities changed"
    assert taken() == f"incremental: {changed}, which affects 1 key; {words} did not change"
    shop.commit({"customers": [("c", {"id": 91, "name": "Eve", "city": "Lund"}),
                               ("c", {"id": 92, "name": "Eve", "city": "Lund"})]})  # fmt: skip
    assert taken() == f"full: {changed}; {words} changed"


@pytest.mark.slow
def test_a_proof_of_a_version_that_followed_no_subqueries_is_made_again(
    ctx: ProjectionContext, shop: ShopLog
) -> None:
    live = ctx.live("dear")
    assert live is not None and live.checked is not None
    written = json.loads(live.checked.to_json())
    old = {name: written[name] for name in ("versions", "trusted", "never_null")}
    old["failed"] = "a subquery looks at rows of all keys"
    ctx.store.derived.set_checked("dear", 1, json.dumps(old))
    shop.commit({"orders": [("c", shop.order(900, amount=Decimal(77)))]})
    (planned,) = plans(ctx)
    assert isinstance(planned.plan, Full)
    step(ctx, "dear")
    shop.commit({"orders": [("c", shop.order(901, amount=Decimal(78)))]})
    (planned,) = plans(ctx)
    assert isinstance(planned.plan, Incremental)
    incremental(ctx, "dear")
    check(ctx, shop)
