"""The topics of a source as one session knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tailrace.cdc.columnar.relations import by_table
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres.tables import Table
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.metadata.quarantine import quarantined_topics
from tailrace.eventstore.metadata.topics import latest_schemas
from tailrace.eventstore.model.epoch import QuarantinedTopic
from tailrace.eventstore.model.event_schema import EVENTS_TABLE
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.store import Store


class TopicsChanged(TransientError):
    """The topics are no longer those that this session began with; a new session takes them in. Nothing is lost."""


@dataclass(frozen=True, slots=True)
class Topics:
    """A source's topics when a session begins, with their ``latest`` versions."""

    tables: Mapping[TopicId, TopicInfo]
    others: tuple[TopicId, ...]
    latest: Mapping[TopicId, TopicSchema]
    """In the order in which the log got them."""
    schemas: Mapping[int, tuple[TopicId, TopicSchema]]
    """By table oid, also of incomplete topics (``by_table``)."""
    quarantined: Mapping[TopicId, QuarantinedTopic] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store, source: str) -> Topics:
        infos = store.topics(source)
        tables = {info.id: info for info in infos if info.kind is TopicKind.TABLE}
        latest = {
            topic: schema
            for topic, schema in latest_schemas(store.catalog, source).items()
            if topic in tables
        }
        others = tuple(info.id for info in infos if info.kind is not TopicKind.TABLE)
        return cls(
            tables,
            others,
            latest,
            by_table(latest),
            {each.topic: each for each in quarantined_topics(store.catalog, source)},
        )

    @property
    def incomplete(self) -> tuple[TopicId, ...]:
        return tuple(topic for topic, info in self.tables.items() if info.complete_since is None)

    @property
    def pending_loads(self) -> tuple[TopicId, ...]:
        """The incomplete topics to load. Those in quarantine wait for a request."""
        return tuple(topic for topic in self.incomplete if topic not in self.quarantined)

    def follows(self, topic: TopicId) -> bool:
        """Whether no change of the topic is missing: its changes are in the log, or stored undecoded."""
        entry = self.quarantined.get(topic)
        return self.tables[topic].complete_since is not None or (entry is not None and entry.keeps)

    def schema(self, topic: TopicId) -> TopicSchema:
        return self.latest[topic]

    def relid(self, topic: TopicId) -> int:
        """The oid of its table; 0, which no table has, when that is another topic's now."""
        relid = self.latest[topic].relid
        return relid if self.schemas[relid][0] == topic else 0


def changed_schema(table: Table, latest: TopicSchema, policies: Policies) -> TopicSchema | None:
    """The next version of a topic when its table or policies are no longer what ``latest`` says, else None."""
    policies = policies.covering(table.relid, table.partitions)
    described = policies.schema(table.label, table.topic_schema(latest.version), latest)
    if replace(described, from_lsn=latest.from_lsn) == latest:
        return None
    return replace(described, version=latest.version + 1)


def with_meanings(table: Table, latest: TopicSchema, from_lsn: int) -> TopicSchema | None:
    """The next version of a topic that an earlier version of Tailrace captured: what its columns' types and collations
    mean, as far as ``latest`` does not know it and they are the table's; None when there is nothing to learn."""
    now = {column.id: column for column in table.columns}
    columns = tuple(_with_meaning(column, now.get(column.id)) for column in latest.columns)
    if all(_meaning(one) == _meaning(other) for one, other in zip(columns, latest.columns, strict=True)):
        return None
    return replace(latest, version=latest.version + 1, from_lsn=from_lsn, columns=columns)


def _with_meaning(column: Column, now: Column | None) -> Column:
    same = now is not None and (now.type_oid, now.typmod) == (column.type_oid, column.typmod)
    if now is None or not same or column.type_kind:
        return column
    return replace(column, type_kind=now.type_kind, collation=column.collation or now.collation)


def _meaning(column: Column) -> tuple[str, str]:
    return column.type_kind, column.collation


def is_events(table: Table, schema: str) -> bool:
    """Whether it is the table of domain events, whose schema that is."""
    return table.label == (schema, EVENTS_TABLE)
