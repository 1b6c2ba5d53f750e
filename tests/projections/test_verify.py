"""Verifying beside a runner: a sink that cannot show one position is compared all the same, while it moves."""

from __future__ import annotations

import redis as redis_client

from eventstore.settings import Settings
from projections.context import ProjectionContext
from projections.lifecycle import refresh, verify
from tests.projections.conftest import Deploy
from tests.projections.shoplog import ShopLog
from tests.projections.test_lifecycle import TOTALS

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
