"""TPC-H by way of partial results: with them 22 of its 22 queries follow changes by key, or while a value stays, and
give what Postgres answers and what the query gives as it is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh import by_stage
from tests.fixtures.scale import Scale
from tests.fixtures.spark import SPARK, interpreted
from tests.projections.shoplog import standing_still
from tests.projections.tpch.data import Generator, change, load
from tests.projections.tpch.test_followed import WHILE_A_VALUE_STAYS
from tests.projections.tpch.test_tpch import QUERIES, ROUNDS, TINY, compare, refreshed, shown
from tests.support.capturing import RunningCapture, Site, init_and_capture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHOUT = {"q11", "q15", "q20"}
"""One compares its groups with a query's value, two have no group and no limit: they are followed as they are."""
READ_TWICE = {"q07", "q08", "q16"}
"""Changes of ``nation``, ``region`` and, by ``NOT IN``, ``supplier`` have all partial results computed anew."""


@pytest.fixture
def captured(tmp_path: Path, database: str) -> Iterator[tuple[RunningCapture, Generator]]:
    generator = Generator(TINY, Random(22))
    load(database, generator)
    with init_and_capture(Site.at(tmp_path, database)) as capture:
        yield capture, generator


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_query_follows_changes_with_partial_results_and_gives_what_postgres_answers(
    captured: tuple[RunningCapture, Generator],
    tmp_path: Path,
    spark: SparkSession,
    scale: Scale,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(by_stage, "_LONG_SECONDS", 0.0)
    monkeypatch.setattr(by_stage, "_REFRESHES", 1)
    capture, generator = captured
    settings = Settings(
        store=capture.site.store_settings,
        sinks={"lake": SinkSettings(kind="parquet", path=tmp_path / "lake")},
        spark=SPARK,
    )
    names = tuple(QUERIES)
    ctx = ProjectionContext(capture.store, settings, dict(QUERIES), clock=standing_still)
    with interpreted(ctx.spark):
        compare(capture.site.dsn, refreshed(ctx, names), "at first")
        for number in range(1, scale.pick(smoke=2, full=ROUNDS + 1) + 1):
            change(capture.site.dsn, generator)
            capture.catch_up()
            outcomes = {each.projection: each for each in refresh(ctx)}
            for name, outcome in sorted(outcomes.items()):
                print(number, name, outcome.status, outcome.kind, outcome.reason, outcome.error)
            compare(capture.site.dsn, shown(ctx, names), f"after round {number}")
        by_key = {name for name, each in outcomes.items() if each.kind == "incremental"}
        assert by_key >= {*names} - WHILE_A_VALUE_STAYS - READ_TWICE
        assert {name for name in names if ctx.generations(f"{name}.1")} == {*names} - WITHOUT
        for name in names:
            assert verify(ctx, name).equal, name
