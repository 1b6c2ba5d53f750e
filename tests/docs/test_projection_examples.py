"""The examples of ``Changes`` and ``Events`` on the page of projections, over rows made by hand, and the zone they
compute in."""

from __future__ import annotations

import re
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tailrace.projections import Projection, load_projections
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "projections" / "writing.md").read_text()
CHANGE = "_op string, _commit_ts timestamp, key struct<id: bigint>, after struct<id: bigint, status: string>"
EVENT = "stream string, invoice_paid struct<amount: decimal(12, 2)>, recorded_at timestamp"


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Projection]:
    blocks = re.findall(r"```python\n(from (?:pyspark|decimal).*?)```", PAGE, re.DOTALL)
    (tmp_path / "page_of_projections.py").write_text("\n\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "page_of_projections", raising=False)  # another test's
    return dict(load_projections(["page_of_projections"]))


def at(hour: int, day: int = 1) -> datetime:
    return datetime(2026, 3, day, hour, tzinfo=UTC)


def changes(spark: SparkSession) -> DataFrame:
    rows = [
        ("r", at(8), (1,), (1, "placed")),
        ("u", at(9), (1,), (1, "paid")),
        ("u", at(10), (1,), (1, "shipped")),
        ("c", at(11), (2,), (2, "placed")),
        ("d", at(12), (2,), None),
        ("t", at(13), None, None),
    ]
    return spark.createDataFrame(rows, CHANGE)


@pytest.mark.slow
def test_the_example_of_changes_gives_when_an_order_was_seen_and_paid(
    spark: SparkSession, examples: dict[str, Projection]
) -> None:
    result = examples["order_times"](changes=changes(spark)).select(
        "order_id", F.unix_timestamp("seen_at"), F.unix_timestamp("paid_at")
    )
    assert sorted(map(tuple, result.collect())) == [
        (1, at(8).timestamp(), at(9).timestamp()),
        (2, at(11).timestamp(), None),
    ]


def test_the_example_of_events_counts_days_in_utc(
    spark: SparkSession, examples: dict[str, Projection]
) -> None:
    rows = [
        ("order-1", None, at(9)),
        ("order-1", (Decimal("4.50"),), at(23)),  # the next day in Berlin, the same in UTC
        ("order-2", (Decimal("1.00"),), at(1)),
        ("order-3", (Decimal("2.00"),), at(1, day=2)),
        ("order-4", (Decimal("8.00"),), None),
    ]
    events = spark.createDataFrame(rows, EVENT)
    result = examples["paid_per_day"](events=events)
    assert sorted(map(tuple, result.collect())) == [
        (date(2026, 3, 1), Decimal("5.50")),
        (date(2026, 3, 2), Decimal("2.00")),
    ]


@pytest.mark.slow
def test_the_example_of_reasons_gives_each_update_the_events_of_its_transaction(
    spark: SparkSession, examples: dict[str, Projection]
) -> None:
    changes = spark.createDataFrame(
        [("u", 10, (1,)), ("u", 20, (1,)), ("u", 20, (2,)), ("c", 30, (3,))],
        "_op string, _lsn long, key struct<id: bigint>",
    )
    events = spark.createDataFrame(
        [("1", "order_paid", 20), ("1", "order_approved", 20), ("2", "order_paid", 30)],
        "stream string, type string, _lsn long",
    )
    result = examples["reasons"](changes=changes, events=events)
    assert sorted(map(tuple, result.collect())) == [
        (1, 10, ""),
        (1, 20, "order_approved, order_paid"),
        (2, 20, ""),
    ]


def test_the_expression_for_another_zone_gives_its_days(spark: SparkSession) -> None:
    (expression,) = re.findall(r"`(F\.to_date\(F\.from_utc_timestamp\(.*?\)\))`", PAGE)
    events = spark.createDataFrame([("order-1", None, at(23))], EVENT)
    (row,) = events.select(eval(expression, {"F": F})).collect()
    assert row[0] == date(2026, 3, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_test_of_the_page_on_checking_passes() -> None:
    page = (REPOSITORY / "docs" / "projections" / "checking.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": "page_on_checking"}
    exec(block, names)
    names["test_totals_follow_orders"]()
