"""Files that nobody needs go at once; those that a driver at work is about to name stay, whatever the clock says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model.time import now_micros
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.verify import verify
from tests.projections.conftest import Deploy
from tests.projections.lifecycle.test_lifecycle import TOTALS, rows_of
from tests.projections.shoplog import ShopLog

YEAR = timedelta(days=365)


@pytest.fixture
def a_year_ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Sets the clock of the catalog."""

    def jump() -> None:
        monkeypatch.setattr(leases, "now", lambda _: now_micros() + int(YEAR / timedelta(microseconds=1)))

    return jump


def files(ctx: ProjectionContext) -> set[str]:
    return set(ctx.store.storage.list("derived"))


def before_its_commit(
    ctx: ProjectionContext, monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]
) -> None:
    """Have something done when the next step is computed and not committed."""
    commit = ctx.store.steps.commit

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(ctx.store.steps, "commit", commit)
        do()
        return commit(*args, **kwargs)

    monkeypatch.setattr(ctx.store.steps, "commit", meanwhile)


def test_a_jump_of_the_clock_takes_no_files_from_a_driver_at_work_nor_its_build(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch, a_year_ahead: Callable[[], None]
) -> None:
    ctx = deploy(TOTALS)
    ctx.store.storage.write(
        "derived/totals/1/0000-9-dead0000-00000000.run.arrow", b"of a driver that was killed"
    )
    written: list[set[str]] = []

    def collect() -> None:
        a_year_ahead()
        written.append(files(ctx))
        with pytest.raises(UsageError, match=r"is being built: projection totals by .*:\d+"):
            gc(ctx, "totals", number=1)
        assert gc(ctx, "totals") == []
        written.append(files(ctx))

    before_its_commit(ctx, monkeypatch, collect)
    rebuild(ctx, "totals")

    before, after = written
    assert len(after) > 0 and before - after == {"derived/totals/1/0000-9-dead0000-00000000.run.arrow"}
    assert verify(ctx, "totals").equal
    shop.work()
    before_its_commit(ctx, monkeypatch, lambda: gc(ctx, "totals"))
    refresh(ctx)
    assert verify(ctx, "totals").equal


def test_a_driver_that_was_taken_for_dead_commits_nothing_and_the_next_refresh_does_it(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch, a_year_ahead: Callable[[], None]
) -> None:
    """It is on another host, so nothing but its lease tells that it lives."""
    ctx = deploy(TOTALS)
    refresh(ctx)
    known, shown = files(ctx), rows_of(ctx, "totals")
    shop.work()

    def collect() -> None:
        with ctx.store.catalog.write() as connection:
            connection.execute(update(tables.leases).values(holder="projection totals by elsewhere:1"))
        gc(ctx, "totals")
        assert files(ctx) > known
        a_year_ahead()
        gc(ctx, "totals")
        assert files(ctx) == known

    before_its_commit(ctx, monkeypatch, collect)
    (outcome,) = refresh(ctx)
    assert outcome.status == "failed" and "taken for dead" in outcome.reason
    assert (files(ctx), rows_of(ctx, "totals")) == (known, shown)
    (outcome,) = refresh(ctx)
    assert outcome.status == "done" and verify(ctx, "totals").equal
