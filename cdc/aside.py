"""Rows of topics that are being loaded, kept back until the load's consistent point is in the log.

What commits below that point is in the load; what commits at or above it follows the loaded rows. The point is known
only when the new slot is there, so everything is kept from the session's start on, in files once it is much.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eventstore.model import PartitionRange, PreparedSegment, SegmentRef, TopicId, TopicRows
from eventstore.schema import TopicSchema, change_schema
from eventstore.segment import read_segment
from eventstore.storage import Storage

_FILE_BYTES = 16 << 20

Prepare = Callable[[TopicId, int, pa.Table], PreparedSegment]


class Aside:
    """Rows of one topic, in commit order. Used by the append thread alone."""

    def __init__(self, topic: TopicId, prepare: Prepare, storage: Storage) -> None:
        self._topic = topic
        self._prepare = prepare
        self._storage = storage
        self._files: list[PreparedSegment] = []
        self._rows: list[TopicRows] = []
        self._bytes = 0

    def add(self, rows: TopicRows) -> None:
        if self._rows and (self._rows[-1].version != rows.version or self._bytes >= _FILE_BYTES):
            self._flush()
        self._rows.append(rows)
        self._bytes += rows.rows.nbytes

    def forget_below(self, lsn: int) -> None:
        """Drop files that hold nothing at or above ``lsn``."""
        self._files = [file for file in self._files if file.lsns is None or file.lsns[1] >= lsn]

    def take(self, lsn: int, schemas: dict[int, TopicSchema]) -> list[PreparedSegment]:
        """Files of the rows that commit at or above ``lsn``, in order. ``schemas`` are the topic's by version."""
        self._flush()
        self.forget_below(lsn)
        kept = [self._trimmed(file, lsn, schemas[file.version]) for file in self._files]
        self._files = []
        return [file for file in kept if file.rows]

    def _trimmed(self, file: PreparedSegment, lsn: int, schema: TopicSchema) -> PreparedSegment:
        """The file, or another one without what commits below ``lsn``."""
        if file.lsns is None or file.lsns[0] >= lsn:
            return file
        ranges = [PartitionRange(partition, 0, rows) for partition, rows in file.counts]
        ref = SegmentRef(
            file.topic,
            file.version,
            0,
            0,
            file.rows,
            file.bytes,
            ranges,
            path=file.path,
            checksum=file.checksum,
        )
        rows = read_segment(self._storage, ref, schema, change_schema(schema).names)
        rows = rows.filter(pc.greater_equal(rows["_lsn"], lsn)).sort_by(
            [("_lsn", "ascending"), ("_ordinal", "ascending")]
        )
        return self._prepare(file.topic, file.version, rows.filter(_first_of_equals(rows)))

    def _flush(self) -> None:
        if self._rows:
            table = pa.concat_tables([rows.rows for rows in self._rows])
            self._files.append(self._prepare(self._topic, self._rows[0].version, table))
        self._rows, self._bytes = [], 0


def _first_of_equals(rows: pa.Table) -> pa.Array:
    """False for copies of a truncate, which a file holds once per partition."""
    different = np.ones(rows.num_rows, np.bool_)
    lsns, ordinals = rows["_lsn"].to_numpy(), rows["_ordinal"].to_numpy()
    different[1:] = (np.diff(lsns) != 0) | (np.diff(ordinals) != 0)
    return pa.array(different)
