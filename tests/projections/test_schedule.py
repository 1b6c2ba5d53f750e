"""Which projection is next: the furthest behind in proportion to its freshness, and nobody starves."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.projections.runner import LONGEST_WAIT, UNDECLARED_SECONDS, Schedule

FRESHNESS = st.one_of(st.none(), st.floats(0.5, 3600))
DURATIONS = st.lists(st.floats(0.05, 20), min_size=1, max_size=120)


class Log:
    """A log to which something is committed whenever somebody looks."""

    def __init__(self) -> None:
        self.committed = [0.0]

    @property
    def head(self) -> int:
        return len(self.committed)

    def age(self, now: float, epoch: int) -> float:
        """Seconds since the commit of the epoch after ``epoch``."""
        return now - self.committed[epoch]


@given(freshness=st.lists(FRESHNESS, min_size=1, max_size=6), durations=DURATIONS)
def test_the_furthest_behind_goes_first_and_none_starves(
    freshness: list[float | None], durations: list[float]
) -> None:
    declared = {f"p{number}": each for number, each in enumerate(freshness)}
    measure = {name: each or UNDECLARED_SECONDS for name, each in declared.items()}
    patience = {name: each / 2 if each else 0.0 for name, each in declared.items()}
    schedule, log, now = Schedule(declared, interval=1.0), Log(), 1.0
    lacks: dict[str, int] = {}
    longest, fewest = max(durations), min(measure.values())
    for duration in durations:
        log.committed.append(now)
        schedule.grew(log.head, lambda epoch, at=now: log.age(at, epoch), now)  # type: ignore[misc]
        chosen = schedule.next(now)
        if chosen is None:
            now += min(schedule.wait(now), 1.0) + 1e-6
            continue
        behind = {name: now - log.committed[epoch] for name, epoch in lacks.items() if epoch < log.head}
        due = {name: lag / measure[name] for name, lag in behind.items() if lag >= patience[name]}
        if len(lacks) < len(declared):
            assert chosen not in lacks, "each is looked at once before any is twice"
        elif due:
            assert due[chosen] == pytest.approx(max(due.values()))
            worst = measure[chosen] * len(declared) * longest / fewest
            assert behind[chosen] <= max(patience[chosen], worst) + (len(declared) + 1) * longest + 1
        lacks[chosen] = log.head
        now += duration
        schedule.refreshed(chosen, lacks[chosen], now)


def test_what_declares_its_freshness_waits_for_half_of_it_and_what_does_not_for_nothing() -> None:
    schedule = Schedule({"slow": 600.0, "quick": None}, interval=1.0)
    assert [schedule.next(0.0), schedule.next(0.0)] == ["slow", "slow"], "until it is said to be refreshed"
    for name in ("slow", "quick"):
        schedule.refreshed(name, 1, 0.0)
    assert schedule.next(0.5) is None and schedule.wait(0.5) == 0.5
    schedule.grew(2, lambda epoch: 0.0, 0.5)
    assert schedule.next(0.5) == "quick"
    schedule.refreshed("quick", 2, 0.6)
    assert schedule.next(0.7) is None
    assert schedule.next(300.4) == "quick", "looked at again: others roll back and mend"
    schedule.refreshed("quick", 2, 300.4)
    assert schedule.next(300.5) == "slow"


def test_what_was_committed_long_ago_is_due_at_once_after_a_start() -> None:
    schedule = Schedule({"slow": 600.0}, interval=1.0)
    schedule.refreshed("slow", 1, 0.0)
    schedule.grew(2, lambda epoch: 1000.0, 0.1)
    assert schedule.next(0.1) == "slow"


def test_what_fails_is_tried_ever_more_rarely_and_slows_nobody() -> None:
    schedule, log = Schedule({"bad": 1.0, "good": 3600.0}, interval=1.0), Log()
    schedule.refreshed("good", 1, 0.0)
    tries: list[float] = []
    now = 0.0
    while now < 200:
        log.committed.append(now)
        schedule.grew(log.head, lambda epoch: 0.0, now)
        if schedule.next(now) == "bad":
            tries.append(now)
            schedule.failed("bad", now)
        assert schedule.next(now) != "bad"
        now += 0.5
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps[:4] == [2, 4, 8, 16] and set(gaps[4:]) == {LONGEST_WAIT}
    schedule.refreshed("bad", log.head, now)
    schedule.grew(log.head + 1, lambda epoch: 0.0, now)
    assert schedule.next(now + 0.5) == "bad", "mended: as any other"
