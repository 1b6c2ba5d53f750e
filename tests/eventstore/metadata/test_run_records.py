"""The record of what refreshes did: newest first, bounded, and a failure that comes again is counted, not repeated."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tailrace.eventstore.metadata import run_records
from tailrace.eventstore.metadata.run_records import RunRecord
from tests.fixtures.stores import StoreFactory


def test_runs_are_recorded_newest_first(new_store: StoreFactory) -> None:
    records = new_store().run_records
    moment = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    added = [
        RunRecord("totals", 1, moment, None, None, 5, "full", "first build", 10, 0, "failed"),
        RunRecord("totals", 1, moment, moment, 5, 6, "full", "code changed", 1, 2),
    ]
    for record in added:
        records.add(record)
    assert records.latest("totals") == added[::-1]
    assert records.latest("totals", limit=1) == added[1:]
    assert records.latest("other") == []


def test_a_failure_that_comes_again_and_again_is_one_record(new_store: StoreFactory) -> None:
    records = new_store().run_records
    first, later = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (12, 13))
    failed = RunRecord("totals", None, first, first, None, 5, "refresh", "no sink", status="failed")
    again = replace(failed, started=later, finished=later, to_epoch=9)
    for record in (failed, again, again):
        records.add_failure(record)
    once = replace(again, started=first, tries=3)
    assert records.latest("totals") == [once]
    records.add_failure(replace(again, reason="another"))
    records.add(RunRecord("totals", 1, later, later, 0, 9, "full", "first build"))
    records.add_failure(again)
    assert [(each.reason, each.tries) for each in records.latest("totals")] == [
        ("no sink", 1), ("first build", 1), ("another", 1), ("no sink", 3),
    ]  # fmt: skip


def test_builds_that_fail_the_same_way_are_one_record_whatever_generation_each_began(
    new_store: StoreFactory,
) -> None:
    records = new_store().run_records
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    failed = RunRecord("totals", 1, moment, moment, 5, 5, "build", "refused", status="failed")
    again = replace(failed, generation=2, from_epoch=9, to_epoch=9)
    for record in (failed, again):
        records.add_failure(record)
    assert records.latest("totals") == [replace(again, tries=2)]


def test_of_each_projections_runs_the_newest_are_kept(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner that refreshes again and again does not fill the catalog."""
    monkeypatch.setattr(run_records, "STEPS_KEPT", 3)
    monkeypatch.setattr(run_records, "PRUNED_EVERY", 1)
    records = new_store().run_records
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for epoch in range(1, 7):
        for projection in ("totals", "other"):
            if epoch < 3 or projection == "totals":
                records.add(RunRecord(projection, 1, moment, moment, epoch, epoch + 1, "full", "due"))
    assert [record.from_epoch for record in records.latest("totals")] == [6, 5, 4]
    assert [record.from_epoch for record in records.latest("other")] == [2, 1]


def test_steps_push_out_no_comparison_nor_build(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_records, "STEPS_KEPT", 3)
    monkeypatch.setattr(run_records, "PRUNED_EVERY", 1)
    monkeypatch.setattr(run_records, "OTHERS_KEPT", 2)
    records = new_store().run_records
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for kind in ("verify", "verify", "verify", "build", "full", *["incremental"] * 3):
        records.add(RunRecord("totals", 1, moment, moment, 1, 2, kind, "due"))
    kept = [record.kind for record in records.latest("totals")]
    assert kept == [*["incremental"] * 3, "build", "verify", "verify"]
