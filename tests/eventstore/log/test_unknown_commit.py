"""A connection lost at COMMIT: the outcome is found out, nothing is appended twice and nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.eventstore.catalog import database as catalogs
from tailrace.eventstore.errors import Fenced, TransientError
from tailrace.eventstore.log import commit
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import ORDERS, assert_dense, batch, content, register, writer
from tests.fixtures.proxy import AtCommit, Proxy
from tests.fixtures.stores import StoreFactory


@pytest.fixture
def direct(database: str, store_dir: Path) -> Iterator[Store]:
    """The store without the proxy; of two sources."""
    with Store.open(StoreSettings(catalog=database), create=True, root=store_dir) as store:
        register(store, "depot")
        yield store


@pytest.fixture
def through_proxy(direct: Store, database: str, store_dir: Path, proxy: Proxy) -> Iterator[Store]:
    """Another handle of the same store, through the proxy."""
    with Store.open(StoreSettings(catalog=proxy.dsn(database)), root=store_dir) as store:
        yield store


@pytest.mark.parametrize("how", [AtCommit.LOST_BEFORE, AtCommit.LOST_AFTER, AtCommit.LATE])
@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
def test_an_unknown_commit_is_resolved(
    direct: Store, database: str, store_dir: Path, proxy: Proxy, how: AtCommit, inline_bytes: int
) -> None:
    settings = StoreSettings(catalog=proxy.dsn(database), inline_bytes=inline_bytes)
    with Store.open(settings, root=store_dir) as store:
        capture = writer(store)
        capture.append(batch(10, orders=[("c", 1)]))
        proxy.at_commit = how
        info = capture.append(batch(20, orders=[("c", 2)]))
        assert proxy.lost == 1
        assert info is not None and info == direct.head()
        capture.append(batch(30, orders=[("c", 3)]))
    assert [row["after"]["id"] for row in sorted(content(direct), key=lambda r: r["_lsn"])] == [1, 2, 3]
    assert_dense(content(direct))
    assert [info.epoch for info in direct.epochs()] == [1, 2, 3]


@pytest.mark.parametrize("how", [AtCommit.LOST_BEFORE, AtCommit.LOST_AFTER, AtCommit.LATE])
def test_an_unknown_commit_of_a_position_alone_is_resolved(
    direct: Store, through_proxy: Store, proxy: Proxy, how: AtCommit
) -> None:
    """The commit LSN does not move here, so only the id of the append tells."""
    capture = writer(through_proxy)
    capture.append(batch(10, orders=[("c", 1)]))
    proxy.at_commit = how
    capture.advance(50, 60)
    assert proxy.lost == 1
    capture.append(batch(70, orders=[("c", 2)]))
    state = direct.source("shop")
    assert state == capture.state
    assert len(content(direct)) == 2


@pytest.mark.parametrize("landed", [False, True])
def test_taken_over_while_the_outcome_is_unknown(
    direct: Store, through_proxy: Store, proxy: Proxy, landed: bool
) -> None:
    capture = writer(through_proxy)
    capture.append(batch(10, orders=[("c", 1)]))
    proxy.at_commit = AtCommit.LOST_AFTER if landed else AtCommit.LOST_BEFORE
    proxy.refusing = True  # connections that are open go on; new ones do not come through
    outcome: list[object] = []

    def append() -> None:
        try:
            outcome.append(capture.append(batch(20, orders=[("c", 2)])))
        except Fenced as error:
            outcome.append(error)

    appending = threading.Thread(target=append)
    appending.start()
    while not proxy.lost:
        appending.join(0.01)
    follower = direct.take_over("shop")
    assert follower.state.commit_lsn == (20 if landed else 10)
    if not landed:
        follower.append(batch(20, orders=[("c", 3)]))
    proxy.refusing = False
    appending.join()
    # What landed before the take-over is in the log and may be confirmed; the next append is what is refused.
    if landed:
        assert outcome == [direct.head()]
        with pytest.raises(Fenced):
            capture.append(batch(30, orders=[("c", 4)]))
    else:
        assert isinstance(outcome[0], Fenced)
    assert sorted(row["after"]["id"] for row in content(direct)) == ([1, 2] if landed else [1, 3])


def test_a_catalog_that_stays_away_is_a_transient_error(
    direct: Store, through_proxy: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "RETRY_SECONDS", 0.3)
    capture = writer(through_proxy)
    capture.append(batch(10, orders=[("c", 1)]))
    proxy.refusing = True
    proxy.cut()
    with pytest.raises(TransientError, match="out of reach"):
        capture.append(batch(20, orders=[("c", 2)]))
    proxy.refusing = False
    again = through_proxy.take_over("shop")
    assert again.state.commit_lsn == 10
    again.append(batch(20, orders=[("c", 2)]))
    assert len(content(direct)) == 2


def test_an_append_waits_for_a_catalog_that_comes_back(
    direct: Store, through_proxy: Store, proxy: Proxy
) -> None:
    capture = writer(through_proxy)
    proxy.refusing = True
    proxy.cut()
    back = threading.Timer(1.0, lambda: setattr(proxy, "refusing", False))
    back.start()
    capture.append(batch(10, orders=[("c", 1)]))
    back.join()
    assert len(content(direct, ORDERS)) == 1


def test_a_follower_goes_on_after_its_connection_broke(
    direct: Store, through_proxy: Store, proxy: Proxy
) -> None:
    capture = writer(direct)
    capture.append(batch(10, orders=[("c", 1)]))
    following = through_proxy.follow(after_epoch=0, timeout=60, poll=0.05)
    assert next(following).epoch == 1
    proxy.cut()
    capture.append(batch(20, orders=[("c", 2)]))
    assert next(following).epoch == 2


def test_a_locked_sqlite_catalog_is_a_transient_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "_BUSY_SECONDS", 0.1)
    monkeypatch.setattr(commit, "RETRY_SECONDS", 0.2)
    with Store.open(create=True, root=tmp_path) as store, Store.open(root=tmp_path) as other:
        capture = writer(store)
        with other.catalog.write(), pytest.raises(TransientError, match="another process"):
            capture.append(batch(10, orders=[("c", 1)]))
        capture.append(batch(10, orders=[("c", 1)]))
        assert len(content(other)) == 1


def test_stores_opened_at_once_create_one_log(new_store: StoreFactory) -> None:
    opened: list[Store] = []
    threads = [threading.Thread(target=lambda: opened.append(new_store())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({store.log_id for store in opened}) == 1 and len(opened) == 4
