"""Prepare a source of the kind kafka: look at its topics, and register it. Nothing is written to Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.cdc.kafka.policy_findings import policy_findings
from tailrace.cdc.kafka.registry.client import RegistryAnswer, ask_registry
from tailrace.cdc.kafka.topics.discovery import discover
from tailrace.cdc.setup.table_choice import Level, SetupFinding
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.kafka.cluster import Cluster
from tailrace.eventstore.log.sources import register_source
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store


@dataclass(frozen=True, slots=True)
class KafkaTopicPlan:
    """A Kafka topic that is captured: where it leads, and how many records are there."""

    name: str
    topic: TopicId
    partitions: int
    records: int


@dataclass(frozen=True, slots=True)
class KafkaPreparation:
    """What ``init`` found and did (``dry_run``: would do). ``new``: the source was not in the log. Topics of the log
    come with their first records, which say what columns they have."""

    source: str
    cluster_id: str
    new: bool
    topics: tuple[KafkaTopicPlan, ...]
    registry: RegistryAnswer | None
    findings: tuple[SetupFinding, ...]
    dry_run: bool

    @property
    def changes_something(self) -> bool:
        """Whether the source was not prepared as it is now."""
        return self.new

    @property
    def blocking_findings(self) -> tuple[SetupFinding, ...]:
        return tuple(finding for finding in self.findings if finding.level is Level.BLOCKING)


def prepare_kafka(
    store: Store, name: str, settings: KafkaSourceSettings, *, dry_run: bool = False
) -> KafkaPreparation:
    """Check and register a source; a second run changes nothing. In a ``dry_run`` blocking findings are returned;
    otherwise they are raised as one OperatorError. Raises OperatorError also for another cluster than before,
    TransientError (out of reach)."""
    known = store.source(name)
    with Cluster(settings) as brokers:
        cluster = brokers.id()
        found = discover(brokers, name, settings)
        offsets = brokers.offsets(found.partitions)
    if known is not None and known.loaded and known.system_id != cluster:
        raise OperatorError(
            f"source {name!r} was loaded from cluster {known.system_id}, these brokers are of cluster {cluster}",
            hint="point its brokers back, or give the source of the new cluster another name",
        )
    findings = [
        SetupFinding(Level.SKIPPED, skipped, "its name is not PREFIX.SCHEMA.TABLE", "leave it out with !")
        for skipped in found.skipped
    ]
    if not found.routes:
        outbox = settings.outbox.topics if settings.outbox else ()
        patterns = ", ".join((*settings.topics, *settings.plain, *outbox))
        findings.append(
            SetupFinding(
                Level.NOTE, "topics", f"none matches {patterns} yet", "topics that come later are taken up"
            )
        )
    findings += policy_findings(store, name, settings, list(dict.fromkeys(found.routes.values())))
    if not dry_run:
        _require_none_blocking(findings)
        register_source(store.catalog, name, slot="", publication="", system_id=cluster)
    topics = tuple(
        KafkaTopicPlan(
            each,
            found.routes[each],
            len(topic.partitions),
            sum(ends.last_stable - ends.earliest for (of, _), ends in offsets.items() if of == each),
        )
        for each, topic in sorted(found.topics.items())
        if each in found.routes
    )
    registry = ask_registry(settings.registry)
    return KafkaPreparation(name, cluster, known is None, topics, registry, tuple(findings), dry_run)


def _require_none_blocking(findings: Sequence[SetupFinding]) -> None:
    blocking = [finding for finding in findings if finding.level is Level.BLOCKING]
    if blocking:
        raise OperatorError(
            "; ".join(f"{finding.subject}: {finding.what}" for finding in blocking),
            hint="; ".join(finding.hint for finding in blocking if finding.hint),
        )
