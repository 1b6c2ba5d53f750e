"""Whether keys are followed, and how large a refresh will be, go by earlier refreshes and counts of the log."""

from __future__ import annotations

from datetime import UTC, datetime

from tailrace.eventstore.log.row_counts import RowCount
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.projections.refresh.costs import LATEST, Estimate, Number, estimate, moves_each_time, too_costly
from tailrace.projections.refresh.plan import Full, Incremental, Nothing, Plan

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 10**9
STEP = Incremental(5, 9, "orders changed")


def took(kind: str, seconds: float, keys: int | None = None) -> RunRecord:
    return RunRecord("p", 1, NOW, NOW, 1, 2, kind, "", keys=keys, seconds=seconds)


def test_nothing_measured_speaks_for_following_keys() -> None:
    assert too_costly([], 10**6, ROWS) is None
    assert too_costly([took("full", 2.0)], 10**6, ROWS) is None
    assert too_costly([took("incremental", 9.0, keys=1)], 10**6, ROWS) is None


def test_a_third_of_many_keys_is_computed_as_all() -> None:
    assert too_costly([], 2000, 6000) is None
    assert too_costly([], 2001, 6000) == "2,001 keys are affected, of 6,000"
    assert too_costly([], 999, 999) is None


def test_beyond_the_crossover_everything_is_computed() -> None:
    records = [took("incremental", 2.5, keys=5000), took("incremental", 0.5, keys=1000), took("full", 2.0)]
    assert too_costly(records, 10, ROWS) is None
    assert too_costly(records, 3500, ROWS) is None
    reason = too_costly(records, 4500, ROWS)
    assert reason is not None and "4,500 keys" in reason and "2.2 s" in reason and "2.0 s" in reason
    assert too_costly(records, 6000, ROWS) is not None


def test_a_small_step_that_took_long_says_little_of_a_larger_one() -> None:
    records = [took("incremental", 2.8, keys=70), took("full", 30.0)]
    assert too_costly(records, 15_000, 10_000_000) is None
    assert too_costly(records, 3_300_000, 10_000_000) is not None, "a key is dearer than a row of everything"
    assert too_costly([took("incremental", 60.0, keys=15_000), *records], 15_000, 10_000_000) is not None


def test_what_was_measured_long_ago_is_tried_again() -> None:
    slow = took("incremental", 30.0, keys=10)
    assert too_costly([*[took("full", 2.0)] * 19, slow], 10, ROWS) is not None
    assert too_costly([*[took("full", 2.0)] * 20, slow], 10, ROWS) is None


def test_values_that_changed_three_times_in_a_row_are_compared_every_fourth_time() -> None:
    skipped = [moves for moves in range(1, 14) if moves_each_time(moves)]
    assert skipped == [3, 5, 6, 7, 9, 10, 11, 13]


def test_one_slow_step_does_not_decide() -> None:
    slow = took("incremental", 30.0, keys=10)
    assert too_costly([slow, took("incremental", 0.5, keys=10), took("full", 2.0)], 10, ROWS) is None
    assert too_costly([slow] * LATEST + [took("incremental", 0.5, keys=10), took("full", 2.0)], 10, ROWS)


def ran(changes: int | None, keys: int | None, upserts: int, deletes: int = 0, start: int = 1) -> RunRecord:
    kind = "full" if keys is None else "incremental"
    return RunRecord("p", 1, NOW, NOW, start, 2, kind, "", upserts, deletes, keys=keys, changes=changes)


def estimated(plan: Plan, changes: RowCount | None, *records: RunRecord) -> Estimate:
    found = estimate(plan, changes, 700, records)
    assert found is not None
    return found


def test_where_nothing_is_to_be_done_nothing_is_estimated() -> None:
    assert estimate(Nothing("it is at the end"), None, 700, [ran(10, 4, 4)]) is None


def test_a_first_build_has_nothing_to_go_by() -> None:
    found = estimated(Full(0, 9, "never built"), None)
    assert found.keys == found.rows == Number(None, "it has no result yet")


def test_keys_and_rows_are_as_many_for_each_changed_row_as_the_latest_refreshes_had() -> None:
    found = estimated(STEP, RowCount(30, 30), ran(10, 4, 3, 1), ran(20, 11, 2))
    assert found.keys == Number(15, "by its last 2 refreshes")
    assert found.rows == Number(6, "by its last 2 refreshes")
    assert estimated(STEP, RowCount(1, 1), ran(10, 1, 0)).keys.about == 1, "a changed row concerns some key"


def test_a_computation_of_everything_is_of_all_keys_of_the_last_result() -> None:
    found = estimated(Full(5, 9, "rows were erased"), RowCount(30, 30), ran(10, None, 2))
    assert found.keys == Number(700, "all of its last result")
    assert found.rows == Number(6, "by its last refresh")


def test_the_first_refresh_by_keys_has_a_key_for_each_changed_row_where_rows_name_their_keys() -> None:
    found = estimate(STEP, RowCount(3, 5), 700, [ran(10, None, 700, start=0)], direct=True)
    assert found is not None
    assert found.keys == Number(5, "a key for each changed row: no earlier refresh to go by")
    assert found.rows == Number(5, "a row for each key")


def test_nothing_is_concluded_from_first_builds_or_counts_that_are_not_known() -> None:
    nothing = Number(None, "no earlier refresh to go by")
    found = estimated(STEP, RowCount(3, 5), ran(None, 4, 4), ran(10, None, 700, start=0))
    assert found == Estimate(RowCount(3, 5), nothing, nothing)
    assert estimated(STEP, RowCount(3, 5), ran(10, None, 2)).keys == nothing, "no refresh by keys"
    assert estimated(STEP, None, ran(10, 4, 4)).keys.about is None
