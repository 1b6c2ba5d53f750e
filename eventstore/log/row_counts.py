"""How many rows a topic got between two epochs, from the catalog alone: no file is opened, no blob is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.metadata import log_start, topics
from tailrace.eventstore.metadata.segment_index import parts_from_json
from tailrace.eventstore.model.topic import TopicId


@dataclass(frozen=True, slots=True)
class RowCount:
    """``at_least`` and ``at_most`` differ where a file also has epochs outside the range."""

    at_least: int = 0
    at_most: int = 0

    def __add__(self, other: RowCount) -> RowCount:
        return RowCount(self.at_least + other.at_least, self.at_most + other.at_most)

    @property
    def exact(self) -> bool:
        return self.at_least == self.at_most


def count_rows(catalog: Catalog, topic: TopicId, after: int, up_to: int) -> RowCount | None:
    """Rows of a topic in the epochs behind ``after`` and up to ``up_to``, reads and deletes among them. None when
    retention removed some, or the log has no such topic."""
    with catalog.read() as connection:
        topic_id = topics.topic_ids(connection, [topic]).get(topic)
        if topic_id is None or after < log_start.read(connection, topic_id).epoch:
            return None
        return _count_in_files(connection, topic_id, after, up_to) + _count_in_blobs(
            connection, topic_id, after, up_to
        )


def _count_in_files(connection: Connection, topic_id: int, after: int, up_to: int) -> RowCount:
    table = tables.segments
    query = select(table.c.first_epoch, table.c.last_epoch, table.c.rows).where(
        table.c.topic_id == topic_id, table.c.last_epoch > after, table.c.first_epoch <= up_to
    )
    found = RowCount()
    for first, last, rows in connection.execute(query):
        found += RowCount(rows if first > after and last <= up_to else 0, rows)
    return found


def _count_in_blobs(connection: Connection, topic_id: int, after: int, up_to: int) -> RowCount:
    table = tables.epochs
    query = select(table.c.parts).where(
        table.c.epoch > after,
        table.c.epoch <= up_to,
        table.c.blob_bytes.is_not(None),
        table.c.topics.like(f"%,{topic_id},%"),
    )
    parts = [part for text in connection.scalars(query) for part in parts_from_json(text)]
    rows = sum(part.rows for part in parts if part.topic_id == topic_id)
    return RowCount(rows, rows)
