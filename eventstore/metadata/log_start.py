"""Where a topic's rows begin since retention removed earlier ones.

``epoch``: no row up to it is in segments any more; the state is known from it on. Readers of rows get those from
``offsets`` on; from ``whole`` on every one is there, before that (compacted topics) the last of each key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import HistoryGone, damaged_row, manual_page
from tailrace.eventstore.metadata.epochs import EpochFilter, Timeline
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.time import from_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.storage import Storage


@dataclass(frozen=True, slots=True)
class LogStart:
    """One topic's start; offsets by partition. ``head`` and ``rows``: the log's head in the same snapshot, and how many
    rows the topic had got by then; -1 where the catalog was not asked."""

    epoch: int
    offsets: tuple[int, ...]
    whole: tuple[int, ...]
    head: int = field(default=-1, compare=False)
    rows: int = field(default=-1, compare=False)

    @property
    def compacted(self) -> bool:
        """Whether readers get rows of the state run."""
        return self.offsets != self.whole

    def has(self, topic: TopicId, cut: Cut) -> bool:
        """Whether the topic's state is known at a cut: one inside the epochs that are gone is before the start."""
        return holds(cut, topic, self.epoch)


def holds(cut: Cut, topic: TopicId, epoch: int) -> bool:
    """Whether a cut has all of a topic's rows up to an epoch."""
    if cut.epoch < epoch:
        return False
    inside = cut.inside.get(topic.source, cut.epoch)
    return topic.source not in cut.below_lsn or inside > epoch or epoch == 0


def read(connection: Connection, topic_id: int) -> LogStart:
    """Raises IntegrityError when it cannot be, or is not what ``lineage`` says as well."""
    table, book = tables.topic_offsets, tables.lineage
    head = select(tables.log_head.c.epoch).scalar_subquery()
    query = select(table, head.label("head"), book.c.start_epoch.label("recorded"))
    query = query.outerjoin(book, book.c.topic_id == table.c.topic_id).where(table.c.topic_id == topic_id)
    row = connection.execute(query).one_or_none()
    place = f"topic_offsets: topic_id {topic_id}"
    if row is None or row.head is None:
        raise damaged_row(place if row is None else "log_head: id 1", "it is missing")
    try:
        starts, whole, following = (
            tuple(map(int, json.loads(text))) for text in (row.log_starts, row.whole_from, row.next_offsets)
        )
        known = all(0 <= a <= b <= c for a, b, c in zip(starts, whole, following, strict=True))
    except (ValueError, TypeError):
        raise damaged_row(place, "it cannot be read") from None
    if not known:
        raise damaged_row(place, "its offsets do not follow one another")
    if bool(row.start_epoch) != any(whole):
        raise damaged_row(place, "it has a start, or offsets that are gone, and not both")
    if row.start_epoch != row.recorded:
        raise damaged_row(place, "its start is not the one in lineage")
    return LogStart(row.start_epoch, starts, whole, row.head, sum(following))


def moment(connection: Connection, storage: Storage, start: LogStart) -> datetime | None:
    """Commit time of the last epoch before a start."""
    if not start.epoch:
        return None
    last = Timeline(connection, storage).last(EpochFilter(upto=start.epoch, dated=True))
    return from_micros(None if last is None else last.commit_ts)


def history_gone(connection: Connection, storage: Storage, topic: TopicId, start: LogStart) -> HistoryGone:
    """The error for a reader of rows that retention removed; it names the earliest moment that can be read."""
    committed = moment(connection, storage, start)
    when = "" if committed is None else f", committed {committed:%Y-%m-%dT%H:%M:%SZ}"
    return HistoryGone(
        f"{topic} begins behind epoch {start.epoch}{when}: retention removed what came before",
        hint=f"the earliest state is that of epoch {start.epoch}, the earliest row is in the next epoch; see "
        + manual_page("operations/log.md", "Retention"),
    )


def require_offsets(
    connection: Connection,
    storage: Storage,
    topic: TopicId,
    start: LogStart,
    wanted: Mapping[int, tuple[int, int]],
) -> None:
    """Raises HistoryGone when one of these half-open ranges of offsets, by partition, begins before the topic does."""
    for partition, (first, end) in wanted.items():
        if partition < len(start.offsets) and first < min(end, start.offsets[partition]):
            raise history_gone(connection, storage, topic, start)
