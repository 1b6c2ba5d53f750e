"""Whether keys are followed goes by what earlier steps took."""

from __future__ import annotations

from datetime import UTC, datetime

from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.projections.refresh.costs import LATEST, too_costly

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 10**9


def took(kind: str, seconds: float, keys: int | None = None) -> RunRecord:
    return RunRecord("p", 1, NOW, NOW, 1, 2, kind, "", keys=keys, seconds=seconds)


def test_nothing_measured_speaks_for_following_keys() -> None:
    assert too_costly([], 10**6, ROWS) is None
    assert too_costly([took("full", 2.0)], 10**6, ROWS) is None
    assert too_costly([took("incremental", 9.0, keys=1)], 10**6, ROWS) is None


def test_a_third_of_many_keys_is_computed_as_all() -> None:
    assert too_costly([], 2000, 6000) is None
    assert too_costly([], 2001, 6000) == "2,001 keys are affected, of a result of 6,000 rows"
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


def test_one_slow_step_does_not_decide() -> None:
    slow = took("incremental", 30.0, keys=10)
    assert too_costly([slow, took("incremental", 0.5, keys=10), took("full", 2.0)], 10, ROWS) is None
    assert too_costly([slow] * LATEST + [took("incremental", 0.5, keys=10), took("full", 2.0)], 10, ROWS)
