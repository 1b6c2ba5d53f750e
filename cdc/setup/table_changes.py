"""Compare the topics of a source with its tables now: which are in doubt, and which of those can be read again."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.cdc.postgres.publication import Publication, TablePublication, lost_changes
from tailrace.cdc.postgres.tables import Table, apply_publication
from tailrace.cdc.setup.table_choice import problem_of
from tailrace.cdc.topics import Topics
from tailrace.eventstore.model.info import DROPPED, LEFT, MISMATCH
from tailrace.eventstore.model.topic import TopicId


def lost_topics(
    topics: Topics, publication: Publication | None, tables: Sequence[Table] | None = None
) -> dict[TopicId, str]:
    """Topics, complete or in quarantine, that lost or may have lost changes, and why: their table is not published, or
    was not all the time since it was read. ``tables``: all that the server has, which tells what was dropped."""
    reasons = {}
    there = None if tables is None else {table.relid for table in tables}
    for topic, info in topics.tables.items():
        if not topics.follows(topic):
            continue
        entry = publication.entries.get(topics.relid(topic)) if publication else None
        if publication is not None and publication.mismatch:
            reasons[topic] = f"{MISMATCH}: {publication.mismatch}"
        elif entry is None:
            relid = topics.relid(topic)
            dropped = there is not None and relid != 0 and relid not in there
            reasons[topic] = DROPPED if dropped else LEFT
        elif info.published and (
            reason := lost_changes(TablePublication.from_json(info.published), entry.identity)
        ):
            reasons[topic] = f"read again: {reason}"
    return reasons


def republished_topics(topics: Topics, publication: Publication | None) -> dict[TopicId, str]:
    """Complete topics whose table is published differently without a loss (a partition was added), and how it is
    published now."""
    lost = lost_topics(topics, publication)
    found = {}
    for topic, info in topics.tables.items():
        entry = publication.entries.get(topics.relid(topic)) if publication else None
        if info.complete_since is None or topic in lost or entry is None:
            continue
        if not info.published or TablePublication.from_json(info.published) != entry.identity:
            found[topic] = entry.identity.to_json()
    return found


def loadable_tables(
    topics: Topics, publication: Publication | None, tables: Sequence[Table]
) -> dict[int, TopicId]:
    """The incomplete topics that can be read now, by oid of their table. A table may have been renamed, or another one
    have its name; when it could belong to two topics, it is that of the topic with its name."""
    published = publication.tables if publication else {}
    by_label: dict[tuple[str, ...], int] = {label: relid for relid, label in published.items()}
    known = {table.relid: table for table in apply_publication(tables, publication)}
    found = {}
    for topic in sorted(topics.pending_loads, key=lambda topic: topic.parts[1:] in by_label):
        relid = by_label.get(topic.parts[1:], topics.relid(topic))
        if relid in published and relid in known and problem_of(known[relid]) is None:
            found[relid] = topic
    return found


def reidentified_topics(topics: Topics, tables: Sequence[Table]) -> list[TopicId]:
    """Complete topics whose columns or key differ from what the stream shows. A column dropped and added again has the
    same name and type, but rows that existed lost their values without an event; under REPLICA IDENTITY FULL another
    primary key is not seen at all."""
    found = []
    for table in tables:
        topic, schema = topics.schemas.get(table.relid, (None, None))
        if topic is None or schema is None or topics.tables[topic].complete_since is None:
            continue
        numbers = {column.name: column.id for column in table.columns}
        replaced = any(numbers.get(column.name, column.id) != column.id for column in schema.columns)
        key = {numbers[name] for name in table.key}
        rekeyed = key != {column.id for column in schema.sent if column.key} or table.bag != schema.bag
        if replaced or (key and table.identity == "f" and rekeyed):
            found.append(topic)
    return found
