"""How sources and topics come into the log, and who is a source's writer."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Row, insert, select, update
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.model.model import SourceState, TopicId
from tailrace.eventstore.model.schema import TopicSchema

_SOURCE_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


def register_source(
    catalog: Catalog, name: str, *, slot: str, publication: str, system_id: str
) -> SourceState:
    """As ``Store.register_source``."""
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
    catalog: Catalog, topic: TopicId, schema: TopicSchema, partitions: int, reason: str
) -> None:
    """As ``Store.register_topic``."""
    try:
        with catalog.write() as connection:
            if topics.source_row(connection, topic.source) is None:
                raise UsageError(
                    f"{topic} belongs to source {topic.source!r}, which is not registered",
                    hint="register the source first",
                )
            if topics.topic_row(connection, topic) is None:
                topics.add_topic(connection, topic, schema, partitions, reason)
    except Duplicate:  # another process was faster
        return


def new_term(catalog: Catalog, source: str) -> Row[*tuple[Any, ...]]:
    """The source's row in a new term, whose writer nobody before is. Raises as ``Store.take_over`` does."""
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
