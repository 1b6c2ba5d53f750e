"""What monitoring sees of projections."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.request import urlopen

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from tailrace.cli.projection.status import projection_statuses
from tailrace.eventstore.errors import DifferenceFound, TailraceError
from tailrace.eventstore.model.position import Fence
from tailrace.eventstore.settings import Settings
from tailrace.metrics.capture import serve
from tailrace.metrics.projections import ProjectionCollector
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import Generation
from tailrace.projections.lifecycle import progress
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.progress import SinkAnswer, SinkInspector
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.sinks.record import spec_to_text
from tailrace.projections.sinks.specs import PostgresTable
from tests.projections.conftest import Deploy, commit_step
from tests.projections.lifecycle.test_lifecycle import TOTALS
from tests.projections.shoplog import ShopLog
from tests.support import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

    Scrape = Callable[[ProjectionCollector], dict[str, float]]

LABELS = ("rung", "kind", "cause", "status")
PAGE = REPOSITORY / "docs" / "reference" / "metrics.md"
BAD = """
    from tailrace.projections import PostgresTable, State, projection

    @projection(key="id", sink=PostgresTable("mart", "bad"), orders=State("shop.public.orders"))
    def bad(orders):
        raise ValueError("no such luck")
"""


@pytest.fixture
def scrape() -> Scrape:
    """One real scrape: values by the metric's name and its labels but the projection's."""

    def ask(collector: ProjectionCollector) -> dict[str, float]:
        port, end = serve(collector, 0, "127.0.0.1")
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                text = answer.read().decode()
        finally:
            end()
        found = {}
        for family in text_string_to_metric_families(text):
            suffix = "_total" if family.type == "counter" else ""
            assert f"`{family.name}{suffix}`" in PAGE.read_text(), "documented"
            for sample in family.samples:
                labels = filter(None, (sample.labels.get(label) for label in LABELS))
                found[" ".join([sample.name.removeprefix("tailrace_"), *labels])] = sample.value
        return found

    return ask


def scrape_all(collector: ProjectionCollector, name: str) -> dict[str, float]:
    """One metric by projection."""
    (found,) = [metric for metric in collector.collect() if metric.name == name]
    return {sample.labels["projection"]: sample.value for sample in found.samples}


def test_a_first_build_that_keeps_failing_is_measured_until_it_succeeds(
    shop: ShopLog, deploy: Deploy, scrape: Scrape
) -> None:
    ctx = deploy(BAD)
    collector = ProjectionCollector(ctx)
    assert "projection_failing" not in scrape(collector)
    refresh(ctx)
    refresh(ctx)
    found = scrape(collector)
    assert found["projection_failing"] == 2 and "projection_generation" not in found

    refresh(deploy(BAD.replace('raise ValueError("no such luck")', "return orders")))
    assert scrape(collector)["projection_failing"] == 0


@pytest.mark.slow
def test_lags_counts_reasons_and_proofs_are_measured(
    shop: ShopLog, deploy: Deploy, settings: Settings, scrape: Scrape
) -> None:
    ctx = deploy(TOTALS)
    collector = ProjectionCollector(ctx)

    def refreshed() -> None:
        for outcome in refresh(ctx, ["totals"]):
            collector.count(outcome)

    refreshed()
    found = scrape(collector)
    assert found["projection_failing"] == 0
    assert found["log_epoch"] == found["projection_position_epoch sink"] == shop.store.cut().epoch
    assert found["projection_refreshes_total full first"] == 1
    assert found["projection_rows"] == found["projection_upserts_total"] == 12
    assert "projection_verified_epoch" not in found

    shop.commit({"customers": [("u", shop.state["customers"][1] | {"name": "Ada L."})]})
    found = scrape(collector)
    assert found["log_epoch"] == found["projection_position_epoch sink"] + 1
    assert found["projection_lag_epochs sink"] == 0, "no row of its inputs"

    shop.work()
    behind = scrape(collector)
    assert behind["projection_lag_epochs derived"] == behind["projection_lag_epochs sink"] == 2
    assert behind["projection_lag_seconds derived"] == pytest.approx(
        behind["projection_lag_seconds sink"], rel=0.1
    )
    commit_step(ctx, ctx.projection("totals"), ctx.generation("totals", 1), ctx.store.cut())
    found = scrape(collector)
    assert (found["projection_lag_epochs derived"], found["projection_lag_seconds derived"]) == (0, 0)
    assert found["projection_lag_epochs sink"] == 2 and found["projection_lag_seconds sink"] > 0
    (seen,) = projection_statuses(shop.store, settings)
    assert (seen.behind_epochs, seen.sink_behind_epochs) == (0, 2)
    assert (seen.epoch, seen.sink_epoch) == (found["log_epoch"], found["projection_position_epoch sink"])

    refreshed()
    shop.work()
    refreshed()
    found = scrape(collector)
    assert found["projection_lag_epochs sink"] == 0
    assert found["projection_refreshes_total incremental"] == 1
    assert found["projection_affected_keys_total"] >= 2
    assert found["projection_freshness_seconds"] > 0
    assert "projection_freshness_asked_seconds" not in found, "it declares none"
    latest = ctx.store.run_records.latest("totals", limit=1)[0]
    began = datetime.now(UTC)
    late = replace(
        latest, started=began, finished=began + timedelta(seconds=1), seconds=0.75, asked=2.0, behind=1e9
    )
    ctx.store.run_records.add(late)
    found = scrape(collector)
    assert found["projection_freshness_seconds"] == 1e9 and found["projection_freshness_asked_seconds"] == 2
    (seen,) = projection_statuses(shop.store, settings)
    assert seen.freshness is not None and seen.freshness.missed == (
        "asked for 2 s, its refreshes reach 1,000,000,000.0 s: computing it (incremental, spark) 0.8 s, the sink and"
        " the log 0.2 s, waiting for its turn 999,999,999.0 s"
    )

    verify(ctx, "totals")
    assert scrape(collector)["projection_verified_different_rows"] == 0
    mart = settings.sinks["mart"].dsn
    assert mart is not None
    with psycopg.connect(mart.get_secret_value()) as connection:
        connection.execute("UPDATE totals SET total = total + 1 WHERE customer_id = 3")
        connection.execute("DELETE FROM totals WHERE customer_id = 4")
    verify(ctx, "totals")
    found = scrape(collector)
    assert found["projection_verified_different_rows"] == 2
    assert found["projection_verified_epoch"] == found["log_epoch"]
    assert (
        found["projection_verified_timestamp_seconds"]
        > found["projection_generation_created_timestamp_seconds"]
    )
    told = [(run.kind, run.status) for run in ctx.store.run_records.latest("totals", limit=2)]
    assert told == [("verify", "different"), ("verify", "equal")]

    rebuild(ctx, "totals")
    verify(ctx, "totals")
    assert scrape(collector)["projection_verified_different_rows"] == 0
    with psycopg.connect(mart.get_secret_value()) as connection:
        connection.execute("ALTER TABLE totals__g2 RENAME total TO sum")
        connection.execute("ALTER TABLE totals__g2 ADD total text")
    with pytest.raises(DifferenceFound, match="somebody changed the columns"):
        verify(ctx, "totals")
    found = scrape(collector)
    assert found["projection_verified_different_rows"] == 1, "at least"
    assert found["projection_verified_epoch"] == found["log_epoch"]
    assert found["projection_failing"] == 0
    assert all(run.bytes > 0 for run in ctx.store.run_records.latest("totals", kinds=["incremental"]))


def test_a_sink_that_is_back_is_no_failure_any_more_though_nothing_was_left_to_do(
    shop: ShopLog, deploy: Deploy, settings: Settings
) -> None:
    built = deploy(TOTALS)
    rebuild(built, "totals")
    away = ProjectionContext(shop.store, sink_away(settings), built.projections)
    assert [outcome.status for outcome in refresh(away)] == ["failed"]
    collector = ProjectionCollector(away)
    assert scrape_all(collector, "tailrace_projection_failing") == {"totals": 1}
    away.settings = settings
    for _ in range(2):
        assert [outcome.status for outcome in refresh(away)] == ["nothing"]
    assert scrape_all(collector, "tailrace_projection_failing") == {"totals": 0}
    (seen,) = projection_statuses(shop.store, settings)
    assert seen.failing is None
    over, failed = shop.store.run_records.latest("totals", limit=2)
    assert (over.kind, over.status, over.to_epoch) == ("refresh", "done", shop.store.cut().epoch)
    assert over.reason.startswith("nothing was left to do: it is at epoch")
    assert (failed.status, failed.tries) == ("failed", 1)


@pytest.mark.slow
def test_a_sink_that_hangs_is_told_in_time_and_not_asked_again_meanwhile(
    shop: ShopLog, deploy: Deploy, scrape: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = deploy(TOTALS)
    rebuild(ctx, "totals")
    live = ctx.generation("totals", 1)
    lake = spec_to_text(PostgresTable("lake", "other"))
    others = [replace(live, projection=f"other{n}", sink_text=lake) for n in range(9)]
    released, asked, fence = threading.Event(), list[str](), ctx.fence

    def slow(generation: Generation) -> Fence | None:
        asked.append(generation.projection)
        if generation.projection == "totals":
            released.wait(60)
        return fence(live)

    monkeypatch.setattr(ctx, "fence", slow)
    monkeypatch.setattr(progress, "ask_sink", lambda ctx, of: SinkAnswer(getattr(ctx.fence(of), "epoch", 0)))
    inspector = SinkInspector(seconds=0.5)
    collector = ProjectionCollector(ctx)
    monkeypatch.setattr(collector, "_inspector", inspector)
    began = time.monotonic()
    try:
        for _ in range(2):
            found = scrape(collector)
            assert found["projection_sink_up"] == 0 and "projection_position_epoch sink" not in found
            assert found["projection_rows"] == 12
        assert asked == ["totals"]
        found_by = inspector(ctx, [live, *others])
        assert "has not answered within 0.5 s" in found_by["totals"].problem
        assert {found_by[each.projection].epoch for each in others} == {shop.store.cut().epoch}
        assert asked.count("totals") == 1 and time.monotonic() - began < 30
    finally:
        released.set()
    for thread in inspector._under_way["sink mart"]:
        thread.join(60)
    assert scrape(collector)["projection_sink_up"] == 1


def sink_away(settings: Settings) -> Settings:
    mart = settings.sinks["mart"].model_copy(update={"dsn": SecretStr("postgresql://127.0.0.1:1/mart")})
    return settings.model_copy(update={"sinks": settings.sinks | {"mart": mart}})


def test_a_sink_out_of_reach_and_what_fails_are_seen(
    shop: ShopLog, deploy: Deploy, settings: Settings, scrape: Scrape
) -> None:
    built, bad = deploy(TOTALS), deploy(BAD)
    rebuild(built, "totals")
    away = sink_away(settings)
    ctx = ProjectionContext(shop.store, away, built.projections)
    collector = ProjectionCollector(ctx)
    for outcome in refresh(bad, ["bad"]) + refresh(bad, ["bad"]):
        collector.count(outcome)
    refresh(ctx, ["totals"])
    found = scrape(collector)
    assert found["projection_sink_up"] == 0 and "projection_position_epoch sink" not in found
    never_built, seen = projection_statuses(shop.store, away)
    assert (seen.epoch, seen.sink_epoch, seen.behind_epochs) == (shop.store.cut().epoch, None, 0)
    assert "sink 'mart'" in seen.sink_problem
    assert found["projection_position_epoch derived"] == shop.store.cut().epoch
    assert found["projection_failures_total failed"] == 2
    assert scrape_all(collector, "tailrace_projection_failing") == {"bad": 2, "totals": 1}
    (failed,) = shop.store.run_records.latest("bad")
    assert (failed.status, failed.kind, failed.generation, failed.tries) == ("failed", "build", None, 2)

    with pytest.raises(TailraceError, match="sink 'mart'"):
        verify(ctx, "totals")
    (hindered, *_) = shop.store.run_records.latest("totals")
    assert (hindered.kind, hindered.status, hindered.generation) == ("verify", "failed", 1)
    assert "sink 'mart'" in hindered.reason
    assert "projection_verified_epoch" not in scrape(collector), "nothing was compared"
    assert never_built.name == "bad" and never_built.generation is None
    assert never_built.failing is not None and never_built.failing.tries == 2
