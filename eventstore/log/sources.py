"""Sources and topics: how they are registered, and how a process becomes a source's writer."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Row, insert, select, update
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.model.info import SourceState, TopicInfo
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId

_SOURCE_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


def register_source(
    catalog: Catalog, name: str, *, slot: str, publication: str, system_id: str
) -> SourceState:
    """Add a source, or give back the one there is. Slot, publication and system may change until the first load is in
    the log; afterwards the log's positions belong to that one system (OperatorError)."""
    if not _SOURCE_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a source name", hint="lower-case letters, digits and _")
    table = tables.sources
    given = {"slot": slot, "publication": publication, "system_id": system_id}
    fresh = {"incarnation": 1, "timeline": 0, "repairing": False, "last_append": "", "loaded": False}
    zeros = dict.fromkeys(("term", "commit_lsn", "end_lsn", "through_lsn"), 0)
    try:
        with catalog.write() as connection:
            row = topics.source_row(connection, name)
            if row is None:
                connection.execute(insert(table).values(name=name, **given, **fresh, **zeros))
            elif not row.loaded:
                connection.execute(update(table).where(table.c.name == name).values(given))
            elif row.system_id != system_id:
                raise OperatorError(
                    f"source {name!r} was loaded from system {row.system_id}, this server is {system_id}",
                    hint="point the source back to its server, or give the new one another name",
                )
            row = topics.source_row(connection, name)
    except Duplicate:  # two processes at once; the other one's row is as good
        return register_source(catalog, name, slot=slot, publication=publication, system_id=system_id)
    assert row is not None
    return topics.source_state(row)


def register_topic(
    log: Log, topic: TopicId, schema: TopicSchema, *, reason: str = topics.WAITING
) -> TopicInfo:
    """Add a topic of a registered source, or give back the one there is. It is incomplete for ``reason`` until an epoch
    completes it; an empty reason means that nothing came before the stream (events, messages)."""
    try:
        with log.catalog.write() as connection:
            if topics.source_row(connection, topic.source) is None:
                raise UsageError(
                    f"{topic} belongs to source {topic.source!r}, which is not registered",
                    hint="register the source first",
                )
            if topics.topic_row(connection, topic) is None:
                topics.add_topic(connection, topic, schema, log.settings.partitions, reason)
    except Duplicate:  # another process was faster
        pass
    return log.topic(topic)


def new_term(catalog: Catalog, source: str) -> Row[*tuple[Any, ...]]:
    """Begin a new term of a source and give its row: earlier writers are fenced. Raises as ``Store.take_over`` does."""
    table = tables.sources
    with catalog.write() as connection:
        catalog.check_not_published(connection)
        row = connection.execute(
            update(table).where(table.c.name == source).values(term=table.c.term + 1).returning(table)
        ).one_or_none()
        known = (
            [] if row is not None else list(connection.scalars(select(table.c.name).order_by(table.c.name)))
        )
    if row is None:
        raise UsageError(
            f"no source {source!r} in the log", hint=f"its sources are {', '.join(known) or 'none'}"
        )
    return row
