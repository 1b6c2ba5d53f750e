"""A source's clock that was set is reported, and nothing else is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tailrace.cdc.status import CaptureProgress

NOW = datetime.now(UTC)


def reports(*seconds: float) -> list[str]:
    """What a capture says of commits so many seconds from now, in this order."""
    progress = CaptureProgress("shop")
    for each in seconds:
        moment = NOW + timedelta(seconds=each)
        progress.add_epochs(epochs=1, transactions=1, changes=1, commit_ts=moment)
    progress.add_epochs(epochs=1, transactions=0, changes=0, commit_ts=None)
    return list(progress.status().messages)


def test_commit_times_that_go_back_by_little_or_rise_as_they_like_are_not_reported() -> None:
    assert reports(-90_000, -90_000.5, -3600, -3659, -3600, 0, 30, -20) == []


def test_a_clock_that_was_set_back_is_reported_with_both_times() -> None:
    (said,) = reports(-100, -7300, -7299, -7298, -100)
    for seconds in (-100, -7300):
        assert f"{NOW + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}" in said
    assert "name an epoch or an LSN" in said
    assert len(reports(-100, -7300, -7299, -9000)) == 2, "and when it is set again"


def test_a_clock_that_is_ahead_is_reported_once_and_again_after_it_was_right() -> None:
    (said,) = reports(0, 3600, 3601, 3602)
    assert "ahead of this host's" in said
    ahead, back, again = reports(3600, 0, 1, 3600)
    assert "ahead" in ahead and "went back" in back and "ahead" in again
