"""Who is at work on a projection is known by its process and its lease: no clock that jumps takes a living driver for
dead, and one that was taken for dead commits nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.metadata.projection_steps import NewStep
from tailrace.eventstore.model.time import now_micros
from tailrace.eventstore.store import Store
from tests.eventstore.catalog.test_processes import (
    ended_process,
    in_another_container,
    process_of_another_container,
)
from tests.eventstore.metadata.test_generations import FILES, generation
from tests.fixtures.stores import StoreFactory, one_catalog

DAY = timedelta(days=1)
Jump = Callable[[timedelta], None]


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Jump:
    """Sets the catalog's clock ahead of the true one."""

    def to(ahead: timedelta) -> None:
        def moved(_: object) -> int:
            return now_micros() + int(ahead / timedelta(microseconds=1))

        monkeypatch.setattr(leases, "now", moved)

    return to


def change_holder(store: Store, holder: str) -> None:
    """As if all leases had been taken by somebody else."""
    with store.catalog.write() as connection:
        connection.execute(update(tables.leases).values(holder=holder))


def test_a_driver_of_this_host_is_at_work_until_it_ends_whatever_the_clock_says(
    new_store: StoreFactory, jump: Jump
) -> None:
    store = new_store()
    number = generation(store.derived)
    with attempts.attempt(store.catalog, "totals", number, "1") as attempt:
        for ahead in (DAY, -DAY, timedelta()):
            jump(ahead)
            assert attempts.live_attempts(store.catalog, "totals", number) == {attempt.name}
        store.steps.commit(NewStep("totals", number, 0, 1, "full", FILES, 3), lease=attempt.lease)
        assert attempts.live_attempts(store.catalog, "totals", number) == frozenset(), (
            "it ends with the commit"
        )
    assert attempts.live_attempts(store.catalog, "totals", number) == frozenset()
    assert len(store.steps.list("totals", number)) == 1


def test_who_was_taken_for_dead_commits_nothing(new_store: StoreFactory, jump: Jump) -> None:
    """Killed on this host it is at once, on another when its lease was not renewed in time, or so it seems."""
    store = new_store()
    number = generation(store.derived)
    for holder, ahead in (
        (f"it by {ended_process().text}", timedelta()),
        ("it by elsewhere:1", DAY),
    ):
        with attempts.attempt(store.catalog, "totals", number, "1") as attempt:
            change_holder(store, "it by elsewhere:1")
            assert attempts.live_attempts(store.catalog, "totals", number) == {attempt.name}
            change_holder(store, holder)
            jump(ahead)
            assert attempts.live_attempts(store.catalog, "totals", number) == frozenset()
            with pytest.raises(leases.LeaseEnded, match="taken for dead"):
                store.steps.commit(NewStep("totals", number, 0, 1, "full", FILES, 3), lease=attempt.lease)
    assert store.steps.list("totals", number) == []


def test_a_build_is_given_up_when_nobody_is_at_work_on_it_and_its_time_is_over(
    new_store: StoreFactory, jump: Jump
) -> None:
    store = new_store()
    number = generation(store.derived)

    def state() -> GenerationState:
        return store.derived.generations("totals")[number - 1].state

    with attempts.build(store.catalog, "totals", number):
        jump(2 * DAY)
        assert attempts.give_up(store.catalog, "totals", number, DAY).startswith("projection totals by ")
        assert state() is GenerationState.BUILDING
    jump(timedelta())
    assert attempts.give_up(store.catalog, "totals", number, DAY) == ""
    assert state() is GenerationState.BUILDING
    jump(2 * DAY)
    assert attempts.give_up(store.catalog, "totals", number, DAY) == ""
    assert state() is GenerationState.FAILED
    with (
        pytest.raises(leases.LeaseEnded, match="tailrace rebuild totals"),
        attempts.build(store.catalog, "totals", number),
    ):
        pass


def test_who_is_at_work_on_a_generation_that_is_dropped_commits_nothing(new_store: StoreFactory) -> None:
    """The next generation may have the same number, and others names like it."""
    store = new_store()
    derived = store.derived
    names = ("totals", "Totals", "total_")
    assert [generation(derived, name) for name in names] == [1, 1, 1]
    with ExitStack() as held:
        mine, *others = [held.enter_context(attempts.attempt(store.catalog, name, 1, "1")) for name in names]
        derived.drop_generation("totals", 1)
        assert generation(derived) == 1
        with pytest.raises(leases.LeaseEnded):
            store.steps.commit(NewStep("totals", 1, 0, 1, "full", FILES, 3), lease=mine.lease)
        for name, other in zip(names[1:], others, strict=True):
            store.steps.commit(NewStep(name, 1, 0, 1, "full", FILES, 3), lease=other.lease)
    assert [len(store.steps.list(name, 1)) for name in names] == [0, 1, 1]


GIVE_UP = """
import sys
from datetime import timedelta
from pathlib import Path
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
settings = StoreSettings(catalog=sys.argv[1], segments=Path("segments"))
with Store.open(settings, root=Path(sys.argv[2])) as store:
    print(attempts.give_up(store.catalog, "totals", 1, timedelta(days=-1)))
    print(*attempts.live_attempts(store.catalog, "totals", 1))
"""


@one_catalog
def test_a_build_in_another_container_of_the_same_host_name_is_not_undone(
    new_store: StoreFactory, catalog_url: str, store_dir: Path, jump: Jump
) -> None:
    """Each of the two counts its processes from 1, and cannot see the other's: only the lease tells."""
    store = new_store()
    number = generation(store.derived)
    with attempts.build(store.catalog, "totals", number):
        if command := in_another_container(sys.executable, "-c", GIVE_UP, catalog_url, str(store_dir)):
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
            assert told[0].startswith("projection totals by ")
            assert told[1].startswith("build-")
        with process_of_another_container() as other:
            change_holder(store, f"projection totals by {other.text}")
            assert attempts.give_up(store.catalog, "totals", number, -DAY).endswith(str(other))
        assert len(attempts.live_attempts(store.catalog, "totals", number)) == 1
        assert store.derived.generations("totals")[0].state is GenerationState.BUILDING
        jump(2 * DAY)
        assert attempts.live_attempts(store.catalog, "totals", number) == frozenset(), "its lease has ended"
