"""Blocks of whole transactions to Arrow rows per topic.

A kernel goes over all messages and finds rows and cells; Arrow columns are collected from them at the end. At any other
message than a row, Begin or Commit the kernel pauses, and the message is handled here. ``tailrace.cdc.wire.pgoutput``
is the specification of both.

Rules: a key change is a delete of the old key and a create that names it (``_moved_from``). A cell that an update left
alone and that was not sent comes from the old row when the server sent all of it; otherwise it is marked
``_unchanged``. ``_ordinal`` counts the rows of a transaction over all topics, also across parts of a spilled one.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tailrace.cdc.columnar.protect import protect
from tailrace.cdc.columnar.relations import (
    Describe,
    EventsRoute,
    IgnoredRoute,
    Relations,
    SchemaConflict,
    TableRoute,
)
from tailrace.cdc.columnar.routes import RouteTable
from tailrace.cdc.columnar.rows import Places, emitted_rows, event_rows, message_rows, one_each, table_rows
from tailrace.cdc.columnar.scan import Scan, ScanResult
from tailrace.cdc.columnar.schema_change import SchemaChange
from tailrace.cdc.columnar.undecoded import ORDINAL, UndecodedBlock, truncate_message
from tailrace.cdc.kernels import rows as kernels
from tailrace.cdc.kernels import transactions
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.wire import authentic, ddl_message, emitted, pgoutput
from tailrace.cdc.wire.block import FrameBlock, PartialBlock
from tailrace.cdc.wire.buffer import HINT
from tailrace.cdc.wire.replication import UNIX_EPOCH_MICROS
from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import OperatorError, ProtocolError, TailraceError, TransientError, UsageError
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA
from tailrace.eventstore.model.schema import EVENT_SCHEMA, MESSAGE_SCHEMA, TopicSchema
from tailrace.eventstore.model.topic import TopicId

_BROKEN = {kernels.EMPTY, kernels.OUTSIDE, kernels.NESTED, kernels.BEGIN_WRONG, kernels.COMMIT_WRONG}
_OID_END = 5  # of a table, behind the tag
_ORDINAL_DIGITS = 12


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """A logical message of our own. ``ordinal``: how many rows of its transaction come before it. ``commit_ts``: µs
    since 1970 UTC."""

    prefix: str
    content: bytes
    commit_lsn: int
    xid: int
    ordinal: int
    commit_ts: int = 0


class Undecodable(Exception):
    """One table's part of a block cannot be decoded. ``cause`` is the error, ``lsn`` the transaction's commit,
    ``frame`` the message, where one message is to blame."""

    def __init__(self, topic: TopicId, cause: Exception, lsn: int, frame: bytes | None) -> None:
        super().__init__(f"{topic}: {cause}")
        self.topic = topic
        self.cause = cause
        self.lsn = lsn
        self.frame = frame


def error_text(error: Exception) -> str:
    """Without values: errors of other libraries may quote them."""
    if isinstance(error, TailraceError):
        return error.message
    return f"its rows could not be built ({type(error).__name__})"


@dataclass(frozen=True, slots=True)
class DecodedEpoch:
    """Rows of one block. Several ``rows`` of one topic are in commit order (its version changed between them).

    ``new_schemas`` start with this block; ``changes`` say how those of tables differ from the versions before.
    ``ignored`` counts changes that became no row, by reason. ``undecodable`` are the tables that go into quarantine
    with this block. ``undecoded`` is what came for tables in quarantine; for those in ``unstorable`` something came
    that cannot be stored without plain values."""

    rows: list[TopicRows]
    new_schemas: list[tuple[TopicId, TopicSchema]]
    changes: list[SchemaChange]
    ignored: Counter[str]
    control: list[ControlMessage]
    undecodable: list[Undecodable] = field(default_factory=list)
    undecoded: dict[TopicId, UndecodedBlock] = field(default_factory=dict)
    unstorable: set[TopicId] = field(default_factory=set)


def prepare() -> None:
    """Load the kernels from the cache or compile them now, so that no stream waits for the compiler."""
    scan = Scan()
    scan.begin(b"", array("q"))
    scan.run(RouteTable().arrays())
    message_rows(TopicId.messages("none"), [(b"", b"\\x")], [0], np.zeros((1, 3), np.int64))
    none, state = np.zeros(0, np.int32), np.zeros(transactions.STATE_SIZE, np.int64)
    limits, out = transactions.Limits(0, 0, 0, 0), np.zeros(0, np.uint8)
    transactions.take(np.frombuffer(b"", np.uint8), np.zeros(0, np.int64), state, limits, out, state)
    kernels.count_unsent(kernels.Cells(none, none), none, 0, np.zeros(1, np.int32))
    kernels.find_unsent(kernels.Cells(none, none), none, 0, none)


@dataclass(slots=True)
class _Work:
    """What one call of ``decode`` collects beside the rows of tables."""

    messages: list[tuple[bytes, bytes]] = field(default_factory=list)
    message_stamps: list[int] = field(default_factory=list)
    emitted: dict[str, tuple[list[tuple[bytes, ...]], list[int]]] = field(default_factory=dict)
    """Cells and stamps of emitted events, by topic."""
    new_topics: list[tuple[TopicId, TopicSchema]] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    control: list[ControlMessage] = field(default_factory=list)
    undecoded: dict[TopicId, UndecodedBlock] = field(default_factory=dict)
    unstorable: set[TopicId] = field(default_factory=set)


def _ordinal(content: bytes) -> int:
    if len(content) > _ORDINAL_DIGITS or not content.isdigit():
        raise ProtocolError("an ordinal that is no number", hint=HINT)
    return int(content)


class BlockDecoder:
    """Decodes the blocks of one connection, in order; thrown away with it, and after any error. Messages of our own are
    believed here: ``tailrace.cdc.stream.own_messages`` has taken out those that anybody else wrote.

    ``latest``: the topics' latest versions, in the order in which the log got them. ``describe``: reads the catalog for
    a relation that is new or different; None = not captured. ``known``: topics of events and messages that the log has
    already. ``quarantined``: topics that are not decoded. ``ordinary``: oids of tables that are not partitioned.
    ``events_schema`` has the table of domain events.
    """

    def __init__(
        self,
        source: str,
        latest: Mapping[TopicId, TopicSchema],
        describe: Describe,
        policies: Policies,
        *,
        known: Collection[TopicId] = (),
        quarantined: Collection[TopicId] = (),
        ordinary: Collection[int] = (),
        events_schema: str = EVENTS_SCHEMA,
    ) -> None:
        self._source = source
        self._policies = policies
        self._quarantined = set(quarantined)
        self._announced: dict[int, bytes] = {}  # Relation messages as they came
        self._relations = Relations(
            source, latest, describe, policies, self._quarantined, ordinary, events_schema
        )
        self._known = set(known)
        self._routes = RouteTable()
        self._scan = Scan()
        self._work = _Work()

    def decode(self, block: FrameBlock | PartialBlock) -> DecodedEpoch:
        """Raises ProtocolError, OperatorError, and what ``describe`` raises; nothing of the block may be used then."""
        try:
            return self._decode(block)
        except Undecodable as failure:
            raise self._cause(failure) from failure.cause.__cause__

    def decode_or_quarantine(self, block: FrameBlock | PartialBlock) -> DecodedEpoch:
        """As ``decode``, but a table that cannot be decoded goes into quarantine, from this block on, and the block is
        decoded without it."""
        failures: list[Undecodable] = []
        relations, saved = self._relations.copy(), self._scan.save()
        announced, known = dict(self._announced), set(self._known)
        while True:
            try:
                return replace(self._decode(block), undecodable=failures)
            except Undecodable as failure:
                if failure.topic in self._quarantined:
                    raise self._cause(failure) from failure.cause.__cause__
                failures.append(failure)
                self._quarantined.add(failure.topic)
            self._relations, self._routes = relations.copy(), RouteTable()
            self._announced, self._known = dict(announced), set(known)
            self._scan.restore(saved)

    def _cause(self, failure: Undecodable) -> Exception:
        return self._with_place(failure.cause) if isinstance(failure.cause, ProtocolError) else failure.cause

    def _with_place(self, error: ProtocolError) -> ProtocolError:
        return ProtocolError(f"{error.message} ({self._scan.place})", hint=error.hint)

    def _decode(self, block: FrameBlock | PartialBlock) -> DecodedEpoch:
        try:
            return self._decode_block(block)
        except ProtocolError as error:
            raise self._with_place(error) from error.__cause__
        except (
            UsageError,
            ValueError,
            OverflowError,
            struct.error,
        ) as error:  # of a name, a number, a text in it
            problem = f"a message that makes no sense ({type(error).__name__})"
            raise ProtocolError(f"{problem} ({self._scan.place})", hint=HINT) from error

    def _decode_block(self, block: FrameBlock | PartialBlock) -> DecodedEpoch:
        self._work = _Work()
        changes: list[SchemaChange] = []
        self._relations.changes = changes
        scan = self._scan
        if (block.continues is not None) != scan.open or (scan.open and block.continues != scan.xid):
            raise ProtocolError("a block does not begin where the one before ended", hint=HINT)
        scan.begin(block.data, block.ends)
        self._routes.begin()
        while (status := scan.run(self._routes.arrays())) != kernels.DONE:
            if status == kernels.ROUTE:
                if (topic := self._quarantined_topic(scan.relid)) is None:
                    self._resolve(scan.relid)
                else:
                    self._keep(topic, scan.relid, scan.message)
                    scan.next()
            elif status == kernels.OTHER:
                self._take_message(scan.message)
                scan.next()
            elif status != kernels.ROOM:
                raise self._error(status)
        if scan.open != isinstance(block, PartialBlock):
            raise ProtocolError("a block does not end with a commit", hint=HINT)
        rows = self._rows()
        scan.release()
        versions = [(change.topic, change.current) for change in changes if change.is_version]
        new_schemas = versions + self._work.new_topics
        work = self._work
        return DecodedEpoch(
            rows,
            new_schemas,
            changes,
            work.ignored,
            work.control,
            undecoded=work.undecoded,
            unstorable=work.unstorable,
        )

    def _error(self, status: int) -> Exception:
        """An error in a row concerns its table alone."""
        error, message = self._scan.error(status), self._scan.message
        if status in _BROKEN or len(message) < _OID_END:
            return error
        return self._undecodable(self._scan.relid, error) or error

    def _undecodable(self, relid: int, error: Exception) -> Undecodable | None:
        topic = self._relations.topic(relid)
        if topic is None:
            return None
        return Undecodable(topic, error, self._scan.lsn, self._storable_row(topic, relid, self._scan.message))

    def _quarantined_topic(self, relid: int) -> TopicId | None:
        topic = self._relations.topic(relid) if self._quarantined else None
        return topic if topic in self._quarantined else None

    def _keep(self, topic: TopicId, relid: int, message: bytes) -> None:
        """Store a row of a table in quarantine, or a truncate of it."""
        block = self._work.undecoded.setdefault(topic, UndecodedBlock())
        found = self._storable_row(topic, relid, message)
        if found is None:
            self._work.unstorable.add(topic)
        relation = self._announced.get(relid, b"")
        taken = block.row(self._transaction, self._scan.ordinal, relid, relation, found or b"")
        self._scan.skip_ordinals(taken)

    def _storable_row(self, topic: TopicId, relid: int, message: bytes) -> bytes | None:
        """The row in the form in which it may be stored; None when it has protected columns and cannot be parsed."""
        columns = self._relations.undecoded_columns(relid, topic)
        try:
            return (
                None if columns is None else protect(message, columns, self._policies) if columns else message
            )
        except ProtocolError:
            return None

    @property
    def _transaction(self) -> tuple[int, int, int]:
        return self._scan.lsn, self._scan.commit_ts, self._scan.xid

    def _take_message(self, frame: bytes) -> None:
        try:
            message = pgoutput.decode(frame)
        except ProtocolError as error:
            failure = self._undecodable(self._scan.relid, error) if frame[:1] == b"R" else None
            if failure is None:
                raise
            if failure.topic not in self._quarantined:
                raise failure from None
            self._announced[self._scan.relid] = frame
            return
        match message:
            case pgoutput.Relation(relid):
                self._announced[relid] = frame
                self._relations.announce(message)
                self._routes.forget(relid)
            case pgoutput.Truncate(relids):
                self._truncate(relids)
            case pgoutput.Message():
                self._message(message, frame)
            case pgoutput.Type() | pgoutput.Origin() | pgoutput.StreamAbort():
                pass
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__}", hint=HINT)

    def _resolve(self, relid: int) -> int:
        number = self._routes.number(relid)
        if number is not None:
            return number
        try:
            return self._routes.set_route(relid, self._relations.resolve(relid, self._scan.lsn))
        except SchemaConflict as conflict:
            raise self._undecodable(relid, conflict.error) or conflict.error from None

    def _truncate(self, relids: tuple[int, ...]) -> None:
        if not self._scan.open:
            raise ProtocolError("a truncate outside of a transaction", hint=HINT)
        self._relations.forget_partitions()
        for relid in relids:
            if (topic := self._quarantined_topic(relid)) is not None:
                self._keep(topic, relid, truncate_message(relid))
                continue
            number = self._resolve(relid)
            match self._routes[number]:
                case TableRoute():
                    self._scan.add_truncate(number)
                case EventsRoute():
                    self._work.ignored["events truncated"] += 1
                case IgnoredRoute(table):
                    self._work.ignored["table " + ".".join(table)] += 1

    def _message(self, message: pgoutput.Message, frame: bytes) -> None:
        work, scan = self._work, self._scan
        if not message.transactional:
            work.ignored["non-transactional message"] += 1
        elif not scan.open:
            raise ProtocolError("a transactional message outside of a transaction", hint=HINT)
        elif message.prefix == emitted.PREFIX:
            self._emitted(message)
        elif message.prefix.startswith(authentic.OWN_PREFIX):
            commit_ts = scan.commit_ts + UNIX_EPOCH_MICROS
            work.control.append(
                ControlMessage(message.prefix, message.content, scan.lsn, scan.xid, scan.ordinal, commit_ts)
            )
            if message.prefix == ddl_message.PREFIX:
                described = ddl_message.parse(message.content)
                self._keep_ddl(described, frame)
                self._apply_ddl(described)
                self._routes.forget_all()  # tables may have other versions now
            elif message.prefix == ORDINAL and self._policies.applied:
                scan.set_ordinal(_ordinal(message.content))
        else:
            work.messages.append((message.prefix.encode(), b"\\x" + message.content.hex().encode()))
            work.message_stamps.append(scan.next_stamp())

    def _emitted(self, message: pgoutput.Message) -> None:
        event = emitted.parse(message.content, message.lsn)
        if event is None:
            self._work.ignored["emitted events that cannot be read"] += 1
            return
        cells, stamps = self._work.emitted.setdefault(event.topic, ([], []))
        cells.append(event.cells)
        stamps.append(self._scan.next_stamp())

    def _apply_ddl(self, described: ddl_message.DdlMessage) -> None:
        try:
            self._relations.apply_ddl(described, self._scan.lsn)
        except SchemaConflict as conflict:
            topic = self._relations.topic(described.relid)
            assert topic is not None
            # Without the message: defaults of protected columns may stand in it.
            raise Undecodable(topic, conflict.error, self._scan.lsn, None) from None

    def _keep_ddl(self, described: ddl_message.DdlMessage, frame: bytes) -> None:
        """Store a message of the event trigger for topics in quarantine, unless a column is protected: the message
        holds the defaults of columns in plain text."""
        for topic in self._quarantined:
            if not self._relations.concerns(described, topic):
                continue
            schema = self._relations.schema(topic)
            names = [column.name for column in described.schema.columns] if described.schema else []
            label, policies = (topic.parts[1], topic.parts[2]), self._relations.policies
            if (
                any(column.policy for column in schema.sent)
                or policies.history.protected_ids(schema.relid)
                or any(policies.policy_of_name(label, schema.relid, name) for name in names)
            ):
                self._work.unstorable.add(topic)
            else:
                self._work.undecoded.setdefault(topic, UndecodedBlock()).message(self._transaction, frame)

    def _table_rows(self, scan: ScanResult, at: Places, number: int, route: TableRoute) -> TopicRows:
        try:
            failpoints.refuse("table_decoded", route.topic.text)
            return table_rows(scan, at, route, self._policies, unsent=self._routes.has_unsent(number))
        except (OperatorError, TransientError, MemoryError):
            raise
        except Exception as error:  # whatever it is, it is this table's alone
            stamp = int(scan.rows.stamp[at[0]])
            lsn = int(scan.transactions[stamp >> kernels.STAMP_SHIFT, 0])
            raise Undecodable(route.topic, error, lsn, None) from error

    def _rows(self) -> list[TopicRows]:
        found, done = self._scan.result(), []
        for number, route in enumerate(self._routes):
            counted = self._routes.ignored_changes(number)
            self._work.ignored.update(counted)
            at = found.rows_of(number)
            if not len(at):
                continue
            if isinstance(route, TableRoute):
                done.append(self._table_rows(found, at, number, route))
            elif isinstance(route, EventsRoute):
                for part in event_rows(found, at, route, self._source):
                    self._add_topic(part.topic, EVENT_SCHEMA)
                    done.append(part)
        if self._work.messages:
            topic = TopicId.messages(self._source)
            self._add_topic(topic, MESSAGE_SCHEMA)
            done.append(
                message_rows(topic, self._work.messages, self._work.message_stamps, found.transactions)
            )
        for name, (cells, stamps) in self._work.emitted.items():
            topic = TopicId.events(self._source, name)
            self._add_topic(topic, EVENT_SCHEMA)
            done.append(emitted_rows(topic, cells, stamps, found.transactions))
        return one_each(done) if self._work.emitted else done

    def _add_topic(self, topic: TopicId, schema: TopicSchema) -> None:
        """A topic of events or messages may be new."""
        if topic not in self._known:
            self._known.add(topic)
            self._work.new_topics.append((topic, schema))
