"""Blocks of whole transactions to Arrow rows per topic.

The fast way decodes inserts and updates without an old row straight into their topic's cells; every other message
takes the longer way below it. ``cdc.wire.pgoutput`` is the specification of both.

Rules: a key change is a delete of the old key and a create that names it (``_moved_from``). A cell that an update did
not touch and that was not sent comes from the old row when the server sent all of it, else it is marked
``_unchanged``. ``_ordinal`` counts the rows of a transaction over all topics, also across parts of a spilled one.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cdc import ddl
from cdc.assemble import FrameBlock, PartialBlock
from cdc.columnar.relations import (
    Describe,
    EventsRoute,
    IgnoredRoute,
    Relations,
    Route,
    SchemaChange,
    TableRoute,
)
from cdc.columnar.rows import (
    BEFORE_FULL,
    BEFORE_KEY,
    CREATE,
    MESSAGE,
    STAMP_SHIFT,
    UPDATE,
    Cells,
    RowBuilder,
    Transactions,
)
from cdc.policy import Policies
from cdc.wire import pgoutput
from cdc.wire.buffer import HINT
from cdc.wire.replication import UNIX_EPOCH_MICROS
from eventstore.errors import ProtocolError
from eventstore.model import TopicId, TopicRows
from eventstore.schema import EVENT_SCHEMA, MESSAGE_SCHEMA, TopicSchema

CONTROL_PREFIX = "tailrace."  # logical messages of our own: marks, not data

_INSERT, _UPDATE, _DELETE = b"IUD"
_BEGIN, _COMMIT = b"BC"
_ROW_TAGS = frozenset(b"IUD")
_BOUNDARY_TAGS = frozenset(b"BC")
_NEW_ROW_TAGS = frozenset(b"IU")
_KEY, _NEW, _OLD = b"KNO"
_TEXT, _NULL, _UNSENT, _BINARY = b"tnub"

_CELL = struct.Struct(">BI")  # tag and, of a text, its length
_UINT16 = struct.Struct(">H")
_BEGIN_FRAME = struct.Struct(">cQqI")
_COMMIT_FRAME = struct.Struct(">cBQQq")
_ROW_BYTES_MIN = 8  # tag, oid, kind of tuple, number of cells
_PADDING = b"\0\0\0\0"  # so that _CELL may be read at a NULL in the last cell

Unsent = list[int]


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """A logical message of our own. ``ordinal`` rows of its transaction come before it; ``commit_ts`` in µs since 1970
    UTC."""

    prefix: str
    content: bytes
    commit_lsn: int
    xid: int
    ordinal: int
    commit_ts: int = 0


@dataclass(frozen=True, slots=True)
class DecodedEpoch:
    """Rows of one block. Several ``rows`` of one topic are in commit order (its version changed between them).

    ``new_schemas`` start with this block; ``changes`` say what is different in them, as far as they are of tables.
    ``ignored`` counts changes that became no row, by reason.
    """

    rows: list[TopicRows]
    new_schemas: list[tuple[TopicId, TopicSchema]]
    changes: list[SchemaChange]
    ignored: Counter[str]
    control: list[ControlMessage]


@dataclass(slots=True)
class _Work:
    """What one call of ``decode`` gathers."""

    transactions: Transactions = field(default_factory=Transactions)
    builders: dict[TopicId, RowBuilder] = field(default_factory=dict)
    done: list[TopicRows] = field(default_factory=list)
    new_topics: list[tuple[TopicId, TopicSchema]] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    control: list[ControlMessage] = field(default_factory=list)


class BlockDecoder:
    """Decodes the blocks of one connection, in order; thrown away with it, and after any error.

    ``schemas``: current topic version of each table oid. ``describe``: reads the catalog for a relation that is new or
    different; None = not captured. ``known``: topics of events and messages that the log has already.
    """

    def __init__(
        self,
        source: str,
        schemas: Mapping[int, tuple[TopicId, TopicSchema]],
        describe: Describe,
        policies: Policies,
        *,
        known: Collection[TopicId] = (),
    ) -> None:
        self._source = source
        self._policies = policies
        self._relations = Relations(source, schemas, describe, policies)
        self._known = set(known)
        self._routes: dict[bytes, Route] = {}  # by the four bytes of the table's oid
        self._heads: dict[bytes, RowBuilder] = {}  # by oid, 'N' and width: what the fast way may take
        self._work = _Work()
        # The open transaction.
        self._open = False
        self._lsn = self._xid = self._commit_ts = 0
        self._stamp = 0

    def decode(self, block: FrameBlock | PartialBlock) -> DecodedEpoch:
        """Raises ProtocolError, and what ``describe`` raises; nothing of the block may be used then."""
        work = self._work = _Work()
        self._heads.clear()
        changes: list[SchemaChange] = []
        self._relations.changes = changes
        if (block.continues is not None) != self._open or (self._open and block.continues != self._xid):
            raise ProtocolError("a block does not begin where the one before ended", hint=HINT)
        if self._open:
            self._stamp = self._stamp & ((1 << STAMP_SHIFT) - 1) | work.transactions.add(
                self._lsn, self._xid, self._commit_ts
            )
        try:
            self._walk(block.data + _PADDING, block.ends)
        except struct.error:
            raise ProtocolError("a message ends inside a field", hint=HINT) from None
        if self._open != isinstance(block, PartialBlock):
            raise ProtocolError("a block does not end with a commit", hint=HINT)
        for topic in list(work.builders):
            self._flush(topic)
        versions = [(change.topic, change.current) for change in changes if change.is_version]
        new_schemas = versions + work.new_topics
        return DecodedEpoch(work.done, new_schemas, changes, work.ignored, work.control)

    def _walk(self, data: bytes, ends: array[int]) -> None:
        heads, cell = self._heads, _CELL.unpack_from
        start = 0
        for end in ends:
            tag = data[start]
            builder = heads.get(data[start + 1 : start + 8]) if tag in _NEW_ROW_TAGS else None
            if builder is None or not self._open:
                self._slow(tag, data, start, end)
                start = end
                continue
            append = builder.append
            at = start + 8
            for _ in builder.positions:
                kind, size = cell(data, at)
                if kind == _TEXT:
                    at += 5
                    stop = at + size
                    append(data[at:stop])
                    at = stop
                else:
                    if kind != _NULL:
                        _must_be_unsent(kind, data, start)
                        builder.unchanged.append(len(builder.cells))
                    append(None)
                    at += 1
            if at != end:
                raise _damaged(data, start, "the row does not fill its message")
            builder.ops.append(CREATE if tag == _INSERT else UPDATE)
            builder.stamps.append(self._stamp)
            self._stamp += 1
            start = end

    def _slow(self, tag: int, data: bytes, start: int, end: int) -> None:
        if tag in _BOUNDARY_TAGS:
            self._boundary(tag, data[start:end])
        elif tag in _ROW_TAGS:
            if not self._open:
                raise _damaged(data, start, "a row outside of a transaction")
            self._change(tag, data, start, end)
        else:
            self._other(pgoutput.decode(data[start:end]))

    def _boundary(self, tag: int, frame: bytes) -> None:
        if (tag == _BEGIN) == self._open:
            raise _damaged(frame, 0, "transactions do not nest")
        if tag == _BEGIN:
            if len(frame) != _BEGIN_FRAME.size:
                raise _damaged(frame, 0, "wrong size")
            _, self._lsn, self._commit_ts, self._xid = _BEGIN_FRAME.unpack(frame)
            self._stamp = self._work.transactions.add(self._lsn, self._xid, self._commit_ts)
        elif len(frame) != _COMMIT_FRAME.size or _COMMIT_FRAME.unpack(frame)[2] != self._lsn:
            raise _damaged(frame, 0, "not the commit of this transaction")
        self._open = not self._open

    def _other(self, message: pgoutput.PgOutput) -> None:
        match message:
            case pgoutput.Relation(relid):
                self._relations.announce(message)
                key = relid.to_bytes(4, "big")
                self._routes.pop(key, None)
                self._forget(lambda head, builder: head[:4] == key)
            case pgoutput.Truncate(relids):
                self._truncate(relids)
            case pgoutput.Message():
                self._message(message)
            case pgoutput.Type() | pgoutput.Origin() | pgoutput.StreamAbort():
                pass
            case _:
                raise ProtocolError(f"{type(message).__name__} took a wrong way", hint=HINT)

    def _change(self, tag: int, data: bytes, start: int, end: int) -> None:
        """A row on the longer way: the first of its table, one with an old row, or one that goes elsewhere."""
        route = self._route(data[start + 1 : start + 5])
        old, kind, new, unsent = _tuples(tag, data, start, end)
        width = len(new or old or ())
        if isinstance(route, IgnoredRoute):
            self._work.ignored["table " + ".".join(route.table)] += 1
            return
        if width != (route.width if isinstance(route, EventsRoute) else len(route.schema.sent)):
            raise _damaged(data, start, f"a row of {width} cells does not fit its table")
        if isinstance(route, EventsRoute):
            self._event(tag, route, new, unsent)
            return
        builder = self._builder(route.topic, route.schema)
        self._heads[data[start + 1 : start + 5] + b"N" + _UINT16.pack(width)] = builder
        if new is None:
            assert old is not None
            builder.add_deleted(self._next_stamp(), old, kind)
        elif old is None:
            self._add(builder, CREATE if tag == _INSERT else UPDATE, new, unsent)
        else:
            self._replace(builder, old, kind, new, unsent)

    def _replace(self, builder: RowBuilder, old: Cells, kind: int, new: Cells, unsent: Unsent) -> None:
        """An update with an old row."""
        for at in unsent:
            if kind == BEFORE_FULL or at in builder.key_at:
                new[at] = old[at]
        unsent = [at for at in unsent if kind == BEFORE_KEY and at not in builder.key_at]
        old_key = builder.key_of(old)
        if old_key == builder.key_of(new):
            builder.add_before(old, kind)
            self._add(builder, UPDATE, new, unsent)
        else:
            builder.add_deleted(self._next_stamp(), old, kind)
            builder.add_moved(old_key)
            self._add(builder, CREATE, new, unsent)

    def _add(self, builder: RowBuilder, op: int, cells: Cells, unsent: Sequence[int] = ()) -> None:
        builder.unchanged += [len(builder.cells) + at for at in unsent]
        builder.add(op, self._next_stamp(), cells)

    def _event(self, tag: int, route: EventsRoute, new: Cells | None, unsent: Unsent) -> None:
        """Event tables are insert-only: everything else is counted and leaves no trace."""
        if tag != _INSERT or new is None:
            self._work.ignored["event updated" if tag == _UPDATE else "event deleted"] += 1
            return
        category = new[route.category]
        if unsent or not category:
            raise ProtocolError("an event without category, or with a value left out", hint=HINT)
        try:
            topic = TopicId.events(self._source, category.decode())
        except UnicodeDecodeError:
            raise ProtocolError("an event's category is not UTF-8", hint=HINT) from None
        builder = self._topic_builder(topic, EVENT_SCHEMA)
        self._add(builder, CREATE, [new[at] for at in route.cells])

    def _truncate(self, relids: tuple[int, ...]) -> None:
        if not self._open:
            raise ProtocolError("a truncate outside of a transaction", hint=HINT)
        for relid in relids:
            route = self._route(relid.to_bytes(4, "big"))
            if isinstance(route, TableRoute):
                self._builder(route.topic, route.schema).add_truncated(self._next_stamp())
            elif isinstance(route, EventsRoute):
                self._work.ignored["events truncated"] += 1
            else:
                self._work.ignored["table " + ".".join(route.table)] += 1

    def _message(self, message: pgoutput.Message) -> None:
        if not message.transactional:
            self._work.ignored["non-transactional message"] += 1
        elif not self._open:
            raise ProtocolError("a transactional message outside of a transaction", hint=HINT)
        elif message.prefix.startswith(CONTROL_PREFIX):
            ordinal = self._stamp & ((1 << STAMP_SHIFT) - 1)
            self._work.control.append(
                ControlMessage(
                    message.prefix,
                    message.content,
                    self._lsn,
                    self._xid,
                    ordinal,
                    self._commit_ts + UNIX_EPOCH_MICROS,
                )
            )
            if message.prefix == ddl.PREFIX:
                self._relations.tell(ddl.parse(message.content), self._lsn)
                self._routes.clear()  # tables may have other versions now
                self._forget(lambda head, builder: True)
        else:
            builder = self._topic_builder(TopicId.messages(self._source), MESSAGE_SCHEMA)
            hexed = b"\\x" + message.content.hex().encode()
            self._add(builder, MESSAGE, [message.prefix.encode(), hexed])

    def _route(self, key: bytes) -> Route:
        route = self._routes.get(key)
        if route is None:
            route = self._relations.resolve(int.from_bytes(key, "big"), self._lsn)
            self._routes[key] = route
        return route

    def _topic_builder(self, topic: TopicId, schema: TopicSchema) -> RowBuilder:
        """The builder of a topic that is no table: it may be seen for the first time."""
        if topic not in self._known:
            self._known.add(topic)
            self._work.new_topics.append((topic, schema))
        return self._builder(topic, schema)

    def _builder(self, topic: TopicId, schema: TopicSchema) -> RowBuilder:
        builder = self._work.builders.get(topic)
        if builder is not None and builder.schema is not schema:
            self._retire(builder)
            builder = None
        if builder is None:
            builder = self._work.builders[topic] = RowBuilder(topic, schema, self._policies)
        return builder

    def _retire(self, builder: RowBuilder) -> None:
        """Another version takes over the topic: nothing may lead to the old one any more."""
        self._forget(lambda head, known: known is builder)
        for key, route in list(self._routes.items()):
            if isinstance(route, TableRoute) and route.schema is builder.schema:
                del self._routes[key]
        self._flush(builder.topic)

    def _forget(self, which: Callable[[bytes, RowBuilder], bool]) -> None:
        for head in [head for head, builder in self._heads.items() if which(head, builder)]:
            del self._heads[head]

    def _flush(self, topic: TopicId) -> None:
        builder = self._work.builders.pop(topic)
        if len(builder):
            self._work.done.append(builder.finish(self._work.transactions))

    def _next_stamp(self) -> int:
        stamp = self._stamp
        self._stamp += 1
        return stamp


def _tuples(tag: int, data: bytes, start: int, end: int) -> tuple[Cells | None, int, Cells | None, Unsent]:
    """The tuples of an insert, update or delete: (old, what is known of it, new, cells of new that were not sent)."""
    if end - start < _ROW_BYTES_MIN:
        raise _damaged(data, start, "too short for a row")
    kind, at = data[start + 5], start + 6
    old: Cells | None = None
    new: Cells | None = None
    unsent: Unsent = []
    known = 0
    if tag != _INSERT and kind in (_KEY, _OLD):
        known = BEFORE_KEY if kind == _KEY else BEFORE_FULL
        old, missing, at = _cells(data, at, start)
        if missing:
            raise _damaged(data, start, "an unchanged cell in an old row")
        if at + (tag == _UPDATE) > end:
            raise _damaged(data, start, "the row does not fill its message")
        kind = data[at] if tag == _UPDATE else 0
        at += tag == _UPDATE
    if tag != _DELETE:
        if kind != _NEW:
            raise _damaged(data, start, "no new row")
        new, unsent, at = _cells(data, at, start)
        if old is not None and len(old) != len(new):
            raise _damaged(data, start, "old and new row differ in length")
    elif old is None:
        raise _damaged(data, start, "no old row")
    if at != end:
        raise _damaged(data, start, "the row does not fill its message")
    return old, known, new, unsent


def _cells(data: bytes, at: int, start: int) -> tuple[Cells, Unsent, int]:
    cells: Cells = []
    unsent: Unsent = []
    (width,) = _UINT16.unpack_from(data, at)
    at += 2
    for number in range(width):
        kind, size = _CELL.unpack_from(data, at)
        if kind == _TEXT:
            cells.append(data[at + 5 : at + 5 + size])
            at += 5 + size
        else:
            if kind != _NULL:
                _must_be_unsent(kind, data, start)
                unsent.append(number)
            cells.append(None)
            at += 1
    return cells, unsent, at


def _must_be_unsent(kind: int, data: bytes, start: int) -> None:
    if kind == _BINARY:
        raise _damaged(data, start, "a binary cell, though text was asked for")
    if kind != _UNSENT:
        raise _damaged(data, start, f"unknown cell tag {chr(kind)!r}")


def _damaged(data: bytes, start: int, problem: str) -> ProtocolError:
    return ProtocolError(
        f"pgoutput message {data[start : start + 1]!r} at byte {start}: {problem}", hint=HINT
    )
