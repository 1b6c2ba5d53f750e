"""What retention removed and an archive keeps: plain Parquet files elsewhere; rows of the catalog name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import MissingFile, OperatorError
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.model.segment_ref import PartitionRange, SegmentRef
from tailrace.eventstore.model.time import from_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.storage import Storage
from tailrace.eventstore.storage.open import MARKER, read_marker


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """Rows of a topic in ``path`` of the ``archive`` (``Store.archive``); ``place`` is its full name for people."""

    topic: TopicId
    archive: str
    path: str
    place: str
    version: int
    first_epoch: int
    last_epoch: int
    rows: int
    bytes: int
    checksum: str
    ranges: tuple[PartitionRange, ...]
    archived_at: datetime | None

    @property
    def ref(self) -> SegmentRef:
        """For ``segment.read_segment`` on the archive's storage."""
        return SegmentRef(
            topic=self.topic,
            version=self.version,
            first_epoch=self.first_epoch,
            last_epoch=self.last_epoch,
            rows=self.rows,
            bytes=self.bytes,
            ranges=self.ranges,
            path=self.path,
            sealed=True,
            checksum=self.checksum,
        )


def read(
    connection: Connection, topic: TopicId, topic_id: int, opened: Callable[[str], Storage]
) -> list[ArchivedFile]:
    """A topic's files in archives, in its order, by the catalog alone."""
    table = tables.archived
    query = select(table).where(table.c.topic_id == topic_id).order_by(table.c.first_row)
    return [
        ArchivedFile(
            topic=topic,
            archive=row.place,
            path=row.path,
            place=opened(row.place).place(row.path),
            version=row.version,
            first_epoch=row.first_epoch,
            last_epoch=row.last_epoch,
            rows=row.rows,
            bytes=row.bytes,
            checksum=row.checksum,
            ranges=segment_index.ranges_from_json(row.ranges),
            archived_at=from_micros(row.archived_at),
        )
        for row in connection.execute(query)
    ]


def require(archive: Storage, log_id: str) -> None:
    """Raises OperatorError for a place that does not hold this log's archive: another one's, or the folder under a disk
    that is not mounted; OperatorError or TransientError for one out of reach."""
    try:
        found = read_marker(archive)
    except MissingFile:
        raise OperatorError(
            f"{archive.label} does not hold what was archived there: it has no {MARKER}",
            hint="mount it, or bring back what was there",
        ) from None
    if found != log_id:
        raise OperatorError(
            f"{archive.label} belongs to another log ({found})", hint="name another place as the archive"
        )
