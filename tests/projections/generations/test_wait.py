"""A service that has written waits until a projection shows it: by epoch, or by the LSN that its server told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tailrace.eventstore.errors import NotYet, OperatorError, UsageError
from tailrace.eventstore.model.position import format_lsn
from tailrace.projections.generations.wait import wait_for
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.promote import promote
from tests.projections.conftest import Deploy
from tests.projections.lifecycle.test_lifecycle import TOTALS
from tests.projections.shoplog import ShopLog

A_LONG_TIME = 300.0


def test_readers_wait_for_an_epoch_or_an_lsn_and_are_told_what_is_missing(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(TOTALS)

    def wait(position: int | str, timeout: float = 0.0) -> int:
        return wait_for(ctx.settings, ctx.store, "totals", position, timeout=timeout)

    with pytest.raises(OperatorError, match="no generation of projection 'totals' is live"):
        wait(1)
    refresh(ctx)
    built = ctx.store.cut().epoch
    assert wait(built) == built
    assert wait(format_lsn(shop.lsn + 1)) == built
    elsewhere = shop.commit({"customers": [("c", {"id": 77, "name": "N", "city": "Graz"})]})
    assert wait(elsewhere) == elsewhere, "no row of its inputs is in that epoch"

    epoch = shop.commit({"orders": [("c", shop.order(900, customer_id=3))]})
    lsn = format_lsn(shop.lsn + 1)
    for position in (epoch, lsn, f"shop={lsn}"):
        with pytest.raises(NotYet, match=f"is at epoch {built}, before changes of shop.public.orders"):
            wait(position)
    with pytest.raises(NotYet, match=f"epoch {epoch + 1} is not in the log"):
        wait(epoch + 1)
    with pytest.raises(NotYet, match="is beyond the log"):
        wait(format_lsn(shop.lsn + 1000))
    for wrong in ("2026-01-01T12:00:00Z", "soon", -1, "other=0/10"):
        with pytest.raises(UsageError):
            wait(wrong, A_LONG_TIME)

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait, lsn, A_LONG_TIME)
        refresh(ctx)
        assert waiting.result() == epoch

    pinned = rebuild(ctx, "totals", as_of=str(built))
    promote(ctx, "totals", pinned.generation, stale_ok=True)
    with pytest.raises(OperatorError, match="does not move on"):
        wait(epoch, A_LONG_TIME)
