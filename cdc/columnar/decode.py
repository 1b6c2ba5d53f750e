"""Blocks of whole transactions to Arrow rows per topic.

A kernel goes over all messages and finds rows and cells; Arrow columns are gathered from them at the end. What is no
row, Begin or Commit makes the kernel pause and is handled here, message by message. ``cdc.wire.pgoutput`` is the
specification of both.

Rules: a key change is a delete of the old key and a create that names it (``_moved_from``). A cell that an update did
not touch and that was not sent comes from the old row when the server sent all of it, else it is marked
``_unchanged``. ``_ordinal`` counts the rows of a transaction over all topics, also across parts of a spilled one.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from cdc import ddl, gather
from cdc.assemble import FrameBlock, PartialBlock
from cdc.columnar import kernels
from cdc.columnar.relations import Describe, EventsRoute, IgnoredRoute, Relations, SchemaChange, TableRoute
from cdc.columnar.routes import RouteTable
from cdc.columnar.rows import event_rows, message_rows, table_rows
from cdc.columnar.scan import Scan
from cdc.policy import Policies
from cdc.wire import pgoutput
from cdc.wire.buffer import HINT
from cdc.wire.replication import UNIX_EPOCH_MICROS
from eventstore.errors import ProtocolError
from eventstore.model import TopicId, TopicRows
from eventstore.schema import EVENT_SCHEMA, MESSAGE_SCHEMA, TopicSchema

CONTROL_PREFIX = "tailrace."  # logical messages of our own: marks, not data


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


def prepare() -> None:
    """Have the kernels ready: from the cache, or compiled now, so that no stream waits for the compiler."""
    scan = Scan()
    scan.begin(b"", array("q"))
    scan.run(RouteTable().arrays())
    message_rows(TopicId.messages("none"), [(b"", b"\\x")], [0], np.zeros((1, 3), np.int64))
    none, state = np.zeros(0, np.int32), np.zeros(gather.STATE_SIZE, np.int64)
    gather.take(np.frombuffer(b"", np.uint8), np.zeros(0, np.int64), state, np.zeros(0, np.uint8), state)
    kernels.count_unsent(kernels.Cells(none, none), none, 0, np.zeros(1, np.int32))
    kernels.find_unsent(kernels.Cells(none, none), none, 0, none)


@dataclass(slots=True)
class _Work:
    """What one call of ``decode`` gathers beside the rows of tables."""

    messages: list[tuple[bytes, bytes]] = field(default_factory=list)
    message_stamps: list[int] = field(default_factory=list)
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
        self._routes = RouteTable()
        self._scan = Scan()
        self._work = _Work()

    def decode(self, block: FrameBlock | PartialBlock) -> DecodedEpoch:
        """Raises ProtocolError, and what ``describe`` raises; nothing of the block may be used then."""
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
                self._resolve(scan.relid)
            elif status == kernels.OTHER:
                self._other(pgoutput.decode(scan.message))
                scan.next()
            elif status != kernels.ROOM:
                raise scan.error(status)
        if scan.open != isinstance(block, PartialBlock):
            raise ProtocolError("a block does not end with a commit", hint=HINT)
        rows = self._rows()
        scan.release()
        versions = [(change.topic, change.current) for change in changes if change.is_version]
        new_schemas = versions + self._work.new_topics
        return DecodedEpoch(rows, new_schemas, changes, self._work.ignored, self._work.control)

    def _other(self, message: pgoutput.PgOutput) -> None:
        match message:
            case pgoutput.Relation(relid):
                self._relations.announce(message)
                self._routes.forget(relid)
            case pgoutput.Truncate(relids):
                self._truncate(relids)
            case pgoutput.Message():
                self._message(message)
            case pgoutput.Type() | pgoutput.Origin() | pgoutput.StreamAbort():
                pass
            case _:
                raise ProtocolError(f"{type(message).__name__} took a wrong way", hint=HINT)

    def _resolve(self, relid: int) -> int:
        number = self._routes.number(relid)
        if number is None:
            number = self._routes.lead(relid, self._relations.resolve(relid, self._scan.lsn))
        return number

    def _truncate(self, relids: tuple[int, ...]) -> None:
        if not self._scan.open:
            raise ProtocolError("a truncate outside of a transaction", hint=HINT)
        for relid in relids:
            number = self._resolve(relid)
            match self._routes[number]:
                case TableRoute():
                    self._scan.add_truncate(number)
                case EventsRoute():
                    self._work.ignored["events truncated"] += 1
                case IgnoredRoute(table):
                    self._work.ignored["table " + ".".join(table)] += 1

    def _message(self, message: pgoutput.Message) -> None:
        work, scan = self._work, self._scan
        if not message.transactional:
            work.ignored["non-transactional message"] += 1
        elif not scan.open:
            raise ProtocolError("a transactional message outside of a transaction", hint=HINT)
        elif message.prefix.startswith(CONTROL_PREFIX):
            commit_ts = scan.commit_ts + UNIX_EPOCH_MICROS
            work.control.append(
                ControlMessage(message.prefix, message.content, scan.lsn, scan.xid, scan.ordinal, commit_ts)
            )
            if message.prefix == ddl.PREFIX:
                self._relations.tell(ddl.parse(message.content), scan.lsn)
                self._routes.forget_all()  # tables may have other versions now
        else:
            work.messages.append((message.prefix.encode(), b"\\x" + message.content.hex().encode()))
            work.message_stamps.append(scan.next_stamp())

    def _rows(self) -> list[TopicRows]:
        found, done = self._scan.found(), []
        for number, route in enumerate(self._routes):
            counted = self._routes.counted(number)
            self._work.ignored.update(counted)
            at = found.of_route(number)
            if not len(at):
                continue
            if isinstance(route, TableRoute):
                done.append(
                    table_rows(found, at, route, self._policies, unsent=self._routes.has_unsent(number))
                )
            elif isinstance(route, EventsRoute):
                for part in event_rows(found, at, route, self._source):
                    self._seen(part.topic, EVENT_SCHEMA)
                    done.append(part)
        if self._work.messages:
            topic = TopicId.messages(self._source)
            self._seen(topic, MESSAGE_SCHEMA)
            done.append(
                message_rows(topic, self._work.messages, self._work.message_stamps, found.transactions)
            )
        return done

    def _seen(self, topic: TopicId, schema: TopicSchema) -> None:
        """A topic that is no table may be seen for the first time."""
        if topic not in self._known:
            self._known.add(topic)
            self._work.new_topics.append((topic, schema))
