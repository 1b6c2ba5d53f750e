"""How capture waits between attempts."""

from __future__ import annotations

from tailrace.cdc.backoff import FIRST_PAUSE, LONGEST_PAUSE, Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff()
    pauses = [backoff.pause(0.01, 1.0) for _ in range(8)]
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_chance_shortens_a_pause_by_up_to_half() -> None:
    assert Backoff().pause(0, 0.0) == FIRST_PAUSE / 2
    assert FIRST_PAUSE / 2 < Backoff().pause(0, 0.5) < FIRST_PAUSE


def test_after_an_attempt_that_lasted_the_pauses_begin_anew() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.pause(0.01, 1.0)
    assert backoff.pause(LONGEST_PAUSE + 1, 1.0) == FIRST_PAUSE
    assert backoff.pause(0.01, 1.0) == 2 * FIRST_PAUSE
