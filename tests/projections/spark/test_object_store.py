"""Spark on a log whose segments are objects: its tasks read and write them by themselves, as on a cluster.

The API is moto's, and that of S3Proxy, which others run in production (`make test-servers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.settings import Settings, UpkeepSettings
from tailrace.eventstore.state.input import plan_state
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tailrace.projections.compute.state_runs import SparkWorkers
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tests.projections.conftest import Deploy
from tests.projections.lifecycle.test_lifecycle import TOTALS, rows_of
from tests.projections.shoplog import Row, ShopLog, settings_in, topic
from tests.support.object_store import S3Server

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ORDERS = topic("orders")


@pytest.fixture(params=["bucket", pytest.param("s3proxy_bucket", marks=pytest.mark.servers)])
def settings(
    tmp_path: Path,
    database: str,
    redis_url: str,
    spark: SparkSession,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    """Large epochs are objects, small ones blobs. The master is one whose workers see nothing of this machine."""
    given = settings_in(tmp_path, dsn=database, redis_url=redis_url)
    store = {
        "segments": f"s3://{request.getfixturevalue(request.param)}/acme",
        "inline_bytes": 3000,
        "upkeep": UpkeepSettings(keep_seconds=0, state_bytes=1),
    }
    if request.param == "s3proxy_bucket":  # as a session started for it has it
        environment = spark.sparkContext.environment
        monkeypatch.setitem(environment, "AWS_REQUEST_CHECKSUM_CALCULATION", "WHEN_REQUIRED")
    return given.model_copy(
        update={
            "store": given.store.model_copy(update=store),
            "spark": given.spark.model_copy(update={"master": "spark://somewhere:7077"}),
        }
    )


def totals(shop: ShopLog) -> dict[int, object]:
    found: dict[int, object] = {}
    for order in shop.state["orders"].values():
        found[order["customer_id"]] = found.get(order["customer_id"], 0) + order["amount"]
    return found


def state_of(store: Store) -> list[Row]:
    rows = [row for table in state(store, ORDERS, store.cut()) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: int(row["id"]))


@pytest.mark.slow
def test_projections_are_built_refreshed_and_verified_and_state_runs_made_from_objects(
    shop: ShopLog, deploy: Deploy, settings: Settings, spark: SparkSession
) -> None:
    ctx, store = deploy(TOTALS), shop.store
    for _ in range(3):
        shop.commit({"orders": [("u", order) for order in shop.state["orders"].values()]})
    assert store.storage.remote and any(ref.path for ref in store.segments(ORDERS, store.cut()))
    built = rebuild(ctx, "totals")
    assert {row["customer_id"]: row["total"] for row in rows_of(ctx, "totals")} == totals(shop)
    shop.work()
    (refreshed,) = refresh(ctx)
    assert (refreshed.status, refreshed.generation) == ("done", built.generation)
    assert {row["customer_id"]: row["total"] for row in rows_of(ctx, "totals")} == totals(shop)

    before, read = state_of(store), plan_state(store, ORDERS, store.cut()).rows()
    store.seal()
    (made,) = store.compact([ORDERS], workers=SparkWorkers(spark, 2))
    assert made.bytes and plan_state(store, ORDERS, store.cut()).rows() == made.kept < read
    assert state_of(store) == before

    dsn = settings.sinks["mart"].dsn
    assert dsn is not None
    with psycopg.connect(dsn.get_secret_value()) as connection:  # the sink's view takes updates
        connection.execute("UPDATE totals SET total = total + 1 WHERE customer_id = 3")
    objects = set(store.storage.list(""))
    compared = verify(ctx, "totals")
    assert (compared.different, compared.only_in_log, compared.only_in_sink) == (1, 0, 0)
    assert compared.rows == len(totals(shop))
    assert set(store.storage.list("")) == objects, "what was laid down to be compared is gone"
    assert store.verify().findings == ()


@pytest.mark.parametrize("settings", ["bucket"], indirect=True)
def test_what_the_object_store_refuses_a_task_is_said_as_anywhere(
    shop: ShopLog, deploy: Deploy, spark: SparkSession, s3: S3Server
) -> None:
    ctx = deploy(TOTALS)
    shop.store.seal()
    s3.demand_users(True)
    try:
        (outcome,) = refresh(ctx)
        with pytest.raises(OperatorError, match="was refused") as refused:
            shop.store.compact([ORDERS], workers=SparkWorkers(spark, 2))
    finally:
        s3.demand_users(False)
    assert outcome.status == "failed" and isinstance(outcome.error, OperatorError)
    for said in (outcome.error, refused.value):
        assert "AWS_ACCESS_KEY_ID" in said.hint
    assert outcome.reason.startswith("projection 'totals': s3://")
