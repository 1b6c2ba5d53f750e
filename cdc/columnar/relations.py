"""Relations as the stream announces them, matched with the topic schemas the log knows.

The stream gives names, types and replica identity of a column; its identity (attnum), the primary key under REPLICA
IDENTITY FULL and the value of older rows come from the catalog, which is *now*, not *then*. So the stream's word
counts where the two differ. A relation is judged when its first row comes, not when it is announced: an announcement
inside a transaction that the log has already may be older than what the log knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from cdc.policy import Policies
from cdc.wire.buffer import HINT
from cdc.wire.pgoutput import Relation, RelationColumn
from eventstore.errors import OperatorError, ProtocolError
from eventstore.model import TopicId
from eventstore.schema import EVENT_SCHEMA, Column, TopicSchema

EVENTS_TABLE = ("tailrace", "events")
_CATEGORY = "category"


class ChangeKind(Enum):
    """What is different in a new version. All but ``NEW``, ``ADDED`` and ``RENAMED`` may have changed rows of which
    the stream says nothing, or the key: whoever keeps state decides what to read again."""

    NEW = "topic not seen before"
    ADDED = "column added"
    DROPPED = "column dropped"
    RENAMED = "column renamed"
    RETYPED = "column type changed"
    REKEYED = "key changed"
    PROTECTED = "column policy changed"
    REPLACED = "another table under the same name"
    MOVED = "table renamed"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A topic's new version. ``table`` is the (schema, name) announced."""

    topic: TopicId
    previous: TopicSchema | None
    current: TopicSchema
    kinds: frozenset[ChangeKind]
    table: tuple[str, str]


@dataclass(frozen=True, slots=True)
class TableRoute:
    """Rows go to one topic as they are."""

    topic: TopicId
    schema: TopicSchema


@dataclass(frozen=True, slots=True)
class EventsRoute:
    """Rows of ``tailrace.events`` go to the topic of their category; ``cells`` are where EVENT_SCHEMA's columns
    stand in a tuple."""

    width: int
    category: int
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IgnoredRoute:
    """``describe`` said that this table is not ours."""

    table: tuple[str, str]


Route = TableRoute | EventsRoute | IgnoredRoute
Describe = Callable[[Relation], TopicSchema | None]


class Relations:
    """The relations of one connection. ``schemas`` are the log's current ones by table oid; ``describe`` reads the
    catalog and returns None for a table that is not to be captured."""

    def __init__(
        self,
        source: str,
        schemas: Mapping[int, tuple[TopicId, TopicSchema]],
        describe: Describe,
        policies: Policies,
    ) -> None:
        self._source = source
        self._policies = policies
        self._known = dict(schemas)
        self._describe = describe
        self._announced: dict[int, Relation] = {}
        self.changes: list[SchemaChange] = []

    def announce(self, relation: Relation) -> None:
        self._announced[relation.relid] = relation

    def resolve(self, relid: int, commit_lsn: int) -> Route:
        """Where rows of a table go from now on. New versions are added to ``changes``.

        Raises ProtocolError for a table that was not announced, and what ``describe`` raises.
        """
        relation = self._announced.get(relid)
        if relation is None:
            raise ProtocolError(f"a row of table oid {relid}, which was not announced", hint=HINT)
        if (relation.schema, relation.table) == EVENTS_TABLE:
            return _events_route(relation)
        known = self._known.get(relid)
        if known is not None and matches(relation, known[1]):
            return TableRoute(*known)
        described = self._describe(relation)
        if described is None:
            return IgnoredRoute((relation.schema, relation.table))
        topic = known[0] if known else TopicId.table(self._source, relation.schema, relation.table)
        previous = known[1] if known else self._previous_owner(topic)
        whole = fit(relation, described.whole, previous.whole if previous else None, commit_lsn)
        current = self._policies.schema((relation.schema, relation.table), whole, previous)
        self._known[relid] = (topic, current)
        kinds = _kinds(previous, current)
        if topic.parts[1:] != (relation.schema, relation.table):
            kinds |= {ChangeKind.MOVED}
        self.changes.append(SchemaChange(topic, previous, current, kinds, (relation.schema, relation.table)))
        return TableRoute(topic, current)

    def _previous_owner(self, topic: TopicId) -> TopicSchema | None:
        """The schema of the table that had this topic before; that table gets a topic of its own name from now on."""
        for relid, (other, schema) in self._known.items():
            if other == topic:
                del self._known[relid]
                return schema
        return None


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


def fit(
    relation: Relation, described: TopicSchema, previous: TopicSchema | None, commit_lsn: int
) -> TopicSchema:
    """The topic's next version: all of the relation's columns, with what only the catalog knows of them.

    A table without a key gets all its columns as key: its topic is a bag. Raises OperatorError on a table without
    columns.
    """
    if not relation.columns:
        raise OperatorError(
            f"table {relation.schema}.{relation.table} has no columns, so its rows cannot be told apart",
            hint="take it out of the publication, or give it a column and a key",
        )
    columns = _identify(relation, described, previous)
    if _has_key_flags(relation):
        columns = [replace(c, key=s.is_key) for c, s in zip(columns, relation.columns, strict=True)]
    bag = not any(column.key for column in columns) or (described.bag and not _has_key_flags(relation))
    if bag:
        columns = [replace(column, key=True) for column in columns]
    return TopicSchema(
        version=previous.version + 1 if previous else 1,
        columns=tuple(columns),
        kind=described.kind,
        from_lsn=commit_lsn,
        relid=relation.relid,
        bag=bag,
    )


def _has_key_flags(relation: Relation) -> bool:
    """Under FULL all columns are flagged, under NOTHING none: both say nothing about the key."""
    return relation.identity in "di" and any(column.is_key for column in relation.columns)


def _identify(relation: Relation, described: TopicSchema, previous: TopicSchema | None) -> list[Column]:
    """The relation's columns with their attnums.

    By name from the catalog; by name from the version before (renamed or dropped since); by place and type from
    either (renamed, and again since). A name of another type is the last that is believed: the column may have been
    dropped since, and its name given to another. Attnums rise from column to column; where they would not, the
    catalog is that much ahead, and the version before is asked first. A column of which nobody knows any more was
    dropped since: its attnum is one of the gaps after its left neighbour, and no other column will ever have it.
    """
    older = previous if previous and previous.relid in (0, relation.relid) else None
    catalog_first = _found(relation, described, older)
    if _rises(catalog_first) or older is None:
        found = catalog_first
    else:
        before_first = _found(relation, older, described)
        found = before_first if _rises(before_first) else catalog_first
    used = {column.id for schema in (described, older) if schema for column in schema.columns}
    columns: list[Column] = []
    for at, sent in enumerate(relation.columns):
        column = found.get(at)
        if column is None:
            number = columns[-1].id + 1 if columns else 1
            while number in used:
                number += 1
            used.add(number)
            column = Column(number, sent.name, sent.type_oid, sent.typmod)
        columns.append(_as_sent(column, sent))
    return columns


def _found(relation: Relation, first: TopicSchema, second: TopicSchema | None) -> dict[int, Column]:
    """Columns that one of two schemas knows, by their place in the relation."""
    named = [_by_name(relation, schema) for schema in (first, second)]
    sources = [
        *(_of_type(relation, columns) for columns in named),
        *named,
        _by_place(relation, second),
        _by_place(relation, first),
    ]
    found: dict[int, Column] = {}
    used: set[int] = set()
    for source in sources:
        for at, column in enumerate(source):
            if column is not None and at not in found and column.id not in used:
                found[at] = column
                used.add(column.id)
    return found


def _rises(found: Mapping[int, Column]) -> bool:
    ids = [found[at].id for at in sorted(found)]
    return all(left < right for left, right in pairwise(ids))


def _by_name(relation: Relation, schema: TopicSchema | None) -> list[Column | None]:
    return [schema.column(sent.name) if schema else None for sent in relation.columns]


def _of_type(relation: Relation, columns: Sequence[Column | None]) -> list[Column | None]:
    return [
        column if column is not None and column.type_oid == sent.type_oid else None
        for sent, column in zip(relation.columns, columns, strict=True)
    ]


def _by_place(relation: Relation, schema: TopicSchema | None) -> list[Column | None]:
    if schema is None or len(relation.columns) != len(schema.columns):
        return [None] * len(relation.columns)
    return [
        column if column.type_oid == sent.type_oid else None
        for sent, column in zip(relation.columns, schema.columns, strict=True)
    ]


def _as_sent(column: Column, sent: RelationColumn) -> Column:
    """The stream's word on name and type. The fill of another type's column is no value of this one."""
    if (column.type_oid, column.typmod) == (sent.type_oid, sent.typmod):
        return replace(column, name=sent.name)
    return Column(column.id, sent.name, sent.type_oid, sent.typmod, key=column.key, policy=column.policy)


def _kinds(previous: TopicSchema | None, current: TopicSchema) -> frozenset[ChangeKind]:
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


def _events_route(relation: Relation) -> EventsRoute:
    at = {column.name: number for number, column in enumerate(relation.columns)}
    wanted = [_CATEGORY, *(column.name for column in EVENT_SCHEMA.columns)]
    missing = [name for name in wanted if name not in at]
    if missing:
        raise OperatorError(
            f"table {'.'.join(EVENTS_TABLE)} has no column {', '.join(missing)}",
            hint="it is not the table this version creates, or the publication leaves columns out",
        )
    return EventsRoute(len(relation.columns), at[_CATEGORY], tuple(at[name] for name in wanted[1:]))
