"""Partial results: a definition that is not followed by key is refreshed by way of some that are, to the same result;
nobody is shown them, and they go with their generation."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store
from tailrace.projections import load_projections
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.list import generations
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh import by_stage
from tailrace.projections.refresh.plan import Full, Incremental
from tailrace.projections.refresh.plan_all import plans
from tailrace.projections.refresh.refresh import RefreshOutcome
from tailrace.projections.refresh.step import take_step
from tailrace.projections.refresh.step_input import StepInput
from tests.projections.conftest import Deploy
from tests.projections.shoplog import Row, ShopLog, standing_still

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.eventstore.settings import Settings

MARKED = """
    from pyspark.sql import functions as F
    from tailrace.projections import Computed, PostgresTable, State, projection, stage

    @projection(key="status", sink=PostgresTable("mart", "by_status"), orders=State("shop.public.orders"))
    def by_status(orders):
        parts = orders.groupBy("status", F.expr("id % 8").alias("part")).agg(
            F.sum("amount").alias("amount"), F.count("*").alias("orders"))
        parts = stage(parts, key=("status", "part"), affects={"orders": {"part": Computed("id % 8")}})
        return parts.groupBy("status").agg(
            F.sum("amount").cast("decimal(30,2)").alias("amount"), F.sum("orders").alias("orders"))
"""
QUERY = """/* projection
key = "customer_id"
sink = { kind = "postgres", sink = "mart", table = "best" }
inputs.orders = "shop.public.orders"
*/
select customer_id, status, count(*) as orders, sum(amount) as amount, avg(amount) as mean
from orders
group by customer_id, status
order by amount desc nulls last, customer_id
limit 1
"""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial results are begun by the first refresh."""
    monkeypatch.setattr(by_stage, "_LONG_SECONDS", 0.0)
    monkeypatch.setattr(by_stage, "_REFRESHES", 1)


def _rows(ctx: ProjectionContext, name: str) -> list[Row]:
    generation = ctx.live(name)
    assert generation is not None
    return [row for batch in ctx.sink(generation).scan(ctx.target(generation)) for row in batch.to_pylist()]


def _by_status(shop: ShopLog) -> dict[str, tuple[Decimal, int]]:
    amounts: dict[str, Decimal] = defaultdict(Decimal)
    for row in shop.state["orders"].values():
        amounts[row["status"]] += row["amount"]
    counts = Counter(row["status"] for row in shop.state["orders"].values())
    return {status: (amounts[status], counts[status]) for status in counts}


def _step(ctx: ProjectionContext, name: str) -> RefreshOutcome:
    (outcome,) = refresh(ctx, [name])
    assert outcome.error is None, outcome.error
    return outcome


def _shown(ctx: ProjectionContext) -> dict[str, tuple[Decimal, int]]:
    return {row["status"]: (row["amount"], row["orders"]) for row in _rows(ctx, "by_status")}


def test_what_a_function_marks_is_followed_by_key_verified_listed_and_goes_with_its_generation(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(MARKED)
    _step(ctx, "by_status")
    shop.commit({"orders": [("c", shop.order(900, customer_id=1))]})
    begun = _step(ctx, "by_status")
    shop.commit({"orders": [("c", shop.order(901, customer_id=1)), ("d", {"id": 900})]})
    (planned,) = plans(ctx)
    followed = _step(ctx, "by_status")
    assert (begun.kind, followed.kind, followed.keys) == ("full", "incremental", 2)
    assert isinstance(planned.plan, Incremental) and "partial results" in planned.plan.reason
    assert _shown(ctx) == _by_status(shop)
    assert _step(ctx, "by_status").status == "nothing"
    assert ctx.store.derived.projections() == ["by_status"]
    (view,) = generations(ctx, "by_status")
    assert view.partial is not None and view.partial[1] > len(_shown(ctx))
    assert verify(ctx, "by_status").equal and ctx.store.verify().findings == ()

    held = by_stage.held_partial(_input(ctx))
    assert held is not None
    wrong = replace(held.definition, function=lambda **given: held.definition.function(**given).limit(1))
    end = replace(held, definition=wrong, cut=ctx.store.cut(shop.commit({"customers": []}, complete=True)))
    last = ctx.store.steps.last(held.generation.projection, held.generation.number)
    assert last is not None
    take_step(end, Full(last.to_epoch, end.cut.epoch, "a step that is wrong"))
    found = verify(ctx, "by_status")
    assert not found.equal and found.partial > 0 and found.different == found.only_in_log == 0

    rebuild(ctx, "by_status")
    assert not ctx.generations("by_status.2") and verify(ctx, "by_status").equal
    gc(ctx, "by_status", keep=0)
    assert not ctx.generations("by_status.1")
    assert not [path for path in ctx.store.storage.list("derived") if path.startswith("derived/by_status.1/")]


def _input(ctx: ProjectionContext) -> StepInput:
    live = ctx.live("by_status")
    assert live is not None
    return StepInput(ctx, ctx.projection("by_status"), live, ctx.store.cut())


@pytest.fixture
def queried(store: Store, settings: Settings, tmp_path: Path, spark: SparkSession) -> ProjectionContext:
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "best.sql").write_text(QUERY)
    return ProjectionContext(
        store, settings, load_projections([], tmp_path, ["queries"]), clock=standing_still
    )


@pytest.mark.slow
def test_a_query_whose_partial_results_have_no_key_is_computed_whole_from_then_on(
    shop: ShopLog, queried: ProjectionContext
) -> None:
    _step(queried, "best")
    shop.commit({"orders": [("c", shop.order(900, customer_id=None, amount=Decimal(0)))]})
    refused = _step(queried, "best")
    shop.commit({"orders": [("c", shop.order(901, customer_id=1))]})
    again = _step(queried, "best")
    assert (refused.kind, again.kind) == ("full", "full")
    assert "partial" not in refused.reason + again.reason
    (mark,) = queried.generations("best.1")
    assert (mark.state, queried.store.steps.list("best.1", 1)) == ("failed", [])
    assert not [path for path in queried.store.storage.list("derived") if path.startswith("derived/best.1/")]
    assert verify(queried, "best").equal


@pytest.mark.slow
def test_of_rows_that_were_erased_nothing_stays_in_partial_results(
    shop: ShopLog, queried: ProjectionContext
) -> None:
    _step(queried, "best")
    shop.commit({"orders": [("c", shop.order(900, customer_id=1))]})
    _step(queried, "best")
    before = {path for path in shop.store.storage.list("derived") if path.startswith("derived/best.1/")}
    redact(shop.store, RedactionRequest(TopicId.parse("shop.public.orders"), ["900"], ["amount"]))
    assert _step(queried, "best").kind == "full"
    after = {path for path in shop.store.storage.list("derived") if path.startswith("derived/best.1/")}
    assert before and after and not before <= after  # but for a bucket without such a row
    assert verify(queried, "best").equal
    assert shop.store.verify().findings == ()


@pytest.mark.slow
def test_a_process_that_dies_behind_its_partial_results_is_gone_on_with(
    shop: ShopLog, queried: ProjectionContext
) -> None:
    _step(queried, "best")
    shop.commit({"orders": [("c", shop.order(900, customer_id=1))]})
    _step(queried, "best")
    shop.commit({"orders": [("c", shop.order(901, customer_id=2))]})
    live = queried.live("best")
    assert live is not None
    step = StepInput(queried, queried.projection("best"), live, queried.store.cut())
    taken = by_stage.by_stage(step, Full(1, step.cut.epoch, "asked for"))
    assert taken.partial is not None and taken.partial.keys == 1
    again = ProjectionContext(queried.store, queried.settings, queried.projections, clock=standing_still)
    assert (_step(again, "best").kind, verify(again, "best").equal) == ("incremental", True)
