"""Sources of the kind kafka in the daily commands: what init prints, and when capture has caught up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.terminal import Output, count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.cdc.kafka.prepare import KafkaPreparation
    from tailrace.eventstore.kafka.reader import Partition
    from tailrace.eventstore.settings import KafkaSourceSettings
    from tailrace.eventstore.store import Store


@dataclass(slots=True)
class KafkaGoal:
    """All records that were committed when it was made, of topics that were there then (``ends``: of each partition the
    topic's id in Kafka and the offset), and all requests."""

    store: Store
    source: str
    ends: dict[Partition, tuple[str, int]]
    unloadable: Sequence[str] = field(default=())

    @classmethod
    def at_end(cls, store: Store, source: str, settings: KafkaSourceSettings) -> KafkaGoal:
        """Raises TransientError when the brokers are out of reach."""
        from tailrace.cdc.kafka.topics.discovery import discover
        from tailrace.eventstore.kafka.cluster import Cluster

        with Cluster(settings) as cluster:
            found = discover(cluster, source, settings)
            # Not of the topic of transactions, of which capture takes note where rows come.
            offsets = cluster.offsets([each for each in found.partitions if each.topic in found.routes])
        return cls(
            store,
            source,
            {each: (found.topics[each.topic].id, ends.last_stable) for each, ends in offsets.items()},
        )

    def is_reached(self) -> bool:
        from tailrace.cdc.kafka.requests import PARKED, REREAD, is_waiting
        from tailrace.eventstore.kafka.reader import Partition
        from tailrace.eventstore.metadata.kafka_progress import shown_partitions

        if any(is_waiting(self.store, self.source, kind) for kind in (PARKED, REREAD)):
            return False
        known = {
            (Partition(each.topic, each.partition), each.topic_id): each.next_offset
            for each in shown_partitions(self.store.catalog, self.source)
        }
        return all(known.get((each, id), 0) >= end for each, (id, end) in self.ends.items())


def print_kafka(output: Output, preparation: KafkaPreparation, styles: Mapping[str, str]) -> None:
    """What init found and did."""
    if output.json:
        topics = [
            {"kafka_topic": each.name, "topic": each.topic.text, "partitions": each.partitions}
            | {"records": each.records}
            for each in preparation.topics
        ]
        output.document(
            {
                "source": preparation.source,
                "kind": "kafka",
                "dry_run": preparation.dry_run,
                "cluster_id": preparation.cluster_id,
                "new": preparation.new,
                "topics": topics,
                "registry": preparation.registry,
                "findings": preparation.findings,
            }
        )
        return
    would = "would " if preparation.dry_run else ""
    output.line(f"source {preparation.source}", style="bold")
    if preparation.new:
        output.line(f"  {would}register it, of cluster {preparation.cluster_id}")
    for each in preparation.topics:
        partitions = count(each.partitions, "partition")
        output.line(f"  {each.name} → {each.topic.text}: {each.records:,} records in {partitions}")
    if (registry := preparation.registry) is not None:
        output.line(f"  {registry.text}", style="yellow" if registry.problem else "")
        if registry.hint:
            output.line(f"    → {registry.hint}")
    for finding in preparation.findings:
        output.line(f"  {finding.level}: {finding.subject}: {finding.what}", style=styles[finding.level])
        if finding.hint:
            output.line(f"    → {finding.hint}")
    output.line("  next: tailrace capture reads the topics from their first record on")
