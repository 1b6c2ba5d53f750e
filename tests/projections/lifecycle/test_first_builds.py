"""Projections that are built one after another read the log of a table once, and leave none of its rows in files."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tailrace.eventstore.errors import TransientError
from tailrace.projections.compute import input_files
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.apply import apply
from tailrace.projections.refresh.step import take_step
from tests.projections.conftest import Deploy
from tests.projections.shoplog import ShopLog

DEFINITIONS = """
    from pyspark.sql import functions as F
    from tailrace.projections import ParquetFolder, State, projection
    LAKE, ORDERS = ParquetFolder("lake"), State("shop.public.orders")

    @projection(key="customer_id", sink=LAKE, orders=ORDERS)
    def totals(orders):
        return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))

    @projection(key="status", sink=LAKE, orders=ORDERS)
    def without_a_key(orders):
        return orders.select(F.lit(None).cast("string").alias("status"))

    @projection(key="id", sink=LAKE, orders=ORDERS, customers=State("shop.public.customers"))
    def named(orders, customers):
        return orders.join(customers, orders.customer_id == customers.id).select(orders.id, "name", "amount")
"""


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the rows of each topic were read for files."""
    times: Counter[str] = Counter()
    write = input_files._write

    def counted(storage: Any, planned: Any, schema: Any, into: Path) -> None:
        times[planned.topic.text] += 1
        write(storage, planned, schema, into)

    monkeypatch.setattr(input_files, "_write", counted)
    return times


def test_a_table_that_several_read_is_read_once_and_its_files_go_with_the_last_build(
    shop: ShopLog,
    deploy: Deploy,
    written: Counter[str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where one of them fails, and in rebuilds. What one alone reads is its own."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    shop.commit({"customers": [("c", {"id": 1, "name": "Ada", "city": "Ulm"})]})
    shop.commit({"orders": [("c", shop.order(900 + number, customer_id=1)) for number in range(9)]})
    ctx = deploy(DEFINITIONS)
    assert {each.projection: each.status for each in refresh(ctx)} == {
        "totals": "done",
        "without_a_key": "failed",
        "named": "done",
    }
    assert written == {"shop.public.orders": 1, "shop.public.customers": 1}
    assert not list(temporary.glob("tailrace-inputs-*/*"))

    written.clear()
    names = ["totals", "named"]
    ctx.builds.plan(ctx.projections[name] for name in names)
    for name in names:
        rebuild(ctx, name)
        ctx.end_build(name)
    assert written["shop.public.orders"] == 1 and not list(temporary.glob("tailrace-inputs-*/*"))
    rebuild(ctx, "totals")
    assert written["shop.public.orders"] == 1, "one alone reads the log itself"
    assert all(verify(ctx, name).equal for name in names)


BUILD, BESIDE = "tailrace.projections.lifecycle.build", "tailrace.projections.refresh.beside"
TWO = """
    from pyspark.sql import functions as F
    from tailrace.projections import ParquetFolder, State, projection
    LAKE, ORDERS = ParquetFolder("lake"), State("shop.public.orders")

    @projection(key="customer_id", sink=LAKE, orders=ORDERS)
    def totals(orders):
        return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))

    @projection(key="customer_id", sink=LAKE, orders=ORDERS)
    def counts(orders):
        return orders.groupBy("customer_id").agg(F.count("*").alias("orders"))
"""


def test_the_next_one_is_computed_while_one_is_brought_to_its_sink(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the machine has cores for both."""
    monkeypatch.setattr(f"{BESIDE}.os.cpu_count", lambda: 4)
    ctx, taken, both = deploy(TWO), list[str](), threading.Event()

    def taken_step(step: Any, *more: Any) -> Any:
        found = take_step(step, *more)
        taken.append(step.projection.name)
        if len(taken) == len(ctx.projections):
            both.set()
        return found

    def patient_apply(*given: Any) -> Any:
        assert both.wait(60)
        return apply(*given)

    monkeypatch.setattr(f"{BUILD}.take_step", taken_step)
    monkeypatch.setattr(f"{BUILD}.apply", patient_apply)
    assert [(each.projection, each.reason) for each in refresh(ctx)] == [
        (name, "first build") for name in taken
    ]
    monkeypatch.undo()
    assert [each.status for each in refresh(ctx)] == ["nothing", "nothing"]
    assert verify(ctx, "totals").equal and verify(ctx, "counts").equal


@pytest.mark.parametrize("cores", [2, 4])
def test_a_build_whose_sink_was_away_goes_on_with_what_was_computed(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    """Others are not held up by it, and then it comes to the end of the log."""
    monkeypatch.setattr(f"{BESIDE}.os.cpu_count", lambda: cores)
    ctx = deploy(TWO)

    def away(ctx: Any, generation: Any, *more: Any) -> Any:
        if generation.projection == "totals":
            raise TransientError("the sink is away", hint="wait")
        return apply(ctx, generation, *more)

    monkeypatch.setattr(f"{BUILD}.apply", away)
    assert {each.projection: each.status for each in refresh(ctx)} == {"totals": "failed", "counts": "done"}
    monkeypatch.undo()
    (begun,) = ctx.generations("totals")
    (step,) = ctx.store.steps.list("totals", begun.number)
    head = shop.work()
    outcomes = [each for each in refresh(ctx) if each.projection == "totals"]
    assert [(each.status, each.generation) for each in outcomes] == [("done", begun.number)] * 2
    assert outcomes[0].epoch == step.to_epoch < head == outcomes[1].epoch
    assert ctx.store.steps.list("totals", begun.number)[0].hash == step.hash
    assert verify(ctx, "totals").equal
