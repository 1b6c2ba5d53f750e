"""Which of TPC-H's queries are followed by key, by the columns of their tables alone, and that what is followed is what
Postgres answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.analysis.check import examine
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh
from tests.fixtures.scale import Scale
from tests.fixtures.spark import SPARK, interpreted
from tests.projections.shoplog import standing_still
from tests.projections.tpch.data import Generator, change, load
from tests.projections.tpch.test_tpch import QUERIES, ROUNDS, TINY, compare, refreshed, shown
from tests.support.capturing import RunningCapture, Site, init_and_capture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLLOWED = {
    "q01": (),
    "q04": (),
    "q05": (),
    "q07": ("nation",),  # it is read twice, of suppliers and of customers
    "q08": ("nation", "region"),
    "q09": (),
    "q11": (),
    "q12": (),
    "q15": (),
    "q16": ("supplier",),  # NOT IN
    "q20": (),
    "q22": (),
}
"""With the inputs whose changes have everything computed."""
WHILE_A_VALUE_STAYS = {"q11", "q15", "q22"}
"""A sum, the largest, a mean of all: when it changes, everything is computed."""
CHANGED = {"customer", "lineitem", "orders", "part", "partsupp", "supplier"}
"""In each round."""
_LIMIT = "it takes a number of rows of the whole result, not of each key"
_COMPUTED = r"each change has everything computed: its key \w+ is computed: .*sum\("
FULL = {
    "q02": _LIMIT, "q03": _LIMIT, "q10": _LIMIT, "q18": _LIMIT, "q21": _LIMIT,
    "q06": _COMPUTED, "q14": _COMPUTED, "q17": _COMPUTED, "q19": _COMPUTED,
    "q13": r"its key \(c_count\) is neither a column of an input nor computed of one row of it",
}  # fmt: skip


@pytest.fixture
def captured(tmp_path: Path, database: str) -> Iterator[tuple[RunningCapture, Generator]]:
    generator = Generator(TINY, Random(23))
    load(database, generator)
    with init_and_capture(Site.at(tmp_path, database)) as capture:
        yield capture, generator


@pytest.mark.slow
def test_each_query_is_followed_or_said_why_not_and_what_is_followed_is_what_postgres_answers(
    captured: tuple[RunningCapture, Generator], tmp_path: Path, spark: SparkSession, scale: Scale
) -> None:
    capture, generator = captured
    settings = Settings(
        store=capture.site.store_settings,
        sinks={"lake": SinkSettings(kind="parquet", path=tmp_path / "lake")},
        spark=SPARK,
    )
    ctx = ProjectionContext(
        capture.store, settings, {name: QUERIES[name] for name in FOLLOWED}, clock=standing_still
    )
    reports = {name: examine(ctx, projection) for name, projection in QUERIES.items()}
    followed = {name: report.whole for name, report in reports.items() if report.incremental}
    assert followed == FOLLOWED
    assert {name for name, report in reports.items() if report.subqueries} == WHILE_A_VALUE_STAYS
    for name, words in FULL.items():
        said = [*reports[name].findings, *reports[name].reasons]
        assert any(re.search(words, each.what) for each in said), (name, said)
    assert {*FOLLOWED, *FULL} == {*QUERIES}

    with interpreted(ctx.spark):
        compare(capture.site.dsn, refreshed(ctx, tuple(FOLLOWED)), "at first")
        for number in range(1, scale.pick(smoke=1, full=ROUNDS) + 1):
            change(capture.site.dsn, generator)
            capture.catch_up()
            outcomes = refresh(ctx)
            whole = {name for name, inputs in FOLLOWED.items() if {*inputs} & CHANGED}
            by_key = {each.projection for each in outcomes if each.kind == "incremental"}
            by_value = {each.projection for each in outcomes if each.cause == "subquery"}
            assert by_value <= WHILE_A_VALUE_STAYS and by_key == {*FOLLOWED} - whole - by_value
            compare(capture.site.dsn, shown(ctx, tuple(FOLLOWED)), f"after round {number}")
