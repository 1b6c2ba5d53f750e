"""Several at once: a runner beside a rebuild, and a bad projection beside a good one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eventstore.errors import UsageError
from eventstore.log import Store
from eventstore.settings import Settings
from projections import PostgresTable
from projections.derived import schema_bytes
from projections.generation import spec_to_text
from projections.lifecycle import (
    ProjectionContext,
    gc,
    generations,
    promote,
    rebuild,
    refresh,
    rollback,
    verify,
)
from projections.runner import run
from tests.projections.conftest import Deploy
from tests.projections.shoplog import ShopLog

TOTALS = """
    from pathlib import Path
    from pyspark.sql import functions as F
    from projections import PostgresTable, State, projection

    @projection(key="customer_id", sink=PostgresTable("mart", "totals"), orders=State("shop.public.orders"))
    def totals(orders):
        return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))
"""
BAD = """
    @projection(key="id", sink=PostgresTable("mart", "bad"), orders=State("shop.public.orders"))
    def bad(orders):
        with Path({file!r}).open("a") as tries:
            tries.write("once more\\n")
        raise ValueError("no such luck")
"""


def test_a_runner_leaves_a_build_alone_until_it_is_ready(shop: ShopLog, deploy: Deploy) -> None:
    runner, builder = deploy(TOTALS), deploy(TOTALS)
    builder.projections = runner.projections
    refresh(runner)
    refreshed: list[str] = []

    def meanwhile(step: str, done: int, total: int | None, unit: str) -> None:
        """While the builder computes, the log grows and the runner refreshes."""
        if step.startswith("computing"):
            shop.work()
            refreshed.extend(str(outcome.generation) for outcome in refresh(runner) if outcome.changed)

    builder.report = meanwhile
    built = rebuild(builder, "totals")
    assert built.promoted is not None and built.promoted.previous == 1
    assert set(refreshed) == {"1"}
    (outcome,) = refresh(runner)
    assert (outcome.generation, outcome.status) == (2, "done")
    assert verify(runner, "totals").equal


def test_a_bad_projection_does_not_slow_the_others(
    shop: ShopLog, deploy: Deploy, settings: Settings, tmp_path: Path
) -> None:
    tries = tmp_path / "tries"
    loaded = deploy(TOTALS + BAD.format(file=str(tries)))
    slow = settings.projections.model_copy(update={"poll_seconds": 5.0})
    ctx = ProjectionContext(
        loaded.store, settings.model_copy(update={"projections": slow}), loaded.projections
    )
    stop = threading.Event()
    done = 0

    def tell(outcome: Any) -> None:
        nonlocal done
        if outcome.projection == "totals":
            assert outcome.status == "done"
            done += 1
            if done == 5:
                stop.set()
            else:
                threading.Thread(target=shop.work).start()

    run(ctx, None, stop, tell)
    assert done == 5
    assert 1 <= len(tries.read_text().splitlines()) < done


def test_a_position_before_the_log_is_told(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy(TOTALS)
    with pytest.raises(UsageError, match="1999-01-01 is before the first epoch"):
        rebuild(ctx, "totals", as_of="1999-01-01")
    assert not ctx.generations("totals")


@pytest.mark.parametrize("verb", [promote, rollback, gc, generations])
def test_a_name_that_nobody_knows_is_no_success(store: Store, settings: Settings, verb: Any) -> None:
    ctx = ProjectionContext(store, settings, {})
    store.derived.create_generation(
        "totals", fingerprint="", sink=spec_to_text(PostgresTable("mart", "totals")), key=["id"],
        schema=schema_bytes(pa.schema([("id", pa.int64())])), partitions=2, split=1,
    )  # fmt: skip
    with pytest.raises(UsageError, match="there is no projection 'total'") as caught:
        verb(ctx, "total")
    assert caught.value.hint == "did you mean totals?"
