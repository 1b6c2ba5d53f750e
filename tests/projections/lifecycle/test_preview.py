"""A preview is a generation to be looked at: never promoted or refreshed, and compared with any other one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.model.keys import bucket_of
from tailrace.eventstore.settings import Settings
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.diff import BucketSplit, Sample, diff, overlapping_buckets
from tailrace.projections.lifecycle.list import generations
from tailrace.projections.lifecycle.promote import promote
from tailrace.projections.lifecycle.take_preview import promote_preview
from tailrace.projections.lifecycle.verify import verify
from tests.projections.conftest import Deploy
from tests.projections.shoplog import ShopLog
from tests.tailrace.metrics.test_projections import sink_away

TOTALS = """
    from pyspark.sql import functions as F
    from tailrace.projections import PostgresTable, State, projection

    @projection(
        key="customer_id", sink=PostgresTable("mart", "totals"),
        orders=State("shop.public.orders", affects="customer_id"))
    def totals(orders):
        return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"), F.count("*").alias("orders"))
"""
# The first customer's total is another one, the second customer is gone, one nobody knows came.
CHANGED = TOTALS.replace(
    "return orders.groupBy",
    """more = (F.col("amount") + 1).cast("decimal(12,2)")
        orders = orders.where("customer_id <> 2").withColumn(
            "amount", F.when(F.col("customer_id") == 1, more).otherwise(F.col("amount")))
        orders = orders.unionByName(orders.where("customer_id = 1").withColumn("customer_id", F.lit(99).cast("long")))
        return orders.groupBy""",
)
OTHER_TYPE = TOTALS.replace('F.sum("amount")', 'F.max("amount")')
LARGEST = TOTALS.replace('F.sum("amount")', 'F.max("amount").cast("decimal(22,2)")')


@pytest.mark.slow
def test_a_preview_is_compared_with_what_is_live_and_never_takes_its_place(
    shop: ShopLog, deploy: Deploy
) -> None:
    good, changed = deploy(TOTALS), deploy(CHANGED)
    rebuild(good, "totals")
    preview = rebuild(changed, "totals", preview="plus-one")
    assert (preview.generation, preview.promoted, preview.preview) == (2, None, "plus-one")

    found = diff(good, "totals", 1, 2)

    with pytest.raises(UsageError, match="the preview 'plus-one', which is never promoted as it is"):
        promote(good, "totals", 2)
    with pytest.raises(UsageError, match="no generation that waits"):
        promote(good, "totals")
    buyers = {row["customer_id"] for row in shop.state["orders"].values()}
    assert (found.only_in_first, found.only_in_second, found.different) == (1, 1, 1)
    assert found.rows[0] == found.rows[1] == len(buyers)
    by_key = {sample.key["customer_id"]: sample for sample in found.samples}
    assert set(by_key) == {1, 2, 99}
    one = by_key[1]
    assert one.first is not None and one.second is not None
    assert one.second["total"] == one.first["total"] + one.first["orders"]
    assert (by_key[2].second, by_key[99].first) == (None, None)
    assert diff(good, "totals", 1, 1).equal

    shop.work()
    outcomes = [outcome for ctx in (good, changed) for outcome in refresh(ctx)]
    assert {outcome.generation for outcome in outcomes} == {1}
    assert not gc(good, "totals", keep=0)
    again = rebuild(changed, "totals", preview="plus-one")
    left = [(each.generation.number, each.generation.state) for each in generations(good, "totals")]
    assert left == [(1, GenerationState.LIVE), (again.generation, GenerationState.READY)]


@pytest.mark.slow
def test_a_preview_is_there_although_the_sink_of_the_earlier_one_is_out_of_reach(
    shop: ShopLog, deploy: Deploy, settings: Settings
) -> None:
    rebuild(deploy(TOTALS), "totals", preview="look")
    cached = TOTALS.replace('PostgresTable("mart", "totals")', 'RedisCache("cache")')
    moved = deploy(cached.replace("PostgresTable,", "RedisCache,"))
    said: list[str] = []
    away = ProjectionContext(
        shop.store, sink_away(settings), moved.projections, report=lambda step, *_: said.append(step)
    )

    again = rebuild(away, "totals", preview="look")

    assert again.generation == 2 and [each.number for each in away.generations("totals")] == [1, 2]
    assert [each for each in said if each.startswith("generation 1 of projection 'totals' stays: ")]
    assert rebuild(moved, "totals", preview="look").generation == 3
    assert [each.number for each in moved.generations("totals")] == [3]


def test_generations_of_other_columns_and_buckets_are_compared_as_far_as_they_can_be(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(TOTALS)
    rebuild(ctx, "totals")
    wider = deploy(
        TOTALS.replace('.alias("orders"))', '.alias("orders").cast("string"), F.lit(1).alias("one"))')
    )
    spread = wider.settings.store.model_copy(update={"partitions": 3})
    wider.settings = wider.settings.model_copy(update={"store": spread})
    rebuild(wider, "totals", preview="wider")

    found = diff(ctx, "totals", 1, 2)

    assert found.only_columns == (("orders",), ("orders", "one"))
    assert (found.different, found.only_in_first, found.only_in_second) == (0, 0, 0)
    assert not found.equal and found.samples == list[Sample]()
    other_key = deploy(TOTALS.replace("customer_id", "product_id"))
    rebuild(other_key, "totals", preview="by-product")
    with pytest.raises(
        UsageError, match="is keyed by \\(customer_id int64\\), generation 3 by \\(product_id"
    ):
        diff(ctx, "totals", 1, 3)
    with pytest.raises(UsageError, match="has no generation 9"):
        diff(ctx, "totals", 1, 9)
    with pytest.raises(UsageError, match="'no label' is not a label"):
        rebuild(ctx, "totals", preview="no label")


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_a_key_is_looked_for_where_it_is_whatever_the_buckets(
    key_hash: int, one: int, other: int, few: int, many: int
) -> None:
    cut, own = BucketSplit(one, 2**few), BucketSplit(other, 2**many)
    found = overlapping_buckets(bucket_of(key_hash, *cut), cut, own)
    assert bucket_of(key_hash, *own) in found
    if one == other:
        assert len(found) == max(1, own.split // cut.split)


def test_a_preview_that_was_looked_at_is_brought_to_the_logs_end_by_key_and_shown(
    shop: ShopLog, deploy: Deploy
) -> None:
    good, changed = deploy(TOTALS), deploy(LARGEST)
    rebuild(good, "totals")
    rebuild(changed, "totals", preview="largest")
    shop.commit({"orders": [("c", shop.order(900, customer_id=3))]})

    with pytest.raises(UsageError, match="no preview 'other'") as caught:
        promote_preview(changed, "totals", "other")
    assert caught.value.hint == "there are: largest"
    with pytest.raises(UsageError, match="by another definition than the loaded one"):
        promote_preview(good, "totals", "largest")
    done = promote_preview(changed, "totals", "largest")
    assert (done.generation, done.previous) == (2, 1)
    (latest,) = changed.store.run_records.latest("totals", limit=1)
    assert (latest.generation, latest.kind) == (2, "incremental"), latest.reason
    assert verify(changed, "totals").equal

    shop.commit({"orders": [("c", shop.order(901))]})
    (outcome,) = refresh(changed, ["totals"])
    assert outcome.error is None and outcome.generation == 2
    with pytest.raises(UsageError, match="no preview 'largest'"):
        promote_preview(changed, "totals", "largest")


@pytest.mark.slow
def test_a_preview_that_readers_cannot_be_shown_is_refused_and_stays_a_preview(
    shop: ShopLog, deploy: Deploy
) -> None:
    rebuild(deploy(TOTALS), "totals")
    changed = deploy(OTHER_TYPE)
    rebuild(changed, "totals", preview="other-type")
    with pytest.raises(OperatorError, match="column 'total' changes"):
        promote_preview(changed, "totals", "other-type")
    (_, preview) = changed.generations("totals")
    assert preview.preview == "other-type" and preview.state is GenerationState.READY
    assert changed.store.derived.live("totals") == 1
