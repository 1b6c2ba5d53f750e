"""Rows of many topics in the log's order, from a position on, without a group: ``Store.tail``.

The topics' rows are merged by epoch, so a reader that stops knows where to go on. A compacted topic's first rows,
which are of many epochs, come as if they were of the epoch at which the topic begins.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.log.personal_values import opened
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.position import Cut, format_lsn
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.subscriptions.batch import TopicTable
from tailrace.eventstore.subscriptions.filter import Filter, check_topics, matching_topics
from tailrace.eventstore.subscriptions.offsets import end_of

AsOf = str | int | datetime
_OFFSETS = re.compile(r"\s*\d+:\d+\s*(,\s*\d+:\d+\s*)*", re.ASCII)
_BEHIND_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class FollowedRows(TopicTable):
    """Rows of one topic in one ``epoch``, by (partition, offset). ``ends_epoch``: no more of that epoch come, so it is
    a position to go on from."""

    epoch: int
    ends_epoch: bool = False


@dataclass(frozen=True, slots=True)
class TailStart:
    """Behind a cut (None: with what there is first), or at offsets of partitions. ``lenient``: where a topic begins
    later, with that."""

    cut: Cut | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)
    lenient: bool = False

    def start_epoch(self, topic: TopicId, first: int) -> int:
        """The epoch after which to read a topic whose rows begin behind epoch ``first``."""
        if self.cut is None:
            return 0
        after = self.cut.inside.get(topic.source, self.cut.epoch + 1) - 1
        return max(after, first) if self.lenient and after else after

    def apply(self, topic: TopicId, rows: pa.Table) -> pa.Table:
        """Without what the cut, which may go through an epoch, has already."""
        limit = None if self.cut is None else self.cut.below_lsn.get(topic.source)
        if self.cut is None or limit is None:
            return rows
        behind = pc.greater(rows["_epoch"], self.cut.inside[topic.source])
        return rows.filter(pc.or_(behind, pc.greater_equal(rows["_lsn"], limit)))


def offsets_in(text: object) -> dict[int, int] | None:
    """``"2:1500"`` or ``"2:1500,3:20"``: offsets by partition; None for any other position."""
    if not isinstance(text, str) or not _OFFSETS.fullmatch(text):
        return None
    pairs = [pair.split(":") for pair in text.split(",")]
    return {int(partition): int(offset) for partition, offset in pairs}


def check_offsets(log: Log, info: TopicInfo, offsets: Mapping[int, int]) -> None:
    """Raises UsageError for partitions and offsets that a topic does not have."""
    starts, (_, ends) = log.log_start(info.id).offsets, end_of(log, info.id)
    for partition, offset in offsets.items():
        if partition >= len(ends):
            raise UsageError(
                f"{info.id} has no partition {partition}",
                hint=f"its partitions are 0 to {len(ends) - 1}",
            )
        first, end = starts[partition], ends[partition]
        if not first <= offset <= end:
            raise UsageError(
                f"partition {partition} of {info.id} has no offset {offset}",
                hint=f"its offsets go from {first} to {end}, which is the next one",
            )


def tail(
    log: Log,
    patterns: Sequence[str],
    start: AsOf,
    until: AsOf | None,
    row_filter: Filter,
    timeout: float | None,
) -> Iterator[FollowedRows]:
    """``Store.tail``."""
    check_topics(log, patterns)
    infos = matching_topics(log, patterns)
    begin = _begin(log, infos, start)
    end = log.cut(until)
    if begin.cut is not None and begin.cut.epoch > end.epoch:
        raise UsageError(f"{start} lies behind {until}", hint="the first position comes before the last one")
    found = merge_topics(log, infos, begin, end, row_filter)
    if until is not None or timeout == 0:
        return found
    on = TailStart(Cut(end.epoch), begin.offsets)
    return itertools.chain(found, _follow(log, patterns, on, end.epoch, row_filter, timeout))


def _follow(
    log: Log, patterns: Sequence[str], begin: TailStart, done: int, row_filter: Filter, timeout: float | None
) -> Iterator[FollowedRows]:
    for info in log.follow(after_epoch=done, timeout=timeout):
        if info.epoch <= done:
            continue
        head = log.head()
        assert head is not None
        yield from merge_topics(log, matching_topics(log, patterns), begin, Cut(head.epoch), row_filter)
        done = head.epoch
        begin = replace(begin, cut=Cut(done))


def _begin(log: Log, infos: Sequence[TopicInfo], start: AsOf) -> TailStart:
    if start == "earliest":
        return TailStart()
    offsets = offsets_in(start)
    if offsets is not None:
        if len(infos) != 1:
            raise UsageError(
                f"{start} is an offset in a partition of one topic, but {len(infos)} topics match",
                hint="name one topic, or begin at an epoch, an LSN or a time",
            )
        check_offsets(log, infos[0], offsets)
        return TailStart(None, offsets)
    cut = log.cut(None if start == "latest" else start)
    for info in infos:
        log.require_history(info.id, cut)
    return TailStart(cut)


def read_between(
    log: Log, infos: Sequence[TopicInfo], after: int, end: Cut, row_filter: Filter
) -> Iterator[FollowedRows]:
    """What there still is of these topics in the epochs behind ``after`` (0: and what came first) up to a cut."""
    begin = TailStart(Cut(after), lenient=True) if after else TailStart()
    return merge_topics(log, infos, begin, end, row_filter)


def transaction(log: Log, source: str, lsn: int) -> Iterator[FollowedRows]:
    """``Store.transaction``."""
    cut = log.cut(f"{source}={format_lsn(lsn)}")
    epoch = cut.inside.get(source, cut.epoch)
    for each in read_between(log, log.topics(source), epoch - 1, Cut(epoch), Filter()):
        rows = each.rows.filter(pc.equal(each.rows["_lsn"], lsn))
        if rows.num_rows:
            yield replace(each, rows=rows, ends_epoch=False)


def merge_topics(
    log: Log, infos: Sequence[TopicInfo], begin: TailStart, end: Cut, row_filter: Filter
) -> Iterator[FollowedRows]:
    """What lies between, of these topics, epoch by epoch. Raises HistoryGone when retention removed some of it."""
    streams = [_topic_rows(log, info, begin, end, row_filter) for info in infos]
    held: FollowedRows | None = None
    for each in heapq.merge(*streams, key=lambda each: each.epoch):
        if held is not None:
            yield replace(held, ends_epoch=held.epoch != each.epoch)
        held = each
    if held is not None:
        yield replace(held, ends_epoch=True)


def _topic_rows(
    log: Log, info: TopicInfo, begin: TailStart, end: Cut, row_filter: Filter
) -> Iterator[FollowedRows]:
    first, start = row_filter.first_epoch(log, info.id), log.log_start(info.id).epoch
    if first is None:
        return
    after = begin.start_epoch(info.id, start)
    if first - 1 > max(after, start):
        after = first - 1
    if after >= end.epoch:
        return
    offsets = {partition: (offset, _BEHIND_ALL) for partition, offset in begin.offsets.items()}
    batches = log.read(
        info.id,
        after_epoch=after,
        cut=end,
        partitions=row_filter.partitions(info.partitioning),
        offsets=offsets or None,
    )
    for batch in batches:
        rows = begin.apply(info.id, pa.Table.from_batches([batch]))
        if info.id.is_events:
            rows = opened(rows, log.keys_of(info.id.source))
        rows = row_filter.apply(info.id, rows)
        for piece in _split_by_epoch(rows, start):
            epoch = max(piece["_epoch"][-1].as_py(), start)
            yield FollowedRows(info.id, piece, epoch, wanted=row_filter.events)


def _split_by_epoch(rows: pa.Table, start: int) -> Iterator[pa.Table]:
    """Pieces of one epoch each; rows up to ``start`` are those of a state run and stay together."""
    epochs = np.maximum(rows["_epoch"].to_numpy(), start)
    bounds = [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist(), rows.num_rows]
    for first, end in itertools.pairwise(bounds):
        if first < end:
            yield rows.slice(first, end - first)
