"""How far the topics of a Kafka source are, and their parked records.

Both decide what is read next, and are written in the transaction of an epoch. Each row has a digest; the sum over all
rows is a part of what the log declares (``metadata.declared``), which the epoch's hash covers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, and_, delete, func, insert, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import IntegrityError, damaged_row
from tailrace.eventstore.metadata import declared
from tailrace.eventstore.metadata.declared import AnyRow, Declared
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.model.kafka import ParkedRecord, PartitionProgress, RecordPlace, SnapshotPhase

COVERED = (tables.kafka_partitions, tables.parked_records)
CHANGED = "it is not what the log wrote there"


def place_of(table: Table, row: AnyRow) -> str:
    """A row for people: its table and its primary key."""
    key = ", ".join(f"{column.name} {row._mapping[column.name]}" for column in table.primary_key)
    return f"{table.name}: {key}"


def holds(table: Table, row: AnyRow) -> bool:
    """Whether a row is as it was written."""
    return bool(row.digest == declared.sum_text(declared.digest(table, row._mapping)))


def write(connection: Connection, batch: EpochBatch) -> int:
    """Write what an epoch says of its source's partitions and parked records; gives how the sum changes."""
    changed = 0
    for each in batch.progress:
        values = _progress_values(batch.source, each)
        changed += _replace(connection, tables.kafka_partitions, values)
    for record in batch.parked:
        changed += _insert(connection, tables.parked_records, _parked_values(batch.source, record))
    for place in batch.unparked:
        changed += _delete(connection, tables.parked_records, _parked_key(batch.source, place))
    return changed


def _replace(connection: Connection, table: Table, values: Mapping[str, Any]) -> int:
    key = {column.name: values[column.name] for column in table.primary_key}
    before = connection.execute(select(table).where(_is(table, key))).one_or_none()
    if before is None:
        return _insert(connection, table, values)
    if not holds(table, before):
        raise damaged_row(place_of(table, before), CHANGED)
    digest = declared.digest(table, values)
    written = {**values, "digest": declared.sum_text(digest)}
    connection.execute(update(table).where(_is(table, key)).values(written))
    return digest - declared.digest(table, before._mapping)


def _insert(connection: Connection, table: Table, values: Mapping[str, Any]) -> int:
    digest = declared.digest(table, values)
    connection.execute(insert(table).values(**values, digest=declared.sum_text(digest)))
    return digest


def _delete(connection: Connection, table: Table, key: Mapping[str, Any]) -> int:
    row = connection.execute(delete(table).where(_is(table, key)).returning(table)).one_or_none()
    if row is None:
        shown = ", ".join(f"{name} {value}" for name, value in key.items())
        raise damaged_row(f"{table.name}: {shown}", "there is no such row")
    return -declared.digest(table, row._mapping)


def _is(table: Table, key: Mapping[str, Any]) -> Any:
    return and_(*(table.c[name] == value for name, value in key.items()))


def _progress_values(source: str, progress: PartitionProgress) -> dict[str, Any]:
    return {
        "source": source,
        "topic": progress.topic,
        "partition": progress.partition,
        "topic_id": progress.topic_id,
        "next_offset": progress.next_offset,
        "commit_lsn": progress.commit_lsn,
        "row_lsn": progress.row_lsn,
        "snapshot": progress.snapshot.value,
    }


def _parked_key(source: str, place: RecordPlace) -> dict[str, Any]:
    return {
        "source": source,
        "topic": place.topic,
        "partition": place.partition,
        "record_offset": place.offset,
    }


def _parked_values(source: str, record: ParkedRecord) -> dict[str, Any]:
    return {
        **_parked_key(source, record.place),
        "reason": record.reason,
        "key": record.key,
        "value": record.value,
        "parked_at": record.parked_at,
    }


def partitions(connection: Connection, source: str) -> list[PartitionProgress]:
    """A source's partitions. Raises IntegrityError for a row that is not what the log wrote, and when the rows of all
    sources are not what the last epoch says of them; whether that is chained the caller looks."""
    _require_declared(connection)
    return [_progress(row) for row in _rows(connection, tables.kafka_partitions, source)]


def shown_partitions(catalog: Catalog, source: str) -> list[PartitionProgress]:
    """The same for a look alone: nothing is compared."""
    table = tables.kafka_partitions
    query = select(table).where(table.c.source == source).order_by(table.c.topic, table.c.partition)
    with catalog.read() as connection:
        return [_progress(row) for row in connection.execute(query)]


def parked(catalog: Catalog, source: str) -> list[ParkedRecord]:
    """A source's parked records, in the order of their places. Raises IntegrityError for a row that is not what the log
    wrote."""
    with catalog.read() as connection:
        return [
            ParkedRecord(
                RecordPlace(row.topic, row.partition, row.record_offset),
                row.reason,
                row.parked_at,
                row.key,
                row.value,
            )
            for row in _rows(connection, tables.parked_records, source)
        ]


def parked_records(catalog: Catalog, source: str) -> int:
    """How many there are."""
    table = tables.parked_records
    with catalog.read() as connection:
        query = select(func.count()).select_from(table).where(table.c.source == source)
        return int(connection.execute(query).scalar_one())


def _progress(row: AnyRow) -> PartitionProgress:
    return PartitionProgress(
        row.topic,
        row.partition,
        row.topic_id,
        row.next_offset,
        row.commit_lsn,
        row.row_lsn,
        SnapshotPhase(row.snapshot),
    )


def _rows(connection: Connection, table: Table, source: str | None = None) -> Iterator[AnyRow]:
    query = select(table).order_by(*table.primary_key)
    for row in connection.execute(query if source is None else query.where(table.c.source == source)):
        if not holds(table, row):
            raise damaged_row(place_of(table, row), CHANGED)
        yield row


def total(rows: Mapping[Table, Sequence[AnyRow]]) -> int:
    """The sum over rows of both tables."""
    return sum(declared.digest(table, row._mapping) for table, found in rows.items() for row in found)


def _require_declared(connection: Connection) -> None:
    """One row that was taken away, put in or set back whole has a digest that fits; the sum does not."""
    epochs = tables.epochs
    query = select(epochs.c.epoch, epochs.c.declared).order_by(epochs.c.epoch.desc()).limit(1)
    last = connection.execute(query).one_or_none()
    said = Declared.parse(last.declared) if last is not None else Declared()
    topics = connection.execute(select(tables.topics.c.id, tables.topics.c.declared)).all()
    sums = {row.id: int(row.declared, 16) for row in topics if declared.is_sum(row.declared)}
    rows = {table: list(_rows(connection, table)) for table in COVERED}
    if said is None or declared.of_sums(sums, said.highest).plus(total(rows)) != said:
        number = 0 if last is None else last.epoch
        raise IntegrityError(
            f"the rows of kafka_partitions, parked_records and topics are not those that epoch {number} declared",
            hint="the catalog was changed from outside: `tailrace log verify` says where; restore all of it from one"
            " backup",
        )
