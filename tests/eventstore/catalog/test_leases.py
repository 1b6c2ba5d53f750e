"""Which leases count, for what and until when; and terms: the newest alone goes on."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, update

from tailrace.eventstore.catalog import leases, processes, tables, terms
from tailrace.eventstore.catalog.processes import Process, this_process
from tailrace.eventstore.catalog.renewals import Renewals
from tailrace.eventstore.errors import Fenced
from tailrace.eventstore.model.time import now_micros
from tailrace.eventstore.store import Store
from tests.eventstore.catalog.test_processes import ended_process
from tests.fixtures.stores import StoreFactory, one_catalog

HERE = f"{socket.gethostname()}:{os.getpid()}"
ELSEWHERE = "elsewhere:7"
MINUTE, HOUR = 60 * 10**6, 3600 * 10**6


@pytest.fixture(autouse=True)
def the_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that ends at this moment has ended."""
    moment = now_micros()
    monkeypatch.setattr(leases, "now_micros", lambda: moment)


def parent() -> Process:
    return replace(this_process(), pid=os.getppid(), started=processes._status(os.getppid())[1])


def ends(store: Store) -> dict[str, int]:
    """By names of leases, µs from now."""
    with store.catalog.read() as connection:
        moment = leases.now(connection)
        return {row.id: row.expires_at - moment for row in connection.execute(select(tables.leases))}


def leave(
    store: Store, name: str, role: str, holder: str = ELSEWHERE, *, ends: int = MINUTE, **columns: Any
) -> None:
    """A lease that nobody renews. It ends in so many µs."""
    with store.catalog.write() as connection:
        row = leases._lease_row(connection, name, role, "job")
        given = {"holder": f"job by {holder}", "expires_at": row["created_at"] + ends, **columns}
        connection.execute(insert(tables.leases).values(row | given))


def names(store: Store) -> set[str]:
    with store.catalog.read() as connection:
        return set(connection.scalars(select(tables.leases.c.id)))


@one_catalog
def test_a_lease_is_as_long_as_its_role_needs_and_goes_with_its_block(new_store: StoreFactory) -> None:
    store = new_store()
    table = tables.leases.c
    with (
        leases.reader_lease(store.catalog, "read"),
        leases.driver_lease(store.catalog, "d:1", "build"),
        leases.work_lease(store.catalog, {"run:a": "a", "run:b": "b"}, "run"),
        leases.capture_lease(store.catalog, "shop"),
        leases.maintainer_lease(store.catalog),
        store.catalog.read() as connection,
    ):
        rows = connection.execute(select(tables.leases).order_by(table.role, table.id)).all()
        assert [(row.role, row.expires_at - row.created_at) for row in rows] == [
            ("capture", 2 * MINUTE), ("driver", 2 * MINUTE), ("maintainer", 2 * MINUTE), ("reader", 2 * MINUTE),
            ("worker", MINUTE // 2), ("worker", MINUTE // 2),
        ]  # fmt: skip
        assert {row.holder.partition(" by ")[2] for row in rows} == {this_process().text}
        assert {row.created_at for row in rows} == {leases.now(connection)}
    assert names(store) == set()
    with leases.work_lease(store.catalog, {}, "run"):
        assert names(store) == set()


@one_catalog
def test_a_lease_is_renewed_and_only_while_it_is_its_own(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, table, held = new_store(), tables.leases, list[Callable[[], None]]()

    class ByHand(Renewals):
        """Renewed when the test says so."""

        @contextmanager
        def every(self, seconds: float, renew: Callable[[], None]) -> Iterator[None]:
            assert seconds == leases.LEASE_SECONDS / 4
            held.append(renew)
            yield

    monkeypatch.setattr(leases, "RENEWALS", ByHand())
    with leases.driver_lease(store.catalog, "d:1", "build"):
        leave(store, "d:2", leases.DRIVER)
        with store.catalog.write() as connection:
            connection.execute(update(table).values(expires_at=5))
        held[0]()
        assert ends(store)["d:1"] == 2 * MINUTE and ends(store)["d:2"] < 0
        with store.catalog.write() as connection:
            connection.execute(update(table).where(table.c.id == "d:1").values(created_at=1))
    assert names(store) == {"d:1", "d:2"}, "the name is a successor's by now"


@one_catalog
def test_a_lease_that_is_over_or_could_not_be_given_back_keeps_nobody_waiting(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "time", None)  # nothing is waited for
    store, what = new_store(), {"run:a": "a"}
    with leases.work_lease(store.catalog, what, "run"), store.catalog.read() as connection:
        row = connection.execute(select(tables.leases)).one()
    with store.catalog.write() as connection:
        connection.execute(insert(tables.leases).values(row._asdict()))
    leave(store, "run:b", leases.WORKER, ends=0)
    with leases.work_lease(store.catalog, {"run:b": "b", **what}, "run"):
        assert names(store) == {"run:a", "run:b"}


@one_catalog
def test_one_that_runs_on_this_host_is_no_more_asked_than_one_that_renews(new_store: StoreFactory) -> None:
    store = new_store()
    leave(store, "run:a", leases.WORKER, parent().text)
    with (
        pytest.raises(
            leases.AlreadyRunning, match=f"a already: job by {HERE.partition(':')[0]}:{os.getppid()}"
        ),
        leases.work_lease(store.catalog, {"run:a": "a"}, "run"),
    ):
        pass
    with store.catalog.read() as connection:
        assert len(leases.workers(connection, ("run:",))) == 1


@one_catalog
def test_who_meets_a_lease_of_before_the_clock_was_set_back_cuts_it_down(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store()

    def look(_: float) -> None:
        raise TimeoutError

    monkeypatch.setattr(leases, "time", SimpleNamespace(sleep=look))
    leave(store, "run:a", leases.WORKER, ends=HOUR)
    leave(store, "short", leases.READER)
    with pytest.raises(TimeoutError), leases.work_lease(store.catalog, {"run:a": "a"}, "run"):
        pass
    assert ends(store) == {"run:a": 2 * MINUTE, "short": MINUTE}
    leave(store, leases.MAINTAINER, leases.MAINTAINER, ends=HOUR)
    with pytest.raises(leases.Busy), leases.maintainer_lease(store.catalog):
        pass
    assert ends(store)[leases.MAINTAINER] == 2 * MINUTE


@one_catalog
def test_captures_are_those_of_the_source_that_run_the_latest_last(new_store: StoreFactory) -> None:
    store = new_store()
    leave(store, "capture:shop:2", leases.CAPTURE, created_at=2_000_000)
    leave(store, "capture:shop:1", leases.CAPTURE, HERE, created_at=1_000_000)
    leave(store, "capture:shop2:1", leases.CAPTURE)
    leave(store, "capture:shop:3", leases.CAPTURE, ends=0)
    leave(store, "capture:shop:4", leases.CAPTURE, ended_process().text)
    leave(store, "capture:shop:5", leases.READER)
    with store.catalog.read() as connection:
        found = leases.captures(connection, "shop")
    assert [(each.holder, each.since.second if each.since else None) for each in found] == [
        (f"job by {HERE}", 1), (f"job by {ELSEWHERE}", 2),
    ]  # fmt: skip


@one_catalog
def test_workers_are_those_on_such_names_that_run(new_store: StoreFactory) -> None:
    store = new_store()
    leave(store, "run:a", leases.WORKER, "elsewhere:1")
    leave(store, "build:a", leases.WORKER, "elsewhere:2")
    leave(store, "other:a", leases.WORKER, "elsewhere:3")
    leave(store, "run:b", leases.WORKER, ends=0)
    leave(store, "run:c", leases.WORKER, ended_process().text)
    leave(store, "run:d", leases.DRIVER)
    leave(store, "run:e", leases.WORKER, this_process().text)  # given up when the catalog was out of reach
    with store.catalog.read() as connection:
        found = leases.workers(connection, ("run:", "build:"))
    assert {each.holder for each in found} == {"job by elsewhere:1", "job by elsewhere:2"}


@one_catalog
def test_drivers_live_while_they_run_or_their_lease_lasts_and_the_others_end_for_good(
    new_store: StoreFactory,
) -> None:
    store = new_store()
    leave(store, "d:running", leases.DRIVER, this_process().text, ends=-HOUR)
    leave(store, "d:unseen", leases.DRIVER)
    leave(store, "d:over", leases.DRIVER, ends=0)
    leave(store, "d:ended", leases.DRIVER, ended_process().text)
    leave(store, "D:capital", leases.DRIVER, ends=0)
    leave(store, "d:reader", leases.READER, ends=0)
    with store.catalog.write() as connection:
        living = leases.live_drivers(connection, "d:")
        assert living == {"d:running": f"job by {HERE}", "d:unseen": f"job by {ELSEWHERE}"}
        with pytest.raises(leases.LeaseEnded):
            leases.Lease("d:over").end(connection)
    assert names(store) == {"d:running", "d:unseen", "D:capital", "d:reader"}
    with store.catalog.write() as connection:
        leases.Lease("d:running").end(connection)
    assert names(store) == {"d:unseen", "D:capital", "d:reader"}
    with store.catalog.write() as connection:
        leases.end(connection, "d:")
        leases.end(connection, "nobody:")
    assert names(store) == {"D:capital", "d:reader"}


@one_catalog
def test_the_oldest_need_is_that_of_readers_and_drivers_whose_lease_lasts(new_store: StoreFactory) -> None:
    store = new_store()
    with store.catalog.read() as connection:
        assert leases.oldest_need(connection) is None
    with store.catalog.write() as connection:
        assert terms.advance(connection, terms.RETIRED, 5) == 5
    with leases.reader_lease(store.catalog, "read"), store.catalog.read() as connection:
        assert leases.oldest_need(connection) == 5
    leave(store, "a", leases.READER, retired=4)
    leave(store, "b", leases.DRIVER, retired=3)
    leave(store, "c", leases.READER, retired=2, ends=0)
    leave(store, "d", leases.WORKER, retired=1)
    with store.catalog.read() as connection:
        assert leases.oldest_need(connection) == 3


@one_catalog
def test_holders_are_those_who_need_files_each_once_since_its_first(new_store: StoreFactory) -> None:
    store = new_store()
    leave(store, "a", leases.READER, "elsewhere:1", created_at=1_000_000)
    leave(store, "b", leases.READER, "elsewhere:1", created_at=2_000_000)
    leave(store, "c", leases.DRIVER, "elsewhere:2", ends=0)
    leave(store, "d", leases.DRIVER, ended_process().text)
    leave(store, "e", leases.WORKER)
    leave(store, "f", leases.CAPTURE)
    with store.catalog.read() as connection:
        assert leases.holders(connection) == ["job by elsewhere:1, since 00:00:01 UTC"]


@one_catalog
def test_leases_that_are_over_are_forgotten_but_for_drivers_and_upkeep(new_store: StoreFactory) -> None:
    store = new_store()
    for role in (leases.READER, leases.WORKER, leases.CAPTURE, leases.DRIVER, leases.MAINTAINER):
        leave(store, f"{role} over", role, ends=0)
        leave(store, f"{role} ahead", role, ends=HOUR)
    with store.catalog.write() as connection:
        leases.forget_expired(connection)
    assert len(ends(store)) == 7 and max(ends(store).values()) == 2 * MINUTE, "as of one that begins now"
    assert {"driver over", "maintainer over"} < names(store)


@one_catalog
@pytest.mark.parametrize(("holder", "ends"), [(ELSEWHERE, 0), ("ended", MINUTE)])
def test_upkeep_that_is_over_or_has_died_is_succeeded_at_once(
    new_store: StoreFactory, holder: str, ends: int
) -> None:
    store = new_store()
    leave(
        store,
        leases.MAINTAINER,
        leases.MAINTAINER,
        ended_process().text if holder == "ended" else holder,
        ends=ends,
    )
    with leases.maintainer_lease(store.catalog), store.catalog.read() as connection:
        assert leases.holders(connection)[0].startswith(f"upkeep by {HERE}")
        with pytest.raises(leases.Busy, match=f"upkeep by {HERE}"), ExitStack() as second:
            second.enter_context(leases.maintainer_lease(store.catalog))
    assert names(store) == set()


@one_catalog
def test_upkeep_of_one_that_cannot_be_seen_is_left_to_it(new_store: StoreFactory) -> None:
    store = new_store()
    leave(store, leases.MAINTAINER, leases.MAINTAINER)
    with pytest.raises(leases.Busy, match=f"job by {ELSEWHERE}"), leases.maintainer_lease(store.catalog):
        pass
    assert names(store) == {leases.MAINTAINER}


@one_catalog
def test_of_two_that_begin_at_the_same_moment_one_has_the_upkeep_and_both_a_term(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store()

    def overtaken(connection: Connection, *arguments: Any) -> dict[str, Any]:
        row = lease_row(connection, *arguments)
        connection.execute(insert(tables.leases).values(row))
        return row

    def overtaken_once(connection: Connection, name: str) -> int:
        monkeypatch.undo()
        for _ in range(2):
            connection.execute(insert(tables.terms).values(name=name, term=1))
        raise AssertionError

    lease_row = leases._lease_row
    monkeypatch.setattr(leases, "_lease_row", overtaken)
    with pytest.raises(leases.Busy, match="at this moment"), leases.maintainer_lease(store.catalog):
        pass
    monkeypatch.setattr(terms, "advance", overtaken_once)
    assert terms.begin(store.catalog, terms.SEAL) == 1


@one_catalog
def test_of_a_name_the_newest_term_alone_goes_on(new_store: StoreFactory) -> None:
    store = new_store()
    assert [terms.begin(store.catalog, terms.SEAL) for _ in range(2)] == [1, 2]
    assert terms.begin(store.catalog, terms.MERGE) == 1
    with store.catalog.write() as connection:
        terms.check(connection, terms.SEAL, 2)
        terms.check(connection, terms.MERGE, 1)
        for name, term in ((terms.SEAL, 1), (terms.MERGE, 2), (terms.FOLD, 1)):
            with pytest.raises(Fenced, match=f"another {name} began"):
                terms.check(connection, name, term)
        assert [terms.current(connection, name) for name in (terms.SEAL, terms.MERGE, terms.FOLD)] == [
            2,
            1,
            0,
        ]
        assert terms.advance(connection, terms.FOLD, by=3) == 3 and terms.advance(connection, terms.FOLD) == 4


def test_names_of_new_files_say_who_wrote_them_in_which_term_and_none_is_given_twice() -> None:
    names = [terms.new_parquet("log/shop/1", terms.SEAL, 7) for _ in range(2)]
    assert names[0] != names[1]
    for name in (*names, f"{terms.new_file('epochs', terms.FOLD, 7)}.frames"):
        found = terms.FILE_NAME.fullmatch(name)
        assert found is not None and found["term"] == "7" and found["writer"] in (terms.SEAL, terms.FOLD)


def test_numbers_are_read_back_from_the_name_of_the_file_that_tells_them() -> None:
    of = (12, 0xFFFF_FFFF_FFFF)
    assert terms.numbers_of(terms.new_parquet("log/shop/1", terms.STATE, 7, of)) == of
    assert terms.numbers_of(terms.new_parquet("log/shop/1", terms.STATE, 7)) is None
