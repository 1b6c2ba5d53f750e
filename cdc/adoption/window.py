"""What a slot sends, without taking it from the slot: it can be read again, by us and by whoever had it before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from psycopg import Connection

from tailrace.cdc.adoption.held import row_lsns
from tailrace.cdc.columnar.decode import BlockDecoder, DecodedEpoch
from tailrace.cdc.kafka.repeats.duplicates import RowIdentity
from tailrace.cdc.postgres.connect import Address, connect, quote, translate_errors
from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.stream.own_messages import OwnMessages
from tailrace.cdc.wire import pgoutput
from tailrace.cdc.wire.block import FrameBlock, PartialBlock
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.position import format_lsn, parse_lsn
from tailrace.eventstore.model.topic import TopicId

Row = tuple[object, ...]
_BLOCK_BYTES, _BLOCK_CHANGES = 32 << 20, 200_000
_PEEK = (
    "pg_catalog.pg_logical_slot_peek_binary_changes(%(slot)s, %(upto)s::pg_lsn, NULL, 'proto_version', '1',"
    " 'publication_names', %(publication)s, 'messages', 'true')"
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that nobody uses, read with a publication."""

    address: Address
    name: str
    publication: str

    def _values(self, upto: int) -> dict[str, object]:
        return {"slot": self.name, "publication": quote(self.publication), "upto": format_lsn(upto)}

    def ends_of(self, transactions: Collection[int], upto: int) -> dict[int, int]:
        """Where those of these transactions end that the slot sends and that committed below ``upto``."""
        query = f"SELECT xid::text, max(lsn)::text FROM {_PEEK} WHERE xid::text = ANY (%(xids)s) GROUP BY 1"  # noqa: S608
        values = self._values(upto) | {"xids": [str(each) for each in transactions]}
        with connect(self.address, "tailrace adopt") as connection, self._reading():
            rows = connection.execute(query, values).fetchall()
        return {int(str(xid)): parse_lsn(str(lsn)) for xid, lsn in rows}

    def messages(self, upto: int) -> Iterator[tuple[int, bytes]]:
        """The messages of pgoutput, each with its LSN, of all transactions that end at or below ``upto``."""
        query = f"SELECT lsn::text, data FROM {_PEEK}"  # noqa: S608
        with connect(self.address, "tailrace adopt") as connection, self._reading():
            for lsn, data in _stream(connection, query, self._values(upto)):
                assert isinstance(data, bytes)
                yield parse_lsn(str(lsn)), data

    def _reading(self) -> AbstractContextManager[None]:
        return translate_errors(f"reading ahead in the replication slot {self.name}", self.address)


def _stream(connection: Connection[Row], query: str, values: Mapping[str, object]) -> Iterator[Row]:
    with connection.cursor(binary=True) as cursor:
        yield from cursor.stream(query, values)


@dataclass(slots=True)
class _Changes:
    """(tag, LSN) of changes, by table, in their order."""

    by_table: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, message: bytes, lsn: int) -> None:
        for relid in _relids(message):
            self.by_table.setdefault(relid, []).append((message[0], lsn))

    def move_to(self, other: _Changes) -> None:
        for relid, changes in self.by_table.items():
            other.by_table.setdefault(relid, []).extend(changes)
        self.by_table = {}

    def take(self) -> dict[int, list[tuple[int, int]]]:
        taken, self.by_table = self.by_table, {}
        return taken


def _relids(message: bytes) -> Sequence[int]:
    """The tables that a message changes."""
    if message[:1] == b"T":
        truncate = pgoutput.decode(message)
        return truncate.relids if isinstance(truncate, pgoutput.Truncate) else ()
    return [int.from_bytes(message[1:5], "big")] if message[:1] in (b"I", b"U", b"D") else ()


@dataclass(frozen=True, slots=True)
class Part:
    """Some of what the slot sends, decoded: whole transactions (``block``, without its messages), or a part of a large
    one. ``identities``: of a topic's rows, over all its ``decoded.rows``."""

    decoded: DecodedEpoch
    identities: Mapping[TopicId, Sequence[RowIdentity]]
    block: FrameBlock | None


@dataclass(frozen=True, slots=True)
class Reading:
    """Decodes what a slot sends. ``topics`` by oid of their table; ``sent``: ids of the transactions so far."""

    decoder: BlockDecoder
    own_messages: OwnMessages
    topics: Mapping[int, TopicId]
    sent: set[int] = field(default_factory=set)

    def parts(self, messages: Iterable[tuple[int, bytes]], below: int) -> Iterator[Part]:
        """All transactions that commit below an LSN. Raises what decoding raises."""
        assembler = Assembler(_BLOCK_BYTES, _BLOCK_CHANGES, 0)
        whole, running = _Changes(), _Changes()
        for lsn, message in messages:
            if message[:1] == b"B":
                begin = pgoutput.decode(message)
                assert isinstance(begin, pgoutput.Begin)
                if begin.commit_lsn >= below:
                    break
                self.sent.add(begin.xid)
            running.add(message, lsn)
            due = assembler.feed(message)
            if message[:1] == b"C":
                running.move_to(whole)
            if not due:
                continue
            if (block := assembler.cut()) is not None:
                yield self._part(block, whole.take())
            if assembler.oversized:
                yield self._part(assembler.spill(), running.take())
        if (block := assembler.cut()) is not None:
            yield self._part(block, whole.take())

    def _part(
        self, block: FrameBlock | PartialBlock, changes: Mapping[int, Sequence[tuple[int, int]]]
    ) -> Part:
        block, _ = self.own_messages.filter(block)
        decoded = self.decoder.decode(block)
        block.release()
        rows: dict[TopicId, list[TopicRows]] = {}
        for each in decoded.rows:
            rows.setdefault(each.topic, []).append(each)
        frames = {self.topics[relid]: found for relid, found in changes.items() if relid in self.topics}
        identities = {topic: identities_of(rows.get(topic, []), found) for topic, found in frames.items()}
        return Part(decoded, identities, block if isinstance(block, FrameBlock) else None)


def identities_of(rows: Sequence[TopicRows], frames: Sequence[tuple[int, int]]) -> list[RowIdentity]:
    """Of all rows of a topic. Raises ProtocolError where rows and frames do not fit."""
    operations = [each for part in rows for each in part.rows["_op"].to_pylist()]
    transactions = [each for part in rows for each in part.rows["_txn"].to_pylist()]
    keys = [each for part in rows for each in part.rows["_hash"].to_pylist()]
    return list(zip(transactions, row_lsns(operations, frames), operations, keys, strict=True))
