"""Topics that are read again from the beginning of their Kafka topics: on request, or as the policies of their columns
changed, because values under two policies must not stand side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tailrace.cdc.columnar.rows import truncate_row
from tailrace.cdc.kafka.decoding.protection import changed_version, label_of, require_named
from tailrace.cdc.kafka.epochs.epoch import Known
from tailrace.cdc.kafka.requests import REREAD
from tailrace.cdc.kafka.topics.discovery import Discovery
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.status import CaptureProgress
from tailrace.eventstore.catalog.requests import RequestState
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.metadata.kafka_progress import parked
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.kafka import PartitionProgress
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.store import Store

_FROM_BEGINNING = "read again from the beginning of its Kafka topic"
_WAITS = ": waits for a snapshot"
READ_AGAIN = f"{_FROM_BEGINNING}{_WAITS} by Debezium there"
POLICIES_CHANGED = f"{_FROM_BEGINNING}, as column policies changed{_WAITS}"


@dataclass(frozen=True, slots=True)
class Rereading:
    """``begins``: where the partitions begin now."""

    store: Store
    writer: SourceWriter
    found: Discovery
    begins: Sequence[PartitionProgress]
    known: Known

    def run(self, policies: Policies, progress: CaptureProgress) -> None:
        """Raises OperatorError for a policy that a column cannot have, or that names none."""
        self._under_new_policies(policies, progress)
        self._on_request()

    def _under_new_policies(self, policies: Policies, progress: CaptureProgress) -> None:
        routed = set(self.found.routes.values())
        for topic, latest in list(self.known.latest.items()):
            if topic not in routed or latest.kind is not TopicKind.TABLE:
                continue
            require_named(topic, latest, policies)
            if kept := policies.retained_columns(label_of(topic), latest):
                progress.report(
                    f"{topic.text}: {', '.join(kept)} stay protected as they were, though the configuration does"
                    ' not name them any more; "plain" in [sources.NAME.columns] would lift it'
                )
            version, changes = changed_version(topic, latest, policies)
            if changes:
                self._begin_again(topic, version, POLICIES_CHANGED)
                progress.report(
                    f"{topic.text} is read again, as column policies changed ({'; '.join(changes)});"
                    " what the log holds from before stays as it was written"
                )

    def _on_request(self) -> None:
        for request in self.store.requests.list_open(self.known.source, REREAD):
            topic = request.topic
            if topic not in self.found.routes.values() or topic not in self.known.latest:
                there = "nothing was read of it yet"
                if topic not in self.found.routes.values():
                    there = "no Kafka topic leads to it"
                self.store.requests.answer([request.id], RequestState.FAILED, there)
                continue
            self._begin_again(topic, self.known.latest[topic], READ_AGAIN)
            self.store.requests.answer([request.id], RequestState.DONE, "it is read from its beginning")

    def _begin_again(self, topic: TopicId, schema: TopicSchema, reason: str) -> None:
        """What the log has of the table no longer counts, and its parked records come again."""
        known = self.known
        lsn = known.position + 1
        names = [name for name, target in self.found.routes.items() if target == topic]
        latest = known.latest[topic]
        if known.plain.issuperset(names):
            reason = reason.partition(_WAITS)[0]
        batch = EpochBatch(
            known.source,
            lsn,
            lsn,
            lsn,
            new_schemas=[(topic, schema)] if schema is not latest else [],
            progress=[each for each in self.begins if each.topic in names],
            unparked=[
                each.place for each in parked(self.store.catalog, known.source) if each.place.topic in names
            ],
        )
        if not topic.is_events:  # nothing takes away from them, and their ids tell what comes again
            row = TopicRows(topic, schema.version, truncate_row(schema, lsn, datetime.now(UTC)))
            batch = replace(batch, rows=[row], suspends=[(topic, reason)])
        self.writer.append(batch)
        known.after(batch)
