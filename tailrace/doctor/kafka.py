"""What ``tailrace doctor`` looks at in sources of the kind kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.doctor.check import Check, Verdict, failed_check
from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.metadata.kafka_progress import parked_records
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.eventstore.settings import KafkaSourceSettings
    from tailrace.eventstore.store import Store

_NEVER_SENT = (
    "what Debezium does not send is not in the log: TRUNCATE (skipped by its default skipped.operations=t), and values "
    "that an ALTER TABLE rewrites"
)


def check_kafka_source(store: Store, name: str, settings: KafkaSourceSettings) -> Iterator[Check]:
    """Brokers, topics, what was read of them, what is parked; nothing is changed."""
    subject = f"source {name}"
    try:
        from tailrace.cdc.kafka.decoder import TableDecoder
        from tailrace.cdc.kafka.prepare import prepare_kafka

        preparation = prepare_kafka(store, name, settings, dry_run=True)
        TableDecoder.of(settings)
    except TailraceError as error:
        yield failed_check(subject, error)
        return
    if settings.sasl == "plain" and not settings.tls:
        yield Check(subject, "warn", "the password goes through the network as it is", "set tls = true")
    for finding in preparation.findings:
        yield Check(
            f"{subject} {finding.subject}", "warn", finding.what, finding.hint or "nothing, if that is meant"
        )
    todo = ": tailrace init" if preparation.new else ""
    topics = count(len(preparation.topics), "topic")
    yield Check(subject, "ok", f"cluster {preparation.cluster_id}, {topics} may be captured{todo}")
    if (registry := preparation.registry) is not None:
        verdict: Verdict = "fail" if registry.problem else "ok"
        yield Check(f"{subject} registry", verdict, registry.text, registry.hint)
    yield from _check_partitions(subject, store, name, settings)
    yield Check(
        f"{subject} changes",
        "warn",
        _NEVER_SENT,
        "set skipped.operations=none in the connector; after a rewrite let it take a snapshot again",
    )
    if number := parked_records(store.catalog, name):
        found = f"{count(number, 'record')} that could not be read: parked"
        yield Check(f"{subject} records", "warn", found, f"tailrace source parked {name}")


def _check_partitions(
    subject: str, store: Store, name: str, settings: KafkaSourceSettings
) -> Iterator[Check]:
    """Whether what follows is still in Kafka."""
    from tailrace.cdc.kafka.topics.discovery import discover, require_same
    from tailrace.eventstore.kafka.cluster import Cluster
    from tailrace.eventstore.kafka.reader import Partition
    from tailrace.eventstore.log.sources import chained_partitions

    try:
        known = {Partition(each.topic, each.partition): each for each in chained_partitions(store, name)}
        with Cluster(settings) as cluster:
            found = discover(cluster, name, settings)
            require_same(found, known, cluster.offsets(found.partitions))
    except TailraceError as error:
        yield failed_check(f"{subject} topics", error)
