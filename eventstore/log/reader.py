"""Reading a topic: references to its rows, and the rows themselves, page by page.

Each page is resolved in a snapshot of its own. Between two of them

- files may be merged: rows that a caller has already got are skipped by their offsets;
- the topic's start may move: a caller that misses rows by it gets HistoryGone, never fewer rows without an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import HistoryGone, MissingFile, damaged_row
from tailrace.eventstore.metadata import log_start, segment_index, state_runs, topics
from tailrace.eventstore.metadata.log_start import LogStart
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import segment
from tailrace.eventstore.storage import Storage

_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of a topic a caller reads, and which columns of them; None selects all."""

    cut: Cut
    partitions: Collection[int] | None = None
    offsets: Mapping[int, tuple[int, int]] | None = None
    columns: Sequence[str] | None = None

    @property
    def needed_columns(self) -> set[str] | None:
        return None if self.columns is None else {*self.columns, "_partition", "_offset", "_epoch"}

    def batches(self, table: pa.Table, version: int) -> Iterator[pa.RecordBatch]:
        if self.offsets is not None:
            table = _filter_ranges(table, self.offsets)
        if self.columns is not None:
            table = table.select([name for name in table.column_names if name in self.columns])
        metadata = {b"tailrace:version": str(version).encode()}
        yield from table.replace_schema_metadata(metadata).to_batches(max_chunksize=_BATCH_ROWS)


@dataclass(frozen=True, slots=True)
class TopicReader:
    """Reads one topic."""

    catalog: Catalog
    storage: Storage
    topic: TopicId
    topic_id: int

    def segments(self, cut: Cut, after_epoch: int) -> list[SegmentRef]:
        """As ``Log.segments``."""
        refs: list[SegmentRef] = []
        after, row = after_epoch, None
        while True:
            with self.catalog.read() as connection:
                start = log_start.read(connection, self.topic_id)
                if 0 < after < start.epoch or (cut.epoch and not start.has(self.topic, cut)):
                    raise log_start.history_gone(connection, self.storage, self.topic, start)
                row = sum(start.whole) if after <= start.epoch else row
                after = max(after, start.epoch)
                if after >= cut.epoch:
                    return refs
                page = segment_index.page(connection, self.topic, self.topic_id, cut, after, row)
            require_end(self.topic, self.topic_id, start, cut, page)
            refs += page.refs
            after, row = page.through, page.row

    def read(self, selection: Selection, after_epoch: int) -> Iterator[pa.RecordBatch]:
        """As ``Log.read``.

        For each page: check that the topic's start has not passed what is still to be read, resolve the page, read its
        files. A file that is missing was merged away, so the page is resolved again; if it is named again, it is lost.
        """
        start = self._check_start(selection, after_epoch)
        if start.compacted and after_epoch < start.epoch:
            yield from self._compacted_rows(selection, start, after_epoch)
        after = max(after_epoch, start.epoch)
        next_offsets: dict[int, int] = {}  # by partition, behind the rows that the caller has
        missing = ""
        row = sum(start.whole) if after <= start.epoch else None
        while after < selection.cut.epoch:
            with self.catalog.read() as connection:
                now = log_start.read(connection, self.topic_id)
                if now.epoch > after:  # retention went on meanwhile
                    if not _has_rest(now, selection.offsets, next_offsets):
                        raise log_start.history_gone(connection, self.storage, self.topic, now)
                    after, row = now.epoch, sum(now.whole)
                page = segment_index.page(connection, self.topic, self.topic_id, selection.cut, after, row)
                versions = {each.version: each for each in topics.schemas(connection, self.topic_id)}
            require_end(self.topic, self.topic_id, now, selection.cut, page)
            for ref in page.refs:
                if ref.path is not None and ref.path == missing:
                    self.storage.open(ref.path)  # named twice, so it is lost: raises
                if all(next_offsets.get(r.partition, 0) >= r.first_offset + r.rows for r in ref.ranges):
                    continue
                try:
                    table = self._table(selection, ref, versions)
                except MissingFile:
                    if ref.path is None:
                        raise
                    missing = ref.path
                    break
                if ref.sealed:
                    table = _sort_by_epoch(table)
                yield from selection.batches(_drop_known_rows(table, next_offsets), ref.version)
                next_offsets.update({r.partition: r.first_offset + r.rows for r in ref.ranges})
            else:
                after, row = page.through, page.row

    def _table(self, selection: Selection, ref: SegmentRef, versions: Mapping[int, TopicSchema]) -> pa.Table:
        version = versions.get(ref.version)
        if version is None:
            place = f"topic_schemas: topic_id {self.topic_id}, version {ref.version}"
            raise damaged_row(place, f"it is missing, and rows of {self.topic} are of it")
        return segment.read_segment(
            self.storage, ref, version, selection.needed_columns, selection.partitions
        )

    def _check_start(self, selection: Selection, after_epoch: int) -> LogStart:
        """Raises HistoryGone when retention removed the first of the selected rows."""
        with self.catalog.read() as connection:
            start = log_start.read(connection, self.topic_id)
            if selection.offsets is not None:
                log_start.require_offsets(connection, self.storage, self.topic, start, selection.offsets)
            elif 0 < after_epoch < start.epoch:
                raise log_start.history_gone(connection, self.storage, self.topic, start)
            if after_epoch < selection.cut.epoch and not start.has(self.topic, selection.cut):
                raise log_start.history_gone(connection, self.storage, self.topic, start)
        return start

    def _compacted_rows(
        self, selection: Selection, start: LogStart, after_epoch: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows that stand at the start of a compacted topic: by partition in offset order, with gaps."""
        with self.catalog.read() as connection:
            if log_start.read(connection, self.topic_id) != start:
                raise log_start.history_gone(connection, self.storage, self.topic, start)
            runs = state_runs.runs_of(connection, self.topic, self.topic_id)
            versions = {each.version: each for each in topics.schemas(connection, self.topic_id)}
        for ref in state_runs.refs_at_start(runs, start):
            try:
                table = self._table(selection, ref, versions)
            except MissingFile as error:
                raise self._missing_file_error(start, error) from None
            first = np.array(start.offsets, np.int64)[table["_partition"].to_numpy()]
            readable = pc.greater_equal(table["_offset"], pa.array(first))
            later = pc.greater(table["_epoch"], after_epoch)
            yield from selection.batches(table.filter(pc.and_(readable, later)), ref.version)

    def _missing_file_error(self, start: LogStart, error: MissingFile) -> HistoryGone | MissingFile:
        with self.catalog.read() as connection:
            now = log_start.read(connection, self.topic_id)
            if now.epoch == start.epoch:
                return error
            return log_start.history_gone(connection, self.storage, self.topic, now)


def require_end(topic: TopicId, topic_id: int, start: LogStart, cut: Cut, page: segment_index.Page) -> None:
    """Raises IntegrityError when the last page up to the log's head does not end where the topic does."""
    if page.row is not None and start.head == cut.epoch == page.through and page.row != start.rows:
        detail = f"{topic} has {page.row} rows up to the log's head, and {start.rows} offsets were given"
        raise damaged_row(f"topic_offsets: topic_id {topic_id}", detail)


def _has_rest(
    now: LogStart, offsets: Mapping[int, tuple[int, int]] | None, next_offsets: Mapping[int, int]
) -> bool:
    """Whether all rows of these ranges that the caller does not have yet are behind the topic's start."""
    return offsets is not None and all(
        min(end, now.whole[partition]) <= max(first, next_offsets.get(partition, first))
        for partition, (first, end) in offsets.items()
        if partition < len(now.whole)
    )


def _sort_by_epoch(table: pa.Table) -> pa.Table:
    """A sealed file is sorted by partition first; readers get epochs in order, and within one the file's order."""
    epochs = table["_epoch"].to_numpy()
    if (epochs[1:] < epochs[:-1]).any():  # not so with the rows of one partition
        table = table.take(pa.array(np.argsort(epochs, kind="stable")))
    return table


def _drop_known_rows(table: pa.Table, next_offsets: Mapping[int, int]) -> pa.Table:
    """The rows of a merged file that the caller did not get from the files it replaced."""
    for partition, following in next_offsets.items():
        again = pc.and_(pc.equal(table["_partition"], partition), pc.less(table["_offset"], following))
        if pc.any(again, min_count=0).as_py():
            table = table.filter(pc.invert(again))
    return table


def _filter_ranges(table: pa.Table, offsets: Mapping[int, tuple[int, int]]) -> pa.Table:
    keep = None
    for partition, (first, end) in offsets.items():
        inside = pc.and_(
            pc.equal(table["_partition"], partition),
            pc.and_(pc.greater_equal(table["_offset"], first), pc.less(table["_offset"], end)),
        )
        keep = inside if keep is None else pc.or_(keep, inside)
    if keep is None:
        return table.slice(0, 0)
    return table if pc.all(keep, min_count=0).as_py() else table.filter(keep)
