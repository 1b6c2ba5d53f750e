"""From a cut of the log to offsets: how many rows of each partition lie before it."""

from __future__ import annotations

import json

from sqlalchemy import func, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import retry_on_missing_file
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import log_start, segment_index, topics
from tailrace.eventstore.metadata.epochs import EpochFilter, Timeline
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import segment


def offsets_at(log: Log, topic: TopicId, cut: Cut) -> list[int]:
    """The first offset behind a cut, of every partition of a topic. Reads metadata, and of the last segment inside
    two columns: no other one can be cut in two. Where retention removed what lies behind the cut, the offsets at which
    the topic's rows begin now."""
    with log.catalog.read() as connection:
        topic_id = topics.topic_ids(connection, [topic])[topic]
        following = json.loads(topics.next_offsets(connection, topic_id))
        if cut.epoch == topics.head_epoch(connection) and not cut.below_lsn:
            return [int(offset) for offset in following]
        start = log_start.read(connection, topic_id)
    if not start.has(topic, cut):
        return list(start.offsets)
    found = list(start.whole)
    last: SegmentRef | None = None
    after = start.epoch
    while after < cut.epoch:
        with log.catalog.read() as connection:
            page = segment_index.page(connection, topic, topic_id, cut, after)
        for ref in page.refs:
            if last is not None:
                for piece in last.ranges:
                    found[piece.partition] = piece.first_offset + piece.rows
            last = ref
        after = page.through
    if last is not None:
        rows = segment.read_segment(log.storage, last, columns=["_partition", "_offset"])
        for group in rows.group_by("_partition").aggregate([("_offset", "max")]).to_pylist():
            found[group["_partition"]] = group["_offset_max"] + 1
    return found


def epoch_of(log: Log, topic: TopicId, partition: int, offset: int) -> int:
    """An epoch before which there is no row of a partition from ``offset`` on: exactly that of the row, unless it is
    inside a file of several epochs."""
    with log.catalog.read() as connection:
        topic_id = topics.topic_ids(connection, [topic])[topic]
        head, start = topics.head_epoch(connection), log_start.read(connection, topic_id)
    if offset < start.whole[partition]:
        return 0
    after = start.epoch
    while after < head:
        with log.catalog.read() as connection:
            page = segment_index.page(connection, topic, topic_id, Cut(head), after)
        for ref in page.refs:
            if any(r.partition == partition and r.first_offset + r.rows > offset for r in ref.ranges):
                return ref.first_epoch
        after = page.through
    return head


def end_of(log: Log, topic: TopicId) -> tuple[int, list[int]]:
    """The head, and the offset that follows in every partition of a topic, of one moment."""
    with log.catalog.read() as connection:
        topic_id = topics.topic_ids(connection, [topic])[topic]
        offsets = json.loads(topics.next_offsets(connection, topic_id))
        return topics.head_epoch(connection), [int(offset) for offset in offsets]


def bytes_per_row(log: Log, topic: TopicId) -> float:
    """What a row of the topic takes on disk on average; 0 while none of it is in a file."""
    table = tables.segments
    with log.catalog.read() as connection:
        topic_id = topics.topic_ids(connection, [topic])[topic]
        query = select(func.sum(table.c.bytes), func.sum(table.c.rows)).where(table.c.topic_id == topic_id)
        size, rows = connection.execute(query).one()
    return float(size) / float(rows) if rows else 0.0


def first_commit_after(log: Log, topic: TopicId, epoch: int) -> int | None:
    """Commit time (µs) of the first epoch with rows of the topic at or behind ``epoch``; None when there is none."""
    with log.catalog.read() as connection:
        topic_id = topics.topic_ids(connection, [topic])[topic]
    which = EpochFilter(after=epoch - 1, dated=True, topics=frozenset({topic_id}))
    found = retry_on_missing_file(
        log.catalog, lambda connection: Timeline(connection, log.storage).first(which)
    )
    return None if found is None else found.commit_ts
