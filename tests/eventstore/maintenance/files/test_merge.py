"""Merging makes few large files of many small ones; no reader sees a difference, also when it dies in the middle."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import func, select, update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import leases, tables, terms
from tailrace.eventstore.errors import Fenced, MissingFile
from tailrace.eventstore.maintenance.files import seal, tiers
from tailrace.eventstore.maintenance.files.merge import merge
from tailrace.eventstore.maintenance.files.retired import collect_retired
from tailrace.eventstore.maintenance.rounds import is_due
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import UpkeepSettings
from tailrace.eventstore.store import Store
from tests.eventstore.maintenance.files.test_seal import everything, fill
from tests.eventstore.shop import CUSTOMERS, ORDERS, assert_dense, at, batch, content, rows, writer
from tests.fixtures.scale import Scale
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support import forking
from tests.support.background import in_background
from tests.support.folders import segments_folder

AT_ONCE = UpkeepSettings(keep_seconds=0)
MAINTAINER = """
import sys
from pathlib import Path
from tailrace.eventstore.store import Store
from tailrace.eventstore.maintenance.files import seal, tiers
from tailrace.eventstore.settings import StoreSettings, UpkeepSettings
seal.CHUNK_EPOCHS, tiers.FAN_IN = 2, 4
settings = StoreSettings(catalog=sys.argv[1], segments=Path("segments"), upkeep=UpkeepSettings(keep_seconds=0))
with Store.open(settings, root=Path(sys.argv[2])) as store:
    store.maintain()
"""


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing makes a file of each two epochs, and four neighbours are merged."""
    monkeypatch.setattr(seal, "CHUNK_EPOCHS", 2)
    monkeypatch.setattr(tiers, "FAN_IN", 4)


def paths(store: Store, topic: TopicId | None = None) -> list[str]:
    table = tables.segments
    query = select(table.c.path).order_by(table.c.topic_id, table.c.first_row)
    if topic is not None:
        query = query.join(tables.topics).where(tables.topics.c.name == topic.text)
    with store.catalog.read() as connection:
        return list(connection.scalars(query))


def files_on_disk(store: Store) -> set[str]:
    return set(store.storage.list("log"))


@pytest.mark.usefixtures("small_chunks")
@one_catalog
def test_readers_see_the_same_rows_before_and_after(new_store: StoreFactory) -> None:
    store = new_store(inline_bytes=3500, upkeep=UpkeepSettings(memory_bytes=1 << 20))
    fill(store, 28)
    before = everything(store)
    hashes = [info.hash for info in store.epochs()]
    from_middle = {after: everything(store, after) for after in (3, 11, 15, 20)}
    cuts = {lsn: content(store, cut=store.cut(f"0/{lsn:X}")) for lsn in (5, 14, 15, 25)}
    store.seal()
    small = len(paths(store))
    merged = store.merge()
    assert len(paths(store)) < small / 3
    assert sum(each.files for each in merged) - len(merged) == small - len(paths(store))
    assert store.merge() == []
    assert everything(store) == before
    for after, expected in from_middle.items():
        assert everything(store, after) == expected, after
    for lsn, expected_rows in cuts.items():
        assert content(store, cut=store.cut(f"0/{lsn:X}")) == expected_rows
    assert [info.hash for info in store.epochs()] == hashes
    for partition in range(4):
        one = [row for row in before[0] if row["_partition"] == partition]
        assert content(store, partitions=[partition]) == one


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_nothing_is_merged_beside_an_epoch_that_is_not_sealed(new_store: StoreFactory) -> None:
    """A file that spans epochs is taken whole by readers, so no blob may hold rows of the topic between."""
    store = new_store(inline_bytes=3500)
    fill(store, 28)
    before = everything(store)
    store.seal(14)
    store.merge()
    unsealed = 15
    with store.catalog.read() as connection:
        table = tables.segments
        spans = connection.execute(select(table.c.first_epoch, table.c.last_epoch)).all()
    assert any(first < last for first, last in spans)
    assert all(last < unsealed or first == last for first, last in spans)
    assert everything(store) == before


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_a_capture_goes_on_beside_it_and_readers_keep_reading(new_store: StoreFactory) -> None:
    store, reader, upkeep = new_store(), new_store(upkeep=AT_ONCE), new_store(upkeep=AT_ONCE)
    capture = writer(store)

    def maintain(_: int, stop: threading.Event) -> None:
        while not stop.is_set():
            upkeep.maintain()

    with in_background(maintain):
        for lsn in range(1, 31):
            capture.append(batch(lsn, orders=[("c", lsn), ("u", lsn)], customers=[("c", lsn)]))
            if lsn % 6 == 0:
                found = content(reader)
                assert_dense(found)
                assert sorted({row["_lsn"] for row in found}) == list(range(1, lsn + 1))
    upkeep.maintain()
    assert len(paths(store)) <= 2 * (tiers.FAN_IN - 1)
    assert_dense(content(reader, CUSTOMERS))
    assert files_on_disk(store) == set(paths(store))


@pytest.mark.usefixtures("small_chunks")
@one_catalog
def test_a_reader_in_the_middle_of_files_that_are_merged_away_goes_on(new_store: StoreFactory) -> None:
    store = new_store(inline_bytes=3500, upkeep=AT_ONCE)
    fill(store, 20)
    store.seal()
    expected = everything(store)[1]
    found: list[dict[str, Any]] = []
    for step, part in enumerate(store.read(CUSTOMERS)):
        found += part.to_pylist()
        if step == 4:
            before = files_on_disk(store)
            assert store.maintain().removed_files > 0
            assert len(files_on_disk(store)) < len(before)
    assert found == expected


@pytest.mark.usefixtures("small_chunks")
@one_catalog
def test_a_file_that_is_lost_is_named_and_not_looked_for_for_ever(new_store: StoreFactory) -> None:
    store = new_store()
    fill(store, 6)
    store.seal()
    lost = paths(store, ORDERS)[1]
    store.storage.delete(lost)
    with pytest.raises(MissingFile, match=lost):
        content(store)


@pytest.mark.usefixtures("small_chunks")
@one_catalog
def test_replaced_files_stay_for_a_reader_that_began_before_and_go_when_it_ends(
    new_store: StoreFactory,
) -> None:
    store = new_store(upkeep=AT_ONCE)
    fill(store, 20)
    store.seal()
    with store.pinned("a job"):
        held = store.segments(ORDERS, store.cut())
        assert store.merge()
        assert store.maintain().removed_files == 0
        assert all(store.storage.exists(str(ref.path)) for ref in held)
    round_ = store.maintain()
    assert round_.removed_files > 0 and round_.removed_bytes > 0
    assert files_on_disk(store) == set(paths(store))
    with store.pinned("a job that began after"):
        assert store.maintain().removed_files == 0


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_a_reader_that_died_holds_files_no_longer_than_its_lease(new_store: StoreFactory) -> None:
    store = new_store(upkeep=AT_ONCE)
    fill(store, 20)
    store.seal()
    died = store.pinned("a job")
    died.__enter__()
    store.merge()
    assert collect_retired(store, 0) == (0, 0)
    with store.catalog.write() as connection:  # its time is over, and nobody renews it
        connection.execute(update(tables.leases).values(expires_at=1))
    assert collect_retired(store, 0)[0] > 0
    died.__exit__(None, None, None)


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_replaced_files_stay_for_a_while_for_those_without_a_lease(new_store: StoreFactory) -> None:
    store = new_store()
    fill(store, 20)
    round_ = store.maintain()
    assert round_.merged_files > 0 and round_.removed_files == 0
    gone = files_on_disk(store) - set(paths(store))
    assert len(gone) == round_.merged_files
    assert collect_retired(store, 3600) == (0, 0)
    assert collect_retired(store, 0)[0] == len(gone)


@pytest.mark.parametrize(
    ("catalog_url", "place"),
    [("sqlite", "merge_written"), ("postgres", "merge_swapped"), ("sqlite", "retired_removed:3")],
    indirect=["catalog_url"],
)
@pytest.mark.usefixtures("small_chunks")
def test_killed_upkeep_changes_nothing_and_is_finished_by_the_next(
    new_store: StoreFactory, catalog_url: str, store_dir: Path, place: str
) -> None:
    store = new_store(upkeep=AT_ONCE)
    fill(store, 16)
    before = everything(store)
    environment = {**os.environ, failpoints.VARIABLE: place}
    died = forking.run(
        [sys.executable, "-c", MAINTAINER, catalog_url, str(store_dir)], env=environment, timeout=60
    )
    assert died.returncode == -9
    assert store.verify().findings == ()
    assert everything(store) == before
    store.maintain()  # whoever died on this host is succeeded at once
    assert everything(store) == before
    assert files_on_disk(store) == set(paths(store))
    with store.catalog.read() as connection:
        assert connection.scalar(select(func.count()).select_from(tables.retired)) == 0
    assert store.verify().findings == ()


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_of_two_mergers_the_earlier_is_fenced(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = new_store(), new_store()
    fill(store, 20)
    store.seal()
    before = everything(store)
    passed = failpoints.hit

    def overtaken(name: str) -> None:
        if name == "merge_written":
            terms.begin(other.catalog, terms.MERGE)
        passed(name)

    monkeypatch.setattr(failpoints, "hit", overtaken)
    with pytest.raises(Fenced):
        store.merge()
    monkeypatch.undo()
    assert everything(store) == before
    assert store.collect_orphans() == 1
    assert everything(store) == before


def test_a_round_is_due_after_enough_epochs_large_ones_too_and_when_replaced_files_may_go(
    new_store: StoreFactory,
) -> None:
    small = UpkeepSettings(seal_epochs=10, keep_seconds=3600)
    store = new_store(inline_bytes=0, upkeep=small)
    fill(store, 9)
    assert not is_due(store)
    writer(store).append(batch(10, orders=[("c", 1)]))
    assert is_due(store)
    with store.pinned("a job"):
        assert store.maintain().merged_files > 0
        assert not is_due(store)
        assert not is_due(new_store(upkeep=AT_ONCE)), "the job needs what was replaced"
    assert is_due(new_store(upkeep=AT_ONCE)), "the replaced files may go now"


def test_of_two_rounds_the_later_is_refused_and_changes_nothing(new_store: StoreFactory) -> None:
    store, other = new_store(), new_store()
    fill(store, 6)
    with leases.maintainer_lease(store.catalog), pytest.raises(leases.Busy, match="upkeep is under way"):
        other.maintain()
    assert other.maintain().sealed_epochs == 6


@pytest.mark.usefixtures("small_chunks")
def test_a_damaged_file_is_not_merged(new_store: StoreFactory) -> None:
    store = new_store()
    fill(store, 20)
    store.seal()
    damaged = segments_folder(store) / paths(store, ORDERS)[2]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(Exception, match="is damaged"):
        store.merge()
    assert damaged.exists()


@one_catalog
def test_memory_is_bounded_whatever_the_files_hold(new_store: StoreFactory, scale: Scale) -> None:
    """Half the decoded rows of one file would be more than a merge may hold."""
    store = new_store(inline_bytes=0)
    capture = writer(store)
    wide = "x" * scale.pick(smoke=8_000, full=80_000)
    for lsn in range(1, tiers.FAN_IN + 1):
        table = rows(lsn, [("c", i) for i in range(200)])
        many = pa.concat_tables([table] * 20)
        after = pa.StructArray.from_arrays(
            [many["key"].combine_chunks().field("id"), pa.array([wide] * many.num_rows)],
            fields=list(many.schema.field("after").type),
        )
        many = many.set_column(many.schema.get_field_index("after"), many.schema.field("after"), after)
        capture.append(EpochBatch("shop", lsn, lsn + 1, lsn + 1, at(lsn), 1, [TopicRows(ORDERS, 1, many)]))
    decoded = many.nbytes
    limit = decoded // 2
    del many, after
    before = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counting)
    try:
        merged = list(merge(store, limit))
    finally:
        pa.set_memory_pool(before)
    assert [each.files for each in merged] == [tiers.FAN_IN]
    assert counting.max_memory() < limit
    assert sum(batch.num_rows for batch in store.read(ORDERS, columns=["_lsn"])) == tiers.FAN_IN * 4000


def simulated(sizes: list[int]) -> list[tiers.TierFile]:
    files, row = [], 0
    for size in sizes:
        files.append(tiers.TierFile(f"f{row}", 1, row, 10, size))
        row += 10
    return files


def merged_away(
    files: list[tiers.TierFile], positions: Collection[int] = ()
) -> tuple[list[tiers.TierFile], int]:
    """The files after all groups are merged as planned, and the bytes that were written."""
    written = 0
    while groups := tiers.plan(files, positions):
        for group in groups:
            at = files.index(group[0])
            assert files[at : at + len(group)] == group  # neighbours
            size = sum(file.bytes for file in group)
            assert size <= tiers.MAX_BYTES
            rows = sum(file.rows for file in group)
            merged = tiers.TierFile(group[0].path, 1, group[0].first_row, rows, size, group[-1].last_epoch)
            files[at : at + len(group)] = [merged]
            written += size
    return files, written


def test_files_are_few_and_each_row_is_rewritten_once_per_tier() -> None:
    """A topic that gets 10 KB a minute, for 50 days: 0.7 GB."""
    files: list[tiers.TierFile] = []
    written = 0
    most = 0
    for minute in range(72_000):
        files.append(tiers.TierFile(f"f{minute}", 1, minute, 1, 10_000 + minute % 7))
        if len(files) >= tiers.FAN_IN and minute % tiers.FAN_IN == 0:
            files, more = merged_away(files)
            written += more
        most = max(most, len(files))
    held = sum(file.bytes for file in files)
    full = [file for file in files if file.bytes >= tiers.TARGET_BYTES]
    assert len(full) == len(files) - len(files[len(full) :]) and len(full) >= held / tiers.MAX_BYTES - 1
    assert most <= len(full) + 6 * tiers.FAN_IN
    assert written <= 7 * held


def test_files_are_few_beside_readers_that_follow_lag_and_have_stopped() -> None:
    files: list[tiers.TierFile] = []
    written = 0
    most = 0
    for minute in range(8_000):
        files.append(tiers.TierFile(f"f{minute}", 1, minute, 1, 10_000 + minute % 7, minute))
        files, more = merged_away(files, {minute - 1, minute - 700, min(minute, 2_003)})
        written += more
        most = max(most, len(files))
    full = [file for file in files if file.bytes >= tiers.TARGET_BYTES]
    assert most <= len(full) + 3 * 6 * tiers.FAN_IN
    assert written <= 7 * sum(file.bytes for file in files)


def test_what_stands_before_a_full_file_is_merged_whatever_there_is() -> None:
    mib = 1 << 20
    files, _ = merged_away(simulated([mib, 20, 3 * mib, 70 * mib, 40 * mib, 10, 60 * mib, 90 * mib, 5]))
    assert [file.bytes for file in files] == [
        4 * mib + 20,
        70 * mib,
        100 * mib + 10,
        90 * mib,
        5,
    ]


def test_what_a_reader_has_read_is_not_merged_with_what_it_has_yet_to_read() -> None:
    """Else the few rows that came last would lie among all those of the table."""
    files = [tiers.TierFile(f"f{at}", 1, at, 1, 2 << 20, at) for at in range(tiers.FAN_IN)]
    assert tiers.plan(files) == tiers.plan(files, [100]) == tiers.plan(files, [7]) == [files]
    assert tiers.plan(files, [6]) == tiers.plan(files, [0, 6]) == []
    later = tiers.TierFile("later", 1, tiers.FAN_IN, 1, 2 << 20, 500)
    assert tiers.plan([*files, later], [8]) == [files], "where it has read ends, also within a file"
    full = tiers.TierFile("full", 1, tiers.FAN_IN, 1, tiers.TARGET_BYTES, 8)
    assert tiers.plan([*files, full], [4]) == [files[5:]], "before a full file nothing new can come"


@pytest.mark.usefixtures("small_chunks")
def test_files_are_merged_up_to_where_the_readers_of_their_topic_are(new_store: StoreFactory) -> None:
    store = new_store()
    fill(store, 14)
    group = store.group("mail", topics=[ORDERS.text], start=5)
    store.seal()

    def spans() -> list[tuple[int, int]]:
        store.merge()
        table = tables.segments.c
        query = select(table.first_epoch, table.last_epoch).order_by(table.first_row)
        query = query.join(tables.topics).where(tables.topics.c.name == ORDERS.text)
        with store.catalog.read() as connection:
            return [(first, last) for first, last in connection.execute(query)]

    assert all(last <= 6 or first > 4 for first, last in spans()), spans()
    group.delete()
    assert spans()[0] == (1, 7)


def test_versions_and_gaps_are_never_merged() -> None:
    one = [tiers.TierFile("a", 1, 0, 10, 5), tiers.TierFile("b", 2, 10, 10, 5)]
    gap = [tiers.TierFile("a", 1, 0, 10, 5), tiers.TierFile("b", 1, 20, 10, 5)]
    assert tiers.plan(one) == tiers.plan(gap) == []
