"""A row that a sink refuses holds up what it is in, and no longer than it is there."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from tailrace.cli.projection.status import projection_statuses
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.maintenance.retire import retire
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.model.info import DROPPED
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.list import generations
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.plan import Nothing
from tailrace.projections.refresh.plan_all import plans
from tailrace.projections.refresh.refresh import RefreshOutcome
from tailrace.projections.runner import run
from tailrace.projections.sinks.open import open_reader as open_sink_reader
from tests.projections.conftest import Deploy
from tests.projections.lifecycle.test_lifecycle import rows_of
from tests.projections.shoplog import TABLES, ShopLog, topic

LAKE = """
    from tailrace.projections import ParquetFolder, State, projection

    @projection(key="id", sink=ParquetFolder("lake", partition_by=("city",)), customers=State("shop.public.customers"))
    def by_city(customers):
        return customers.select("id", "name", "city")
"""
MART = """
    from tailrace.projections import PostgresTable, State, projection

    @projection(key="id", sink=PostgresTable("mart", "by_city", indexes=(("city",),)),
        customers=State("shop.public.customers"))
    def by_city(customers):
        return customers.select("id", "name", "city")
"""
# No server takes it into an index, however well it packs it.
LONG = {LAKE: "x" * 300, MART: "".join(str(n * n) for n in range(3000))}
SINKS = pytest.mark.parametrize("source", [LAKE, MART], ids=["lake", "mart"])


def customer(city: str) -> dict[str, Any]:
    return {"id": 99, "name": "Eve", "city": city}


def states(ctx: ProjectionContext) -> list[tuple[int, str]]:
    return [(each.number, each.state.value) for each in ctx.generations("by_city")]


@SINKS
def test_a_first_build_that_a_row_held_up_succeeds_once_the_row_is_gone(
    shop: ShopLog, deploy: Deploy, source: str
) -> None:
    ctx = deploy(source)
    shop.commit({"customers": [("c", customer(LONG[source]))]})
    (refused,) = refresh(ctx)
    assert refused.status == "failed" and isinstance(refused.error, UsageError)
    assert states(ctx) == [(1, "failed")]
    (record,) = ctx.store.run_records.latest("by_city")
    assert (record.kind, record.status, record.generation) == ("build", "failed", 1)

    shop.commit({"customers": [("d", customer(LONG[source]))]})
    (built,) = refresh(ctx)
    assert (built.status, built.generation) == ("done", 2)
    assert states(ctx) == [(2, "live")], "nothing stays of the one that was refused"
    assert verify(ctx, "by_city").equal


def test_what_a_sink_refused_is_built_again_only_when_an_input_has_changed_or_somebody_asks(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(LAKE)
    shop.commit({"customers": [("c", customer(""))]})
    (first,) = refresh(ctx)
    shop.commit({"orders": [("c", shop.order(900))]})
    again = refresh(ctx) + refresh(ctx)
    assert [(each.status, each.reason) for each in again] == [("failed", first.reason)] * 2
    assert "tailrace rebuild by_city" in str(again[0].error)
    assert states(ctx) == [(1, "failed")]

    with pytest.raises(UsageError, match="partitions the folder"):
        rebuild(ctx, "by_city")
    assert states(ctx) == [(2, "failed")]
    shop.commit({"customers": [("u", shop.state["customers"][2] | {"name": "Ada L."})]})
    (other,) = refresh(ctx)
    assert other.status == "failed" and states(ctx) == [(3, "failed")]
    (record,) = ctx.store.run_records.latest("by_city")
    assert (record.generation, record.tries) == (3, 3), "one record, however often it is built"

    mended = deploy(LAKE.replace('"city")', '"city").where("city <> \'\'")'))
    (built,) = refresh(mended)
    assert (built.status, built.generation) == ("done", 4)


KEYLESS = """
    from tailrace.projections import ParquetFolder, State, projection

    @projection(key="city", sink=ParquetFolder("lake"), customers=State("shop.public.customers"))
    def by_city(customers):
        return customers.groupBy("city").count()
"""


def test_a_first_build_that_fails_whenever_it_is_tried_takes_one_number_and_no_advice_is_given_that_fails(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(KEYLESS)
    shop.commit({"customers": [("c", customer("x") | {"city": None})]})
    tried = [refresh(ctx) for _ in range(3)]
    assert {each.status for (each,) in tried} == {"failed"}
    assert states(ctx) == [(1, "failed")]
    (status,) = projection_statuses(ctx.store, ctx.settings)
    assert status.state == "no live generation: its build fails"
    assert status.failing is not None and "NULL in their key (city)" in status.failing.reason
    mended = deploy(KEYLESS.replace(".groupBy", ".dropna().groupBy"))
    (failed,) = generations(mended, "by_city")
    assert not failed.frozen, "it is not one that would be refreshed"
    (built,) = refresh(mended)
    assert (built.status, built.generation) == ("done", 1)


def test_what_reads_a_dropped_table_is_broken_and_does_not_wait(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy(KEYLESS.replace(".groupBy", ".dropna().groupBy"))
    refresh(ctx)
    shop.commit({"customers": [("c", customer("y"))]})
    shop.lsn += 10
    dropped = EpochBatch(
        "shop", shop.lsn, shop.lsn + 1, shop.lsn + 1, suspends=[(topic("customers"), DROPPED)]
    )
    shop.writer.append(dropped)
    (found,) = refresh(ctx)
    assert found.status == "failed" and "its table was dropped" in found.reason
    assert found.error is not None and "take it out of what reads it" in found.error.hint
    (planned,) = plans(ctx)
    assert isinstance(planned.plan, Nothing) and "take it out of what reads it" in planned.plan.reason
    retire(shop.store, topic("customers"))
    (found,) = refresh(ctx)
    assert found.status == "failed" and "retired" in found.reason


FLOATS = """
    from tailrace.projections import ParquetFolder, PostgresTable, RedisCache, State, projection

    CUSTOMERS = State("shop.public.customers", columns=("id", "level"))

    @projection(key="level", sink=ParquetFolder("lake"), customers=CUSTOMERS)
    def lake(customers):
        return customers.where("level IS NOT NULL")

    @projection(key="level", sink=PostgresTable("mart", "levels"), customers=CUSTOMERS)
    def mart(customers):
        return customers.where("level IS NOT NULL")

    @projection(key="level", sink=RedisCache("cache"), customers=CUSTOMERS)
    def cache(customers):
        return customers.where("level IS NOT NULL")
"""


@pytest.mark.slow
def test_zero_with_and_without_a_sign_is_one_key_in_every_sink_and_so_is_nan(
    shop: ShopLog, deploy: Deploy
) -> None:
    columns = (*TABLES["customers"].columns, Column(4, "level", 701, type_name="double precision"))
    levels = {91: 0.0, 92: -0.0, 93: math.nan, 94: math.nan}
    rows = {number: customer("x") | {"id": number, "level": level} for number, level in levels.items()}
    made = [("c", row) for row in rows.values()]
    shop.commit({"customers": made}, new_schemas={"customers": TopicSchema(2, columns)})
    ctx = deploy(FLOATS)
    refused = refresh(ctx)
    assert [each.status for each in refused] == ["failed"] * 3
    assert all("2 rows repeat a key (level)" in each.reason for each in refused), refused
    shop.commit({"customers": [("d", rows[91]), ("d", rows[94])]})
    assert [each.status for each in refresh(ctx)] == ["done"] * 3
    for name in ctx.projections:
        compared = verify(ctx, name)
        assert compared.equal and compared.rows == 2
        with open_sink_reader(
            ctx.settings, ctx.settings.store.name, name, ctx.projections[name].sink
        ) as reader:
            for zero in (0.0, -0.0):
                found = reader.get(zero)
                assert found is not None and found["id"] == 92
            nan = reader.get(math.nan)
            assert nan is not None and nan["id"] == 93
    shop.commit({"customers": [("c", rows[91]), ("d", rows[92])]})  # the other zero now
    refresh(ctx)
    for name in ctx.projections:
        compared = verify(ctx, name)
        assert compared.equal and compared.rows == 2, name


def test_a_runner_goes_on_by_itself_when_the_row_that_held_it_up_is_gone(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(LAKE)
    shop.commit({"customers": [("c", customer(""))]})
    stop, told, tries = threading.Event(), list[RefreshOutcome](), list[RefreshOutcome]()

    def count(outcome: RefreshOutcome) -> None:
        tries.append(outcome)
        if len(tries) == 5:
            stop.set()

    def tell(outcome: RefreshOutcome) -> None:
        told.append(outcome)
        if outcome.status == "failed":
            shop.commit({"customers": [("d", customer(""))]})
        else:
            stop.set()

    run(ctx, None, stop, tell, count)
    assert [each.status for each in told] == ["failed", "done"]
    assert len(rows_of(ctx, "by_city")) == len(shop.state["customers"])


def test_a_build_that_was_refused_while_it_caught_up_is_given_up_at_once(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(LAKE)
    came = False

    def meanwhile(step: str, done: int, total: int | None, unit: str) -> None:
        nonlocal came
        if step.startswith("applying") and not came:
            came = True
            shop.commit({"customers": [("c", customer(""))]})

    ctx.report = meanwhile
    with pytest.raises(UsageError, match="partitions the folder"):
        rebuild(ctx, "by_city")
    assert came and states(ctx) == [(1, "failed")]
    shop.commit({"customers": [("d", customer(""))]})
    assert rebuild(ctx, "by_city").generation == 2 and verify(ctx, "by_city").equal


def test_a_live_generation_that_is_held_up_says_the_way_out_and_readers_keep_what_they_have(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(LAKE)
    refresh(ctx)
    shop.commit({"customers": [("c", customer(""))]})
    (refused,) = refresh(ctx)
    assert refused.status == "failed" and "tailrace rebuild by_city" in str(refused.error)
    with pytest.raises(UsageError, match="partitions the folder"):
        rebuild(ctx, "by_city")
    assert states(ctx) == [(1, "live"), (2, "failed")]
    assert len(rows_of(ctx, "by_city")) == len(shop.state["customers"]) - 1

    shop.commit({"customers": [("d", customer(""))]})
    built = rebuild(ctx, "by_city")
    assert (built.generation, built.resumed) == (3, False)
    assert built.promoted is not None and verify(ctx, "by_city").equal
    assert [each.state for each in ctx.generations("by_city")] == [
        GenerationState.RETIRED, GenerationState.LIVE,
    ]  # fmt: skip
