"""Which Kafka topics belong to a source, to which topics of the log they lead, and are they those of before?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tailrace.cdc.kafka.topics.routes import Routes, routes_of
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.kafka.cluster import Cluster, PartitionOffsets, TopicDescription
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.model.kafka import PartitionProgress, RecordPlace
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings


class OtherRecords(OperatorError):
    """A topic is not the one that was read, or lost records that were not read."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """``topics`` of Kafka that a source takes as its ``rules`` say, ``routes`` to the topics of the log, ``skipped``:
    names that a pattern matches and are not those of a table's topic."""

    rules: Routes
    topics: Mapping[str, TopicDescription]
    routes: Mapping[str, TopicId]
    skipped: tuple[str, ...]

    @property
    def partitions(self) -> list[Partition]:
        return [Partition(name, number) for name, topic in self.topics.items() for number in topic.partitions]

    def with_topics(self, topics: Mapping[str, TopicDescription]) -> Discovery:
        return replace(self, topics=topics)


def discover(cluster: Cluster, source: str, settings: KafkaSourceSettings) -> Discovery:
    """Raises OperatorError where two topics lead to one of the log, and when the topic of transactions is not there."""
    rules, transactions = Routes(source, settings), settings.transaction_topic
    chosen = [name for name in cluster.topics() if rules.chosen(name) and name != settings.dead_letter]
    routes = routes_of(chosen, rules)
    described = cluster.described([*routes, *([transactions] if transactions else [])])
    if transactions is not None and (
        transactions not in described or len(described[transactions].partitions) != 1
    ):
        raise OperatorError(
            f"transaction_topic {transactions} is not a topic of one partition",
            hint="it is PREFIX.transaction, where the connector has provide.transaction.metadata=true",
        )
    skipped = tuple(sorted(set(chosen) - set(routes)))
    return Discovery(rules, described, routes, skipped)


def require_same(
    found: Discovery,
    progress: Mapping[Partition, PartitionProgress],
    offsets: Mapping[Partition, PartitionOffsets],
) -> None:
    """Raises OtherRecords unless the topics are those that were read, and have what follows."""
    for (name, number), known in progress.items():
        topic, rules = found.topics.get(name), found.rules
        if rules.topic(name) is None:
            continue  # no longer chosen
        again, left_out = rules.reading_again(name), rules.leaving_out(name)
        if topic is None:
            raise OtherRecords(
                f"topic {name} of Kafka is gone; {RecordPlace(name, number, known.next_offset)} is next",
                hint=left_out,
            )
        if known.topic_id and topic.id and topic.id != known.topic_id:
            raise OtherRecords(
                f"topic {name} of Kafka was made anew (its id was {known.topic_id}, and is {topic.id})",
                hint=f"{again}; or {left_out}",
            )
        there = offsets.get(Partition(name, number))
        if there is None:
            continue
        first, end = there.earliest, there.high_water
        if known.next_offset < first:
            raise OtherRecords(
                f"{RecordPlace(name, number, known.next_offset)} is next, and Kafka has records from offset {first} on:"
                f" retention removed {first - known.next_offset:,} that were not read",
                hint=f"{again}; or {left_out}",
            )
        if known.next_offset > end:
            raise OtherRecords(
                f"{RecordPlace(name, number, known.next_offset)} is next, and the partition ends at offset {end}: it"
                " lost records that the log has",
                hint=f"{again}; or {left_out}",
            )


def require_beginning(
    found: Discovery,
    new: Collection[Partition],
    progress: Collection[Partition],
    offsets: Mapping[Partition, PartitionOffsets],
) -> None:
    """Raises OtherRecords when a topic that was read got a partition whose first records went before they were read. Of
    a new topic the snapshot tells whether it is whole."""
    known = {each.topic for each in progress}
    for each in new:
        first = offsets[each].earliest
        if each.topic in known and first > 0:
            raise OtherRecords(
                f"{RecordPlace(*each, 0)} is next, in a partition that came later, and Kafka has records from offset"
                f" {first} on: retention removed {first:,} that were not read",
                hint=f"{found.rules.reading_again(each.topic)}; or {found.rules.leaving_out(each.topic)}",
            )
