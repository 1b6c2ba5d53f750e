"""Verifying beside a runner: a sink is compared while it moves, at one position, or in parts where it shows none."""

from __future__ import annotations

import psycopg
import pytest
import redis as redis_client

from tailrace.eventstore.settings import Settings
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tests.projections.conftest import Deploy
from tests.projections.lifecycle.test_lifecycle import TOTALS
from tests.projections.shoplog import ShopLog

SINKS = {
    "postgres": TOTALS,
    "parquet": TOTALS.replace("PostgresTable", "ParquetFolder").replace('"mart", "totals"', '"lake"'),
    "search": TOTALS.replace("PostgresTable", "SearchIndex").replace(
        '"mart", "totals"', '"search", fields={"customer_id": "i64"}'
    ),
}
KEEPING_NOTHING = SINKS["parquet"].replace('"lake"', '"lake", keep_seconds=0')
CACHED = TOTALS.replace("PostgresTable", "RedisCache").replace('"mart", "totals"', '"cache"')
DAMAGE = "1.00"


def test_a_sink_that_is_refreshed_while_it_is_read_is_compared_and_what_moved_is_read_again(
    shop: ShopLog, deploy: Deploy, settings: Settings
) -> None:
    ctx = deploy(CACHED)
    runner = ProjectionContext(ctx.store, ctx.settings, ctx.projections)
    refresh(runner)
    url = settings.sinks["cache"].url
    assert url is not None
    moves: list[int] = []
    with redis_client.Redis.from_url(url.get_secret_value(), decode_responses=True) as client:

        def damage(customer: int) -> None:
            (row,) = [key for key in client.keys("*") if key.endswith(f"}}:{customer}")]
            client.hset(row, "total", DAMAGE)

        def refreshing(step: str, done: int, total: int | None, unit: str) -> None:
            """In the middle of a first reading, and of the one after it."""
            if step.startswith("reading the sink") and len(moves) < 2 and (not moves or done <= moves[-1]):
                moves.append(done)
                number = 900 + 10 * len(moves)
                touched = [shop.order(number + customer, customer_id=customer) for customer in (3, 4)]
                shop.commit({"orders": [("c", order) for order in touched]})
                refresh(runner)
                damage(3)

        damage(5)
        ctx.report = refreshing
        found = verify(ctx, "totals")

    assert len(moves) == 2
    assert (found.rows, found.epoch) == (12, ctx.store.cut().epoch)
    assert (found.different, found.only_in_log, found.only_in_sink) == (2, 0, 0)
    assert {sample.key for sample in found.samples} == {'{"customer_id": 3}', '{"customer_id": 5}'}
    assert {sample.actual for sample in found.samples} == {f'{{"total": "{DAMAGE}"}}'}


@pytest.mark.slow
@pytest.mark.parametrize("sink", SINKS)
def test_a_sink_with_snapshots_is_compared_at_one_position_however_often_it_is_refreshed(
    shop: ShopLog, deploy: Deploy, sink: str
) -> None:
    ctx = deploy(SINKS[sink])
    runner = ProjectionContext(ctx.store, ctx.settings, ctx.projections)
    refresh(runner)
    moves = 0

    def refreshing(step: str, done: int, total: int | None, unit: str) -> None:
        """Each time that rows have been read, and all of them are not compared yet."""
        nonlocal moves
        if step.startswith("reading the sink"):
            moves += 1
            shop.commit({"orders": [("c", shop.order(900 + moves, customer_id=3))]})
            refresh(runner)

    ctx.report = refreshing
    for sample in (None, None, 100):
        before = ctx.store.cut().epoch
        found = verify(ctx, "totals", sample=sample)
        assert (found.equal, found.epoch) == (True, before)
        assert ctx.store.cut().epoch > before
    assert moves >= 3


def test_what_was_changed_by_hand_is_found_while_the_table_is_refreshed(
    shop: ShopLog, deploy: Deploy, settings: Settings
) -> None:
    ctx = deploy(TOTALS)
    runner = ProjectionContext(ctx.store, ctx.settings, ctx.projections)
    refresh(runner)
    dsn = settings.sinks["mart"].dsn
    assert dsn is not None

    def refreshing(step: str, done: int, total: int | None, unit: str) -> None:
        if step.startswith("reading the sink"):
            shop.commit({"orders": [("c", shop.order(901, customer_id=3))]})
            refresh(runner)

    with psycopg.connect(dsn.get_secret_value()) as connection:
        connection.execute("UPDATE totals__g1 SET total = %s WHERE customer_id = 5", (DAMAGE,))
    before, ctx.report = ctx.store.cut().epoch, refreshing
    found = verify(ctx, "totals")

    assert (found.epoch, found.different, found.only_in_log, found.only_in_sink) == (before, 1, 0, 0)
    assert [sample.key for sample in found.samples] == ['{"customer_id": 5}']


@pytest.mark.slow
def test_a_folder_that_was_removed_while_it_was_read_is_read_again(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy(KEEPING_NOTHING)
    runner = ProjectionContext(ctx.store, ctx.settings, ctx.projections)
    refresh(runner)
    moves = 0

    def refreshing(step: str, done: int, total: int | None, unit: str) -> None:
        nonlocal moves
        if step.startswith("reading the sink") and moves < 2:
            moves += 1
            shop.commit({"orders": [("c", shop.order(900 + moves, customer_id=3))]})
            refresh(runner)

    ctx.report = refreshing
    found = verify(ctx, "totals")
    assert (found.equal, found.epoch, moves) == (True, ctx.store.cut().epoch, 2)
