"""A build that is cut off is gone on with by bucket: what was finished is not computed again, nor trusted blindly."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import HistoryGone, TailraceError, TransientError
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import Settings, StoreSettings, TopicSettings, UpkeepSettings
from tailrace.eventstore.storage import Storage
from tailrace.eventstore.store import Store
from tailrace.projections import ProjectionFailed
from tailrace.projections.compute.bucket import RECEIPT
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import files_of
from tailrace.projections.generations.step_files import DerivedFile, folder_of, read_delta
from tailrace.projections.lifecycle.build import Rebuilt, rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh import apply
from tailrace.projections.refresh.plan_all import plans
from tests.projections.conftest import Deploy
from tests.projections.lifecycle.test_collect import a_year_ahead, before_its_commit
from tests.projections.lifecycle.test_crashes import settings_file
from tests.projections.lifecycle.test_lifecycle import TOTALS, rows_of
from tests.projections.shoplog import ShopLog, settings_in
from tests.support import REPOSITORY
from tests.support.forking import Forked
from tests.support.processes import has_ended

__all__ = ["a_year_ahead"]
BUCKETS = 8
ORDERS = TopicId.parse("shop.public.orders")


@pytest.fixture
def settings(tmp_path: Path, database: str, redis_url: str) -> Settings:
    found = settings_in(tmp_path, dsn=database, redis_url=redis_url)
    return found.model_copy(update={"store": found.store.model_copy(update={"partitions": BUCKETS})})


@pytest.fixture
def file(shop: ShopLog, settings: Settings, tmp_path: Path) -> Path:
    return settings_file(settings, tmp_path, ["tailrace.demo.shop.projections"])


def listed(ctx: ProjectionContext, name: str, ending: str = "") -> list[str]:
    return [path for path in ctx.store.storage.list(folder_of(name, 1)) if path.endswith(ending)]


def contents(ctx: ProjectionContext, name: str) -> set[bytes]:
    return {bytes(ctx.store.storage.open(path)) for path in listed(ctx, name, ".run.arrow")}


def finished_before(ctx: ProjectionContext, name: str) -> int:
    """How many buckets the record of the first step says were taken over."""
    first = ctx.store.run_records.latest(name, kinds=["full"], but=["failed"])[-1]
    found = re.search(r"(\d) of \d buckets were finished before", first.reason)
    return int(found[1]) if found else 0


def cut_off(ctx: ProjectionContext, monkeypatch: pytest.MonkeyPatch, name: str = "totals") -> None:
    """A build of which every bucket is finished and whose step is not committed."""

    def away(*args: Any, **kwargs: Any) -> None:
        raise TransientError("the catalog is away")

    with monkeypatch.context() as patched:
        patched.setattr(ctx.store.steps, "commit", away)
        with pytest.raises(TransientError, match="the catalog is away"):
            rebuild(ctx, name)
    assert listed(ctx, name, RECEIPT)


def require_right(ctx: ProjectionContext, built: Rebuilt, name: str) -> None:
    """Proved, and with no file that no step needs."""
    assert (built.resumed, built.generation) == (True, 1)
    assert verify(ctx, name).equal
    gc(ctx, name)
    steps = ctx.store.steps.list(name, 1)
    assert set(listed(ctx, name)) == set().union(*(files_of(step).paths() for step in steps))


@pytest.mark.slow
def test_a_driver_killed_as_buckets_are_written_is_gone_on_with_from_those_that_were_finished(
    shop: ShopLog, deploy: Deploy, file: Path
) -> None:
    ctx = deploy()
    environment = {**os.environ, "TAILRACE_FAILPOINT": "derived_written~4000"}
    command = [sys.executable, "-m", "tailrace", "--config", str(file), "rebuild", "order_cache"]
    driver = Forked(
        command, cwd=REPOSITORY, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    while not listed(ctx, "order_cache", RECEIPT):
        assert driver.poll() is None
        time.sleep(0.02)
    os.killpg(driver.pid, signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    while not has_ended(driver.pid):
        time.sleep(0.02)
    finished, written = len(listed(ctx, "order_cache", RECEIPT)), contents(ctx, "order_cache")
    assert 0 < finished < BUCKETS
    position = ctx.store.cut().epoch
    shop.work()
    gc(ctx, "order_cache")
    assert len(listed(ctx, "order_cache", RECEIPT)) == finished, "they are of use"

    built = rebuild(ctx, "order_cache")

    assert finished_before(ctx, "order_cache") == finished
    first, *later = ctx.store.steps.list("order_cache", 1)
    assert (first.from_epoch, first.to_epoch) == (0, position) and later, "at its position, then caught up"
    assert written <= contents(ctx, "order_cache"), "the very bytes"
    require_right(ctx, built, "order_cache")
    assert rows_of(ctx, "order_cache") == shop.expected("order_cache")


def test_a_build_that_was_finished_but_for_its_commit_is_committed(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = deploy(TOTALS)
    cut_off(ctx, monkeypatch)
    with_rows = len(listed(ctx, "totals", RECEIPT))
    built = rebuild(ctx, "totals")

    assert finished_before(ctx, "totals") == with_rows
    require_right(ctx, built, "totals")


@pytest.mark.slow
def test_what_takes_over_may_be_cut_off_itself(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = deploy(TOTALS)
    cut_off(ctx, monkeypatch)
    receipts = len(listed(ctx, "totals", RECEIPT))
    for _ in range(3):
        shop.work()
        cut_off(ctx, monkeypatch)
        assert len(listed(ctx, "totals", RECEIPT)) == receipts
        assert len(listed(ctx, "totals")) == 2 * receipts, "nothing is there twice"

    require_right(ctx, rebuild(ctx, "totals"), "totals")
    assert finished_before(ctx, "totals") == receipts


@pytest.mark.parametrize("harm", ["damaged", "missing", "no receipt"])
def test_a_finished_bucket_that_is_not_what_was_written_is_computed_again(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    ctx = deploy(TOTALS)
    cut_off(ctx, monkeypatch)
    receipts = listed(ctx, "totals", RECEIPT)
    chosen = receipts[0] if harm == "no receipt" else listed(ctx, "totals", ".run.arrow")[0]
    data = bytes(ctx.store.storage.open(chosen))
    ctx.store.storage.delete(chosen)
    if harm != "missing":
        ctx.store.storage.write(chosen, data[:-20] + bytes(20))

    require_right(ctx, rebuild(ctx, "totals"), "totals")
    assert finished_before(ctx, "totals") == len(receipts) - 1


def test_nothing_is_taken_over_that_holds_what_was_erased_since(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = deploy(TOTALS)
    shop.commit({"orders": [("c", shop.order(number, customer_id=1)) for number in (900, 901)]})
    cut_off(ctx, monkeypatch)
    redact(shop.store, RedactionRequest(ORDERS, ["900"], ["amount"]))
    gc(ctx, "totals")
    assert not listed(ctx, "totals")
    cut_off(ctx, monkeypatch)
    redact(shop.store, RedactionRequest(ORDERS, ["901"], ["amount"]))
    before = set(listed(ctx, "totals"))

    require_right(ctx, rebuild(ctx, "totals"), "totals")
    assert finished_before(ctx, "totals") == 0 and before.isdisjoint(listed(ctx, "totals"))


def test_what_was_finished_of_a_definition_that_changed_goes(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = deploy(TOTALS)
    cut_off(ctx, monkeypatch)
    gone = ProjectionContext(ctx.store, ctx.settings, {})
    gc(gone, "totals")
    assert listed(ctx, "totals", RECEIPT), "its code may come back"
    gc(deploy(TOTALS.replace("sum", "max")), "totals")
    assert not listed(ctx, "totals")


def orders_of_an_hour(settings: Settings) -> StoreSettings:
    """Retention may take what is older."""
    return settings.store.model_copy(
        update={
            "topics": {ORDERS.text: TopicSettings.model_validate({"retention": "1h"})},
            "upkeep": UpkeepSettings(keep_seconds=0),
        }
    )


def test_a_build_that_retention_was_forced_past_is_given_up_and_the_next_computes_what_is_left(
    settings: Settings, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TOTALS.replace("State, projection", "Changes, projection")
    source = source.replace('key="customer_id"', 'key=("_lsn", "_ordinal")').replace("State(", "Changes(")
    source = source.replace(', affects="customer_id"', "")
    source = source[: source.index("return")] + 'return orders.select("_lsn", "_ordinal")\n'
    with Store.open(orders_of_an_hour(settings), create=True) as store:
        shop = ShopLog.start(store)
        shop.fill()
        ctx = ProjectionContext(store, settings, deploy(source).projections)
        cut_off(ctx, monkeypatch)
        store.maintain(force_past=["projection:totals"])
        shop.work()
        with pytest.raises(HistoryGone, match="computed from all changes"):
            rebuild(ctx, "totals")
        built = rebuild(ctx, "totals")
        assert (built.generation, built.resumed) == (1, False), (
            "it takes the number of the one that was given up"
        )
        assert verify(ctx, "totals").equal


OF_ORDERS = """
from pyspark.sql import functions as F
from tailrace.projections import Changes, PostgresTable, projection

@projection(key="order_id", sink=PostgresTable("mart", "of_orders"),
            changes=Changes("shop.public.orders", affects={"order_id": "id"}))
def totals(changes):
    return changes.groupBy(F.col("key.id").alias("order_id")).agg(F.count("*").alias("changes"))
"""


def test_a_refresh_by_keys_that_retention_was_forced_past_does_not_count_what_is_left(
    settings: Settings, deploy: Deploy
) -> None:
    with Store.open(orders_of_an_hour(settings), create=True) as store:
        shop = ShopLog.start(store)
        shop.fill()
        ctx = ProjectionContext(store, settings, deploy(OF_ORDERS).projections)
        (built,) = refresh(ctx)
        shop.commit({"orders": [("u", shop.state["orders"][2])]})
        (followed,) = refresh(ctx)
        assert (built.status, followed.status, followed.upserts) == ("done", "done", 1)
        (step, _) = store.run_records.latest("totals")
        assert step.kind == "incremental"
        before = {row["order_id"]: row["changes"] for row in rows_of(ctx, "totals")}

        store.maintain(force_past=["projection:totals"])
        shop.commit({"orders": [("u", shop.state["orders"][2])]})
        (planned,) = plans(ctx)
        assert planned.plan.kind == "nothing" and "retention removed those up to" in planned.plan.reason
        assert "tailrace rebuild totals computes it from what is left" in planned.plan.reason
        (outcome,) = refresh(ctx)

        assert outcome.status == "failed" and isinstance(outcome.error, HistoryGone)
        assert {row["order_id"]: row["changes"] for row in rows_of(ctx, "totals")} == before


def test_a_build_whose_code_is_at_fault_leaves_nothing(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = deploy(TOTALS.replace('"customer_id").agg', '"customer_id", "id").agg'))
    with pytest.raises(ProjectionFailed, match="rows repeat a key"):
        rebuild(ctx, "totals")
    assert not listed(ctx, "totals")


def test_a_driver_that_was_asleep_takes_nothing_from_who_took_over(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch, a_year_ahead: Callable[[], None]
) -> None:
    """It was on another host, so that nothing but its leases told whether it lives."""
    ctx = deploy(TOTALS)
    other = ProjectionContext(ctx.store, ctx.settings, ctx.projections)
    built: list[Rebuilt] = []

    def taken_over() -> None:
        assert listed(ctx, "totals", RECEIPT)
        with ctx.store.catalog.write() as connection:
            connection.execute(update(tables.leases).values(holder="projection totals by elsewhere:1"))
        a_year_ahead()
        built.append(rebuild(other, "totals"))

    before_its_commit(ctx, monkeypatch, taken_over)
    with pytest.raises(TailraceError, match=r"another process went on|taken for dead"):
        rebuild(ctx, "totals")

    assert finished_before(ctx, "totals") > 0
    require_right(ctx, built[0], "totals")


def test_a_step_that_was_taken_over_in_part_says_nothing_of_what_a_full_one_takes(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = deploy(TOTALS)
    ctx.clock = time.monotonic
    cut_off(ctx, monkeypatch)
    rebuild(ctx, "totals")
    (record,) = ctx.store.run_records.latest("totals", kinds=["full"])
    assert record.status == "done" and record.seconds is None


@pytest.mark.parametrize("name", ["customer_totals", "order_cache", "lake"])
def test_a_first_load_that_was_cut_off_goes_on_behind_the_buckets_that_are_in_the_sink(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lake = TOTALS.replace('PostgresTable("mart", "totals")', 'ParquetFolder("lake")')
    lake = lake.replace("import PostgresTable", "import ParquetFolder").replace("def totals", "def lake")
    ctx = deploy(lake) if name == "lake" else deploy()
    hit, passed, read = failpoints.hit, [0], list[int]()

    def away(at: str, times: int = 1) -> None:
        passed[0] += at == "bucket_applied"
        if passed[0] == 3:
            raise TransientError("the sink is away")
        hit(at, times)

    def noted(storage: Storage, file: DerivedFile, *args: Any) -> Any:
        read.append(file.bucket)
        return read_delta(storage, file, *args)

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hit", away)
        with pytest.raises(TransientError, match="the sink is away"):
            rebuild(ctx, name)
    assert ctx.fence(ctx.generation(name, 1)) is None
    monkeypatch.setattr(apply, "read_delta", noted)
    built = rebuild(ctx, name)

    (step,) = ctx.store.steps.list(name, 1)
    assert read == [file.bucket for file in files_of(step).deltas][3:]
    require_right(ctx, built, name)
