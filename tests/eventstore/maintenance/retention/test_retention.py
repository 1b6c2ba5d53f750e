"""Retention: old rows go by each topic's policy, and the state stays what it was. Nothing goes that somebody needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import func, select

from tailrace.cdc.repair.events import retained_events
from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import leases, tables, terms
from tailrace.eventstore.errors import Fenced, HistoryGone, UsageError
from tailrace.eventstore.log.row_counts import count_rows
from tailrace.eventstore.maintenance.files import seal
from tailrace.eventstore.maintenance.retention import apply, plan
from tailrace.eventstore.maintenance.retire import retire
from tailrace.eventstore.maintenance.rounds import is_due
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.metadata.generations import InputNeed, NewGeneration
from tailrace.eventstore.metadata.projection_steps import NewStep
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.info import DROPPED
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.retention import Retention
from tailrace.eventstore.model.schema import EVENT_SCHEMA, change_schema
from tailrace.eventstore.model.time import to_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import TopicSettings, UpkeepSettings
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tests.eventstore.shop import CUSTOMERS, ORDERS, at, batch, content, rows, writer
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support import forking

AT_ONCE = UpkeepSettings(keep_seconds=0)

SetClock = Callable[[float], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Retention's clock: a row of LSN n committed at second n."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(plan, "now_micros", lambda: to_micros(at(seconds)))

    return set_to


def open_store(new_store: StoreFactory, **topics: Any) -> Store:
    chosen = {f"shop.public.{name}": TopicSettings(**settings) for name, settings in topics.items()}
    return new_store(topics=chosen, upkeep=AT_ONCE)


def fill(store: Store, first: int, last: int) -> None:
    """An epoch a second: each order changes every five seconds, and one is deleted now and then."""
    capture = store.take_over("shop") if store.source("shop") else writer(store)
    for lsn in range(first, last + 1):
        change = ("d", lsn % 5 + 100) if lsn % 4 == 0 else ("u", lsn % 5 + 100)
        more: dict[str, Any] = {"completes": [ORDERS, CUSTOMERS]} if lsn == 1 else {}
        capture.append(batch(lsn, [("c", lsn + 1000), change], [("c", lsn)], **more))


def state_at(store: Store, epoch: int, topic: TopicId = ORDERS) -> list[dict[str, Any]]:
    found = state(store, topic, store.cut(epoch), on_unreadable="null")
    return sorted((row for table in found for row in table.to_pylist()), key=lambda row: row["id"])


def states(store: Store, *epochs: int) -> dict[int, list[dict[str, Any]]]:
    return {epoch: state_at(store, epoch) for epoch in epochs}


def totals(store: Store, *needs: InputNeed, fence: int) -> None:
    """A projection that reads topics and has come to an epoch."""
    number = store.derived.create_generation(
        NewGeneration(
            "totals",
            fingerprint="f",
            sink="mart",
            key=["id"],
            schema=b"",
            partitions=1,
            split=1,
            inputs=needs,
        )
    )
    store.steps.commit(
        NewStep("totals", number, from_epoch=0, to_epoch=fence, kind="full", files=[], rows=0, commit_ts=None)
    )


def named_files(store: Store) -> set[str]:
    with store.catalog.read() as connection:
        return {
            path
            for table in (tables.segments, tables.state_runs)
            for path in connection.scalars(select(table.c.path))
        }


def test_rows_older_than_their_time_go_and_every_later_state_stays(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    store = open_store(new_store, orders={"retention": "10 s"})
    fill(store, 1, 40)
    before = states(store, 30, 31, 40)
    rows_before, others = content(store), content(store, CUSTOMERS)
    set_clock(40)
    assert is_due(store)
    (removed,) = store.maintain().removed
    assert (removed.topic, removed.epoch) == ("shop.public.orders", 30)
    assert removed.events == sum(row["_epoch"] <= 30 for row in rows_before)
    assert content(store) == [row for row in rows_before if row["_epoch"] > 30]
    assert content(store, CUSTOMERS) == others
    assert states(store, *before) == before
    with pytest.raises(HistoryGone, match=r"begins behind epoch 30, committed 2026-01-01T12:00:30Z"):
        state_at(store, 29)
    with pytest.raises(HistoryGone):
        content(store, after_epoch=7)
    with pytest.raises(HistoryGone):
        content(store, offsets={0: (0, 3)})
    with pytest.raises(HistoryGone):
        state_at(store, store.cut("0/1D").epoch)
    assert count_rows(store.catalog, ORDERS, 29, 40) is None
    assert not is_due(store)
    fill(store, 41, 60)
    before = states(store, 50, 60)
    set_clock(60)
    assert store.maintain().removed[0].epoch == 50
    assert states(store, *before) == before
    assert store.verify().findings == ()
    assert {path for path in store.storage.list("log") if path.endswith(".parquet")} == named_files(store)


@one_catalog
@pytest.mark.parametrize("ahead", ["this host", "the catalog's server"])
def test_a_clock_that_jumped_ahead_removes_nothing_while_the_other_is_right(
    new_store: StoreFactory, set_clock: SetClock, monkeypatch: pytest.MonkeyPatch, ahead: str
) -> None:
    store = open_store(new_store, orders={"retention": "10 s"})
    fill(store, 1, 12)
    host, server = (9_000_000, 12) if ahead == "this host" else (12, 9_000_000)
    set_clock(host)
    monkeypatch.setattr(leases, "now", lambda connection: to_micros(at(server)))
    store.maintain()
    assert content(store)[0]["_epoch"] == 3


@one_catalog
def test_rows_stamped_by_a_clock_that_was_set_back_stay_while_an_earlier_row_does(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    """Positions order rows: what came later never goes first, whatever its commit time says."""
    store = open_store(new_store, orders={"retention": "10 s"})
    capture = writer(store)
    for lsn, second in enumerate(
        [1, 2, 30, 3, 4, 31], 1
    ):  # it was set back by 27 s between the third and the fourth
        more: dict[str, Any] = {"completes": [ORDERS]} if lsn == 1 else {}
        capture.append(batch(lsn, [("c", lsn + 1000)], commit_ts=at(second), **more))
    set_clock(35)
    store.maintain()
    assert [row["_epoch"] for row in content(store)] == [3, 4, 5, 6]
    set_clock(40.5)
    store.maintain()
    assert [row["_epoch"] for row in content(store)] == [6], "by their times the fourth and the fifth are old"
    assert store.verify().findings == ()


def test_the_oldest_files_beyond_a_size_go(new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "CHUNK_EPOCHS", 4)
    store = new_store()
    fill(store, 1, 40)
    store.seal()
    whole, largest = stored_bytes(store)
    limit = whole // 2
    before = states(store, *range(4, 41, 4))
    limited = open_store(new_store, orders={"retention": Retention(bytes=limit)})
    (removed,) = [each for each in apply.retain(limited) if isinstance(each, apply.RetentionResult)]
    assert limit <= stored_bytes(store)[0] < limit + largest
    assert removed.epoch == store.log_start(ORDERS).epoch > 0
    assert states(store, removed.epoch, 40) == {epoch: before[epoch] for epoch in (removed.epoch, 40)}
    assert not apply.retention_due(limited)
    assert store.verify().findings == ()


def stored_bytes(store: Store) -> tuple[int, int]:
    """Of the orders: all files, and the largest."""
    table = tables.segments
    query = select(func.sum(table.c.bytes), func.max(table.c.bytes)).join(tables.topics)
    with store.catalog.read() as connection:
        whole, largest = connection.execute(query.where(tables.topics.c.name == ORDERS.text)).one()
    return int(whole), int(largest)


@one_catalog
def test_compact_leaves_readers_the_last_row_of_each_key_then_everything(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    settings = {"retention": "compact", "compact_after": "10s", "tombstones": "20s"}
    store = open_store(new_store, orders=settings)
    fill(store, 1, 40)
    before, all_rows = states(store, 30, 40), content(store)
    set_clock(40)
    store.maintain()
    last: dict[tuple[int, int], dict[str, Any]] = {}
    for row in all_rows:
        if row["_epoch"] <= 30:
            last[row["_partition"], row["key"]["id"]] = row
    living = [row for row in last.values() if row["_op"] != "d"]
    tombstones = [row for row in all_rows if row["_op"] == "d" and 20 < row["_epoch"] <= 30]
    later = [row for row in all_rows if row["_epoch"] > 30]
    found = content(store)
    assert found[-len(later) :] == later
    left = sorted([*living, *tombstones], key=lambda row: (row["_partition"], row["_offset"]))
    assert found[: -len(later)] == left
    assert states(store, *before) == before


@one_catalog
def test_compact_and_delete_hides_old_rows_from_readers_and_not_from_the_state(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    settings = {"retention": "compact + 20s", "compact_after": "5s", "tombstones": "0"}
    store = open_store(new_store, orders=settings)
    fill(store, 1, 40)
    before = states(store, 35, 40)
    set_clock(40)
    store.maintain()
    found = content(store)
    for partition in range(4):
        epochs = [row["_epoch"] for row in found if row["_partition"] == partition]
        assert epochs == sorted(epochs)
        assert epochs[0] > 20
    assert states(store, *before) == before
    assert any(row["_epoch"] <= 20 for row in before[40])


def test_events_have_no_state_so_they_are_limited_but_never_compacted(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    accounts = TopicId.events("shop", "account")
    chosen = {"shop.*": TopicSettings(retention="compact"), "shop.account": TopicSettings(retention="10s")}
    store = new_store(topics=chosen, upkeep=AT_ONCE)
    capture = writer(store)
    for lsn in range(1, 31):
        new = [(accounts, EVENT_SCHEMA)] if lsn == 1 else []
        capture.append(
            EpochBatch(
                "shop",
                lsn,
                lsn + 1,
                lsn + 1,
                at(lsn),
                1,
                [TopicRows(accounts, 1, _event(lsn))],
                new_schemas=new,
            )
        )
    set_clock(30)
    assert [each.topic for each in store.maintain().removed] == ["shop.account"]
    assert [row["_epoch"] for row in content(store, accounts)] == list(range(21, 31))
    with store.catalog.read() as connection:
        assert connection.scalar(select(func.count()).select_from(tables.state_runs)) == 0
    # What a repair finds in the source and not in the log was not lost when retention removed it.
    recorded = pa.array([b"2026-01-01 12:00:19.5+00", b"2026-01-01 12:00:20+00", b"2026-01-01 12:00:20.5+00"])
    assert retained_events(store, accounts, recorded).to_pylist() == [False, False, True]
    refusing = new_store(topics={"shop.*": TopicSettings(retention="compact")}, upkeep=AT_ONCE)
    with pytest.raises(
        UsageError, match=r'shop\.account: "compact" keeps the last row of each key, but events'
    ):
        refusing.maintain()


def _event(lsn: int) -> pa.Table:
    after = {"stream": "a", "version": lsn, "type": "T", "schema_version": 1, "data": "{}", "metadata": "{}",
             "event_id": str(lsn), "recorded_at": at(lsn)}  # fmt: skip
    row = dict.fromkeys(change_schema(EVENT_SCHEMA).names) | {
        "_hash": hash_texts(["a"]), "_op": "c", "_lsn": lsn, "_txn": lsn, "_ordinal": 0, "_commit_ts": at(lsn),
        "key": {"stream": "a"}, "after": after, "_before": "none",
    }  # fmt: skip
    return pa.Table.from_pylist([row], schema=change_schema(EVENT_SCHEMA))


@one_catalog
def test_nothing_goes_that_a_group_has_not_done_and_whom_one_forces_past_is_named(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    fill(store, 1, 30)
    group = store.group("invoicing", topics=["shop.public.*"], start="earliest")
    set_clock(30)
    done = store.maintain()
    assert done.removed == ()
    (held,) = done.held
    assert (held.topic, held.reader) == ("shop.public.orders", "group invoicing")
    assert held.events > 0
    assert [(each.topic, each.reader) for each in plan.withheld_rows(store)] == [(held.topic, held.reader)]
    with group.join(member="one", batch_rows=10) as member:
        for _ in range(4):
            found = member.poll()
            assert found is not None
            found.commit()
    done = store.maintain()
    left = {each.slot.partition: each for each in group.progress() if each.slot.topic == ORDERS}
    starts = store.log_start(ORDERS).offsets
    assert all(starts[partition] <= each.next_offset for partition, each in left.items())
    with pytest.raises(UsageError, match="no registered reader is called 'inovicing'"):
        store.maintain(force_past=["inovicing"])
    done = store.maintain(force_past=["invoicing"])
    assert [each.forced for each in done.removed] == [("group invoicing",)]
    with (
        group.join(member="one") as member,
        pytest.raises(HistoryGone, match="group 'invoicing' was passed by retention: it is at offset"),
    ):
        list(iter(member.poll, None))
    group.reset("earliest", ["shop.public.orders"])
    given: list[int] = []
    with group.join(member="one") as member:
        while (found := member.poll()) is not None:
            given += found.rows["_epoch"].to_pylist() if found.topic == ORDERS else []
            found.commit()
    assert sorted(given) == sorted(row["_epoch"] for row in content(store))
    assert store.maintain().held == ()


@one_catalog
def test_a_consumer_goes_on_when_what_it_has_done_goes_while_it_reads(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    """The files that it was about to read are put together with others, and the topic begins later since."""
    store = open_store(new_store, orders={"retention": "10 s"})
    for first in range(1, 41, 4):
        fill(store, first, first + 3)
        store.seal()
    expected = {(row["_partition"], row["_offset"]) for row in content(store)}
    set_clock(1000)
    found: list[tuple[int, int]] = []
    with store.group("g", ["shop.public.orders"], start="earliest").join(batch_rows=2) as member:
        for number, each in enumerate(member.batches(0.0)):
            found += zip(each.rows["_partition"].to_pylist(), each.rows["_offset"].to_pylist(), strict=True)
            each.commit()
            if number in (12, 20):
                done = store.maintain()
                assert done.removed and done.removed_files
    assert sorted(found) == sorted(expected)


@one_catalog
def test_a_group_begins_where_the_topic_does_and_not_before(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    fill(store, 1, 30)
    set_clock(30)
    store.maintain()
    with pytest.raises(HistoryGone, match="orders begins behind epoch 25"):
        store.group("late", topics=["shop.public.orders"], start=10)
    group = store.group("late", topics=["shop.public.orders"], start="earliest")
    with group.join() as member:
        found = [row["_epoch"] for b in iter(member.poll, None) for row in b.rows.to_pylist()]
    assert min(found) == 26


@one_catalog
def test_a_time_inside_an_epoch_whose_later_rows_went_is_found_all_the_same(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    capture = writer(store)
    early = TopicRows(CUSTOMERS, 1, rows(10, [("c", 1)]))
    late = TopicRows(ORDERS, 1, rows(11, [("c", 1)]))
    both = [ORDERS, CUSTOMERS]
    capture.append(EpochBatch("shop", 11, 12, 12, at(11), 2, [early, late], completes=both))
    capture.append(batch(40, [], [("c", 2)]))
    before = content(store, CUSTOMERS, cut=store.cut(at(10.5)))
    set_clock(40)
    assert store.maintain().removed[0].topic == ORDERS.text
    assert content(store, CUSTOMERS, cut=store.cut(at(10.5))) == before != []
    with pytest.raises(HistoryGone):
        list(state(store, ORDERS, store.cut(at(10.5)), on_unreadable="null"))


@one_catalog
def test_a_projections_fence_holds_what_comes_behind_it(new_store: StoreFactory, set_clock: SetClock) -> None:
    store = open_store(new_store, orders={"retention": "5s"}, customers={"retention": "5s"})
    fill(store, 1, 30)
    totals(store, InputNeed(ORDERS.text, "state", 0), InputNeed(CUSTOMERS.text, "changes", 0), fence=12)
    set_clock(30)
    done = store.maintain()
    assert [(each.topic, each.epoch) for each in done.removed] == [(ORDERS.text, 12)]
    assert [each.reader for each in done.held] == ["projection totals", "projection totals"]
    assert state_at(store, 12)
    done = store.maintain(force_past=["projection:totals"])
    assert {each.topic: each.epoch for each in done.removed} == {ORDERS.text: 25, CUSTOMERS.text: 25}


@one_catalog
def test_a_load_holds_the_rows_that_it_is_put_together_of(
    new_store: StoreFactory, set_clock: SetClock
) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    fill(store, 1, 20)
    capture = store.take_over("shop")
    capture.append(batch(21, [("u", 101)], suspends=[(ORDERS, "read again")]))
    fill(store, 22, 40)
    set_clock(40)
    done = store.maintain()
    assert [each.epoch for each in done.removed] == [20]
    assert [(each.reader, each.why) for each in done.held] == [("load", "read again")]
    with pytest.raises(UsageError):
        store.maintain(force_past=["load"])


@one_catalog
def test_a_retired_topic_is_held_back_by_groups_alone(new_store: StoreFactory, set_clock: SetClock) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    fill(store, 1, 20)
    totals(store, InputNeed(ORDERS.text, "changes", 0), fence=12)
    capture = store.take_over("shop")
    capture.append(batch(21, [("u", 101)], suspends=[(ORDERS, DROPPED)]))
    for lsn in range(22, 40):
        capture.append(batch(lsn, [], [("c", lsn)]))
    set_clock(60)
    done = store.maintain()
    assert {each.reader for each in done.held} == {"projection totals", "load"}
    group = store.group("mail", topics=[ORDERS.text], start="earliest")
    assert retire(store, ORDERS)
    done = store.maintain()
    assert {each.reader for each in done.held} == {"group mail"} and not done.removed
    with group.join(member="one") as member:
        while (found := member.poll()) is not None:
            found.commit()
    done = store.maintain()
    assert (done.held, [each.topic for each in done.removed]) == ((), [ORDERS.text])
    assert not content(store)
    capture.append(batch(61, [("t", 1), ("r", 5)], completes=[ORDERS]))  # a table of its name is loaded
    assert [row["id"] for row in state_at(store, store.cut().epoch)] == [5]
    assert not store.verify().findings


MAINTAINER = """
import sys
from pathlib import Path
from tailrace.eventstore.model.info import DROPPED
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.store import Store
from tailrace.eventstore.settings import StoreSettings, TopicSettings, UpkeepSettings
settings = StoreSettings(catalog=sys.argv[1], segments=Path("segments"), upkeep=UpkeepSettings(keep_seconds=0),
                         topics={"shop.public.orders": TopicSettings(retention="1d")})
with Store.open(settings, root=Path(sys.argv[2])) as store:
    store.maintain()
"""


@pytest.mark.parametrize(
    ("catalog_url", "place"),
    [("sqlite", "retention_written"), ("postgres", "retention_swapped")],
    indirect=["catalog_url"],
)
def test_killed_retention_has_removed_all_or_nothing_and_is_finished_by_the_next(
    new_store: StoreFactory, catalog_url: str, store_dir: Path, place: str
) -> None:
    store = open_store(new_store, orders={"retention": "1d"})
    fill(store, 1, 30)
    before, others = state_at(store, 30), content(store, CUSTOMERS)
    died = forking.run(
        [sys.executable, "-c", MAINTAINER, catalog_url, str(store_dir)],
        env={**os.environ, failpoints.VARIABLE: place}, timeout=60,
    )  # fmt: skip
    assert died.returncode == -9, died.stderr
    assert state_at(store, 30) == before
    assert content(store) == [] if store.log_start(ORDERS).epoch else len(content(store)) == 60
    store.maintain()
    assert store.log_start(ORDERS).epoch == 30
    assert (state_at(store, 30), content(store, CUSTOMERS)) == (before, others)
    store.maintain()
    assert store.verify().findings == ()
    assert {path for path in store.storage.list("log") if path.endswith(".parquet")} == named_files(store)


def test_of_two_maintainers_the_earlier_is_fenced_and_changes_nothing(
    new_store: StoreFactory, set_clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    fill(store, 1, 30)
    store.seal()
    set_clock(30)
    before, passed = content(store), failpoints.hit

    def overtaken(name: str) -> None:
        if name == "retention_written":
            terms.begin(store.catalog, terms.RETAIN)
        passed(name)

    monkeypatch.setattr(failpoints, "hit", overtaken)
    with pytest.raises(Fenced):
        list(apply.retain(store))
    assert content(store) == before


@one_catalog
def test_a_reader_in_the_middle_gets_all_or_an_error_never_less(
    new_store: StoreFactory, set_clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_index, "_PAGE_EPOCHS", 4)
    store = open_store(new_store, orders={"retention": "5s"})
    fill(store, 1, 30)
    everything = content(store)
    set_clock(30)
    reader = store.read(ORDERS)
    first = [row for _, found in zip(range(3), reader, strict=False) for row in found.to_pylist()]
    store.maintain()
    with suppress(HistoryGone):
        first += [row for found in reader for row in found.to_pylist()]
        assert first == everything
    assert first == everything[: len(first)]


@one_catalog
def test_who_began_before_keeps_its_files(new_store: StoreFactory, set_clock: SetClock) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    fill(store, 1, 30)
    store.seal()
    set_clock(30)
    with store.pinned("a job"):
        refs = store.segments(ORDERS, store.cut(10))
        assert store.maintain().removed[0].epoch == 25
        assert sum(ref.rows for ref in refs if store.storage.exists(str(ref.path))) >= 20
    store.maintain()
    assert not any(store.storage.exists(str(ref.path)) for ref in refs)
