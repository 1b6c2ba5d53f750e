"""A repartition beside retention, state runs and a move of the store: each is done as a whole, before or after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import Fenced, OperatorError, TailraceError
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.maintenance.retention import apply
from tailrace.eventstore.model.retention import Retention
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings, TopicSettings, UpkeepSettings
from tailrace.eventstore.store import Store
from tests.eventstore.maintenance.move.test_move import move
from tests.eventstore.maintenance.test_repartition import expected, fill, state_of
from tests.eventstore.shop import CUSTOMERS, ORDERS, content
from tests.fixtures.stores import StoreFactory, one_catalog

At = Callable[[str, Callable[[], object]], None]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    """Has something done where a fail point is passed, once."""

    def arrange(place: str, do: Callable[[], object]) -> None:
        passed, left = failpoints.hit, [do]

        def hit(name: str, times: int = 1) -> None:
            passed(name, times)
            if name == place and left:
                left.pop()()

        monkeypatch.setattr(failpoints, "hit", hit)

    return arrange


def start_thread(work: Callable[[], object], said: list[TailraceError]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except TailraceError as error:
            said.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def store_with_archive(new_store: StoreFactory, tmp_path: Path) -> Store:
    """The first of its files is to go, to an archive."""
    orders = TopicSettings(retention=Retention(bytes=1), archive=str(tmp_path / "archive"))
    store = new_store(upkeep=UpkeepSettings(keep_seconds=0, state_bytes=1), topics={ORDERS.text: orders})
    for first in (1, 4):
        fill(store, first, first + 2)
        store.seal()
    return store


def assert_whole(store: Store) -> None:
    """Behind six transactions, a repartition, and three more. What was taken away is the archive's."""
    fill(store, 7, 9)
    store.maintain()
    assert store.log_start(ORDERS).epoch >= 3
    assert sum(file.rows for file in store.archived_files(ORDERS)) == sum(store.log_start(ORDERS).whole)
    assert state_of(store, 10) == expected(9)
    assert store.verify(archives=True).findings == ()


@pytest.mark.parametrize(
    ("catalog_url", "place"),
    [("sqlite", "archive_copied"), ("postgres", "retention_written")],
    indirect=["catalog_url"],
)
def test_retention_that_is_overtaken_removes_nothing_and_the_next_round_does_it(
    new_store: StoreFactory, tmp_path: Path, at: At, place: str
) -> None:
    store = store_with_archive(new_store, tmp_path)
    before = content(store)
    at(place, lambda: repartition(store, ORDERS, 7))
    with pytest.raises(Fenced, match="nothing was changed"):
        list(apply.retain(store))
    assert content(store) == before
    assert_whole(store)


def test_retention_and_a_repartition_in_the_middle_of_its_commit(
    new_store: StoreFactory, tmp_path: Path, at: At
) -> None:
    store, other = store_with_archive(new_store, tmp_path), new_store()
    going: list[threading.Thread] = []
    said: list[TailraceError] = []
    at("repartition_written", lambda: going.append(start_thread(lambda: list(apply.retain(store)), said)))
    repartition(other, ORDERS, 7)
    going[0].join()
    assert [type(each) for each in said] in ([], [Fenced])
    assert_whole(store)


@one_catalog
def test_a_state_run_that_is_overtaken_is_one_of_the_rows_before(new_store: StoreFactory, at: At) -> None:
    store = new_store()
    fill(store, 1, 6)
    at("state_run_written", lambda: repartition(store, ORDERS, 7))
    (made, _) = store.compact([ORDERS, CUSTOMERS])
    assert (made.topic, made.epoch) == (ORDERS.text, 6)
    fill(store, 7, 9)
    assert {epoch: state_of(store, epoch) for epoch in (6, 10)} == {6: expected(6), 10: expected(9)}
    assert store.verify().findings == ()


def settings_of(catalog: str, segments: str) -> StoreSettings:
    return StoreSettings(catalog=catalog, segments=Path(segments))


@pytest.fixture
def here(catalog_url: str) -> StoreSettings:
    return settings_of(catalog_url, "segments")


@pytest.fixture
def there() -> StoreSettings:
    return settings_of("sqlite:///moved.db", "moved")


def is_whole(store: Store, topic: TopicId, partitions: int) -> None:
    fill(store, 7, 7)
    assert store.topic(topic).partitions == partitions
    assert state_of(store, store.cut().epoch) == expected(7)
    assert store.verify().findings == ()


@pytest.mark.parametrize(
    ("catalog_url", "place"),
    [
        ("sqlite", "move_claimed"),
        ("postgres", "move_claimed"),
        ("sqlite", "move_closed"),
        ("postgres", "move_marked"),
    ],
    indirect=["catalog_url"],
)
def test_a_repartition_beside_a_move_comes_along_or_is_refused(
    here: StoreSettings, there: StoreSettings, store_dir: Path, at: At, place: str
) -> None:
    """By a process that opened the store before."""
    said: list[TailraceError] = []
    with Store.open(here, create=True, root=store_dir) as store:
        fill(store, 1, 6)
        store.seal()
        at(place, lambda: start_thread(lambda: repartition(store, ORDERS, 7), said).join())
        move(here, there, store_dir)
    refused = place != "move_claimed"
    assert [isinstance(each, Fenced | OperatorError) for each in said] == [True] * refused
    with Store.open(there, root=store_dir) as store:
        is_whole(store, ORDERS, 4 if refused else 7)
        repartition(store, ORDERS, 5)


def test_a_move_waits_for_a_repartition_in_the_middle_of_its_commit(
    here: StoreSettings, there: StoreSettings, store_dir: Path, at: At
) -> None:
    going: list[threading.Thread] = []
    said: list[Any] = []
    with Store.open(here, create=True, root=store_dir) as store:
        fill(store, 1, 6)
        at(
            "repartition_written",
            lambda: going.append(start_thread(lambda: move(here, there, store_dir), said)),
        )
        repartition(store, ORDERS, 7)
        going[0].join()
    assert said == []
    with Store.open(there, root=store_dir) as store:
        is_whole(store, ORDERS, 7)
