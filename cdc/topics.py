"""The topics of a source as one session knows them, and the catalog's description of a relation that differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tailrace.cdc.columnar.relations import EVENTS_TABLE, UNCAPTURED
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres.connect import Address, connect, translate_errors
from tailrace.cdc.postgres.publication import read_publication
from tailrace.cdc.postgres.tables import TREE, Table, apply_publication, read_tables
from tailrace.cdc.wire.pgoutput import Relation
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.metadata.quarantine import quarantined_topics
from tailrace.eventstore.metadata.topics import latest_schemas
from tailrace.eventstore.model.epoch import QuarantinedTopic
from tailrace.eventstore.model.info import SourceState, TopicInfo
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.store import Store

# Columns whose value in rows from before them is not known. A default that was computed row by row leaves few traces:
# itself while it stays, an identity, a NOT NULL that held at once, a table rewritten since it was made.
_FILLED_UNSEEN = (
    TREE
    + """
SELECT a.attnum::int FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY (%(relids)s::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.atthasmissing
  AND (a.attgenerated <> '' OR a.atthasdef OR a.attidentity <> '' OR a.attnotnull OR EXISTS (
    SELECT FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid WHERE c.relkind = 'r' AND c.relfilenode <> c.oid))
"""
)


class TopicsChanged(TransientError):
    """The topics are no longer those that this session began with; a new session takes them in. Nothing is lost."""


@dataclass(frozen=True, slots=True)
class Topics:
    """A source's topics when a session begins, with their ``latest`` versions."""

    tables: Mapping[TopicId, TopicInfo]
    others: tuple[TopicId, ...]
    latest: Mapping[TopicId, TopicSchema]
    schemas: Mapping[int, tuple[TopicId, TopicSchema]]
    """By table oid, also of incomplete topics. Two topics have had one table when it was renamed to the name of the
    other: it is the table of the one whose version the log got later."""
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
        schemas = {schema.relid: (topic, schema) for topic, schema in latest.items()}
        others = tuple(info.id for info in infos if info.kind is not TopicKind.TABLE)
        return cls(
            tables,
            others,
            latest,
            schemas,
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


class Describer:
    """``BlockDecoder``'s view of the source's catalog. One short connection per question: relations change rarely.

    ``topics`` are those the session began with.
    """

    def __init__(self, store: Store, source: SourceState, topics: Topics, address: Address) -> None:
        self._store = store
        self._source = source.name
        self._publication = source.publication
        self._topics = topics
        self._address = address
        self._filled_unseen: set[tuple[int, int]] = set()

    def may_be_filled(self, relid: int, column: int) -> bool:
        """Whether a column's default may have filled existing rows without an event."""
        return (relid, column) in self._filled_unseen

    def ordinary_tables(self) -> frozenset[int]:
        """Oids of the topics' tables that are not partitioned, and never will be."""
        query = "SELECT oid::bigint FROM pg_catalog.pg_class WHERE relkind = 'r' AND oid = ANY (%s::bigint[]::oid[])"
        with (
            connect(self._address, "tailrace describe") as connection,
            translate_errors("reading the catalog", self._address),
        ):
            rows = connection.execute(query, [list(self._topics.schemas)]).fetchall()
        return frozenset(int(str(relid)) for (relid,) in rows)

    def __call__(self, relation: Relation) -> TopicSchema | None:
        """The relation's table as the catalog has it now; None when it is not captured.

        Raises TopicsChanged when a session that begins now would know the table.
        """
        with connect(self._address, "tailrace describe") as connection:
            relids = [relation.relid]
            publication = read_publication(connection, self._publication, self._address, relids)
            tables = apply_publication(read_tables(connection, self._address, relids), publication)
            with translate_errors("reading the catalog", self._address):
                rows = connection.execute(_FILLED_UNSEEN, {"relids": relids}).fetchall()
        self._filled_unseen |= {(relation.relid, int(str(number))) for (number,) in rows}
        known = self._topics.schemas.get(relation.relid)
        if known is not None:  # dropped since: the stream's word and the version before are all there is
            return tables[0].topic_schema(1) if tables else known[1]
        if not tables:
            return None
        now = Topics.read(self._store, self._source)
        info = now.tables.get(TopicId.table(self._source, *tables[0].label))
        if info is None:
            part = not self._topics.schemas.keys().isdisjoint(tables[0].roots)
            return tables[0].topic_schema(UNCAPTURED) if part else None
        if info.complete_since is None or relation.relid in now.schemas:
            raise TopicsChanged(f"{info.id.text} has a table that this session does not know")
        return tables[0].topic_schema(1)


def changed_schema(table: Table, latest: TopicSchema, policies: Policies) -> TopicSchema | None:
    """The next version of a topic when its table or policies are no longer what ``latest`` says, else None."""
    policies = policies.covering(table.relid, table.partitions)
    described = policies.schema(table.label, table.topic_schema(latest.version), latest)
    if replace(described, from_lsn=latest.from_lsn) == latest:
        return None
    return replace(described, version=latest.version + 1)


def is_events(table: Table) -> bool:
    return table.label == EVENTS_TABLE
