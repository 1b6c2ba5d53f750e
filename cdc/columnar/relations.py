"""Match the relations that the stream announces with the topic schemas of the log.

The stream gives names, types and replica identity of a column; its identity (attnum), the primary key under REPLICA
IDENTITY FULL and the value of older rows come from the catalog, which is *now*, not *then*. So the stream counts where
the two differ. A relation is resolved when its first row comes, not when it is announced: an announcement inside a
transaction that the log has already may be older than what the log knows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, replace

from tailrace.cdc.columnar.column_identity import possible_places
from tailrace.cdc.columnar.protect import is_protected, protected_columns
from tailrace.cdc.columnar.schema_change import (
    ChangeKind,
    SchemaChange,
    covers,
    described_version,
    kinds_of_change,
    matches,
    next_version,
    taken_names,
)
from tailrace.cdc.policy.history import UNKNOWN, Partition
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.wire import ddl_message
from tailrace.cdc.wire.buffer import HINT
from tailrace.cdc.wire.ddl_message import same_columns
from tailrace.cdc.wire.pgoutput import Relation
from tailrace.eventstore.errors import OperatorError, ProtocolError
from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA, EVENTS_TABLE
from tailrace.eventstore.model.schema import EVENT_SCHEMA, Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId

_CATEGORY = "category"


@dataclass(frozen=True, slots=True)
class TableRoute:
    """Rows go to one topic as they are."""

    topic: TopicId
    schema: TopicSchema


@dataclass(frozen=True, slots=True)
class EventsRoute:
    """Rows of the table of domain events go to the topic of their category; ``cells`` are where EVENT_SCHEMA's columns
    stand in a tuple."""

    width: int
    category: int
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IgnoredRoute:
    """``describe`` did not find the table among the captured ones."""

    table: tuple[str, str]


class SchemaConflict(Exception):
    """A relation that cannot become a version of its topic; ``error`` says why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


UNCAPTURED = 0
"""The version of a description that only says which columns a table has: a partition of a captured one."""

Route = TableRoute | EventsRoute | IgnoredRoute
Describe = Callable[[Relation], TopicSchema | None]


class Relations:
    """The relations of one connection. ``latest``: the topics' latest versions in the order in which the log got them;
    of two that had the same table it is that of the later one. ``describe`` reads the catalog and returns None for a
    table that is not to be captured, UNCAPTURED for a partition of one that is. ``ordinary``: oids of tables that are
    not partitioned. ``events_schema`` has the table of domain events."""

    def __init__(
        self,
        source: str,
        latest: Mapping[TopicId, TopicSchema],
        describe: Describe,
        policies: Policies,
        quarantined: Container[TopicId] = (),
        ordinary: Container[int] = (),
        events_schema: str = EVENTS_SCHEMA,
    ) -> None:
        self._source = source
        self._events = (events_schema, EVENTS_TABLE)
        self._ordinary = ordinary
        self._quarantined = quarantined  # topics of which nothing is to be known from now on
        self._policies = policies
        self._known = by_table(latest)
        self._tableless = {
            topic: schema for topic, schema in latest.items() if self._known[schema.relid][0] != topic
        }
        self._describe = describe
        self._announced: dict[int, Relation] = {}
        self._described: dict[int, TopicSchema] = {}  # what the event trigger said last
        self._labels: dict[int, tuple[str, str]] = {}
        self._last_announced: Relation | None = None  # and no row has come since
        self._partitions: list[tuple[int, Relation]] = []  # announced right behind what may be their root
        self._checked: set[int] = set()  # whose columns are known since their last announcement
        self._undecoded: dict[int, list[Column] | None] = {}  # ``undecoded_columns`` by table
        self.changes: list[SchemaChange] = []

    def copy(self) -> Relations:
        """A copy that goes on independently from here."""
        other = Relations(
            self._source,
            {},
            self._describe,
            self._policies,
            self._quarantined,
            self._ordinary,
            self._events[0],
        )
        other._known, other._tableless = dict(self._known), dict(self._tableless)
        other._last_announced, other._partitions = self._last_announced, list(self._partitions)
        other._announced, other._described = dict(self._announced), dict(self._described)
        other._labels, other._checked = dict(self._labels), set(self._checked)
        return other

    def topic(self, relid: int) -> TopicId | None:
        """The topic of the log that gets a table's rows; None when there is none or it is not known."""
        if relid in self._known:
            return self._known[relid][0]
        relation = self._announced.get(relid)
        if relation is None or (relation.schema, relation.table) == self._events:
            return None
        topic = TopicId.table(self._source, relation.schema, relation.table)
        return topic if any(topic == known for known, _ in self._known.values()) else None

    def schema(self, topic: TopicId) -> TopicSchema:
        """The latest version of a topic of the log. Raises KeyError for another."""
        return {**self._tableless, **dict(self._known.values())}[topic]

    def concerns(self, message: ddl_message.DdlMessage, topic: TopicId) -> bool:
        """Whether a message of the event trigger concerns a topic."""
        return (
            message.change is ddl_message.DdlChange.FAILED
            or message.label == topic.parts[1:]
            or any(self._known[relid][0] == topic for relid in message.relids if relid in self._known)
        )

    @property
    def policies(self) -> Policies:
        """With what is known by now of protected columns."""
        return self._policies

    def announce(self, relation: Relation) -> None:
        self._checked.discard(relation.relid)
        self._undecoded.clear()
        self._announced[relation.relid] = relation
        above, self._last_announced = self._last_announced, relation
        if above is not None and above.relid != relation.relid and above.relid not in self._ordinary:
            self._partitions.append((above.relid, relation))

    def forget_partitions(self) -> None:
        """What was announced since the last row stands for itself: a truncate announces all its tables first."""
        self._partitions, self._last_announced = [], None

    def take_partitions(self) -> None:
        """A row comes. The server announces a partition whose rows come as its root's right behind the root, so the
        root's columns get the policies of those of the partition."""
        found = self._partitions
        self.forget_partitions()
        for root, relation in found:
            parts = self._possible_columns(relation)
            self._policies = self._policies.covering(root, parts)

    def _possible_columns(self, relation: Relation) -> list[Partition]:
        """The relation, once with each set of attnums that its columns may have, as far as protected ones go."""
        label, relid = (relation.schema, relation.table), relation.relid
        names = [column.name for column in relation.columns]
        found = [Partition(relid, label, tuple((0, name) for name in names))]
        protected = self._policies.history.protected_ids(relid)
        if not protected:
            return found
        known, described = self._known.get(relid), self._describe(relation)
        for number in protected:
            places: Collection[int] = range(len(names))  # nobody knows
            if known and described:
                ids, now = [each.id for each in known[1].sent], {each.id for each in described.sent}
                places = possible_places(len(names), ids, now, number)
            elif known is None:
                places = self._places_in_partition(names, described, (relid, number)) or places
            found += [
                Partition(relid, label, ((number, names[at]),)) for at in places if 0 <= at < len(names)
            ]
        return found

    def _places_in_partition(
        self, names: list[str], described: TopicSchema | None, column: tuple[int, int]
    ) -> set[int]:
        """Where a column of a table that has only been a partition may stand: where it is now, if the names are what
        they were, and where a name that it had is. One that is gone since had the name that it was known by."""
        had = {name for *_, name in self._policies.history.columns[column].names}
        found = {at for at, name in enumerate(names) if name in had}
        if described and [each.name for each in described.sent] == names:
            found |= {at for at, each in enumerate(described.sent) if each.id == column[1]}
        return found

    def undecoded_columns(self, relid: int, topic: TopicId) -> list[Column] | None:
        """For rows that are kept as they came: the table's columns, place by place, with their policies; [] when none
        has one, None when nobody knows which do. Raises what ``describe`` raises."""
        if relid not in self._undecoded:
            self.take_partitions()
            self._undecoded[relid] = self._columns_in_rows(relid, topic)
        return self._undecoded[relid]

    def _columns_in_rows(self, relid: int, topic: TopicId) -> list[Column] | None:
        relation, schema = self._announced.get(relid), self.schema(topic)
        if not is_protected((topic.parts[1], topic.parts[2]), relation, schema, self._policies):
            return []
        if relation is None or self._may_have_moved(relation, schema):
            return None
        return protected_columns(relation, schema, self._policies)

    def _may_have_moved(self, relation: Relation, before: TopicSchema) -> bool:
        """Whether a protected column may stand at another place than its name says."""
        protected = self._policies.history.protected_ids(relation.relid)
        described = self._describe(relation) if protected else None
        if described is None:
            return False
        ids, now = [column.id for column in before.sent], {column.id for column in described.sent}
        return any(
            len(possible_places(len(relation.columns), ids, now, number)) > 1
            for number in protected.intersection(ids)
        )

    def resolve(self, relid: int, commit_lsn: int) -> Route:
        """The route of a table's rows from now on. New versions are added to ``changes``.

        Raises ProtocolError for a table that was not announced, what ``describe`` raises, and Conflict.
        """
        self.take_partitions()
        relation = self._announced.get(relid)
        if relation is None:
            raise ProtocolError(f"a row of table oid {relid}, which was not announced", hint=HINT)
        if (relation.schema, relation.table) == self._events:
            return _events_route(relation)
        known = self._known.get(relid)
        label = (relation.schema, relation.table)
        known_from_ddl = self._described.get(relid) if known else None
        exact = known_from_ddl is not None and covers(known_from_ddl, relation)
        if known is not None and matches(relation, known[1]):
            same = self._policies.schema(label, known[1].whole, known[1]) == known[1]
            protected = self._policies.history.protected_ids(relid)
            if same and (exact or not protected or relid in self._checked):
                return TableRoute(*known)
        described = known_from_ddl if exact else self._describe(relation)
        if described is None or described.version == UNCAPTURED:
            return IgnoredRoute(label)
        try:
            return self._next_version(relation, described, commit_lsn, exact=exact)
        except (OperatorError, ValueError) as error:
            raise SchemaConflict(error) from error

    def _next_version(
        self, relation: Relation, described: TopicSchema, commit_lsn: int, *, exact: bool
    ) -> TableRoute:
        relid, label = relation.relid, (relation.schema, relation.table)
        known = self._known.get(relid)
        topic = known[0] if known else TopicId.table(self._source, *label)
        previous = known[1] if known else self._previous_owner(topic)
        whole = next_version(relation, described.whole, previous.whole if previous else None, commit_lsn)
        whole = replace(whole, columns=tuple(_without_doubt(column) for column in whole.columns))
        if known and not exact:
            whole = self._left_out_in_doubt(whole, known[1], described)
        current = self._policies.schema(label, whole, previous)
        self._checked.add(relid)
        if known and same_columns(current, known[1]):
            return TableRoute(*known)  # announced again, and still what it was
        self._learn(relid, topic, current)
        kinds = kinds_of_change(previous, current) | self._record_label(topic, relid, label)
        seen = {column.id for schema in (described, previous) if schema for column in schema.sent}
        guessed = frozenset(column.id for column in current.columns if column.id not in seen)
        self.changes.append(SchemaChange(topic, previous, current, kinds, label, commit_lsn, exact, guessed))
        return TableRoute(topic, current)

    def apply_ddl(self, message: ddl_message.DdlMessage, commit_lsn: int) -> None:
        """Apply what the event trigger describes at this place of the stream. Adds to ``changes``; the next row of the
        table must be resolved again. Raises Conflict."""
        self._undecoded.clear()
        if message.change is ddl_message.DdlChange.FAILED:
            self._described.clear()  # somewhere there is a table that is not what was said of it
            return
        notes = {
            ddl_message.DdlChange.REWRITTEN: ChangeKind.REWRITTEN,
            ddl_message.DdlChange.REVALUED: ChangeKind.REVALUED,
            ddl_message.DdlChange.REPARTITIONED: ChangeKind.REPARTITIONED,
            ddl_message.DdlChange.DROPPED: ChangeKind.GONE,
        }
        # A partition without a captured root has its rows in the stream, whatever table it belongs to.
        moved = message.change is ddl_message.DdlChange.REPARTITIONED
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
        if known is None or not described.columns or known[0] in self._quarantined:
            return
        if taken_names(described.columns):
            return  # the next row shows it, and cannot be taken
        topic, previous = known
        self._described[message.relid] = described
        kinds = self._record_label(topic, message.relid, message.label)
        current = previous
        if not message.partial:
            whole = described_version(described, previous.whole, commit_lsn)
            try:
                current = self._policies.schema(message.label, whole, previous)
            except OperatorError as error:
                raise SchemaConflict(error) from error
            kinds |= kinds_of_change(previous, current)
        if same_columns(current, previous):
            current = previous
        elif not message.command:
            kinds |= {ChangeKind.UNTOLD}
        self._learn(message.relid, topic, current)
        if kinds or current is not previous:
            self.changes.append(
                SchemaChange(topic, previous, current, kinds, message.label, commit_lsn, by_trigger=True)
            )

    def _learn(self, relid: int, topic: TopicId, schema: TopicSchema) -> None:
        self._known[relid] = (topic, schema)
        self._policies = self._policies.remembering(self._policies.history.with_version(topic, schema))

    def _left_out_in_doubt(
        self, whole: TopicSchema, before: TopicSchema, described: TopicSchema
    ) -> TopicSchema:
        """Leave out every column that may be a protected one, as far as places tell: names may have been exchanged
        since the version before, and given back before ``described``."""
        sent, now = before.sent, {column.id for column in described.sent}
        ids = [column.id for column in sent]
        protected = self._policies.history.protected_ids(whole.relid)
        doubtful = {
            place
            for number in protected.intersection(ids)
            for place in possible_places(len(whole.columns), ids, now, number)
            if 0 <= place < len(whole.columns) and whole.columns[place].id != number
        }
        if not doubtful:
            return whole
        if not whole.bag and any(whole.columns[place].key for place in doubtful):
            raise OperatorError(
                "columns were dropped or exchanged, so a column of the key may be a protected one",
                hint="read the table again: tailrace source snapshot",
            )
        columns = [
            replace(column, policy=UNKNOWN) if place in doubtful else column
            for place, column in enumerate(whole.columns)
        ]
        return replace(whole, columns=tuple(columns))

    def _note(self, relid: int, kind: ChangeKind, label: tuple[str, str], commit_lsn: int) -> None:
        if relid in self._known and self._known[relid][0] not in self._quarantined:
            topic, schema = self._known[relid]
            kinds = frozenset({kind})
            self.changes.append(
                SchemaChange(topic, schema, schema, kinds, label, commit_lsn, by_trigger=True)
            )

    def _record_label(self, topic: TopicId, relid: int, label: tuple[str, str]) -> frozenset[ChangeKind]:
        before = self._labels.get(relid, topic.parts[1:])
        self._labels[relid] = label
        return frozenset({ChangeKind.MOVED} if label != before else ())

    def _previous_owner(self, topic: TopicId) -> TopicSchema | None:
        """The schema of the table that had this topic before; that table gets a topic of its own name from now on, if
        it has not got one already."""
        for relid, (other, schema) in self._known.items():
            if other == topic:
                del self._known[relid]
                return schema
        return self._tableless.pop(topic, None)


def by_table(latest: Mapping[TopicId, TopicSchema]) -> dict[int, tuple[TopicId, TopicSchema]]:
    """The topics' latest versions by table oid. ``latest`` is in the order in which the log got them: two topics have
    had one table when it was renamed to the name of the other, and it is the table of the later one."""
    return {schema.relid: (topic, schema) for topic, schema in latest.items()}


def _without_doubt(column: Column) -> Column:
    return replace(column, policy="") if column.policy == UNKNOWN else column


def _events_route(relation: Relation) -> EventsRoute:
    at = {column.name: number for number, column in enumerate(relation.columns)}
    wanted = [_CATEGORY, *(column.name for column in EVENT_SCHEMA.columns)]
    missing = [name for name in wanted if name not in at]
    if missing:
        raise OperatorError(
            f"table {relation.schema}.{relation.table} has no column {', '.join(missing)}",
            hint="it is not the table this version creates, or the publication leaves columns out",
        )
    return EventsRoute(len(relation.columns), at[_CATEGORY], tuple(at[name] for name in wanted[1:]))
