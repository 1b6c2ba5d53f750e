"""The server's side of pgoutput for tests: values to bytes, strategies of random values, and a small table."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tailrace.cdc.columnar.decode import BlockDecoder
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.stream.append import Appender
from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.wire import ddl_message
from tailrace.cdc.wire import pgoutput as pg
from tailrace.cdc.wire.block import FrameBlock
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId

HUGE = 1 << 40  # an Assembler with these limits never cuts by itself


def encode(message: pg.PgOutput) -> bytes:
    """The bytes a server sends for a message (documentation, "Logical Replication Message Formats")."""
    match message:
        case pg.Begin(commit_lsn, commit_ts, xid):
            return struct.pack(">cQqI", b"B", commit_lsn, commit_ts, xid)
        case pg.Commit(commit_lsn, end_lsn, commit_ts):
            return struct.pack(">cBQQq", b"C", 0, commit_lsn, end_lsn, commit_ts)
        case pg.Origin(commit_lsn, name):
            return b"O" + struct.pack(">Q", commit_lsn) + _string(name)
        case pg.Relation(relid, schema, table, identity, columns):
            head = b"R" + struct.pack(">I", relid) + _string("" if schema == "pg_catalog" else schema)
            body = [_relation_column(column) for column in columns]
            return (
                head + _string(table) + identity.encode() + struct.pack(">H", len(columns)) + b"".join(body)
            )
        case pg.Type(oid, schema, name):
            return (
                b"Y"
                + struct.pack(">I", oid)
                + _string("" if schema == "pg_catalog" else schema)
                + _string(name)
            )
        case pg.Message(transactional, lsn, prefix, content):
            head = b"M" + struct.pack(">BQ", transactional, lsn) + _string(prefix)
            return head + struct.pack(">I", len(content)) + content
        case pg.StreamAbort(xid, subxid):
            return b"A" + struct.pack(">II", xid, subxid)
        case _:
            return _encode_row(message)


def _encode_row(message: pg.PgOutput) -> bytes:
    match message:
        case pg.Insert(relid, new):
            return b"I" + struct.pack(">I", relid) + b"N" + _tuple(new)
        case pg.Update(relid, new, key, old):
            before = b"K" + _tuple(key) if key is not None else b"O" + _tuple(old) if old is not None else b""
            return b"U" + struct.pack(">I", relid) + before + b"N" + _tuple(new)
        case pg.Delete(relid, key, old):
            before = b"K" + _tuple(key) if key is not None else b"O" + _tuple(old or ())
            return b"D" + struct.pack(">I", relid) + before
        case pg.Truncate(relids, cascade, restart_identity):
            options = cascade | restart_identity << 1
            return b"T" + struct.pack(f">IB{len(relids)}I", len(relids), options, *relids)
        case _:
            raise AssertionError(message)


def _string(text: str) -> bytes:
    return text.encode() + b"\0"


def _relation_column(column: pg.RelationColumn) -> bytes:
    return bytes([column.is_key]) + _string(column.name) + struct.pack(">Ii", column.type_oid, column.typmod)


def _tuple(cells: pg.Tuple) -> bytes:
    return struct.pack(">H", len(cells)) + b"".join(_cell(cell) for cell in cells)


def _cell(cell: pg.Cell) -> bytes:
    match cell:
        case pg.Absent():
            return cell.value.encode()
        case pg.Binary(data):
            return b"b" + struct.pack(">I", len(data)) + data
        case data:
            return b"t" + struct.pack(">I", len(data)) + data


# --- random messages ---

lsns = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
oids = st.integers(0, 2**32 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
own_names = names.filter(bool)  # what no server sends empty
schemas = own_names
texts = st.binary(max_size=20)
cells = st.one_of(st.just(pg.NULL), st.just(pg.UNCHANGED), texts, st.builds(pg.Binary, texts))
sent_cells = st.one_of(st.just(pg.NULL), texts)
tuples = st.lists(cells, max_size=6).map(tuple)
sent_tuples = st.lists(sent_cells, max_size=6).map(tuple)


@st.composite
def updates(draw: st.DrawFn) -> pg.Update:
    new = draw(tuples)
    old = tuple(draw(sent_cells) for _ in new)
    kind = draw(st.sampled_from(["key", "old", "none"]))
    relid = draw(oids)
    if kind == "none":
        return pg.Update(relid, new)
    return pg.Update(relid, new, key=old) if kind == "key" else pg.Update(relid, new, old=old)


messages: st.SearchStrategy[pg.PgOutput] = st.one_of(
    st.builds(pg.Begin, lsns, times, oids),
    st.builds(pg.Commit, lsns, lsns, times),
    st.builds(pg.Origin, lsns, names),
    st.builds(
        pg.Relation,
        oids,
        schemas,
        own_names,
        st.sampled_from("dnfi"),
        st.lists(
            st.builds(pg.RelationColumn, own_names, oids, st.integers(-(2**31), 2**31 - 1), st.booleans()),
            max_size=5,
        ).map(tuple),
    ),
    st.builds(pg.Type, oids, schemas, names),
    st.builds(pg.Insert, oids, tuples),
    updates(),
    st.builds(pg.Delete, oids, key=sent_tuples),
    st.builds(pg.Delete, oids, old=sent_tuples),
    st.builds(pg.Truncate, st.lists(oids, max_size=4).map(tuple), st.booleans(), st.booleans()),
    st.builds(pg.Message, st.booleans(), lsns, names, texts),
    st.builds(pg.StreamAbort, oids, oids),
)


# --- tables and transactions ---

SOURCE = "shop"


@dataclass(frozen=True)
class Table:
    """A table as server and log know it. Columns are (name, type oid, typmod, key)."""

    relid: int
    name: str
    columns: Sequence[tuple[str, int, int, bool]]
    identity: str = "d"
    schema: str = "public"
    version: int = 1

    @property
    def topic(self) -> TopicId:
        return TopicId.table(SOURCE, self.schema, self.name)

    @property
    def relation(self) -> pg.Relation:
        return pg.Relation(
            self.relid,
            self.schema,
            self.name,
            self.identity,
            tuple(
                pg.RelationColumn(name, oid, typmod, key if self.identity in "di" else self.identity == "f")
                for name, oid, typmod, key in self.columns
            ),
        )

    @property
    def topic_schema(self) -> TopicSchema:
        return TopicSchema(
            self.version,
            tuple(
                Column(number, name, oid, typmod, key=key)
                for number, (name, oid, typmod, key) in enumerate(self.columns, 1)
            ),
            relid=self.relid,
        )


def trigger_message(table: Table, ids: list[int] | None = None, **more: Any) -> pg.Message:
    """A message of the trigger that describes a table, whose columns have these attnums."""
    columns = [
        {
            "id": number,
            "name": name,
            "type_oid": oid,
            "typmod": typmod,
            "type_name": "",
            "generated": "",
            "fill": None,
        }
        for number, (name, oid, typmod, _) in zip(ids or range(1, 99), table.columns, strict=False)
    ]
    key = [column["id"] for column, (_, _, _, is_key) in zip(columns, table.columns, strict=True) if is_key]
    data = {"v": 2, "command": "ALTER TABLE", "changed": "", "relid": table.relid, "schema": table.schema,
            "name": table.name, "identity": table.identity, "roots": [], "partial": False, "key": key,
            "columns": columns} | more  # fmt: skip
    return pg.Message(True, 0, ddl_message.PREFIX, json.dumps(data).encode())


@dataclass
class Stream:
    """Builds whole transactions; LSNs and times count up."""

    frames: list[bytes] = field(default_factory=list)
    lsn: int = 0x1000
    xid: int = 700

    def transaction(self, *messages: pg.PgOutput) -> int:
        """Returns the commit LSN."""
        self.lsn += 0x100
        self.xid += 1
        commit_ts = self.xid * 1_000_000
        self.frames.append(encode(pg.Begin(self.lsn, commit_ts, self.xid)))
        self.frames += [encode(message) for message in messages]
        self.frames.append(encode(pg.Commit(self.lsn, self.lsn + 0x30, commit_ts)))
        return self.lsn

    def block(self) -> FrameBlock:
        """What was built since the last block."""
        assembler = Assembler(HUGE, HUGE, 0)
        for frame in self.frames:
            assembler.feed(frame)
        self.frames.clear()
        block = assembler.cut()
        assert block is not None
        return block

    def give_to(self, assembler: Assembler, appender: Appender, frames: int | None = None) -> None:
        """Give the next frames to the append side: whole transactions as a block, then a part of an open one."""
        given = self.frames[:frames]
        del self.frames[: len(given)]
        for frame in given:
            assembler.feed(frame)
        block = assembler.cut()
        if block is not None:
            appender.take(block)
        if assembler.open:
            appender.take(assembler.spill())


def decoder(*tables: Table, described: Sequence[Table] = ()) -> BlockDecoder:
    """A decoder that knows ``tables``; its catalog has ``described`` (by oid) and nothing else."""
    catalog = {table.relid: table.topic_schema for table in described}
    latest = {table.topic: table.topic_schema for table in tables}
    return BlockDecoder(SOURCE, latest, lambda relation: catalog.get(relation.relid), Policies())


N, U = pg.NULL, pg.UNCHANGED
INT4, INT8, TEXT, DATE = 23, 20, 25, 1082

KEYED = Table(16_385, "orders", [("id", INT8, -1, True), ("note", TEXT, -1, False), ("due", DATE, -1, False)])
FULL = Table(16_386, "items", [("id", INT8, -1, True), ("note", TEXT, -1, False)], identity="f")
EVENTS = Table(
    16_390,
    "events",
    [
        ("category", TEXT, -1, False),
        ("stream", TEXT, -1, True),
        ("version", INT8, -1, True),
        ("type", TEXT, -1, False),
        ("schema_version", INT4, -1, False),
        ("data", 3802, -1, False),
        ("metadata", 3802, -1, False),
        ("event_id", 2950, -1, False),
        ("recorded_at", 1184, -1, False),
        ("txid", INT8, -1, False),
    ],
    schema="tailrace",
)
EVENT_ROW = (
    b"order", b"order-7", b"3", b"Placed", b"1", b'{"total": 5}', N, b"0b7f", b"2026-11-20 10:00:00.5+00", b"99",
)  # fmt: skip
