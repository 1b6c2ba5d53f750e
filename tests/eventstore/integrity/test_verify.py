"""``verify`` finds whatever happened to the log behind its back, names it, and finds nothing on a log that is whole."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.integrity import catalog_snapshot
from tailrace.eventstore.integrity.findings import Finding, LogProblem
from tailrace.eventstore.maintenance.files import fold, seal, tiers
from tailrace.eventstore.maintenance.files import merge as maintenance_merge
from tailrace.eventstore.segment import merge
from tailrace.eventstore.settings import UpkeepSettings
from tailrace.eventstore.store import Store
from tests.eventstore.maintenance.files.test_seal import fill
from tests.eventstore.shop import CUSTOMERS, ORDERS, batch, writer
from tests.fixtures.scale import Scale
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support.folders import segments_folder

AT_ONCE = UpkeepSettings(keep_seconds=0, keep_epochs=4)
# Where what is done to the store has nothing to do with the kind of its catalog.


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "CHUNK_EPOCHS", 2)
    monkeypatch.setattr(fold, "CHUNK", 4)
    monkeypatch.setattr(tiers, "FAN_IN", 3)


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    """A log with everything: folded epochs, merged, sealed and fresh files, blobs."""
    opened = new_store(inline_bytes=3500, upkeep=AT_ONCE)
    fill(opened, 20)
    opened.seal(15)
    opened.merge()
    opened.fold()
    assert opened.verify().findings == ()
    return opened


def problems(store: Store) -> dict[str, LogProblem]:
    """What is wrong, by place."""
    return {finding.place: finding.problem for finding in store.verify().findings}


def segments(store: Store, **where: Any) -> list[Any]:
    table = tables.segments
    query = select(table).order_by(table.c.topic_id, table.c.first_row).filter_by(**where)
    with store.catalog.read() as connection:
        return list(connection.execute(query).all())


def change(store: Store, statement: Any) -> None:
    """What somebody does to the catalog by hand."""
    with store.catalog.write() as connection:
        connection.execute(statement)


def overwrite(store: Store, path: str, data: bytes) -> None:
    (segments_folder(store) / path).write_bytes(data)


@one_catalog
def test_it_is_clean_after_every_step_of_upkeep(new_store: StoreFactory) -> None:
    store = new_store(inline_bytes=3500, upkeep=AT_ONCE)
    fill(store, 20)
    hashes = set()
    for step in (lambda: None, lambda: store.seal(15), store.merge, store.fold, store.seal, store.maintain):
        step()
        found = store.verify()
        assert found.findings == ()
        hashes.add((found.epoch, found.hash))
    assert store.verify(quick=True).findings == ()
    assert store.verify([ORDERS]).findings == ()
    assert len(hashes) == 1


@one_catalog
def test_a_byte_that_is_another_is_found_wherever_it_is(store: Store, scale: Scale) -> None:
    with store.catalog.read() as connection:
        named = catalog_snapshot.take(connection)
        blob, epoch = connection.execute(
            select(tables.blobs, tables.epochs.c.epoch).join(
                tables.epochs, tables.epochs.c.append_id == tables.blobs.c.append_id
            )
        ).first()[-2:]  # type: ignore[index]
    paths = sorted(named.paths - named.retired)

    @settings(max_examples=scale.pick(smoke=12, full=300))
    @given(
        path=st.sampled_from([*paths, None]),
        at=st.floats(0, 1, exclude_max=True),
        bit=st.sampled_from([1 << bit for bit in range(8)]),
    )
    def found(path: str | None, at: float, bit: int) -> None:
        if path is None:
            place, whole = f"the blob of epoch {epoch}", blob
            mine = update(tables.blobs).where(tables.blobs.c.data == blob)
            change(store, mine.values(data=_flipped(blob, at, bit)))
        else:
            place, whole = path, store.storage.open(path).to_pybytes()
            overwrite(store, path, _flipped(whole, at, bit))
        places = problems(store)
        if path is None:
            change(
                store,
                update(tables.blobs).where(tables.blobs.c.data == _flipped(blob, at, bit)).values(data=blob),
            )
        else:
            overwrite(store, path, whole)
        assert places == {place: LogProblem.DAMAGED}

    found()
    assert problems(store) == {}


def _flipped(data: bytes, at: float, bit: int) -> bytes:
    position = int(at * len(data))
    return data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :]


@one_catalog
def test_files_that_are_missing_foreign_or_exchanged_are_named(store: Store) -> None:
    one, other = (row.path for row in segments(store, sealed=True)[:2])
    contents = {path: store.storage.open(path).to_pybytes() for path in (one, other)}
    (segments_folder(store) / one).unlink()
    assert problems(store) == {one: LogProblem.MISSING}
    assert {f.place for f in store.verify(quick=True).findings} == {one}
    overwrite(store, one, contents[other])
    overwrite(store, other, contents[one])
    assert problems(store) == {one: LogProblem.DAMAGED, other: LogProblem.DAMAGED}
    for path, data in contents.items():
        overwrite(store, path, data)
    for path in ("log/shop/1/copy.parquet", "notes.txt", "log/bank/7/t1-00.parquet"):
        (segments_folder(store) / path).parent.mkdir(parents=True, exist_ok=True)
        overwrite(store, path, b"something")
        assert problems(store) == {path: LogProblem.FOREIGN}
        (segments_folder(store) / path).unlink()
    left_behind = "log/shop/1/t1-00ff.parquet"  # by a capture that was killed
    overwrite(store, left_behind, b"something")
    assert store.verify().unregistered == 1
    assert problems(store) == {}


@one_catalog
def test_offsets_that_were_edited_in_the_catalog_are_a_gap_or_an_overlap(store: Store) -> None:
    row = segments(store, sealed=True)[1]
    table = tables.segments
    mine = table.c.path == row.path
    for by, problem in ((2, LogProblem.GAP), (-1, LogProblem.OVERLAP)):
        moved = [[partition, first + by, rows] for partition, first, rows in json.loads(row.ranges)]
        change(store, update(table).where(mine).values(ranges=json.dumps(moved)))
        damage = [finding for finding in store.verify(quick=True).findings if finding.place == row.path]
        assert damage[0].problem is problem
        assert f"partition {moved[0][0]}" in damage[0].detail
        assert problems(store)[row.path] is not None
    change(store, update(table).where(mine).values(ranges=row.ranges))
    assert problems(store) == {}


@one_catalog
def test_a_file_that_is_taken_out_with_its_row_is_found_also_when_the_rest_is_moved_up(
    new_store: StoreFactory,
) -> None:
    """By the gap, and, when offsets are made to fit, by the rows' own offsets and by the sum of contents."""
    store = new_store()
    fill(store, 10)
    store.seal()
    table = tables.segments
    before, gone, *following = [row for row in segments(store) if row.topic_id == 2]
    (segments_folder(store) / gone.path).unlink()
    change(store, delete(table).where(table.c.path == gone.path))
    found = store.verify(quick=True).findings
    gap = next(finding for finding in found if finding.problem is LogProblem.GAP)
    assert before.path in gap.detail
    removed = {partition: rows for partition, _, rows in json.loads(gone.ranges)}
    for row in following:
        ranges = [[p, first - removed.get(p, 0), rows] for p, first, rows in json.loads(row.ranges)]
        values = {"ranges": json.dumps(ranges), "first_row": row.first_row - gone.rows}
        change(store, update(table).where(table.c.path == row.path).values(values))
    found = store.verify().findings
    places = {finding.place: finding.problem for finding in found}
    assert places[CUSTOMERS.text] is LogProblem.CHANGED or places[CUSTOMERS.text] is LogProblem.GAP
    assert any(finding.place == CUSTOMERS.text and "were recorded" in finding.detail for finding in found)


@one_catalog
def test_an_older_state_of_a_file_with_its_row_is_found(new_store: StoreFactory) -> None:
    """A file and its row of before a merge are put back in the place of what was made of them."""
    store = new_store(inline_bytes=3500, upkeep=UpkeepSettings())
    fill(store, 24)
    store.seal()
    before = {row.path: row for row in segments(store)}
    store.merge()
    merged = next(row for row in segments(store) if row.path not in before)
    inside = [row for row in before.values() if row.topic_id == merged.topic_id]
    inside = [r for r in inside if merged.first_row <= r.first_row < merged.first_row + merged.rows]
    table = tables.segments
    change(store, delete(table).where(table.c.path == merged.path))
    for row in inside:
        change(store, table.insert().values(**row._asdict()))
        change(store, delete(tables.retired).where(tables.retired.c.path == row.path))
    assert problems(store) == {ORDERS.text: LogProblem.CHANGED}


@one_catalog
def test_what_capture_wrote_is_what_its_epochs_hash_covers(store: Store) -> None:
    """A fresh file, or a blob, with another's bytes and their checksum; an epoch's row."""
    fresh = next(row for row in segments(store, sealed=False) if row.first_epoch == 20)
    table, epochs, blobs = tables.segments, tables.epochs, tables.blobs
    other = segments(store, sealed=True)[0]
    path = "log/shop/1/t1-00aa.parquet"
    overwrite(store, path, store.storage.open(other.path).to_pybytes())
    values = {"path": path, "checksum": other.checksum, "bytes": other.bytes}
    change(store, update(table).where(table.c.path == fresh.path).values(values))
    assert problems(store)[f"epoch {fresh.first_epoch}"] is LogProblem.CHANGED
    values = {"path": fresh.path, "checksum": fresh.checksum, "bytes": fresh.bytes}
    change(store, update(table).where(table.c.path == path).values(values))
    (segments_folder(store) / path).unlink()
    with store.catalog.read() as connection:
        one, two = connection.execute(select(blobs).limit(2)).all()
        epoch = connection.execute(select(epochs).where(epochs.c.append_id == one.append_id)).one()
    content = {"data": two.data, "checksum": two.checksum, "plain_bytes": two.plain_bytes}
    change(store, update(blobs).where(blobs.c.append_id == one.append_id).values(content))
    assert problems(store) == {f"epoch {epoch.epoch}": LogProblem.CHANGED}
    with pytest.raises(IntegrityError, match=f"epoch {epoch.epoch}"):
        store.seal()  # the last chance to notice
    content = {"data": one.data, "checksum": one.checksum, "plain_bytes": one.plain_bytes}
    change(store, update(blobs).where(blobs.c.append_id == one.append_id).values(content))
    change(store, update(epochs).where(epochs.c.epoch == 18).values(commit_ts=epochs.c.commit_ts + 1))
    assert problems(store) == {"epoch 18": LogProblem.CHANGED}
    change(store, delete(epochs).where(epochs.c.epoch == 18))
    assert problems(store)["epoch 19"] is LogProblem.GAP


@one_catalog
def test_nothing_is_replaced_by_a_file_with_other_rows(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(inline_bytes=3500, upkeep=AT_ONCE)
    fill(store, 24)
    store.seal()
    before = [row.path for row in segments(store)]
    add = merge._Groups.add

    def wrong(groups: Any, piece: Any) -> None:
        at = piece.schema.get_field_index("_txn")
        add(groups, piece.set_column(at, piece.schema.field(at), pc.add(piece["_txn"], 1)))

    with monkeypatch.context() as faulty:
        faulty.setattr(merge._Groups, "add", wrong)
        with pytest.raises(IntegrityError, match="does not hold the rows"):
            store.merge()
        assert [row.path for row in segments(store)] == before
        faulty.setattr(maintenance_merge, "require_content", lambda *_: None)
        with pytest.raises(IntegrityError, match="does not hold the content"):
            store.merge()  # the next merge would take what the first one made
    made = {row.path for row in segments(store)} - set(before)
    assert {place: problem for place, problem in problems(store).items() if place in made} == dict.fromkeys(
        made, LogProblem.CHANGED
    )


def test_beside_a_capture_and_upkeep_it_finds_nothing(new_store: StoreFactory) -> None:
    store, upkeep, looking = new_store(inline_bytes=3500), new_store(upkeep=AT_ONCE), new_store()
    capture = writer(store)
    ended = threading.Event()

    def maintain() -> None:
        while not ended.is_set():
            upkeep.maintain()

    def look() -> int:
        found: list[Finding] = []
        rounds = 0
        while not ended.is_set() or not rounds:
            found += looking.verify().findings
            rounds += 1
        assert found == []
        return rounds

    with ThreadPoolExecutor() as pool:
        others: list[Future[Any]] = [pool.submit(maintain), pool.submit(look)]
        try:
            for lsn in range(1, 25):
                orders = [("c", i) for i in range(60 if lsn % 8 == 0 else 2)]
                capture.append(batch(lsn, orders=orders, customers=[("u", lsn)]))
        finally:
            ended.set()
        for other in others:
            other.result()
    upkeep.maintain()
    assert looking.verify().findings == ()


@one_catalog
def test_a_damaged_catalog_row_of_lineage_is_found(store: Store) -> None:
    table = tables.lineage
    change(store, update(table).where(table.c.topic_id == 1).values(content="0" * 32))
    assert problems(store) == {ORDERS.text: LogProblem.CHANGED}
