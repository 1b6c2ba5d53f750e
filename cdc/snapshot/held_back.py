"""Streamed rows of topics that are being loaded, held back until the log has reached the load's consistent point.

Transactions that commit below that point are in the load; the others follow the loaded rows. The point is known only
when the new slot exists, so all rows are held back from the session's start on, in files when they are many."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment.segment import read_prepared
from tailrace.eventstore.storage import Storage

_FILE_BYTES = 16 << 20

Prepare = Callable[[TopicId, int, pa.Table], PreparedSegment]


class HeldBackRows:
    """Rows of one topic, in commit order. Used by the append thread alone."""

    def __init__(self, topic: TopicId, prepare: Prepare, storage: Storage) -> None:
        self._topic = topic
        self._prepare = prepare
        self._storage = storage
        self._files: list[PreparedSegment] = []
        self._rows: list[TopicRows] = []
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """In memory."""
        return self._bytes

    def add(self, rows: TopicRows) -> None:
        if self._rows and (self._rows[-1].version != rows.version or self._bytes >= _FILE_BYTES):
            self.flush()
        self._rows.append(rows)
        self._bytes += rows.rows.nbytes

    def forget_below(self, lsn: int) -> None:
        """Drop files that hold nothing at or above ``lsn``."""
        self._files = [file for file in self._files if file.lsns is None or file.lsns[1] >= lsn]

    def take(self, lsn: int, schemas: dict[int, TopicSchema]) -> list[PreparedSegment]:
        """Files of the rows that commit at or above ``lsn``, in order. ``schemas`` are the topic's by version."""
        self.flush()
        self.forget_below(lsn)
        kept = [self._trim(file, lsn, schemas[file.version]) for file in self._files]
        self._files = []
        return [file for file in kept if file.rows]

    def _trim(self, file: PreparedSegment, lsn: int, schema: TopicSchema) -> PreparedSegment:
        """The file, or another one without the rows that commit below ``lsn``."""
        if file.lsns is None or file.lsns[0] >= lsn:
            return file
        rows = read_prepared(self._storage, file, schema)
        return self._prepare(file.topic, file.version, rows.filter(pc.greater_equal(rows["_lsn"], lsn)))

    def flush(self) -> None:
        """Put what is in memory into a file."""
        if self._rows:
            table = pa.concat_tables([rows.rows for rows in self._rows])
            self._files.append(self._prepare(self._topic, self._rows[0].version, table))
        self._rows, self._bytes = [], 0
