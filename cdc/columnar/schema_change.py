"""What changes from one schema version of a topic to the next, and how the next one is made. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tailrace.cdc.columnar.column_identity import identify
from tailrace.cdc.wire.pgoutput import Relation, RelationColumn
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.state.assembly import STATE_NAMES


class ChangeKind(Enum):
    """What is different in a new version, or what happened to a table without one. Most kinds may have changed the key,
    or rows without an event: ``tailrace.cdc.stream.reload_reason`` decides which topics to read again."""

    NEW = "topic not seen before"
    ADDED = "column added"
    DROPPED = "column dropped"
    RENAMED = "column renamed"
    RETYPED = "column type changed"
    REKEYED = "key changed"
    PROTECTED = "column policy changed"
    REPLACED = "another table under the same name"
    MOVED = "table renamed"
    # Only the DDL event trigger shows these:
    TAKEN = "another table has its name now"
    REWRITTEN = "rows rewritten"
    REPARTITIONED = "a partition attached or detached"
    REVALUED = "text of stored values changed by another type"
    GONE = "table dropped"
    UNTOLD = "other columns than the log knew when the DDL trigger was installed"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A topic's new version, or (``current`` is ``previous``) what happened to its table without one.

    ``table`` is the table's (schema, name), ``lsn`` that of the commit. ``by_trigger``: the event trigger described it,
    so identity is exact. Otherwise columns in ``guessed`` are known from the stream alone, and their value in older
    rows is unknown."""

    topic: TopicId
    previous: TopicSchema | None
    current: TopicSchema
    kinds: frozenset[ChangeKind]
    table: tuple[str, str]
    lsn: int
    by_trigger: bool = False
    guessed: frozenset[int] = frozenset()

    @property
    def is_version(self) -> bool:
        return self.current is not self.previous


def taken_names(columns: Iterable[Column | RelationColumn]) -> list[str]:
    """Names of columns that collide with those that a state adds."""
    return [column.name for column in columns if column.name in STATE_NAMES]


def matches(relation: Relation, schema: TopicSchema) -> bool:
    """Whether tuples of the relation are rows of this version."""
    if len(relation.columns) != len(schema.sent):
        return False
    flagged = _has_key_flags(relation)
    return all(
        (sent.name, sent.type_oid, sent.typmod) == (column.name, column.type_oid, column.typmod)
        and (not flagged or sent.is_key == column.key)
        for sent, column in zip(relation.columns, schema.sent, strict=True)
    )


def next_version(
    relation: Relation, described: TopicSchema, previous: TopicSchema | None, commit_lsn: int
) -> TopicSchema:
    """The topic's next version: all of the relation's columns, with what only the catalog knows of them.

    A table without a key gets all its columns as key: its topic is a bag. Raises OperatorError on a table without
    columns, or with one that a state has no place for.
    """
    if not relation.columns:
        raise OperatorError(
            f"table {relation.schema}.{relation.table} has no columns, so its rows cannot be distinguished",
            hint="take it out of the publication, or give it a column and a key",
        )
    if clashing := taken_names(relation.columns):
        raise OperatorError(
            f"column {clashing[0]} of table {relation.schema}.{relation.table} has the name of one that the log adds "
            "to a row's state",
            hint="rename it, and read the table again: tailrace source snapshot",
        )
    older = previous if previous and previous.relid in (0, relation.relid) else None
    columns = _keep_fills(older, identify(relation, described, older))
    if _has_key_flags(relation):
        columns = [replace(c, key=s.is_key) for c, s in zip(columns, relation.columns, strict=True)]
    bag = described.bag and not _has_key_flags(relation)
    return _version(columns, relation.relid, previous, commit_lsn, bag=bag)


def described_version(described: TopicSchema, previous: TopicSchema, commit_lsn: int) -> TopicSchema:
    """The topic's next version as the event trigger described it: identity is exact."""
    return _version(_keep_fills(previous, described.columns), described.relid, previous, commit_lsn)


def _keep_fills(previous: TopicSchema | None, columns: Iterable[Column]) -> list[Column]:
    """A known column keeps its fill: the catalog forgets it when the table is rewritten (VACUUM FULL, a generated
    column), but the log's rows from before that column still need it. It also keeps the type under its domain, in which
    those rows are stored."""
    before = {column.id: column for column in previous.columns} if previous else {}
    return [
        _kept(before[column.id], column)
        if column.id in before and before[column.id].type_oid == column.type_oid
        else column
        for column in columns
    ]


def _kept(before: Column, now: Column) -> Column:
    return replace(
        now,
        fill=before.fill,
        base_oid=before.base_oid,
        base_typmod=before.base_typmod,
        type_kind=now.type_kind or before.type_kind,
        collation=now.collation or before.collation,
    )


def _version(
    columns: Sequence[Column],
    relid: int,
    previous: TopicSchema | None,
    commit_lsn: int,
    *,
    bag: bool = False,
) -> TopicSchema:
    """All columns are the key of a table without one."""
    bag = bag or not any(column.key for column in columns)
    if bag:
        columns = [replace(column, key=True) for column in columns]
    return TopicSchema(
        version=previous.version + 1 if previous else 1,
        columns=tuple(columns),
        kind=previous.kind if previous else TopicKind.TABLE,
        from_lsn=commit_lsn,
        relid=relid,
        bag=bag,
    )


def covers(described: TopicSchema, relation: Relation) -> bool:
    """Whether the trigger's description can be this relation's, from which a publication may leave out columns."""
    by_name = {column.name: column for column in described.columns}
    return all(
        sent.name in by_name
        and (sent.type_oid, sent.typmod) == (by_name[sent.name].type_oid, by_name[sent.name].typmod)
        for sent in relation.columns
    )


def _has_key_flags(relation: Relation) -> bool:
    """Under FULL all columns are flagged, under NOTHING none: both say nothing about the key."""
    return relation.identity in "di" and any(column.is_key for column in relation.columns)


def kinds_of_change(previous: TopicSchema | None, current: TopicSchema) -> frozenset[ChangeKind]:
    if previous is None:
        return frozenset({ChangeKind.NEW})
    kinds: set[ChangeKind] = set()
    if previous.relid and previous.relid != current.relid:
        kinds.add(ChangeKind.REPLACED)
    before = {column.id: column for column in previous.sent}
    after = {column.id: column for column in current.sent}
    if after.keys() - before.keys():
        kinds.add(ChangeKind.ADDED)
    if before.keys() - after.keys():
        kinds.add(ChangeKind.DROPPED)
    for number in after.keys() & before.keys():
        old, new = before[number], after[number]
        if old.name != new.name:
            kinds.add(ChangeKind.RENAMED)
        if (old.type_oid, old.typmod) != (new.type_oid, new.typmod):
            kinds.add(ChangeKind.RETYPED)
        if old.policy != new.policy:
            kinds.add(ChangeKind.PROTECTED)
    if [column.id for column in previous.key] != [column.id for column in current.key] or (
        previous.bag != current.bag
    ):
        kinds.add(ChangeKind.REKEYED)
    return frozenset(kinds)
