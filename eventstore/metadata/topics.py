"""Rows about sources, topics and epochs, as values: one function per statement."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, RowMapping, Select, func, insert, or_, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import IncompleteTopic, IntegrityError, TopicGone, UsageError, damaged_row
from tailrace.eventstore.metadata import load_progress, quarantine
from tailrace.eventstore.model.info import DROPPED, RETIRED, EpochInfo, SourceState, TopicInfo
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.time import from_micros
from tailrace.eventstore.model.topic import TopicId, TopicKind

WAITING = "waiting for first load"
_NAMES_AT_ONCE = 10_000  # SQLite takes 32,766 parameters in a statement, Postgres 65,535


def first_reason(kind: TopicKind) -> str:
    """Why a new topic is incomplete: a table has rows from before; events and messages begin with the stream."""
    return WAITING if kind is TopicKind.TABLE else ""


# sources


def source_row(connection: Connection, name: str) -> Row[*tuple[Any, ...]] | None:
    return connection.execute(select(tables.sources).where(tables.sources.c.name == name)).one_or_none()


def source_state(row: Row[*tuple[Any, ...]]) -> SourceState:
    return SourceState(
        name=row.name,
        incarnation=row.incarnation,
        term=row.term,
        commit_lsn=row.commit_lsn,
        end_lsn=row.end_lsn,
        through_lsn=row.through_lsn,
        system_id=row.system_id,
        timeline=row.timeline,
        repairing=row.repairing,
        slot=row.slot,
        publication=row.publication,
        loaded=row.loaded,
    )


# topics


def topic_row(connection: Connection, topic: TopicId) -> Row[*tuple[Any, ...]] | None:
    return connection.execute(topic_query().where(tables.topics.c.name == topic.text)).one_or_none()


def unknown_topic(connection: Connection, topic: TopicId) -> UsageError:
    """The error for a topic that the log does not have, with names that come close."""
    names = sorted(connection.scalars(select(tables.topics.c.name)))
    close = difflib.get_close_matches(topic.text, names, n=3)
    known = (
        f"its topics are: {', '.join(names[:10])}"
        if names
        else "it has no topics yet: tailrace init makes them"
    )
    return UsageError(
        f"no topic {topic} in the log",
        hint=f"did you mean {' or '.join(close)}?" if close else known,
    )


def topic_query() -> Select[*tuple[Any, ...]]:
    """Topics with their latest schema version. It is looked up topic by topic: a query for one does not read all."""
    schemas, newer = tables.topic_schemas, tables.topic_schemas.alias()
    latest = (
        select(func.max(newer.c.version))
        .where(newer.c.topic_id == tables.topics.c.id)
        .correlate(tables.topics)
        .scalar_subquery()
    )
    both = tables.topics.join(
        schemas, (schemas.c.topic_id == tables.topics.c.id) & (schemas.c.version == latest)
    )
    return select(tables.topics, schemas.c.version).select_from(both)


def topic_info(row: Row[*tuple[Any, ...]]) -> TopicInfo:
    """Raises IntegrityError when the row cannot be read."""
    try:
        topic, kind = TopicId.parse(row.name), TopicKind(row.kind)
        partitioning = Partitioning.from_json(row.partitioning)
        known = topic.source == row.source and bool(partitioning.incarnations)
    except (ValueError, TypeError, UsageError):
        known = False
    if not known:
        raise damaged_row(f"topics: id {row.id}", "it cannot be read")
    return TopicInfo(
        id=topic,
        kind=kind,
        partitioning=partitioning,
        version=row.version,
        complete_since=row.complete_since,
        reason=row.reason,
        published=row.published,
    )


def add_topics(
    connection: Connection, wanted: Mapping[TopicId, TopicSchema], partitions: int, reason: str
) -> None:
    """Insert topics, by as many statements for ten thousand as for one. With a reason they are incomplete from the
    start, otherwise known from the first epoch on."""
    if not wanted:
        return
    table, names = tables.topics, {topic.text: schema for topic, schema in wanted.items()}
    rows = [
        {
            "name": topic.text,
            "source": topic.source,
            "kind": schema.kind.value,
            "partitioning": Partitioning.of(partitions).to_json(),
            "complete_since": None if reason else 0,
            "reason": reason,
            "published": "",
        }
        for topic, schema in wanted.items()
    ]
    added = connection.execute(insert(table).returning(table.c.id, table.c.name), rows).all()
    zeros = str([0] * partitions)
    offsets = {"next_offsets": zeros, "log_starts": zeros, "whole_from": zeros, "start_epoch": 0}
    lineage = {"entries": 0, "hash": "", "rows": 0, "content": "0" * 32}
    incomplete = {"from_epoch": 0, "to_epoch": None, "reason": reason}
    schemas = [
        {
            "topic_id": row.id,
            "version": names[row.name].version,
            "epoch": 0,
            "definition": names[row.name].to_json(),
        }
        for row in added
    ]
    connection.execute(insert(tables.topic_offsets), [{"topic_id": row.id, **offsets} for row in added])
    connection.execute(insert(tables.lineage), [{"topic_id": row.id, **lineage} for row in added])
    if reason:
        connection.execute(insert(tables.incomplete), [{"topic_id": row.id, **incomplete} for row in added])
    connection.execute(insert(tables.topic_schemas), schemas)


def next_offsets(connection: Connection, topic_id: int) -> str:
    table = tables.topic_offsets
    query = select(table.c.next_offsets).where(table.c.topic_id == topic_id)
    return str(connection.execute(query).scalar_one())


def offset_bounds(
    connection: Connection, topics: Collection[TopicId]
) -> dict[TopicId, tuple[Partitioning, tuple[tuple[int, int], ...]]]:
    """By topic its partitioning, and by partition the first offset that can be read and the next to be written."""
    table, offsets = tables.topics, tables.topic_offsets
    query = (
        select(table.c.name, table.c.partitioning, offsets.c.log_starts, offsets.c.next_offsets)
        .join(offsets, offsets.c.topic_id == table.c.id)
        .where(table.c.name.in_([topic.text for topic in topics]))
    )
    return {
        TopicId.parse(row.name): (
            Partitioning.from_json(row.partitioning),
            tuple(zip(json.loads(row.log_starts), json.loads(row.next_offsets), strict=True)),
        )
        for row in connection.execute(query)
    }


def schemas(connection: Connection, topic_id: int, until: int | None = None) -> list[TopicSchema]:
    """A topic's versions, oldest first: all, or those that epochs up to ``until`` brought. Raises
    IntegrityError when one cannot be read."""
    table = tables.topic_schemas
    query = select(table).where(table.c.topic_id == topic_id).order_by(table.c.version)
    if until is not None:
        query = query.where(table.c.epoch <= until)
    return [_schema(row) for row in connection.execute(query)]


def _schema(row: Row[*tuple[Any, ...]]) -> TopicSchema:
    place = f"topic_schemas: topic_id {row.topic_id}, version {row.version}"
    try:
        schema = TopicSchema.from_json(row.definition)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise damaged_row(place, "its definition cannot be read") from None
    if schema.version != row.version:
        raise damaged_row(place, "its definition is of another version")
    return schema


def had_rows(catalog: Catalog, topic: TopicId) -> bool:
    """Whether the topic ever had a row, also when retention removed all of them. Raises UsageError: no such topic."""
    with catalog.read() as connection:
        topic_id = topic_ids(connection, [topic]).get(topic)
        if topic_id is None:
            raise unknown_topic(connection, topic)
        return any(json.loads(next_offsets(connection, topic_id)))


def latest_schemas(catalog: Catalog, source: str) -> dict[TopicId, TopicSchema]:
    """The latest version of every topic of a source, in the order in which the log got them."""
    table = tables.topic_schemas
    latest = topic_query().where(tables.topics.c.source == source).subquery()
    query = select(table, latest.c.name).join(
        latest, (latest.c.id == table.c.topic_id) & (latest.c.version == table.c.version)
    )
    with catalog.read() as connection:
        return dict(_in_order(connection.execute(query).all()))


def all_schemas(catalog: Catalog, source: str) -> list[tuple[TopicId, TopicSchema]]:
    """All versions of all topics of a source, in the order in which the log got them."""
    table, topic = tables.topic_schemas, tables.topics
    query = (
        select(table, topic.c.name)
        .join(topic, topic.c.id == table.c.topic_id)
        .where(topic.c.source == source)
    )
    with catalog.read() as connection:
        return _in_order(connection.execute(query).all())


def _in_order(rows: Sequence[Row[*tuple[Any, ...]]]) -> list[tuple[TopicId, TopicSchema]]:
    """Rows of versions, each with the ``name`` of its topic."""
    found = [(row.epoch, _schema(row), TopicId.parse(row.name)) for row in rows]
    found.sort(key=lambda each: (each[0], each[1].from_lsn, each[1].version))
    return [(topic, schema) for _, schema, topic in found]


def add_schema(
    connection: Connection, topic_id: int, topic: TopicId, schema: TopicSchema, *, epoch: int
) -> None:
    """Insert a version; nothing when it is there already. Raises IntegrityError when it is there and differs."""
    table = tables.topic_schemas
    found = connection.scalar(
        select(table.c.definition).where(table.c.topic_id == topic_id, table.c.version == schema.version)
    )
    if found is None:
        connection.execute(
            insert(table).values(
                topic_id=topic_id, version=schema.version, epoch=epoch, definition=schema.to_json()
            )
        )
    elif TopicSchema.from_json(found).columns != schema.columns:
        raise IntegrityError(
            f"version {schema.version} of {topic} is in the log with other columns",
            hint="a version never changes; a new shape is a new version",
        )


def complete(connection: Connection, topic_id: int, epoch: int) -> None:
    """The topic's state is known from this epoch on."""
    connection.execute(
        update(tables.topics).where(tables.topics.c.id == topic_id).values(complete_since=epoch, reason="")
    )
    connection.execute(
        update(tables.incomplete)
        .where(tables.incomplete.c.topic_id == topic_id, tables.incomplete.c.to_epoch.is_(None))
        .values(to_epoch=epoch)
    )
    load_progress.end(connection, topic_id)
    quarantine.end(connection, topic_id)


def set_published(connection: Connection, topic_id: int, published: str) -> None:
    connection.execute(
        update(tables.topics).where(tables.topics.c.id == topic_id).values(published=published)
    )


def suspend(connection: Connection, topic_id: int, epoch: int, reason: str) -> None:
    """The topic's state is unknown from this epoch on, until ``complete``. Suspending again changes the reason; a load
    by chunks that was under way is begun again, and what was kept of a topic in quarantine is dropped."""
    table = tables.incomplete
    load_progress.end(connection, topic_id)
    quarantine.end(connection, topic_id)
    connection.execute(
        update(tables.topics).where(tables.topics.c.id == topic_id).values(complete_since=None, reason=reason)
    )
    again = connection.execute(
        update(table).where(table.c.topic_id == topic_id, table.c.to_epoch.is_(None)).values(reason=reason)
    )
    if again.rowcount == 0:
        connection.execute(
            insert(table).values(topic_id=topic_id, from_epoch=epoch, to_epoch=None, reason=reason)
        )


def require_complete(connection: Connection, topic: TopicId, topic_id: int, cut: Cut) -> None:
    """Raises IncompleteTopic when the topic's state is not known at the cut, TopicGone when it will not be."""
    table = tables.incomplete
    query = select(table.c.reason).where(
        table.c.topic_id == topic_id,
        table.c.from_epoch <= cut.epoch,
        or_(table.c.to_epoch.is_(None), table.c.to_epoch > cut.epoch),
    )
    reason = connection.scalar(query)
    if reason is not None:
        raise unknown_state(f"the state of {topic} is not known at epoch {cut.epoch}: {reason}", reason)


def unknown_state(message: str, reason: str) -> IncompleteTopic | TopicGone:
    """The error for a topic that is incomplete for ``reason``."""
    if reason in (DROPPED, RETIRED):
        hint = "take it out of what reads it, or name an earlier position"
        return TopicGone(message, hint=hint)
    return IncompleteTopic(
        message, hint="`tailrace status` says what it waits for and what to do; or name another position"
    )


# epochs


def epoch_info(values: Mapping[str, Any] | RowMapping) -> EpochInfo:
    return EpochInfo(
        epoch=values["epoch"],
        source=values["source"],
        commit_lsn=values["commit_lsn"],
        end_lsn=values["end_lsn"],
        commit_ts=from_micros(values["commit_ts"]),
        rows=values["rows"],
        hash=values["hash"],
    )


def next_epoch(connection: Connection) -> tuple[int, str]:
    """Its number and the hash of the one before. Nobody else gets a number until this transaction ends."""
    head = tables.log_head
    following = update(head).values(epoch=head.c.epoch + 1).returning(head.c.epoch, head.c.hash)
    row = connection.execute(following).one()
    return row.epoch, row.hash


def add_epoch(connection: Connection, values: Mapping[str, Any]) -> None:
    """A row of ``epochs``, of the epoch that ``next_epoch`` gave."""
    # As parameters, not as ``values`` of the statement: that would be built again for each epoch.
    connection.execute(insert(tables.epochs), dict(values))
    connection.execute(update(tables.log_head), {"hash": values["hash"]})


def epoch_of_append(connection: Connection, append_id: str) -> EpochInfo | None:
    """The epoch of a recent append: those that were folded long ago have forgotten their appends."""
    query = select(tables.epochs).where(tables.epochs.c.append_id == append_id)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else epoch_info(row)


def head_epoch(connection: Connection) -> int:
    return int(connection.execute(select(tables.log_head.c.epoch)).scalar_one())


def oldest_unsealed(connection: Connection) -> int | None:
    """The oldest epoch whose rows are still a blob in the catalog; None when all are in files."""
    table = tables.epochs
    query = select(func.min(table.c.epoch)).where(table.c.blob_bytes.is_not(None))
    oldest: int | None = connection.scalar(query)
    return oldest


def sealed_upto(connection: Connection) -> int:
    """The last epoch up to which all rows are in files."""
    oldest = oldest_unsealed(connection)
    return head_epoch(connection) if oldest is None else oldest - 1


def topic_ids(connection: Connection, topics: Sequence[TopicId]) -> dict[TopicId, int]:
    """Ids of those topics that the log has."""
    table = tables.topics
    names = {topic.text: topic for topic in topics}
    wanted = list(names)
    found: dict[TopicId, int] = {}
    for start in range(0, len(wanted), _NAMES_AT_ONCE):
        page = wanted[start : start + _NAMES_AT_ONCE]
        query = select(table.c.name, table.c.id).where(table.c.name.in_(page))
        found |= {names[row.name]: row.id for row in connection.execute(query)}
    return found
