"""Take a source over from Debezium: its topics go on with what the connector's slot sends, without a new snapshot.

One epoch does it, which begins a new incarnation of the source. It holds what the slot sends of the transactions that
Kafka has beyond the slot's position, but for the rows that the log has from Kafka: so the part of a transaction becomes
whole. From there on native capture streams. Before that epoch nothing is changed; a crash leaves the source as it was.

The slot stays where the connector left it until the adoption is confirmed (``tailrace.cdc.setup.adopted``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tailrace.cdc.adoption.carried import next_version
from tailrace.cdc.adoption.held import HeldRows, streamed
from tailrace.cdc.adoption.inspection import Inspection, Request, inspect
from tailrace.cdc.adoption.window import Part, Reading, Slot
from tailrace.cdc.columnar.decode import BlockDecoder
from tailrace.cdc.kafka.capture import KafkaCapture
from tailrace.cdc.kafka.repeats.positions import positions_topic, rows_beyond
from tailrace.cdc.kafka.repeats.taken import taken_rows
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres.message_secrets import secrets_reader
from tailrace.cdc.setup import adopted
from tailrace.cdc.setup.adopted import Adoption
from tailrace.cdc.stream.own_messages import OwnMessages
from tailrace.cdc.stream.reload_reason import reload_reason
from tailrace.cdc.wire.block import FrameBlock
from tailrace.cdc.wire.pgoutput import Relation
from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog.leases import work_lease
from tailrace.eventstore.compiled.compiler import load_compiler
from tailrace.eventstore.errors import OperatorError, TransientError, UsageError
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.epoch import EpochBatch, Incarnation, TopicRows
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store

_ROWS_BYTES = 32 << 20  # then rows go to files that the epoch will name
UNSAID = "its records do not say transaction and LSN"


@dataclass(frozen=True, slots=True)
class AdoptResult:
    """An adoption that is in the log. ``lsn``: the slot stays there; ``position``: native capture goes on from there.
    ``dropped``: rows that the slot sent and the log had; ``added``: those that it did not have."""

    source: str
    epoch: int
    lsn: int
    position: int
    transactions: int
    dropped: int
    added: int
    carried: tuple[TopicId, ...]
    again: Mapping[TopicId, str]


def adopt(store: Store, request: Request, *, say: Callable[[str], None] = lambda text: None) -> AdoptResult:
    """Read Kafka to its end, then take the source over. Raises OperatorError with all that stands in the way,
    AlreadyRunning beside a capture, TransientError, Fenced."""
    load_compiler()
    inspect(store, request).require_possible()
    say("reading Kafka to its end")
    _drain(store, request)
    doing = {f"kafka:{request.source}": f"source {request.source} is taken over"}
    with work_lease(store.catalog, doing, "adopt"):
        seen = inspect(store, request)
        seen.require_possible()
        if seen.behind:
            raise TransientError(
                f"{seen.behind:,} records came to Kafka meanwhile", hint="stop the connector, and try again"
            )
        if not seen.state.loaded:
            raise UsageError(
                f"nothing came of the topics of source {request.source}, so there is nothing to go on from",
                hint="make it a source of the kind postgres in the configuration, and run `tailrace init`",
            )
        say("reading what the slot sends again")
        return _Adopting(store, seen).run()


def _drain(store: Store, request: Request) -> None:
    """Capture until the log has what Kafka has now."""
    stop = threading.Event()

    def look(_: object) -> None:
        if inspect(store, request).behind == 0:
            stop.set()

    if inspect(store, request).behind:
        KafkaCapture(store, request.source, request.settings, stop=stop, report=look).run()


@dataclass(slots=True)
class _Window:
    """What becomes of what the slot sends again. ``names``: by topic the versions that begin in it."""

    rows: list[TopicRows] = field(default_factory=list)
    files: list[PreparedSegment] = field(default_factory=list)
    schemas: list[tuple[TopicId, TopicSchema]] = field(default_factory=list)
    suspends: dict[TopicId, str] = field(default_factory=dict)
    dropped: int = 0
    transactions: int = 0
    last: FrameBlock | None = None


class _Adopting:
    def __init__(self, store: Store, seen: Inspection) -> None:
        assert seen.slot is not None and seen.publication is not None
        self._store = store
        self._seen = seen
        self._info = seen.slot
        self._publication = seen.publication
        self._lsn = seen.slot.confirmed_flush
        self._slot = Slot(seen.request.address, seen.slot.name, seen.request.publication)
        self._again = dict(seen.again)
        self._held: dict[TopicId, HeldRows] = {}
        self._beyond: set[int] = set()  # transactions that committed behind the slot's position

    def run(self) -> AdoptResult:
        seen, request = self._seen, self._seen.request
        self._read_held()
        below = self._end_of_held()
        writer = self._store.take_over(request.source)
        window = self._read(writer, below)
        adoption = Adoption(
            self._info.name, request.publication, self._lsn, seen.cluster, seen.state.commit_lsn
        )
        adopted.ask(self._store, positions_topic(request.source), adoption)
        writer.set_slot(self._info.name, request.publication)
        failpoints.hit("adoption_read")
        batch = self._batch(window)
        info = writer.append(batch)
        assert info is not None
        return AdoptResult(
            request.source,
            info.epoch,
            self._lsn,
            batch.end_lsn,
            window.transactions,
            window.dropped,
            sum(each.rows.num_rows for each in batch.rows) + sum(each.rows for each in batch.files),
            tuple(topic for topic in seen.carried if topic not in self._again),
            self._again,
        )

    def _read_held(self) -> None:
        """What the log has of transactions that the slot may send again."""
        partitions: dict[TopicId, list[Partition]] = {}
        for each in self._seen.progress:
            topic = self._seen.routes.get(each.topic)
            if topic is not None:
                partitions.setdefault(topic, []).append(Partition(each.topic, each.partition))
        for topic in self._seen.carried:
            mine = partitions.get(topic, [])
            found = [
                each
                for one in mine
                for each in rows_beyond(self._store, topic, one, self._lsn, self._info.restart)
            ]
            rows = streamed(row for row, _ in found)
            # What an earlier adoption brought in, which was taken back.
            rows |= streamed(row for row in taken_rows(self._store, topic) if row[1] >= self._info.restart)
            if any(-1 in row[:2] or not row[0] for row in rows):
                self._again[topic] = UNSAID
                continue
            self._held[topic] = HeldRows(rows, ordered=len(mine) <= 1)
            self._beyond |= {row[0] for row, commit in found if row in rows and commit >= self._lsn}

    def _end_of_held(self) -> int:
        """Below this LSN committed all transactions of which the log has rows. Raises OperatorError when the slot does
        not send one that it must."""
        transactions = {row[0] for held in self._held.values() for row in held.rows}
        ends = self._slot.ends_of(transactions, self._seen.server.flush_lsn) if transactions else {}
        if lost := self._beyond - ends.keys():
            raise OperatorError(
                f"Kafka has {len(lost):,} transactions behind {format_lsn(self._lsn)}, such as {min(lost)}, which slot "
                f"{self._info.name} does not send: it is another slot or another system than the connector's, or the "
                "server was restored",
                hint="give --slot and --dsn what the connector has as slot.name and database.hostname",
            )
        return max(ends.values(), default=self._lsn)

    def _read(self, writer: SourceWriter, below: int) -> _Window:
        window = _Window()
        carried = {topic: table for topic, table in self._seen.carried.items() if topic not in self._again}
        latest = {
            topic: next_version(self._seen.topics.latest[topic], table.topic_schema(1), self._lsn)
            for topic, table in carried.items()
        }
        window.schemas += [
            (topic, schema) for topic, schema in latest.items() if schema != self._seen.topics.latest[topic]
        ]
        if below <= self._lsn:
            return window
        tables = {table.relid: table.topic_schema(1) for table in carried.values()}

        def describe(relation: Relation) -> TopicSchema | None:
            return tables.get(relation.relid)

        decoder = BlockDecoder(
            self._seen.request.source, latest, describe, Policies(), known=self._seen.topics.others
        )
        own = OwnMessages(secrets_reader(self._slot.address), lambda content: False)
        reading = Reading(decoder, own, {schema.relid: topic for topic, schema in latest.items()})
        for part in reading.parts(self._slot.messages(below), below):
            self._take(window, part)
            if sum(each.rows.nbytes for each in window.rows) > _ROWS_BYTES:
                window.files += [writer.prepare(each.topic, each.version, each.rows) for each in window.rows]
                window.rows = []
        for topic in carried:
            if problem := self._held[topic].problem(reading.sent, self._info.restart):
                self._again[topic] = problem
        return window

    def _take(self, window: _Window, part: Part) -> None:
        at: dict[TopicId, int] = {}
        new = {topic: self._held[topic].sift(rows) for topic, rows in part.identities.items()}
        for each in part.decoded.rows:
            if each.topic not in new:  # messages
                window.rows.append(each)
                continue
            first = at.get(each.topic, 0)
            at[each.topic] = first + each.rows.num_rows
            keep = new[each.topic][first : at[each.topic]]
            window.dropped += int((~keep).sum())
            window.rows.append(replace(each, rows=each.rows.filter(pa.array(keep))))
        window.schemas += part.decoded.new_schemas
        for change in part.decoded.changes:
            # Whether a default filled older rows, the server's catalog tells only of now.
            if reason := reload_reason(change, lambda relid, column: True):
                window.suspends[change.topic] = reason
        if part.block is not None:
            window.transactions += part.block.transactions
            window.last = part.block

    def _batch(self, window: _Window) -> EpochBatch:
        seen, server = self._seen, self._seen.server
        last = window.last
        again = self._again | {
            topic: reason.removeprefix("read again: ") for topic, reason in window.suspends.items()
        }
        self._again = again
        suspended = {topic for topic, table in seen.topics.tables.items() if table.complete_since is not None}
        rows = [each for each in window.rows if each.topic not in again]
        return EpochBatch(
            source=seen.request.source,
            commit_lsn=last.commit_lsn if last else self._lsn - 1,
            end_lsn=last.end_lsn if last else self._lsn,
            through_lsn=last.end_lsn if last else self._lsn,
            commit_ts=last.commit_ts if last else None,
            transactions=window.transactions,
            rows=rows,
            files=[each for each in window.files if each.topic not in again],
            new_schemas=[(topic, schema) for topic, schema in window.schemas if topic not in again],
            suspends=[
                (topic, f"read again: {reason}") for topic, reason in again.items() if topic in suspended
            ],
            published=[
                (topic, self._publication.entries[table.relid].identity.to_json())
                for topic, table in seen.carried.items()
                if topic not in again
            ],
            incarnation=Incarnation(seen.state.incarnation + 1, server.system_id, server.timeline),
        )
