"""State runs beside the log: the state is what it was, read of fewer rows; every row stays for who reads rows."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.errors import Fenced
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.maintenance.rounds import is_due
from tailrace.eventstore.maintenance.state_runs import due
from tailrace.eventstore.maintenance.state_runs.due import InspectedSpan
from tailrace.eventstore.maintenance.state_runs.write import LocalWorkers
from tailrace.eventstore.metadata import state_runs
from tailrace.eventstore.metadata.log_start import LogStart
from tailrace.eventstore.metadata.state_runs import Run
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import TopicSettings, UpkeepSettings
from tailrace.eventstore.state.input import plan_state
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tests.eventstore.shop import CUSTOMERS, ORDERS, batch, content, writer
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support import forking

# Every new row is worth a run, and what was replaced goes at once.
EAGER = UpkeepSettings(keep_seconds=0, state_bytes=1)
MAINTAINER = """
import sys
from pathlib import Path
from tailrace.eventstore.store import Store
from tailrace.eventstore.settings import StoreSettings, UpkeepSettings

upkeep = UpkeepSettings(keep_seconds=0, state_bytes=1)
settings = StoreSettings(catalog=sys.argv[1], segments=Path("segments"), upkeep=upkeep)
Store.open(settings, root=Path(sys.argv[2])).maintain()
"""


def fill(store: Store, first: int, last: int) -> None:
    """An epoch each: a few orders that change again and again and are deleted now and then; customers only come."""
    capture = store.take_over("shop") if store.source("shop") else writer(store)
    for lsn in range(first, last + 1):
        key = lsn % 5 + 100
        orders = [("d" if lsn % 4 == 0 else "u", key), ("u", lsn % 3)]
        more: dict[str, Any] = {"completes": [ORDERS, CUSTOMERS]} if lsn == 1 else {}
        capture.append(batch(lsn, orders, [("c", lsn)], **more))


def state_of(store: Store, epoch: int | None = None, topic: TopicId = ORDERS) -> list[dict[str, object]]:
    found = state(store, topic, store.cut(epoch), on_unreadable="null")
    return sorted((row for table in found for row in table.to_pylist()), key=lambda row: row["id"])


def rows_read(store: Store) -> int:
    return plan_state(store, ORDERS, store.cut()).rows()


def runs_of(store: Store, topic: TopicId = ORDERS) -> list[tuple[int, int]]:
    with store.catalog.read() as connection:
        topic_id = connection.scalar(select(tables.topics.c.id).where(tables.topics.c.name == topic.text))
        assert topic_id is not None
        return [(run.after, run.epoch) for run in state_runs.runs_of(connection, topic, topic_id)]


@pytest.mark.slow
def test_upkeep_makes_runs_that_say_what_all_rows_say(new_store: StoreFactory) -> None:
    """At every epoch behind a run and before it; rows and their readers do not notice."""
    store = new_store(upkeep=EAGER)
    for first in (1, 21, 24, 60):
        fill(store, first, first + {1: 19, 21: 2, 24: 35, 60: 4}[first])
        before = {epoch: state_of(store, epoch) for epoch in range(1, store.cut().epoch + 1, 9)}
        everything = content(store)
        store.seal()
        assert is_due(store)
        made = {each.topic: each for each in store.maintain().runs}
        assert made["shop.public.orders"].bytes > 0
        assert made["shop.public.customers"].bytes == 0  # all rows are their state: a run would save nothing
        assert not is_due(store)
        assert {epoch: state_of(store, epoch) for epoch in before} == before
        assert content(store) == everything
        assert rows_read(store) < len(everything) / 2
        assert runs_of(store)[0][0] == 0
        assert runs_of(store, CUSTOMERS) == []
        assert store.verify().findings == ()
    assert not list(store.maintain().runs)


def test_a_run_goes_on_from_the_one_before_when_it_is_small_against_it() -> None:
    """So what is read again for runs is a few times what is new."""
    assert due.begin([], 10) == 0
    assert due.begin([InspectedSpan(0, 9, 1000)], 10) == 9
    assert due.begin([InspectedSpan(0, 9, 1000), InspectedSpan(9, 12, 40)], 10) == 9
    assert due.begin([InspectedSpan(0, 9, 200), InspectedSpan(9, 12, 40)], 10) == 0
    spans: list[InspectedSpan] = []
    read = 0
    for step in range(1, 2001):  # nothing is ever overwritten: the most that there can be to read
        after = due.begin(spans, 1)
        gone = [span for span in spans if span.after >= after]
        size = 1 + sum(span.bytes for span in gone)
        spans = [span for span in spans if span.after < after] + [InspectedSpan(after, step, size)]
        read += size
        assert len(spans) <= 8
    assert read < 2000 * 40


@one_catalog
def test_a_new_run_reads_only_what_is_new(new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(upkeep=EAGER)
    fill(store, 1, 40)
    store.compact()
    monkeypatch.setattr(due, "GROWTH", 0)
    fill(store, 41, 60)
    before = state_of(store)
    (made,) = store.compact([ORDERS])
    assert (made.after, made.epoch, made.rows) == (40, 60, 40)
    assert runs_of(store) == [(0, 40), (40, 60)]
    assert state_of(store) == before


@one_catalog
def test_retention_beside_runs(new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may cut behind, before and through them; its own run stays until it makes the next."""
    monkeypatch.setattr(due, "GROWTH", 0)
    store = new_store(
        upkeep=EAGER,
        topics={"shop.public.orders": TopicSettings(retention="1 s")},
    )
    monkeypatch.setattr("tailrace.eventstore.maintenance.retention.plan.plan", lambda *_: (None, [], set()))
    fill(store, 1, 20)
    store.maintain()
    fill(store, 21, 40)
    store.maintain()
    assert runs_of(store) == [(0, 20), (20, 40)]
    monkeypatch.undo()
    monkeypatch.setattr(due, "GROWTH", 0)
    for cut, left in ((10, [(0, 10), (0, 20), (20, 40)]), (30, [(0, 30), (20, 40)]), (40, [(0, 40)])):
        before = {epoch: state_of(store, epoch) for epoch in range(cut, 41, 3)}
        monkeypatch.setattr(
            "tailrace.eventstore.maintenance.retention.plan.cutoff_by_age", lambda *_, cut=cut: cut
        )
        assert [each.epoch for each in store.maintain().removed] == [cut]
        assert runs_of(store) == left
        assert {epoch: state_of(store, epoch) for epoch in before} == before
        assert store.verify().findings == ()


@one_catalog
def test_of_two_that_make_runs_the_earlier_is_fenced(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(upkeep=EAGER)
    fill(store, 1, 20)
    before = state_of(store)
    passed = failpoints.hit

    def overtaken(name: str) -> None:
        if name == "state_run_written":
            terms.begin(store.catalog, terms.STATE)
        passed(name)

    monkeypatch.setattr(failpoints, "hit", overtaken)
    with pytest.raises(Fenced):
        store.compact()
    monkeypatch.undo()
    assert runs_of(store) == []
    assert state_of(store) == before
    assert store.collect_orphans() == 1


@one_catalog
def test_shares_of_a_run_make_together_what_one_process_makes(new_store: StoreFactory) -> None:
    store = new_store(upkeep=EAGER)
    fill(store, 1, 30)
    before = state_of(store)
    (made,) = store.compact([ORDERS], workers=LocalWorkers(shares=3))
    assert state_of(store) == before
    assert made.kept == rows_read(store)


@pytest.mark.slow
@one_catalog
@pytest.mark.parametrize("partitions", [8, 7], ids=["twice as many", "none in common"])
def test_runs_beside_a_repartition_are_of_one_incarnation_or_begin_with_the_log(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Made in shares of partitions."""
    store = new_store(upkeep=EAGER)
    monkeypatch.setattr(due, "GROWTH", 0)
    workers = LocalWorkers(shares=3)

    def compact() -> list[tuple[int, int]]:
        before = {epoch: state_of(store, epoch) for epoch in (20, 40, store.cut().epoch)}
        store.compact([ORDERS], workers=workers)
        assert {epoch: state_of(store, epoch) for epoch in before} == before
        assert store.verify().findings == ()
        return runs_of(store)

    fill(store, 1, 22)
    store.compact([ORDERS], workers=workers)
    fill(store, 23, 44)
    store.seal()
    repartition(store, ORDERS, partitions)
    fill(store, 45, 66)
    assert compact() == [(0, 22), (22, 45), (45, 67)]
    fill(store, 67, 88)
    assert compact() == [(0, 22), (22, 45), (45, 67), (67, 89)]
    rows = rows_read(store)
    monkeypatch.setattr(due, "GROWTH", 100)
    fill(store, 89, 89)
    assert compact() == [(0, 90)]
    assert rows_read(store) < rows


def test_a_run_that_would_reach_across_a_repartition_begins_there() -> None:
    """Or ends there, when what came before it is worth one; bytes of files are 10 each."""
    partitioning = Partitioning.of(4).repartition(8, 50)

    def planned(files: list[int], *made: tuple[int, int, int], least: int = 10) -> tuple[int, int] | None:
        """``made``: runs, by their ends and bytes."""
        ran = [
            Run(after, end, (SegmentRef(ORDERS, 1, after + 1, end, 1, size, ()),))
            for after, end, size in made
        ]
        start = LogStart(0, (), ())
        held = due.Holdings(start, (), [due.SealedFile(end, 10, 10) for end in files], ran)
        found = due.stretch(ORDERS, held, partitioning, least, bag=False)
        return None if found is None else (found.after, found.epoch)

    assert planned([20, 40, 50]) == (0, 50)
    assert planned([20, 40, 60]) == (0, 60)
    assert planned([40, 60], (0, 40, 900)) == (50, 60)
    assert planned([40, 48, 60], (0, 40, 900)) == (40, 50)
    assert planned([40, 48, 60], (0, 40, 900), least=15) == (50, 60)
    assert planned([40, 50, 60], (0, 40, 900), (40, 50, 20)) == (50, 60)
    assert planned([40, 60, 70], (0, 40, 900), (50, 60, 20)) == (50, 70)
    assert planned([40, 60, 70], (0, 40, 35), (50, 60, 20)) == (0, 70)
    assert planned([40, 60], (0, 40, 900), least=11) is None


@pytest.mark.parametrize("point", ["state_run_written", "state_run_swapped"])
@one_catalog
def test_a_killed_round_leaves_the_state_as_it_was(
    new_store: StoreFactory, catalog_url: str, store_dir: Path, point: str
) -> None:
    store = new_store(upkeep=EAGER)
    fill(store, 1, 12)
    before = state_of(store)
    died = forking.run(
        [sys.executable, "-c", MAINTAINER, catalog_url, str(store_dir)],
        env={**os.environ, failpoints.VARIABLE: point}, timeout=60,
    )  # fmt: skip
    assert died.returncode == -9, died.stderr
    assert state_of(store) == before
    assert bool(runs_of(store)) is (point == "state_run_swapped")
    store.maintain()
    assert runs_of(store) == [(0, 12)]
    assert state_of(store) == before
    assert store.verify().findings == ()


@one_catalog
def test_verify_names_a_damaged_run(new_store: StoreFactory, store_dir: Path) -> None:
    store = new_store(upkeep=EAGER)
    fill(store, 1, 12)
    store.compact()
    with store.catalog.read() as connection:
        path = connection.scalars(select(tables.state_runs.c.path)).first()
    assert path is not None
    file = store_dir / "segments" / path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert [finding for finding in store.verify().findings if path in str(finding)]


@one_catalog
def test_a_chain_of_runs_begins_with_the_longest_that_needs_nothing_before(new_store: StoreFactory) -> None:
    store = new_store()
    fill(store, 1, 9)
    start, cut = store.log_start(ORDERS), store.cut
    found = [Run(0, 4, ()), Run(0, 6, ()), Run(5, 8, ())]
    assert [(run.after, run.epoch) for run in state_runs.chain(found, ORDERS, start, cut(9))] == [
        (0, 6),
        (6, 8),
    ]
    assert [(run.after, run.epoch) for run in state_runs.chain(found, ORDERS, start, cut(5))] == [(0, 4)]
    assert state_runs.chain(found, ORDERS, start, cut(3)) == []
