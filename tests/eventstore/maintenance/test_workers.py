"""A second worker on the same thing is refused with the holder named. One that died keeps nobody waiting for long."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest
from sqlalchemy import insert, update

from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.catalog.leases import AlreadyRunning, work_lease, workers
from tailrace.eventstore.catalog.processes import this_process
from tailrace.eventstore.maintenance.rounds import upkeep_status
from tailrace.eventstore.store import Store
from tests.eventstore.catalog.test_processes import ended_process, process_of_another_container
from tests.fixtures.stores import StoreFactory

TOTALS = {"run:totals": "projection 'totals' is being refreshed"}
HERE = socket.gethostname()


def leave_lease(store: Store, holder: str, seconds: float = 30.0) -> None:
    """A lease that nobody in this process holds."""
    with store.catalog.write() as connection:
        row = leases._lease_row(connection, "run:totals", leases.WORKER, "run", seconds)
        connection.execute(insert(tables.leases).values(row | {"holder": f"run by {holder}"}))


def working_holders(store: Store) -> list[str]:
    with store.catalog.read() as connection:
        return [worker.holder for worker in workers(connection, ("run:totals",))]


def test_a_second_one_is_refused_with_the_holder_named_and_begins_nothing(new_store: StoreFactory) -> None:
    store = new_store()
    both: Mapping[str, str] = {"run:other": "projection 'other'", **TOTALS}
    with work_lease(store.catalog, TOTALS, "run"):
        said = rf"projection 'totals' is being refreshed already: run by {HERE}:{os.getpid()}, since 20\d\d-"
        with pytest.raises(AlreadyRunning, match=said) as refused, work_lease(store.catalog, both, "run"):
            pass
        assert refused.value.exit_code == 5
        with store.catalog.read() as connection:
            assert not leases.holders(connection), "files are nobody's need while it waits for work"
        assert upkeep_status(store).readers == 0
        with work_lease(store.catalog, {"run:other": "projection 'other'"}, "run"):
            assert working_holders(store) == [f"run by {HERE}:{os.getpid()}"]
    with work_lease(store.catalog, both, "run"):
        pass
    assert working_holders(store) == []


@pytest.mark.parametrize("pid", ["of a process that ended", "its own, of before a restart"])
def test_one_that_died_on_this_host_is_succeeded_at_once(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch, pid: str
) -> None:
    """The next process may have the number of the one before."""
    monkeypatch.setattr(leases, "time", None)  # nothing is waited for
    store, mine = new_store(), this_process()
    before = ended_process() if pid.startswith("of") else replace(mine, started=mine.started - 1)
    leave_lease(store, before.text)
    assert working_holders(store) == []
    with work_lease(store.catalog, TOTALS, "run"):
        assert working_holders(store) == [f"run by {HERE}:{os.getpid()}"]


@pytest.mark.parametrize("where", ["on another host", "in another container of this host's name"])
def test_one_that_cannot_be_seen_has_as_long_as_its_lease_to_renew_it(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    store, table = new_store(), tables.leases

    def looking(**becomes: object) -> None:
        """What happens to its lease while it is looked at again and again."""

        def sleep(_: float) -> None:
            with store.catalog.write() as connection:
                connection.execute(update(table).values(becomes))

        monkeypatch.setattr(leases, "time", SimpleNamespace(sleep=sleep))

    if where == "on another host":
        leave_lease(store, "elsewhere:7")
        told = "elsewhere:7"
    else:
        with process_of_another_container() as other:
            leave_lease(store, other.text)
        told = f"{HERE}:{other.pid}"  # it has ended by now, which nobody here can know
    looking(expires_at=table.c.expires_at + 1)
    with (
        pytest.raises(AlreadyRunning, match=f"run by {told}, since"),
        work_lease(store.catalog, TOTALS, "run"),
    ):
        pass
    looking(expires_at=0)
    with work_lease(store.catalog, TOTALS, "run"):
        assert working_holders(store) == [f"run by {HERE}:{os.getpid()}"]


def test_of_several_at_the_same_moment_one_is_at_work(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_LOOK_SECONDS", 0.01)
    stores, everybody = [new_store() for _ in range(4)], threading.Barrier(4)
    leave_lease(stores[0], ended_process().text)
    outcome: list[str] = []

    def work(store: Store) -> None:
        everybody.wait()
        try:
            with work_lease(store.catalog, TOTALS, "run"):
                outcome.append("at work")
                refused.wait()
        except AlreadyRunning:
            outcome.append("refused")
            if outcome.count("refused") == 3:
                refused.set()

    refused = threading.Event()
    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome) == ["at work", "refused", "refused", "refused"]
