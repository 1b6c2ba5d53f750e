"""How far topics of Kafka are commits with the rows that came, under the writer's term, and the chain of epochs covers
it: what was changed from outside is refused at the start, and found by ``verify`` with its table and row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import Fenced, IntegrityError
from tailrace.eventstore.log.sources import chained_partitions
from tailrace.eventstore.maintenance.move.backup import backup
from tailrace.eventstore.metadata import declared
from tailrace.eventstore.metadata.kafka_progress import COVERED, parked, total
from tailrace.eventstore.model.kafka import ParkedRecord, PartitionProgress, RecordPlace, SnapshotPhase
from tailrace.eventstore.store import Store
from tests.eventstore.shop import ORDERS, batch, content, writer
from tests.fixtures.stores import StoreFactory, one_catalog

FIRST = PartitionProgress("p.public.orders", 0, "id-1", 7, 100, 99, SnapshotPhase.RUNNING)
SECOND = PartitionProgress("p.public.orders", 1, "id-1", 3)
BAD = ParkedRecord(RecordPlace("p.public.orders", 0, 5), "no JSON", 1, b"\x00k", b"{")
EMPTY = ParkedRecord(RecordPlace("p.public.orders", 1, 2), "no value", 2, None, None)


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    store = new_store()
    capture = writer(store)
    capture.append(batch(1, [("c", 1)], progress=[FIRST, SECOND], parked=[BAD, EMPTY], completes=[ORDERS]))
    capture.append(batch(2, progress=[replace(FIRST, next_offset=9, snapshot=SnapshotPhase.ENDED)]))
    return store


def change(store: Store, *statements: str) -> None:
    with store.catalog.write() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def epochs_of(store: Store) -> int:
    head = store.head()
    return head.epoch if head else 0


def findings(store: Store) -> list[str]:
    return [found.place for found in store.verify(quick=True).findings]


def test_progress_and_parked_records_are_an_epoch_and_are_read_back(store: Store) -> None:
    """Also where no row comes: what was read is not read again."""
    assert epochs_of(store) == 2
    ended = replace(FIRST, next_offset=9, snapshot=SnapshotPhase.ENDED)
    assert chained_partitions(store, "shop") == [ended, SECOND]
    assert parked(store.catalog, "shop") == [BAD, EMPTY]
    assert chained_partitions(store, "other") == [] == parked(store.catalog, "other")
    store.take_over("shop").append(batch(3, [("c", 2)], unparked=[BAD.place]))
    assert parked(store.catalog, "shop") == [EMPTY]
    assert findings(store) == []


def test_a_fenced_writer_moves_nothing(new_store: StoreFactory) -> None:
    store = new_store()
    old = writer(store)
    store.take_over("shop").append(batch(1, progress=[FIRST]))
    with pytest.raises(Fenced):
        old.append(batch(1, [("c", 1)], progress=[SECOND], parked=[BAD]))
    assert chained_partitions(store, "shop") == [FIRST] and parked(store.catalog, "shop") == []
    assert content(store) == [] and findings(store) == []


@one_catalog
@pytest.mark.parametrize(
    ("column", "value"),
    [("next_offset", "8"), ("topic_id", "'id-2'"), ("commit_lsn", "1"), ("row_lsn", "1"), ("snapshot", "''")],
)
def test_a_changed_row_is_refused_and_found_by_its_name(store: Store, column: str, value: str) -> None:
    where = "topic = 'p.public.orders' AND \"partition\" = 0"
    change(store, f"UPDATE kafka_partitions SET {column} = {value} WHERE {where}")  # noqa: S608
    place = "kafka_partitions: source shop, topic p.public.orders, partition 0"
    with pytest.raises(IntegrityError, match=place):
        chained_partitions(store, "shop")
    with pytest.raises(IntegrityError, match=place):
        store.take_over("shop").append(batch(3, progress=[replace(FIRST, next_offset=10)]))
    assert place in findings(store)


@one_catalog
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM parked_records WHERE record_offset = 5",
        'DELETE FROM kafka_partitions WHERE "partition" = 1',
        "INSERT INTO parked_records SELECT source, topic, 9, record_offset, reason, key, value, parked_at, digest"
        " FROM parked_records WHERE record_offset = 5",
        "UPDATE parked_records SET value = NULL WHERE record_offset = 5",
    ],
)
def test_a_row_that_was_taken_away_put_in_or_emptied_is_refused_and_found(
    store: Store, statement: str
) -> None:
    change(store, statement)
    with pytest.raises(IntegrityError, match="parked_records"):
        chained_partitions(store, "shop")
    assert findings(store)


@one_catalog
def test_a_row_that_was_set_back_with_its_digest_is_found_by_the_chain(store: Store, tmp_path: Path) -> None:
    """As from a backup of one table alone."""
    with store.catalog.read() as connection:
        row = (
            connection.exec_driver_sql('SELECT * FROM kafka_partitions WHERE "partition" = 0')
            .mappings()
            .one()
        )
    store.take_over("shop").append(batch(3, progress=[replace(FIRST, next_offset=20)]))
    change(store, f"UPDATE kafka_partitions SET next_offset = {row['next_offset']}, digest = '{row['digest']}',"  # noqa: S608
           f" snapshot = '{row['snapshot']}' WHERE \"partition\" = 0")  # fmt: skip
    with pytest.raises(IntegrityError, match="are not those that epoch 3 declared"):
        chained_partitions(store, "shop")
    assert findings(store) == ["log_head: id 1", "epochs: epoch 3"]
    with store.catalog.write() as connection:  # as somebody does who knows how it is made
        rows = {table: connection.execute(select(table)).all() for table in COVERED}
        topics = connection.execute(select(tables.topics.c.id, tables.topics.c.declared))
        said = declared.of_sums({row.id: int(row.declared, 16) for row in topics}, 2).plus(total(rows)).text
        connection.execute(update(tables.epochs).where(tables.epochs.c.epoch == 3).values(declared=said))
    with pytest.raises(IntegrityError, match="epoch 3: its hash does not match"):
        chained_partitions(store, "shop")


@one_catalog
def test_a_record_that_is_not_parked_cannot_come_back(store: Store) -> None:
    missing = RecordPlace("p.public.orders", 0, 6)
    with pytest.raises(IntegrityError, match=r"parked_records: .* record_offset 6: there is no such row"):
        store.take_over("shop").append(batch(3, [("c", 3)], unparked=[missing]))
    assert epochs_of(store) == 2


@one_catalog
def test_what_is_read_of_kafka_goes_with_a_backup(store: Store, tmp_path: Path) -> None:
    backup(store, tmp_path / "copy")
    places = {"catalog": f"sqlite:///{tmp_path}/copy/catalog.db", "segments": tmp_path / "copy" / "segments"}
    with Store.open(store.settings.model_copy(update=places)) as copied:
        assert chained_partitions(copied, "shop") == chained_partitions(store, "shop")
        assert parked(copied.catalog, "shop") == [BAD, EMPTY]
