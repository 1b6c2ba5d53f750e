"""Rows about sources, topics and epochs, as values: one function per statement."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, Select, Table, func, insert, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import IncompleteTopic, IntegrityError, TopicGone, UsageError, damaged_row
from tailrace.eventstore.metadata import declared, load_progress, quarantine
from tailrace.eventstore.metadata.declared import Declared, DeclaredTopic
from tailrace.eventstore.model.info import DROPPED, RETIRED, EpochInfo, SourceState, TopicInfo
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.time import from_micros
from tailrace.eventstore.model.topic import TopicId, TopicKind

WAITING = "waiting for first load"
_HEAD = tables.log_head.c
_NEXT_EPOCH = (
    update(tables.log_head).values(epoch=_HEAD.epoch + 1).returning(_HEAD.epoch, _HEAD.hash, _HEAD.declared)
)
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


def declared_topic(connection: Connection, topic: TopicId) -> DeclaredTopic | None:
    """Raises IntegrityError when its rows are not what the log declared."""
    return next(iter(declared.read(connection, tables.topics.c.name == topic.text)), None)


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
    """Topics with their latest schema version, for a look at many: nothing is compared with what the log declared."""
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


def topic_infos(connection: Connection, *which: ColumnElement[bool]) -> list[TopicInfo]:
    """Topics by name, of those that meet conditions on ``topics``. Raises IntegrityError for one whose rows cannot be
    read, or are not what the log declared."""
    found = [topic_info(each.row, each.schemas[-1].version) for each in declared.read(connection, *which)]
    return sorted(found, key=lambda info: info.id.text)


def topic_info(row: Row[*tuple[Any, ...]], version: int) -> TopicInfo:
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
        version=version,
        complete_since=row.complete_since,
        reason=row.reason,
        published=row.published,
    )


def add_topics(
    connection: Connection, wanted: Mapping[TopicId, TopicSchema], partitions: int, reason: str
) -> None:
    """Insert topics, by as many statements for ten thousand as for one. With a reason they are incomplete from the
    start, otherwise known from the first epoch on. They get the numbers that follow, and no epoch comes between."""
    if not wanted:
        return
    head = declared.lock(connection)
    rows: dict[Table, list[dict[str, Any]]] = {
        table: []
        for table in (
            tables.topics, tables.topic_schemas, tables.topic_offsets, tables.lineage, tables.incomplete,
        )
    }  # fmt: skip
    zeros, difference = str([0] * partitions), 0
    offsets = {"next_offsets": zeros, "log_starts": zeros, "whole_from": zeros, "start_epoch": 0}
    lineage = {"entries": 0, "hash": "", "rows": 0, "content": "0" * 32, "start_epoch": 0, "start_rows": 0}
    for number, (topic, schema) in enumerate(wanted.items(), head.highest + 1):
        described = {
            "id": number,
            "name": topic.text,
            "source": topic.source,
            "kind": schema.kind.value,
            "partitioning": Partitioning.of(partitions).to_json(),
            "complete_since": None if reason else 0,
            "reason": reason,
            "published": "",
        }
        version = _schema_values(number, schema, epoch=0)
        interval = {"topic_id": number, "from_epoch": 0, "to_epoch": None, "reason": reason}
        total = declared.digest(tables.topics, described) + declared.digest(tables.topic_schemas, version)
        if reason:
            total += declared.digest(tables.incomplete, interval)
            rows[tables.incomplete].append(interval)
        rows[tables.topics].append({**described, "declared": declared.sum_text(total)})
        rows[tables.topic_schemas].append(version)
        rows[tables.topic_offsets].append({"topic_id": number, **offsets})
        rows[tables.lineage].append({"topic_id": number, **lineage})
        difference += total
    for table, values in rows.items():
        if values:
            connection.execute(insert(table), values)
    following = head.plus(difference, topics=len(wanted))
    connection.execute(update(tables.log_head).values(declared=following.text))


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
    IntegrityError when one cannot be read, or is not what the log declared."""
    (found,) = declared.read(connection, tables.topics.c.id == topic_id)
    return versions(found, until)


def versions(topic: DeclaredTopic, until: int | None = None) -> list[TopicSchema]:
    """As ``schemas``."""
    return [_schema(row) for row in topic.schemas if until is None or row.epoch <= until]


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
    with catalog.read() as connection:
        found = declared.read(connection, tables.topics.c.source == source)
    return dict(_in_order((each.row.name, each.schemas[-1]) for each in found))


def all_schemas(catalog: Catalog, source: str) -> list[tuple[TopicId, TopicSchema]]:
    """All versions of all topics of a source, in the order in which the log got them."""
    with catalog.read() as connection:
        found = declared.read(connection, tables.topics.c.source == source)
    return _in_order((each.row.name, version) for each in found for version in each.schemas)


def _in_order(rows: Iterable[tuple[str, Row[*tuple[Any, ...]]]]) -> list[tuple[TopicId, TopicSchema]]:
    """Rows of versions, each with the name of its topic."""
    found = [(row.epoch, _schema(row), TopicId.parse(name)) for name, row in rows]
    found.sort(key=lambda each: (each[0], each[1].from_lsn, each[1].version))
    return [(topic, schema) for _, schema, topic in found]


def schema_epochs(connection: Connection, topic: TopicId) -> dict[int, int]:
    """The epochs that brought a topic's versions, by version."""
    table = tables.topic_schemas
    query = (
        select(table.c.version, table.c.epoch)
        .join(tables.topics, tables.topics.c.id == table.c.topic_id)
        .where(tables.topics.c.name == topic.text)
    )
    return {row.version: row.epoch for row in connection.execute(query)}


def add_schema(
    connection: Connection, topic_id: int, topic: TopicId, schema: TopicSchema, *, epoch: int
) -> int:
    """Insert a version; nothing when it is there already. Gives how what is declared changes (``declared.amend``).
    Raises IntegrityError when it is there and differs."""
    table = tables.topic_schemas
    found = connection.scalar(
        select(table.c.definition).where(table.c.topic_id == topic_id, table.c.version == schema.version)
    )
    if found is None:
        values = _schema_values(topic_id, schema, epoch=epoch)
        connection.execute(insert(table).values(values))
        return declared.amend(connection, topic_id, [(table, None, values)])
    if TopicSchema.from_json(found).columns != schema.columns:
        raise IntegrityError(
            f"version {schema.version} of {topic} is in the log with other columns",
            hint="a version never changes; a new shape is a new version",
        )
    return 0


def _schema_values(topic_id: int, schema: TopicSchema, *, epoch: int) -> dict[str, Any]:
    return {"topic_id": topic_id, "version": schema.version, "epoch": epoch, "definition": schema.to_json()}


def complete(connection: Connection, topic_id: int, epoch: int) -> int:
    """The topic's state is known from this epoch on. Gives how what is declared changes (``declared.amend``)."""
    changed = _change_open_interval(connection, topic_id, to_epoch=epoch)
    load_progress.end(connection, topic_id)
    quarantine.end(connection, topic_id)
    return declared.amend(connection, topic_id, changed, complete_since=epoch, reason="")


def _change_open_interval(connection: Connection, topic_id: int, **values: Any) -> list[declared.Change]:
    """Write values to the interval that is open, if there is one."""
    table = tables.incomplete
    mine = (table.c.topic_id == topic_id, table.c.to_epoch.is_(None))
    before = connection.execute(select(table).where(*mine)).mappings().all()
    if before:
        connection.execute(update(table).where(*mine).values(**values))
    return [(table, row, {**row, **values}) for row in before]


def set_partitioning(connection: Connection, topic_id: int, partitioning: Partitioning) -> int:
    """Gives how what is declared changes (``declared.amend``)."""
    return declared.amend(connection, topic_id, partitioning=partitioning.to_json())


def set_published(connection: Connection, topic_id: int, published: str) -> None:
    connection.execute(
        update(tables.topics).where(tables.topics.c.id == topic_id).values(published=published)
    )


def suspend(connection: Connection, topic_id: int, epoch: int, reason: str) -> int:
    """The topic's state is unknown from this epoch on, until ``complete``. Suspending again changes the reason; a load
    by chunks that was under way is begun again, and what was kept of a topic in quarantine is dropped. Gives how what
    is declared changes (``declared.amend``)."""
    table = tables.incomplete
    load_progress.end(connection, topic_id)
    quarantine.end(connection, topic_id)
    changed = _change_open_interval(connection, topic_id, reason=reason)
    if not changed:
        values = {"topic_id": topic_id, "from_epoch": epoch, "to_epoch": None, "reason": reason}
        connection.execute(insert(table).values(values))
        changed = [(table, None, values)]
    return declared.amend(connection, topic_id, changed, complete_since=None, reason=reason)


def require_complete(connection: Connection, topic: TopicId, topic_id: int, cut: Cut) -> None:
    """Raises IncompleteTopic when the topic's state is not known at the cut, TopicGone when it will not be,
    IntegrityError when what the catalog says of it is not what the log declared."""
    (found,) = declared.read(connection, tables.topics.c.id == topic_id)
    for row in found.incomplete:
        if row.from_epoch <= cut.epoch and (row.to_epoch is None or row.to_epoch > cut.epoch):
            message = f"the state of {topic} is not known at epoch {cut.epoch}: {row.reason}"
            raise unknown_state(message, row.reason)


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


def next_epoch(connection: Connection) -> tuple[int, str, Declared]:
    """Its number, the hash of the one before, and what is declared. Nobody else gets a number, or adds a topic, until
    this transaction ends."""
    row = connection.execute(_NEXT_EPOCH).one()
    return row.epoch, row.hash, declared.of_head(row.declared)


def add_epoch(connection: Connection, values: Mapping[str, Any]) -> None:
    """A row of ``epochs``, of the epoch that ``next_epoch`` gave."""
    # As parameters, not as ``values`` of the statement: that would be built again for each epoch.
    connection.execute(insert(tables.epochs), dict(values))
    connection.execute(update(tables.log_head), {"hash": values["hash"], "declared": values["declared"]})


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
