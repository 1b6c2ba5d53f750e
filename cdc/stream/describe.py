"""The catalog's description of a relation that is not as a session knows it."""

from __future__ import annotations

from tailrace.cdc.columnar.relations import UNCAPTURED
from tailrace.cdc.postgres.connect import Address, connect, translate_errors
from tailrace.cdc.postgres.publication import read_publication
from tailrace.cdc.postgres.tables import TREE, apply_publication, read_tables
from tailrace.cdc.setup.table_changes import loadable_tables
from tailrace.cdc.topics import Topics, TopicsChanged
from tailrace.cdc.wire.pgoutput import Relation
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId
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
        topic = TopicId.table(self._source, *tables[0].label)
        if relation.relid in now.schemas or relation.relid in loadable_tables(now, publication, tables):
            raise TopicsChanged(f"{topic.text} has a table that this session does not know")
        if topic in now.tables and now.follows(topic):
            return tables[0].topic_schema(1)
        part = not self._topics.schemas.keys().isdisjoint(tables[0].roots)
        return tables[0].topic_schema(UNCAPTURED) if part else None
