"""Reading a topic: references to its rows, and the rows themselves, page by page.

Pages are resolved in snapshots of their own. Between two of them files may be merged (then rows that were given out
are known by their offsets) and the topic's start may move (then nobody is told less than there was without an error).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import MissingFile
from tailrace.eventstore.metadata import log_start, segment_index, state_runs, topics
from tailrace.eventstore.metadata.log_start import LogStart
from tailrace.eventstore.model.model import SegmentRef, TopicId
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.segment import segment

if TYPE_CHECKING:
    from tailrace.eventstore.store import Store

_BATCH_ROWS = 65_536
_TRIES = 5  # each can fail only because retention moved the topic's start meanwhile


def segments(store: Store, topic: TopicId, topic_id: int, cut: Cut, after_epoch: int) -> list[SegmentRef]:
    """``Store.segments``."""
    refs: list[SegmentRef] = []
    after = after_epoch
    while True:
        with store.catalog.read() as connection:
            start = log_start.read(connection, topic_id)
            if 0 < after < start.epoch or (cut.epoch and not start.has(topic, cut)):
                raise log_start.gone(connection, store.storage, topic, start)
            after = max(after, start.epoch)
            if after >= cut.epoch:
                return refs
            page = segment_index.page(connection, topic, topic_id, cut, after)
        refs += page.refs
        after = page.through


def state_segments(
    store: Store, topic: TopicId, topic_id: int, cut: Cut, *, every_row: bool
) -> list[SegmentRef]:
    """``Store.state_segments``."""
    for _ in range(_TRIES - 1):
        found = _state_segments(store, topic, topic_id, cut, every_row)
        if found is not None:
            return found
    return _state_segments(store, topic, topic_id, cut, every_row) or []


def _state_segments(
    store: Store, topic: TopicId, topic_id: int, cut: Cut, every_row: bool
) -> list[SegmentRef] | None:
    """None when the topic's start moved while its pages were looked up."""
    with store.catalog.read() as connection:
        start = log_start.read(connection, topic_id)
        if not start.has(topic, cut):
            raise log_start.gone(connection, store.storage, topic, start)
        found = state_runs.of_topic(connection, topic, topic_id)
    if every_row:
        found = [run for run in found if run.epoch == start.epoch]
    refs: list[SegmentRef] = []
    after = start.epoch
    for run in [*state_runs.chain(found, topic, start, cut), None]:
        upto = cut if run is None else Cut(run.after)
        while after < upto.epoch:
            with store.catalog.read() as connection:
                if log_start.read(connection, topic_id).epoch != start.epoch:
                    return None
                page = segment_index.page(connection, topic, topic_id, upto, after)
            refs += page.refs
            after = page.through
        if run is not None:
            refs += run.refs
            after = run.epoch
    return refs


@dataclass(frozen=True, slots=True)
class Rows:
    """What a reader of rows asks for."""

    topic: TopicId
    topic_id: int
    cut: Cut
    partitions: Collection[int] | None
    offsets: Mapping[int, tuple[int, int]] | None
    columns: Sequence[str] | None

    @property
    def needed(self) -> set[str] | None:
        return None if self.columns is None else {*self.columns, "_partition", "_offset", "_epoch"}

    def table(self, store: Store, ref: SegmentRef, version: TopicSchema) -> pa.Table:
        return segment.read_segment(store.storage, ref, version, self.needed, self.partitions)

    def given(self, table: pa.Table, version: int) -> Iterator[pa.RecordBatch]:
        if self.offsets is not None:
            table = _within(table, self.offsets)
        if self.columns is not None:
            table = table.select([name for name in table.column_names if name in self.columns])
        metadata = {b"tailrace:version": str(version).encode()}
        yield from table.replace_schema_metadata(metadata).to_batches(max_chunksize=_BATCH_ROWS)


def read(store: Store, wanted: Rows, after_epoch: int) -> Iterator[pa.RecordBatch]:
    """``Store.read``."""
    start = _begin(store, wanted, after_epoch)
    if start.compacted and after_epoch < start.epoch:
        yield from _of_run(store, wanted, start, after_epoch)
    after = max(after_epoch, start.epoch)
    given: dict[int, int] = {}  # by partition: the next offset
    missing = ""
    while after < wanted.cut.epoch:
        with store.catalog.read() as connection:
            now = log_start.read(connection, wanted.topic_id)
            if now.epoch > after:  # retention went on meanwhile: past rows that were given, or past others
                if not _has_rest(now, wanted.offsets, given):
                    raise log_start.gone(connection, store.storage, wanted.topic, now)
                after = now.epoch
            page = segment_index.page(connection, wanted.topic, wanted.topic_id, wanted.cut, after)
            versions = {each.version: each for each in topics.schemas(connection, wanted.topic_id)}
        for ref in page.refs:
            if ref.path is not None and ref.path == missing:
                store.storage.open(ref.path)  # still named, so it is lost: raises
            if all(given.get(r.partition, 0) >= r.first_offset + r.rows for r in ref.ranges):
                continue
            try:
                table = wanted.table(store, ref, versions[ref.version])
            except MissingFile:
                if ref.path is None:
                    raise
                missing = ref.path
                break  # merged away since the page was resolved: resolve it again
            if ref.sealed:
                # Sealed files are sorted by partition first; within an epoch, that is the order of before.
                epochs = table["_epoch"].to_numpy()
                if (epochs[1:] < epochs[:-1]).any():  # not so with the rows of one partition
                    table = table.take(pa.array(np.argsort(epochs, kind="stable")))
            yield from wanted.given(_not_given(table, given), ref.version)
            given.update({r.partition: r.first_offset + r.rows for r in ref.ranges})
        else:
            after = page.through


def _begin(store: Store, wanted: Rows, after_epoch: int) -> LogStart:
    """Raises HistoryGone when the first of what is asked for is not there any more."""
    with store.catalog.read() as connection:
        start = log_start.read(connection, wanted.topic_id)
        if wanted.offsets is not None:
            log_start.require_offsets(connection, store.storage, wanted.topic, start, wanted.offsets)
        elif 0 < after_epoch < start.epoch:
            raise log_start.gone(connection, store.storage, wanted.topic, start)
        if after_epoch < wanted.cut.epoch and not start.has(wanted.topic, wanted.cut):
            raise log_start.gone(connection, store.storage, wanted.topic, start)
    return start


def _has_rest(now: LogStart, offsets: Mapping[int, tuple[int, int]] | None, given: Mapping[int, int]) -> bool:
    """Whether all that a reader of ranges of offsets was not given yet is behind the topic's start."""
    return offsets is not None and all(
        min(end, now.whole[partition]) <= max(first, given.get(partition, first))
        for partition, (first, end) in offsets.items()
        if partition < len(now.whole)
    )


def _of_run(store: Store, wanted: Rows, start: LogStart, after_epoch: int) -> Iterator[pa.RecordBatch]:
    """What readers may get of a compacted prefix: by partition in offset order, with gaps."""
    with store.catalog.read() as connection:
        if log_start.read(connection, wanted.topic_id) != start:
            raise log_start.gone(connection, store.storage, wanted.topic, start)
        refs = state_runs.at_start(state_runs.of_topic(connection, wanted.topic, wanted.topic_id), start)
        versions = {each.version: each for each in topics.schemas(connection, wanted.topic_id)}
    for ref in refs:
        try:
            table = wanted.table(store, ref, versions[ref.version])
        except MissingFile:
            with store.catalog.read() as connection:
                now = log_start.read(connection, wanted.topic_id)
                if now.epoch != start.epoch:
                    raise log_start.gone(connection, store.storage, wanted.topic, now) from None
            raise
        first = np.array(start.offsets, np.int64)[table["_partition"].to_numpy()]
        readable = pc.greater_equal(table["_offset"], pa.array(first))
        yield from wanted.given(
            table.filter(pc.and_(readable, pc.greater(table["_epoch"], after_epoch))), ref.version
        )


def _not_given(table: pa.Table, given: Mapping[int, int]) -> pa.Table:
    """The rows of a merged file that were not given out before it replaced others."""
    for partition, following in given.items():
        again = pc.and_(pc.equal(table["_partition"], partition), pc.less(table["_offset"], following))
        if pc.any(again, min_count=0).as_py():
            table = table.filter(pc.invert(again))
    return table


def _within(table: pa.Table, offsets: Mapping[int, tuple[int, int]]) -> pa.Table:
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
