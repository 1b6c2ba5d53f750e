"""Relations as the stream announces them, matched with the topic schemas the log knows.

The stream gives names, types and replica identity of a column; its identity (attnum), the primary key under REPLICA
IDENTITY FULL and the value of older rows come from the catalog, which is *now*, not *then*. So the stream's word
counts where the two differ. A relation is judged when its first row comes, not when it is announced: an announcement
inside a transaction that the log has already may be older than what the log knows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tailrace.cdc.columnar.column_identity import identify
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.wire import ddl_message
from tailrace.cdc.wire.buffer import HINT
from tailrace.cdc.wire.pgoutput import Relation, RelationColumn
from tailrace.eventstore.errors import OperatorError, ProtocolError
from tailrace.eventstore.model.schema import EVENT_SCHEMA, Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.state.assembly import STATE_NAMES

EVENTS_TABLE = ("tailrace", "events")
_CATEGORY = "category"


class ChangeKind(Enum):
    """What is different in a new version, or what happened to a table without one. Most may have changed rows of which
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
    # Only the DDL event trigger tells:
    TAKEN = "another table has its name now"
    REWRITTEN = "rows rewritten"
    REPARTITIONED = "a partition attached or detached"
    REVALUED = "text of stored values changed by another type"
    GONE = "table dropped"
    UNTOLD = "other columns than the log knew when the DDL trigger was installed"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A topic's new version, or (``current`` is ``previous``) what happened to its table without one.

    ``table`` is the table's (schema, name), ``lsn`` that of the commit. ``told``: by the event trigger, so identity is
    exact; otherwise columns in ``guessed`` are known from the stream alone, so nobody can say what older rows have in
    them."""

    topic: TopicId
    previous: TopicSchema | None
    current: TopicSchema
    kinds: frozenset[ChangeKind]
    table: tuple[str, str]
    lsn: int
    told: bool = False
    guessed: frozenset[int] = frozenset()

    @property
    def is_version(self) -> bool:
        return self.current is not self.previous


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


class Conflict(Exception):
    """A relation that cannot be made into a version of its topic; ``error`` says why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


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
        aside: Container[TopicId] = (),
    ) -> None:
        self._source = source
        self._aside = aside  # topics of which nothing is to be known from now on
        self._policies = policies
        self._known = dict(schemas)
        self._describe = describe
        self._announced: dict[int, Relation] = {}
        self._told: dict[int, TopicSchema] = {}  # what the event trigger said last
        self._labels: dict[int, tuple[str, str]] = {}
        self.changes: list[SchemaChange] = []

    def copy(self) -> Relations:
        """One that goes on from here by itself."""
        other = Relations(self._source, self._known, self._describe, self._policies, self._aside)
        other._announced, other._told = dict(self._announced), dict(self._told)
        other._labels = dict(self._labels)
        return other

    def topic(self, relid: int) -> TopicId | None:
        """The topic of the log that a table's rows are for, None when there is none or it is not known."""
        if relid in self._known:
            return self._known[relid][0]
        relation = self._announced.get(relid)
        if relation is None or (relation.schema, relation.table) == EVENTS_TABLE:
            return None
        topic = TopicId.table(self._source, relation.schema, relation.table)
        return topic if any(topic == known for known, _ in self._known.values()) else None

    def relation(self, relid: int) -> Relation | None:
        """As it was announced last."""
        return self._announced.get(relid)

    def schema(self, topic: TopicId) -> TopicSchema:
        return next(schema for known, schema in self._known.values() if known == topic)

    def concerns(self, message: ddl_message.DdlMessage, topic: TopicId) -> bool:
        """Whether a message of the event trigger says something of a topic."""
        return (
            message.change is ddl_message.Change.FAILED
            or message.label == topic.parts[1:]
            or any(self._known[relid][0] == topic for relid in message.relids if relid in self._known)
        )

    def announce(self, relation: Relation) -> None:
        self._announced[relation.relid] = relation

    def resolve(self, relid: int, commit_lsn: int) -> Route:
        """Where rows of a table go from now on. New versions are added to ``changes``.

        Raises ProtocolError for a table that was not announced, what ``describe`` raises, and Conflict.
        """
        relation = self._announced.get(relid)
        if relation is None:
            raise ProtocolError(f"a row of table oid {relid}, which was not announced", hint=HINT)
        if (relation.schema, relation.table) == EVENTS_TABLE:
            return _events_route(relation)
        known = self._known.get(relid)
        if known is not None and matches(relation, known[1]):
            return TableRoute(*known)
        label = (relation.schema, relation.table)
        told = self._told.get(relid) if known else None
        exact = told is not None and _covers(told, relation)
        described = told if exact else self._describe(relation)
        if described is None:
            return IgnoredRoute(label)
        try:
            return self._next_version(relation, described, commit_lsn, exact=exact)
        except (OperatorError, ValueError) as error:
            raise Conflict(error) from error

    def _next_version(
        self, relation: Relation, described: TopicSchema, commit_lsn: int, *, exact: bool
    ) -> TableRoute:
        relid, label = relation.relid, (relation.schema, relation.table)
        known = self._known.get(relid)
        topic = known[0] if known else TopicId.table(self._source, *label)
        previous = known[1] if known else self._previous_owner(topic)
        whole = fit(relation, described.whole, previous.whole if previous else None, commit_lsn)
        current = self._policies.schema(label, whole, previous)
        self._known[relid] = (topic, current)
        kinds = _kinds(previous, current) | self._moved(topic, relid, label)
        seen = {column.id for schema in (described, previous) if schema for column in schema.sent}
        guessed = frozenset(column.id for column in current.columns if column.id not in seen)
        self.changes.append(SchemaChange(topic, previous, current, kinds, label, commit_lsn, exact, guessed))
        return TableRoute(topic, current)

    def tell(self, message: ddl_message.DdlMessage, commit_lsn: int) -> None:
        """What the event trigger said at this place of the stream. Adds to ``changes``; the next row of the table is
        to be resolved again. Raises Conflict."""
        if message.change is ddl_message.Change.FAILED:
            self._told.clear()  # somewhere there is a table that is not what was said of it
            return
        notes = {
            ddl_message.Change.REWRITTEN: ChangeKind.REWRITTEN,
            ddl_message.Change.REVALUED: ChangeKind.REVALUED,
            ddl_message.Change.REPARTITIONED: ChangeKind.REPARTITIONED,
            ddl_message.Change.DROPPED: ChangeKind.GONE,
        }
        # A partition of which no root is captured has its rows in the stream whomever it belongs to.
        moved = message.change is ddl_message.Change.REPARTITIONED
        if message.change in notes and not (moved and self._known.keys().isdisjoint(message.roots)):
            for relid in message.relids:
                self._note(relid, notes[message.change], message.label, commit_lsn)
        if message.schema is not None:
            self._take_description(message, message.schema, commit_lsn)

    def _take_description(
        self, message: ddl_message.DdlMessage, described: TopicSchema, commit_lsn: int
    ) -> None:
        for relid, (topic, _) in self._known.items():
            if relid != message.relid and topic.parts[1:] == message.label:
                self._note(relid, ChangeKind.TAKEN, message.label, commit_lsn)
        known = self._known.get(message.relid)
        if known is None or not described.columns or known[0] in self._aside:
            return
        if taken_names(described.columns):
            return  # the next row shows it, and cannot be taken
        topic, previous = known
        self._told[message.relid] = described
        kinds = self._moved(topic, message.relid, message.label)
        current = previous
        if not message.partial:
            whole = _next(described, previous.whole, commit_lsn)
            try:
                current = self._policies.schema(message.label, whole, previous)
            except OperatorError as error:
                raise Conflict(error) from error
            kinds |= _kinds(previous, current)
        if ddl_message.same(current, previous):
            current = previous
        elif not message.command:
            kinds |= {ChangeKind.UNTOLD}
        self._known[message.relid] = (topic, current)
        if kinds or current is not previous:
            self.changes.append(
                SchemaChange(topic, previous, current, kinds, message.label, commit_lsn, told=True)
            )

    def _note(self, relid: int, kind: ChangeKind, label: tuple[str, str], commit_lsn: int) -> None:
        if relid in self._known and self._known[relid][0] not in self._aside:
            topic, schema = self._known[relid]
            kinds = frozenset({kind})
            self.changes.append(SchemaChange(topic, schema, schema, kinds, label, commit_lsn, told=True))

    def _moved(self, topic: TopicId, relid: int, label: tuple[str, str]) -> frozenset[ChangeKind]:
        before = self._labels.get(relid, topic.parts[1:])
        self._labels[relid] = label
        return frozenset({ChangeKind.MOVED} if label != before else ())

    def _previous_owner(self, topic: TopicId) -> TopicSchema | None:
        """The schema of the table that had this topic before; that table gets a topic of its own name from now on."""
        for relid, (other, schema) in self._known.items():
            if other == topic:
                del self._known[relid]
                return schema
        return None


def taken_names(columns: Iterable[Column | RelationColumn]) -> list[str]:
    """Names of columns that a state has for itself."""
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


def fit(
    relation: Relation, described: TopicSchema, previous: TopicSchema | None, commit_lsn: int
) -> TopicSchema:
    """The topic's next version: all of the relation's columns, with what only the catalog knows of them.

    A table without a key gets all its columns as key: its topic is a bag. Raises OperatorError on a table without
    columns, or with one that a state has no place for.
    """
    if not relation.columns:
        raise OperatorError(
            f"table {relation.schema}.{relation.table} has no columns, so its rows cannot be told apart",
            hint="take it out of the publication, or give it a column and a key",
        )
    if clashing := taken_names(relation.columns):
        raise OperatorError(
            f"column {clashing[0]} of table {relation.schema}.{relation.table} has the name of one that the log adds "
            "to a row's state",
            hint="rename it, and read the table again: tailrace source snapshot",
        )
    older = previous if previous and previous.relid in (0, relation.relid) else None
    columns = _with_fills_of(older, identify(relation, described, older))
    if _has_key_flags(relation):
        columns = [replace(c, key=s.is_key) for c, s in zip(columns, relation.columns, strict=True)]
    bag = described.bag and not _has_key_flags(relation)
    return _version(columns, relation.relid, previous, commit_lsn, bag=bag)


def _next(described: TopicSchema, previous: TopicSchema, commit_lsn: int) -> TopicSchema:
    """The topic's next version as the event trigger described it: identity is exact."""
    return _version(_with_fills_of(previous, described.columns), described.relid, previous, commit_lsn)


def _with_fills_of(previous: TopicSchema | None, columns: Iterable[Column]) -> list[Column]:
    """The fill of a column that there was before stays: the catalog forgets it when the table is rewritten (VACUUM
    FULL, a generated column), but the log's rows from before that column go without it still."""
    before = {column.id: column for column in previous.columns} if previous else {}
    return [
        replace(column, fill=before[column.id].fill)
        if column.id in before and before[column.id].type_oid == column.type_oid
        else column
        for column in columns
    ]


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


def _covers(told: TopicSchema, relation: Relation) -> bool:
    """Whether the trigger's description can be of this very relation, of which a publication may leave out columns."""
    by_name = {column.name: column for column in told.columns}
    return all(
        sent.name in by_name
        and (sent.type_oid, sent.typmod) == (by_name[sent.name].type_oid, by_name[sent.name].typmod)
        for sent in relation.columns
    )


def _has_key_flags(relation: Relation) -> bool:
    """Under FULL all columns are flagged, under NOTHING none: both say nothing about the key."""
    return relation.identity in "di" and any(column.is_key for column in relation.columns)


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
