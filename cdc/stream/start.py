"""Before a session streams: which topics must be read again, with which versions it starts, and what loads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.cdc.context import Task
from tailrace.cdc.postgres.check import read_server
from tailrace.cdc.postgres.connect import connect
from tailrace.cdc.postgres.ddl_trigger import Trigger, hint, read_trigger
from tailrace.cdc.postgres.publication import Publication, read_publication
from tailrace.cdc.postgres.tables import Table, apply_publication, read_tables
from tailrace.cdc.setup.known_partitions import remember_partitions
from tailrace.cdc.setup.table_changes import (
    loadable_tables,
    lost_topics,
    reidentified_topics,
    republished_topics,
)
from tailrace.cdc.snapshot.added_tables import AddedTablesLoad
from tailrace.cdc.snapshot.chunk_load import ChunkedLoad
from tailrace.cdc.snapshot.topic_load import TopicLoad
from tailrace.cdc.stream import requests
from tailrace.cdc.topics import Topics, changed_schema, with_meanings
from tailrace.eventstore.catalog.requests import RequestState
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.model.info import DROPPED, LEFT
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId


@dataclass(frozen=True, slots=True)
class SessionStart:
    """A session that has taken over the source, and the publication as it was found."""

    task: Task
    writer: SourceWriter
    publication: Publication | None

    def topics(self) -> Topics:
        """Suspend topics whose state is unknown, whose policies changed, or for which there is a request, and learn
        what columns mean; then the topics, each to be loaded in the version that its table has now. Raises
        OperatorError without a publication."""
        self._suspend_unknown()
        self._suspend_requested()
        self._learn_meanings()
        return self._with_current_versions()

    def loads(self, topics: Topics) -> list[TopicLoad]:
        """What loads the incomplete topics: chunks walk along a key; a table without one is read in one snapshot."""
        if not topics.incomplete:
            return []
        name = self.writer.state.publication
        with connect(self.task.address, "tailrace capture") as connection:
            publication = read_publication(connection, name, self.task.address)
            tables = read_tables(connection, self.task.address)
        loadable = loadable_tables(topics, publication, tables)
        wanted = {
            topic: topics.schema(topic) for relid, topic in loadable.items() if topics.relid(topic) == relid
        }
        keyed = {table.relid for table in tables if table.key and not table.bag}
        # The catalog stores how far chunks have come as keys in plain text: not those of a protected key.
        keyed -= {schema.relid for schema in wanted.values() if any(each.policy for each in schema.key)}
        by_chunks = {topic: schema for topic, schema in wanted.items() if schema.relid in keyed}
        whole = {topic: schema for topic, schema in wanted.items() if schema.relid not in keyed}
        loads: list[TopicLoad] = []
        if by_chunks:
            rates = requests.rates(self.task.store, self.task.name)
            loads.append(ChunkedLoad(self.task, name, by_chunks, rates))
        if whole:
            loads.append(AddedTablesLoad(self.task, self.writer, whole))
        return loads

    def _read_topics(self) -> Topics:
        return Topics.read(self.task.store, self.task.name)

    def _suspend_unknown(self) -> None:
        """Topics whose table is not published any more, or lost values unseen: their state is unknown from here on.
        What is a partition now is remembered."""
        address, writer, publication = self.task.address, self.writer, self.publication
        topics = self._read_topics()
        with connect(address, "tailrace capture") as connection:
            found = read_tables(connection, address)
            tables = apply_publication(found, publication)
            server, trigger = read_server(connection, address), read_trigger(connection, address)
            writer.set_timeline(server.timeline)
        remember_partitions(self.task.store, self.task.name, self.task.policies, tables, topics.schemas)
        by_trigger = trigger is Trigger.ACTIVE
        if trigger not in (Trigger.ABSENT, Trigger.ACTIVE):
            self.task.progress.report(f"the DDL trigger {trigger.value}: {hint(trigger, server.user)}")
        # With the trigger the stream says it where it happened.
        again = [] if by_trigger else reidentified_topics(topics, tables)
        reasons = lost_topics(topics, publication, found) | dict.fromkeys(
            again, "read again: its columns or its key were replaced"
        )
        for reason in sorted(set(reasons.values())):
            names = ", ".join(topic.text for topic in reasons if reasons[topic] == reason)
            mend = {
                LEFT: "; once `tailrace init` has published it, it is read again",
                DROPPED: "; `tailrace topic retire` says that nobody waits for it any more",
            }.get(reason, "")
            self.task.progress.report(f"{names}: {reason}{mend}", again=True)
        republished = republished_topics(topics, publication)
        if reasons or republished:
            self._append(suspends=list(reasons.items()), published=list(republished.items()))
        self._suspend_changed_policies(topics, tables, known=list(reasons))
        if publication is None:
            raise OperatorError(
                f"there is no publication {writer.state.publication} in {address.text} any more",
                hint="run `tailrace init`, which makes it again; all topics are then read again",
            )

    def _suspend_changed_policies(
        self, topics: Topics, tables: Sequence[Table], known: Sequence[TopicId]
    ) -> None:
        """Values under two policies must not stand side by side: such a topic is read again under the new one."""
        known_policies, progress = self.task.policies, self.task.progress
        suspends = []
        for table in tables:
            topic, schema = topics.schemas.get(table.relid, (None, None))
            if topic is None or schema is None:
                continue
            policies = known_policies.covering(table.relid, table.partitions)
            kept = policies.retained_columns(table.label, schema)
            if kept:
                progress.report(
                    f"{topic.text}: {', '.join(kept)} stay protected as they were, though the configuration does"
                    ' not name them any more; "plain" in [sources.NAME.columns] would lift it'
                )
            changes = policies.changed_columns(table.label, schema)
            if changes and topic not in known and topics.follows(topic):
                progress.report(
                    f"{topic.text} is read again, as column policies changed ({'; '.join(changes)});"
                    " what the log holds from before stays as it was written"
                )
                suspends.append((topic, "read again: column policies changed"))
        if suspends:
            self._append(suspends=suspends)

    def _suspend_requested(self) -> None:
        """Topics that a request wants to be read again: this session loads them."""
        store, name = self.task.store, self.task.name
        published = self.publication.tables if self.publication else {}
        topics, taken_up = requests.topics_to_read(store, name, self._read_topics(), published)
        if topics:
            self._append(suspends=[(topic, "read again: requested") for topic in topics])
        store.requests.answer([request.id for request in taken_up], RequestState.RUNNING, "")

    def _learn_meanings(self) -> None:
        """Of columns whose kind of type is not known: an earlier version of Tailrace has captured them."""
        topics = self._read_topics()
        unknown = {
            topics.relid(topic): schema
            for topic, schema in topics.latest.items()
            if not all(column.type_kind for column in schema.columns)
        }
        if not unknown:
            return
        with connect(self.task.address, "tailrace capture") as connection:
            tables = read_tables(connection, self.task.address, list(unknown))
        learned = [
            (topics.schemas[table.relid][0], schema)
            for table in tables
            if (schema := with_meanings(table, unknown[table.relid], self.writer.state.commit_lsn))
        ]
        if learned:
            self._append(new_schemas=learned)

    def _with_current_versions(self) -> Topics:
        """A topic whose table becomes another's is suspended, and may take one itself."""
        topics = self._read_topics()
        if not topics.incomplete:
            return topics
        with connect(self.task.address, "tailrace capture") as connection:
            tables = apply_publication(read_tables(connection, self.task.address), self.publication)
        while newer := self._newer_versions(topics, tables):
            former = {
                topics.schemas[schema.relid][0] for schema in newer.values() if schema.relid in topics.schemas
            }
            bereft = [topic for topic in former - newer.keys() if topics.follows(topic)]
            self._append(
                new_schemas=list(newer.items()),
                suspends=[(topic, "read again: its table is another topic's now") for topic in bereft],
            )
            topics = self._read_topics()
        return topics

    def _newer_versions(self, topics: Topics, tables: Sequence[Table]) -> dict[TopicId, TopicSchema]:
        """Of the topics to be loaded, as far as their tables are not what the log knows."""
        loadable = loadable_tables(topics, self.publication, tables)
        found = {}
        for table in tables:
            topic = loadable.get(table.relid)
            schema = changed_schema(table, topics.schema(topic), self.task.policies) if topic else None
            if topic is not None and schema is not None:
                found[topic] = schema
        return found

    def _append(
        self,
        *,
        new_schemas: Sequence[tuple[TopicId, TopicSchema]] = (),
        suspends: Sequence[tuple[TopicId, str]] = (),
        published: Sequence[tuple[TopicId, str]] = (),
    ) -> None:
        """An epoch without rows, at the position the log has."""
        state = self.writer.state
        self.writer.append(
            EpochBatch(
                source=state.name,
                commit_lsn=state.commit_lsn,
                end_lsn=state.end_lsn,
                through_lsn=state.through_lsn,
                new_schemas=new_schemas,
                suspends=suspends,
                published=published,
            )
        )
