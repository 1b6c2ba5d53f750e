"""The 22 queries of TPC-H in the standard's text, over its ``char(n)`` columns and without a word about what inputs
affect: accepted, and what Postgres answers, at first and after changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections import load_projections
from tailrace.projections.analysis.check import examine
from tailrace.projections.compute.compute import define
from tailrace.projections.compute.frames import local_frame, read_buckets, shown_columns
from tailrace.projections.compute.read_plan import plan_input
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh
from tests.fixtures.scale import Scale
from tests.fixtures.spark import SPARK, interpreted
from tests.projections.tpch.data import Generator, Size, change, load
from tests.support.capturing import RunningCapture, Site, init_and_capture

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = Path(__file__).parent
QUERIES = load_projections([], FOLDER, ["queries"])
ROUNDS = 3
TINY = Size(suppliers=25, parts=80, customers=60, orders=500)


def answer_of_postgres(dsn: str, name: str) -> list[dict[str, Any]]:
    text = (FOLDER / "queries" / f"{name}.sql").read_text()
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return connection.execute(sql.SQL(text)).fetchall()


def same(expected: list[dict[str, Any]], found: pa.Table) -> bool:
    """The rows of both in one order, numbers with the digits that both have: quotients and averages have others in
    Spark, which check says."""
    names = found.column_names
    digits = [_digits([row[name] for row in expected], found.field(name).type) for name in names]
    wanted = [[row[name] for name in names] for row in expected]
    given = [list(row.values()) for row in found.to_pylist()]
    return _comparable(wanted, digits) == _comparable(given, digits)


def _digits(values: list[Any], kind: pa.DataType) -> int:
    """How many behind the point a column has in both."""
    known = [-int(each.as_tuple().exponent) for each in values if isinstance(each, Decimal)]
    return min(kind.scale, *known) if pa.types.is_decimal(kind) and known else 0


def _comparable(rows: list[list[Any]], digits: list[int]) -> list[str]:
    return sorted(repr([_cell(*each) for each in zip(row, digits, strict=True)]) for row in rows)


def _cell(value: Any, digits: int) -> Any:
    if isinstance(value, str):
        return value.rstrip(
            " "
        )  # of char(n), which psycopg gives with its padding; no other text ends with one
    return round(Decimal(value), digits) if isinstance(value, int | Decimal) else value


@pytest.fixture
def captured(tmp_path: Path, database: str, scale: Scale) -> Iterator[tuple[RunningCapture, Generator]]:
    generator = Generator(scale.pick(smoke=TINY, full=Size.of_factor(0.05)), Random(22))
    load(database, generator)
    with init_and_capture(Site.at(tmp_path, database)) as capture:
        yield capture, generator


@pytest.mark.slow
def test_tpch_is_accepted_as_it_is_written_and_means_what_it_means_in_postgres_also_after_changes(
    captured: tuple[RunningCapture, Generator], tmp_path: Path, spark: SparkSession, scale: Scale
) -> None:
    capture, generator = captured
    site = capture.site
    settings = Settings(
        store=site.store_settings,
        sinks={"lake": SinkSettings(kind="parquet", path=tmp_path / "lake")},
        spark=SPARK,
    )
    ctx = ProjectionContext(capture.store, settings, QUERIES)
    reports = {name: examine(ctx, projection) for name, projection in QUERIES.items()}
    refused = {name: report.findings for name, report in reports.items() if not report.ok}
    assert refused == {}
    results = scale.pick(smoke=computed, full=refreshed)
    some = scale.pick(smoke=tuple(QUERIES)[::2], full=tuple(QUERIES))
    compare(site.dsn, results(ctx, some), "at first")
    for number in range(1, ROUNDS + 1):
        change(site.dsn, generator)
        capture.catch_up()
        if scale is Scale.FULL or number == ROUNDS:
            compare(site.dsn, results(ctx, tuple(QUERIES)), f"after round {number}")


def computed(ctx: ProjectionContext, names: Sequence[str]) -> Mapping[str, pa.Table]:
    """What the queries give over the log's rows of now, each table read once."""
    store, cut = ctx.store, ctx.store.cut()
    frames: dict[str, DataFrame] = {}
    for projection in (QUERIES[name] for name in names):
        for name, source in projection.inputs.items():
            if name not in frames:
                planned = plan_input(store, source, cut)
                rows = pa.concat_tables(read_buckets(store.storage, planned, range(planned.buckets)))
                shown = rows.select(shown_columns(planned, source))
                frames[name] = local_frame(ctx.spark, projection, name, shown).coalesce(1).alias(name)
    results = {
        name: define(QUERIES[name], {each: frames[each] for each in QUERIES[name].inputs}, cut.commit_ts)
        for name in names
    }
    with interpreted(ctx.spark):
        return {name: result.toArrow() for name, result in results.items()}


def refreshed(ctx: ProjectionContext, names: Sequence[str]) -> Mapping[str, pa.Table]:
    """What readers are given after a refresh."""
    outcomes = refresh(ctx)
    assert {outcome.projection: outcome.error for outcome in outcomes} == dict.fromkeys(names)
    return shown(ctx, names)


def shown(ctx: ProjectionContext, names: Sequence[str]) -> Mapping[str, pa.Table]:
    """What readers are given."""
    found = {}
    for name in names:
        generation = ctx.live(name)
        assert generation is not None
        batches = list(ctx.sink(generation).scan(ctx.target(generation)))
        found[name] = pa.Table.from_batches(batches, batches[0].schema)
    return found


def compare(dsn: str, results: Mapping[str, pa.Table], when: str) -> None:
    expected = {name: answer_of_postgres(dsn, name) for name in results}
    assert [name for name, rows in expected.items() if not rows] == [], (
        "a query that nothing fulfils proves nothing"
    )
    different = [name for name in results if not same(expected[name], results[name])]
    assert different == [], (
        f"{when}: {[(expected[name][:2], results[name].to_pylist()[:2]) for name in different]}"
    )
