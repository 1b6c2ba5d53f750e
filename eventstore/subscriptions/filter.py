"""Which rows a consumer wants: topics by patterns, rows by operation, key and time; what need not be read for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.catalog.database import retry_on_missing_file
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.metadata.epochs import EpochFilter, Timeline
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.time import to_micros
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.subscriptions.rows.events import ALL_EVENTS, EventFilter, WantedEvents, select_events


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows are given: all, or those with one of these operations, of one of these keys, and committed at
    ``since`` or later; of topics of domain events those of these ``events``. A key is the texts of its columns, in
    order. A truncate concerns every key."""

    ops: frozenset[Op] | None = None
    key_hashes: tuple[int, ...] | None = None
    since: datetime | None = None
    events: EventFilter = ALL_EVENTS

    @classmethod
    def of(
        cls,
        ops: Collection[Op | str] | None,
        keys_: Collection[tuple[str, ...] | str] | None,
        since: datetime | None,
        events: WantedEvents | None = None,
    ) -> Filter:
        chosen = None if ops is None else frozenset(Op(op) for op in ops)
        hashes = None
        if keys_ is not None:
            parts = [(key,) if isinstance(key, str) else key for key in keys_]
            hashes = tuple(keys.hash_texts(key) for key in parts)
        return cls(chosen, hashes, since, EventFilter.of(events))

    def apply(self, topic: TopicId, rows: pa.Table) -> pa.Table:
        if self.ops is not None:
            rows = rows.filter(pc.is_in(rows["_op"], pa.array(sorted(op.value for op in self.ops))))
        if self.key_hashes is not None:
            named = pc.is_in(rows["_hash"], pa.array(self.key_hashes, pa.int64()))
            rows = rows.filter(pc.or_(named, pc.equal(rows["_op"], Op.TRUNCATE.value)))
        if self.since is not None:
            rows = rows.filter(pc.greater_equal(rows["_commit_ts"].cast(pa.int64()), to_micros(self.since)))
        if self.events != ALL_EVENTS and topic.is_events:
            rows = select_events(topic, rows, self.events)
        return rows

    def partitions(self, partitioning: Partitioning) -> frozenset[int] | None:
        """Those of a topic that can hold wanted rows; None: all. A truncate is in each of them, so the partitions
        of the keys have it."""
        if self.key_hashes is None:
            return None
        return frozenset(
            number for each in self.key_hashes for number in partitioning.partitions_of_key(each)
        )

    def first_epoch(self, log: Log, topic: TopicId) -> int | None:
        """The first epoch that can hold wanted rows of the topic; None when no epoch so far does."""
        since = to_micros(self.since)
        if since is None:
            return 1
        with log.catalog.read() as connection:
            topic_id = topics.topic_ids(connection, [topic])[topic]
        which = EpochFilter(source=topic.source, later_than=since - 1, topics=frozenset({topic_id}))
        first = retry_on_missing_file(
            log.catalog, lambda connection: Timeline(connection, log.storage).first(which)
        )
        return None if first is None else first.epoch


def check_patterns(patterns: Sequence[str]) -> None:
    """Raises UsageError for what are no names or patterns."""
    if isinstance(patterns, str) or not all(patterns):
        raise UsageError(
            f"{patterns!r} is not a list of topics",
            hint='a list of names or patterns: topics=["shop.account", "shop.public.*"]',
        )


def check_topics(log: Log, patterns: Sequence[str]) -> None:
    """Raises UsageError for what are no names or patterns, and, with names that come close, for a name that the log
    has no topic of. A pattern may be one of topics that will come."""
    check_patterns(patterns)
    for name in patterns:
        if not is_pattern(name) and not matching_topics(log, [name]):
            info = log.topic(name)
            raise UsageError(f"topic {info.id} is not written {name!r}", hint=f"write {info.id}")


def is_pattern(text: str) -> bool:
    """Whether it may mean several topics, or leaves out."""
    return text.startswith("!") or "*" in text or "?" in text


def matches(topic: TopicId, patterns: Sequence[str]) -> bool:
    """Names or patterns with * and ?; one that starts with ``!`` leaves out. Tailrace's own topics match what names
    their schema."""
    meant = [each for each in patterns if not topic.is_ours or topic.parts[1] in each]
    included = any(fnmatchcase(topic.text, each) for each in meant if not each.startswith("!"))
    excluded = any(fnmatchcase(topic.text, each[1:]) for each in patterns if each.startswith("!"))
    return included and not excluded


def matching_topics(log: Log, patterns: Sequence[str]) -> list[TopicInfo]:
    """The log's topics of now that match."""
    return [info for info in log.topics() if matches(info.id, patterns)]
