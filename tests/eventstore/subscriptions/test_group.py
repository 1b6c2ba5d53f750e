"""Consumer groups: everybody gets everything once, whoever joins, leaves, falls silent or is replaced."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine, insert, select, update
from sqlalchemy.orm import Session

from tailrace.eventstore.catalog import group_tables
from tailrace.eventstore.errors import Fenced, IntegrityError, OperatorError, UsageError
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import Op
from tailrace.eventstore.store import Store
from tailrace.eventstore.subscriptions import membership
from tailrace.eventstore.subscriptions.assignment import Slot
from tailrace.eventstore.subscriptions.batch import Batch
from tailrace.eventstore.subscriptions.group import Group
from tailrace.eventstore.subscriptions.join_options import Slow
from tailrace.eventstore.subscriptions.member import Member
from tests.eventstore.shop import CUSTOMERS, ORDERS, at, batch, writer
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support.background import in_background
from tests.support.capturing import wait_until
from tests.support.forking import Forked

LEASE = 60  # seconds, by clocks that the tests move
QUICK = 0.03  # the same of who beats by the real clock


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    return new_store(inline_bytes=3500)


def fill(store: Store, epochs: int = 20) -> None:
    """Five orders an epoch, one customer."""
    capture = writer(store)
    state = store.source("shop")
    first = state.commit_lsn + 1 if state else 1
    for lsn in range(first, first + epochs):
        capture.append(batch(lsn, orders=[("c", lsn * 10 + i) for i in range(5)], customers=[("u", lsn)]))


def row_counts(batches: list[Batch]) -> Counter[tuple[str, int, int]]:
    return Counter(
        (each.topic.text, each.partition, offset)
        for each in batches
        for offset in each.rows["_offset"].to_pylist()
    )


def all_rows(store: Store, *topics: str) -> Counter[tuple[str, int, int]]:
    return Counter(
        (topic.text, row["_partition"], row["_offset"])
        for topic in (ORDERS, CUSTOMERS)
        if not topics or topic.text in topics
        for found in store.read(topic, columns=["_partition", "_offset"])
        for row in found.to_pylist()
    )


def drain(member: Member, timeout: float = 0.0) -> list[Batch]:
    found = []
    for each in member.batches(timeout):
        found.append(each)
        each.commit()
    return found


def with_turns(group: Group) -> tuple[Group, Iterator[int]]:
    """The group with a clock that only goes on with the turns, half a lease each, so that whoever polls at every turn
    looks after the others and is never silent itself, however slow the machine is."""
    now = [0]
    group.clock = lambda: float(now[0])

    def turns() -> Iterator[int]:
        for turn in range(100):
            now[0] += LEASE // 2
            yield turn

    return group, turns()


def settle(turns: Iterator[int], *members: Member) -> None:
    """Poll in turns until the partitions are shared out evenly."""
    for _ in turns:
        for member in members:
            assert member.poll() is None
        counts = [len(member.slots) for member in members]
        if sum(counts) == 8 and max(counts) - min(counts) <= 1:
            return
    raise AssertionError([member.slots for member in members])


@pytest.mark.parametrize("slow", ["block", "buffer"])
@one_catalog
def test_a_group_gets_every_row_once_in_order_per_partition(store: Store, slow: Slow) -> None:
    fill(store)
    with store.group("g", ["shop.public.*"], start="earliest").join(slow=slow) as member:
        found = drain(member)
        assert row_counts(found) == all_rows(store)
        fill(store, 3)
        found += drain(member)
    assert row_counts(found) == all_rows(store)
    places: dict[tuple[str, int], int] = defaultdict(int)
    for each in found:
        place = (each.topic.text, each.partition)
        assert each.first_offset == places[place]
        assert each.rows["_offset"].to_pylist() == list(range(each.first_offset, each.end_offset))
        places[place] = each.end_offset


@one_catalog
def test_every_group_gets_everything(store: Store) -> None:
    fill(store)
    for name in ("one", "other"):
        with store.group(name, ["shop.public.orders"], start="earliest").join() as member:
            assert row_counts(drain(member)) == all_rows(store, ORDERS.text)


@one_catalog
def test_a_member_goes_on_behind_what_was_committed_and_gets_the_rest_again(store: Store) -> None:
    fill(store)
    group = store.group("g", ["shop.public.orders"], start="earliest")
    with group.join("pod", batch_rows=7) as member:
        committed = member.poll()
        assert committed is not None
        committed.commit()
        lost = [each for _ in range(3) if (each := member.poll()) is not None]
        assert lost
    store.seal()
    with store.group("g").join("pod", batch_rows=7) as member:
        again = drain(member)
    assert row_counts([committed, *again]) == all_rows(store, ORDERS.text)


@pytest.mark.parametrize("sealed", [False, True])
@one_catalog
def test_it_starts_where_its_group_was_set_to(store: Store, sealed: bool) -> None:
    fill(store, 20)
    if sealed:
        store.seal()
    expected: dict[str | int | datetime, int] = {
        "earliest": 100,
        "latest": 0,
        5: 75,
        "0/8": 65,  # transactions that committed below LSN 8
        at(12): 40,
    }
    for number, (start, count) in enumerate(expected.items()):
        group = store.group(f"g{number}", ["shop.public.orders"], start=start)
        assert sum(each.lag for each in group.progress()) == count, start
        with group.join() as member:
            assert sum(row_counts(drain(member)).values()) == count, start


@one_catalog
def test_a_topic_that_comes_later_is_read_from_its_beginning(store: Store) -> None:
    writer(store)
    group = store.group("g", ["shop.public.*", "!*.customers"])
    with group.join() as member:
        assert member.poll() is None
        fill(store, 2)
        assert row_counts(drain(member)) == all_rows(store, ORDERS.text)


@one_catalog
def test_members_share_partitions_and_hand_them_over_between_batches(store: Store) -> None:
    fill(store, 2)
    group, turns = with_turns(store.group("g", ["shop.public.*"], start="earliest"))
    with ExitStack() as stack:
        first = stack.enter_context(group.join("first", lease=LEASE))
        open_batch = first.poll()
        assert open_batch is not None and len(first.slots) == 8
        second = stack.enter_context(group.join("second", lease=LEASE))
        found = [open_batch]
        while len(second.slots) < 4:
            next(turns)
            found += [*drain(second), *drain(first)]
        held = [(slot.topic, slot.partition) for slot in first.slots]
        assert (open_batch.topic, open_batch.partition) in held  # not taken away while it is open
        open_batch.commit()
        settle(turns, first, second)
        fill(store, 5)
        found += [each for _ in range(3) for member in (first, second) for each in drain(member)]
    assert row_counts(found) == all_rows(store)


def test_who_falls_silent_loses_its_partitions_and_commits_nothing_more(store: Store) -> None:
    fill(store)
    group, turns = with_turns(store.group("g", ["shop.public.*"], start="earliest"))
    with ExitStack() as stack:
        silent = stack.enter_context(group.join("silent", lease=QUICK, patience=LEASE / 4))
        late = silent.poll()
        assert late is not None
        other = stack.enter_context(group.join("other", lease=LEASE))
        found = drain(other)
        while row_counts(found) != all_rows(store):
            next(turns)
            found += drain(other)
        with pytest.raises(Fenced, match="another owner"):
            late.commit()
        with pytest.raises(Fenced, match="silent for too long"):
            silent.poll()


@one_catalog
def test_a_process_with_the_same_name_takes_over_at_once(store: Store) -> None:
    fill(store)
    group = store.group("g", ["shop.public.*"], start="earliest")
    with ExitStack() as stack:
        old = stack.enter_context(group.join("pod-1", lease=60))
        late = old.poll()
        assert late is not None
        new = stack.enter_context(group.join("pod-1", lease=60))
        assert row_counts(drain(new)) == all_rows(store)
        with pytest.raises(Fenced):
            late.commit()


@one_catalog
def test_at_most_once_is_committed_before_it_is_given(store: Store) -> None:
    fill(store)
    group = store.group("g", ["shop.public.orders"], start="earliest")
    with group.join("pod", delivery="at most once", batch_rows=3) as member:
        first = member.poll()
        assert first is not None
    with group.join("pod", delivery="at most once", batch_rows=3) as member:
        rest = list(member.batches(0))
    assert row_counts([first, *rest]) == all_rows(store, ORDERS.text)


INVOICES = Table(
    "invoices",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("partition", Integer),
    Column("event_offset", Integer),
    Column("note", Text),
)


@pytest.fixture
def engine_url(tmp_path: Path, request: pytest.FixtureRequest, catalog_url: str) -> str:
    """The consumer's own database: of the other kind than the catalog."""
    if catalog_url.startswith("postgres"):
        return f"sqlite:///{tmp_path / 'consumer.db'}"
    return str(request.getfixturevalue("database")).replace("postgresql://", "postgresql+psycopg://")


def note(session: Session, each: Batch) -> None:
    values = [
        {"partition": change.partition, "event_offset": change.offset, "note": str(change.key)}
        for change in each.changes()
    ]
    session.execute(insert(INVOICES), values)


@pytest.mark.parametrize("slow", ["block", "buffer"])
def test_effects_and_position_are_one_transaction(store: Store, engine_url: str, slow: Slow) -> None:
    fill(store)
    group = store.group("g", ["shop.public.orders"], start="earliest")
    engine = create_engine(engine_url)
    INVOICES.metadata.create_all(engine)
    broken = 3
    with group.join("pod", effects=engine, batch_rows=7, slow=slow) as member:
        for each in member.batches(0):
            broken -= 1
            try:
                with Session(engine) as session, session.begin():
                    note(session, each)
                    each.commit(session)
                    if broken == 0:
                        raise RuntimeError("rolled back, so it is given again")
            except RuntimeError:
                continue
        assert sum(progress.lag for progress in group.progress()) == 0
    with engine.connect() as connection:
        found = Counter(connection.execute(select(INVOICES.c.partition, INVOICES.c.event_offset)).all())
    assert {(ORDERS.text, *place): count for place, count in found.items()} == all_rows(store, ORDERS.text)
    engine.dispose()


def test_a_stale_members_effects_are_refused_and_an_unreported_commit_is_not_repeated(
    store: Store, engine_url: str
) -> None:
    fill(store)
    group = store.group("g", ["shop.public.orders"], start="earliest")
    engine = create_engine(engine_url)
    INVOICES.metadata.create_all(engine)
    with ExitStack() as stack:
        old = stack.enter_context(group.join("pod", effects=engine, batch_rows=5))
        done = old.poll()
        assert done is not None
        with Session(engine) as session, session.begin():
            done.commit(session)  # and dies before the group hears of it
        new = stack.enter_context(group.join("pod", effects=engine, batch_rows=5))
        again = new.poll()
        assert again is not None
        assert (again.partition, again.first_offset) != (done.partition, done.first_offset)
        late = replace(done, first_offset=done.end_offset, end_offset=done.end_offset + 1, last_epoch=1)
        with pytest.raises(Fenced), Session(engine) as session, session.begin():
            late.commit(session)
    engine.dispose()


def test_how_a_batch_is_committed_is_said_when_it_is_wrong(store: Store, engine_url: str) -> None:
    fill(store, 1)
    group = store.group("g", ["shop.public.orders"], start="earliest")
    engine = create_engine(engine_url)
    with group.join("pod") as member, Session(engine) as session:
        each = member.poll()
        assert each is not None
        with pytest.raises(UsageError, match="effects=engine"):
            each.commit(session)
    with group.join("pod", effects=engine) as member:
        each = member.poll()
        assert each is not None
        with pytest.raises(UsageError, match="inside the transaction"):
            each.commit()
    engine.dispose()


@one_catalog
def test_a_slow_consumer_drops_the_oldest_by_choice_and_counts_them(store: Store) -> None:
    fill(store)
    group = store.group("g", ["shop.public.orders"], start="earliest")
    with group.join(slow="drop", drop_beyond=4) as member:
        found = drain(member)
        assert sum(row_counts(found).values()) == 16
        assert member.dropped == sum(each.dropped for each in found) == 100 - 16


@one_catalog
def test_what_is_read_ahead_is_bounded_in_bytes_and_given_once_in_order(store: Store) -> None:
    fill(store)
    group = store.group("g", ["shop.public.*"], start="earliest")
    with group.join("pod", slow="buffer", buffer_bytes=4000, batch_rows=1) as member:
        found = [each for _ in range(8) if (each := member.poll()) is not None]  # of each partition one
        wait_until(lambda: member.buffered >= 4000)
        one = 1024 + max(each.rows.nbytes for each in found)
        for each in member.batches(0.0):
            assert member.buffered < 4000 + 2 * one, "the last one, and one that came into the place of this"
            found.append(each)
        assert row_counts(found) == all_rows(store)
        assert member.buffered == 0
        for slot in member.slots:
            offsets = [each.first_offset for each in found if Slot(each.topic, each.partition) == slot]
            assert offsets == sorted(offsets)


@one_catalog
def test_what_was_read_ahead_of_partitions_that_go_elsewhere_is_let_go(store: Store) -> None:
    fill(store)
    group, turns = with_turns(store.group("g", ["shop.public.*"], start="earliest"))
    with group.join("a", slow="buffer", batch_rows=1, lease=LEASE) as first:
        given = [each for _ in range(8) if (each := first.poll()) is not None]
        for each in given:
            each.commit()
        wait_until(lambda: first.buffered > 0)
        with group.join("b", slow="buffer", batch_rows=1, lease=LEASE) as second:
            for _ in turns:
                for member in (first, second):
                    while (each := member.poll()) is not None:
                        given.append(each)
                        each.commit()
                if len(first.slots) == len(second.slots) == 4:
                    break
            assert row_counts(given) == all_rows(store)
            assert first.buffered == second.buffered == 0


@one_catalog
def test_filters_leave_rows_out_and_positions_pass_them(store: Store) -> None:
    capture = writer(store)
    for lsn in range(1, 11):
        capture.append(batch(lsn, orders=[("c", lsn), ("u", lsn), ("d", 3)]))
    for number, (how, count) in enumerate(
        [({"ops": ["u"]}, 10), ({"keys": ["3"]}, 12), ({"since": at(8)}, 9), ({"ops": [Op.TRUNCATE]}, 0)]
    ):
        group = store.group(f"g{number}", ["shop.public.orders"], start="earliest")
        with group.join(**how) as member:  # type: ignore[arg-type]
            assert sum(row_counts(drain(member)).values()) == count, how
            assert sum(progress.lag for progress in group.progress()) == 0


@one_catalog
def test_progress_says_who_has_what_and_how_far_it_is(store: Store) -> None:
    fill(store)
    group = store.group("g", ["shop.public.orders"], start="earliest")
    store.seal()
    assert [each.lag for each in group.progress()] == [each.end_offset for each in group.progress()]
    assert all(each.lag_bytes > 0 and each.lag_seconds > 0 for each in group.progress())
    with group.join("pod") as member:
        drain(member)
        progress = group.progress()
        assert {each.owner for each in progress} == {"pod"}
        assert all(each.lag == each.lag_bytes == each.lag_seconds == 0 for each in progress)
    assert {each.owner for each in group.progress()} == {None}


@pytest.mark.slow
def test_a_reset_goes_anywhere_and_fences_who_is_at_work(store: Store, engine_url: str) -> None:
    fill(store)
    engine = create_engine(engine_url)
    group = store.group("g", ["shop.public.*"], start="earliest")
    with group.join("pod", effects=engine) as member:
        for each in member.batches(0):
            with Session(engine) as session, session.begin():
                each.commit(session)
        with pytest.raises(UsageError, match="has members"):
            group.reset("earliest")
        fill(store, 1)
        late = member.poll()
        assert late is not None
        group.reset(15, topics=["*.orders"], force=True)
        with Session(engine) as session, session.begin():
            late.commit(session)  # lands before anybody took the partition: the reset still counts
    assert {each.slot.topic: each.lag for each in group.progress()}[CUSTOMERS] <= 1
    with group.join("pod", effects=engine) as member:
        found = list(member.batches(0))
    orders = [each for each in found if each.topic == ORDERS]
    assert sum(row_counts(orders).values()) == 5 * 6
    engine.dispose()


@one_catalog
def test_what_cannot_be_is_said(store: Store) -> None:
    writer(store)
    with pytest.raises(UsageError, match="there is no group 'none'"):
        store.group("none")
    store.group("g", ["shop.public.orders"])
    with pytest.raises(UsageError, match=r"reads shop\.public\.orders"):
        store.group("g", ["shop.public.*"])
    with pytest.raises(UsageError, match="epoch 99 is not in the log"):
        store.group("later", ["shop.*"], start=99)
    assert [group.name for group in store.groups()] == ["g"]
    store.group("g").delete()
    assert store.groups() == []


CONSUMER = """
import sys, time
from pathlib import Path
from tailrace.eventstore.errors import Fenced, TransientError
from tailrace.eventstore.store import Store
from tailrace.eventstore.settings import StoreSettings

def consume(member, file):
    for batch in member:
        for change in batch.changes():
            file.write(f"{change.topic} {change.partition} {change.offset}\\n")
        file.flush()
        batch.commit()
        time.sleep(0.005)

settings = StoreSettings(catalog=sys.argv[1], segments=Path("segments"))
with Store.open(settings, root=Path(sys.argv[2])) as store, open(sys.argv[4], "a") as file:
    while True:
        try:
            with store.group("g").join(sys.argv[3], lease=1.0, batch_rows=20) as member:
                consume(member, file)
        except (Fenced, TransientError):  # the machine left us waiting: for longer than a lease, or for a lock
            continue
"""


def consumers(catalog_url: str, store_dir: Path, names: str) -> Iterator[Forked]:
    for name in names:
        arguments = [catalog_url, str(store_dir), name, str(store_dir / "seen.txt")]
        yield Forked([sys.executable, "-c", CONSUMER, *arguments], stderr=subprocess.DEVNULL, text=True)


def seen_lines(store_dir: Path) -> list[str]:
    """What the consumers were given, a line each."""
    file = store_dir / "seen.txt"
    return file.read_text().splitlines() if file.exists() else []


def has_more_than(store_dir: Path, lines: int) -> bool:
    return len(seen_lines(store_dir)) > lines


def test_members_that_are_killed_lose_nothing_and_keep_the_order(
    store: Store, catalog_url: str, store_dir: Path
) -> None:
    fill(store, 10)
    group = store.group("g", ["shop.public.*"], start="earliest")
    processes = list(consumers(catalog_url, store_dir, "abc"))

    def write(_: int, stop: threading.Event) -> None:
        while not stop.wait(0.05):
            fill(store, 2)

    with closing(store):
        with in_background(write):
            for victim in (0, 1):
                wait_until(partial(has_more_than, store_dir, len(seen_lines(store_dir)) + 60))
                processes[victim].send_signal(signal.SIGKILL)
        while sum(each.lag for each in group.progress()):
            time.sleep(0.2)
        for process in processes:
            process.kill()
            process.wait()
        expected = set(all_rows(store))
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for line in seen_lines(store_dir):
        topic, partition, offset = line.split()
        found[topic, int(partition)].append(int(offset))
    assert {(*place, offset) for place, offsets in found.items() for offset in offsets} == expected
    for offsets in found.values():  # again from the last commit on, never a gap
        assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(offsets))


def test_a_group_opened_by_many_at_once_is_one(new_store: StoreFactory) -> None:
    fill(new_store())
    groups: list[Group] = []
    stores = [new_store() for _ in range(4)]
    threads = [
        threading.Thread(target=lambda one=one: groups.append(one.group("g", ["shop.*"], start="earliest")))
        for one in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [group.name for group in groups] == ["g"] * 4
    assert [group.start for group in groups] == [Cut(0)] * 4


def test_a_closed_store_holds_no_database_of_groups_open(new_store: StoreFactory) -> None:
    with new_store() as store:
        writer(store)
        for _ in range(2):
            store.group("g", ["shop.public.*"])
            assert [group.name for group in store.groups()] == ["g"]
    descriptors = Path("/proc/self/fd")
    held = [os.readlink(each) for each in descriptors.iterdir() if each.is_symlink()]
    assert [path for path in held if "catalog-groups" in path] == []


def test_a_member_that_gives_partitions_up_and_a_reset_are_in_no_deadlock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's row comes first, then its partitions: on Postgres the server would end one of the two."""
    fill(store, 2)
    group = store.group("g", ["shop.public.orders"], start="earliest")
    given, go_on = threading.Event(), threading.Event()
    give_up = membership.give_up

    def slowly(*arguments: Any) -> None:
        give_up(*arguments)
        given.set()
        assert go_on.wait(60)

    with group.join("first", lease=LEASE) as first, ThreadPoolExecutor(2) as pool:
        drain(first)
        with store.groups_database.write() as connection:
            connection.execute(update(group_tables.partitions).values(wanted="second"))
        for held in first._held.values():
            held.holding = replace(held.holding, wanted="second")
        monkeypatch.setattr(membership, "give_up", slowly)
        giving = pool.submit(first.poll)
        assert given.wait(60)
        resetting = pool.submit(group.reset, "latest", force=True)
        time.sleep(0.5)  # to reach its first lock: which catalog shows a session that waits differs
        go_on.set()
        assert giving.exception(60) is None
        assert resetting.exception(60) is None


@one_catalog
def test_a_groups_row_that_is_not_what_was_written_is_named(store: Store) -> None:
    def set_to(values: dict[str, str]) -> None:
        with store.groups_database.write() as connection:
            connection.execute(update(group_tables.groups).values(values))

    store.group("mails", ["shop.*"])
    with store.groups_database.read() as connection:
        written = connection.execute(select(group_tables.groups)).one()._asdict()
    damaged = [(name, text) for name in ("topics", "start_cut") for text in ("", "{", "[1]", "null", "{}")]
    for name, text in [*damaged, ("start_cut", '{"epoch": "1", "below_lsn": {}, "inside": {}}')]:
        set_to({name: text})
        for look in (store.groups, partial(store.group, "mails")):
            with pytest.raises(IntegrityError, match="the row of group 'mails' in table groups is damaged"):
                look()
        set_to(written)
    assert [each.name for each in store.groups()] == ["mails"]


@one_catalog
def test_a_time_that_no_clock_shows_is_a_damaged_row(store: Store) -> None:
    fill(store, 1)
    with store.group("mails", ["shop.*"], start="earliest").join("a") as member:
        drain(member)
    with store.groups_database.write() as connection:
        connection.execute(update(group_tables.partitions).values(committed_at=2**62))
    with pytest.raises(IntegrityError, match="which no clock shows"):
        store.group("mails").progress()


def drained_group(new_store: StoreFactory) -> tuple[Store, Group]:
    """A group that has consumed all of a log."""
    store = new_store()
    fill(store, 3)
    group = store.group("g", ["shop.public.*"], start="earliest")
    with group.join("a") as member:
        drain(member)
    return store, group


@one_catalog
@pytest.mark.parametrize("offset", [1000, 1 << 62])
def test_a_position_behind_the_end_of_the_log_is_refused_and_can_be_reset(
    new_store: StoreFactory, offset: int
) -> None:
    """As a log that was restored leaves it, or a role that may only read and consume writes it."""
    store, group = drained_group(new_store)
    table = group_tables.partitions
    with group.database.write() as connection:
        connection.execute(update(table).where(table.c.topic.like("%orders")).values(next_offset=offset))
    with group.join("a") as member, pytest.raises(OperatorError, match="and the log ends at") as refused:
        member.poll()
    assert "tailrace group reset g" in refused.value.hint
    group.reset(to="latest")
    fill(store, 1)
    with group.join("a") as member:
        assert sum(each.rows.num_rows for each in drain(member)) == 6


@one_catalog
@pytest.mark.parametrize("partition", [-1, 4, 2**31 - 1])
def test_a_stored_position_in_a_partition_that_is_not_there_is_named(
    new_store: StoreFactory, partition: int
) -> None:
    _, group = drained_group(new_store)
    table = group_tables.partitions
    moved = update(table).where(table.c.topic.like("%orders"), table.c.partition == 0)
    with group.database.write() as connection:
        connection.execute(moved.values(partition=partition))
    with group.join("a") as member, pytest.raises(IntegrityError, match=f"orders/{partition}: there is no"):
        member.poll()
