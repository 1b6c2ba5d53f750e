"""A projection goes on after its store has moved: the fences of its sinks name log, epoch and hash, which stay."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tailrace.eventstore.maintenance.move.move import open_move
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tests.projections.conftest import Deploy
from tests.projections.shoplog import ShopLog
from tests.projections.test_runner import TOTALS
from tests.support.object_store import S3Server


@pytest.mark.slow
def test_a_projection_goes_on_from_an_object_store_after_a_move(
    shop: ShopLog,
    deploy: Deploy,
    settings: Settings,
    database: str,
    s3: S3Server,
    bucket: str,
    tmp_path: Path,
) -> None:
    before = deploy(TOTALS)
    refresh(before)
    shop.work()
    refresh(before)
    s3_of = settings.store.s3.model_copy(update={"endpoint": s3.endpoint})
    place = {"s3": s3_of, "catalog": database, "segments": f"s3://{bucket}/{secrets.token_hex(4)}"}
    there = settings.store.model_copy(update=place)
    with open_move(settings.store, there, tmp_path) as move:
        move.run(lambda text: None, lambda *done: None)
    with Store.open(there) as store:
        after = ProjectionContext(store, settings.model_copy(update={"store": there}), before.projections)
        (nothing,) = refresh(after)
        assert not nothing.changed
        shop.writer = store.take_over("shop")
        shop.work()
        store.seal()
        (outcome,) = refresh(after)
        assert (outcome.status, outcome.generation, outcome.changed) == ("done", 1, True)
        assert verify(after, "totals").equal
        assert any(path.endswith(".run.arrow") for path in store.storage.list("derived"))
