"""Rows of tables as one exported snapshot has them, by parallel COPY.

Every connection that shares the snapshot must take it while the exporting connection is still there (SET TRANSACTION
SNAPSHOT). Each table is locked against DDL before it is read, and its file number is compared with the snapshot's:
TRUNCATE and rewriting ALTER TABLE are not MVCC-safe, a table they touched in between would look empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import LiteralString, TypeVar

import psycopg
import pyarrow as pa
from psycopg import Connection, pq, sql

from tailrace.cdc.kernels.copy_text import columns_of
from tailrace.cdc.kernels.rows import Bytes
from tailrace.cdc.postgres import errors
from tailrace.cdc.postgres.connect import Address, connect, encoding_of, quote, translate_errors
from tailrace.cdc.postgres.inbox import FillResult, Inbox
from tailrace.cdc.postgres.liveness import wait_readable
from tailrace.cdc.postgres.locks import POLL_SECONDS, try_read_locks
from tailrace.cdc.postgres.publication import Publication
from tailrace.cdc.postgres.tables import Table, apply_publication, read_tables
from tailrace.cdc.postgres.value_text import read_bases
from tailrace.cdc.wire.binary import PLAIN, Render, parse_copy_row
from tailrace.cdc.wire.copy_data import Messages
from tailrace.eventstore.errors import IntegrityError, TransientError

Row = tuple[object, ...]
T = TypeVar("T")
# About what becomes one file. A cell takes more than its text, be it NULL.
CHUNK_BYTES = 16 << 20
_CELL_BYTES = 8
_BLOCKS_MIN = 2048  # 16 MiB: smaller ranges cost more in round trips than they give in balance
_RANGES_PER_WORKER = 4
_SHARE_TRIES = 3
# The server was restarted since, or a standby has taken its place. Before version 16 it calls the name invalid.
_SNAPSHOT_GONE = (
    psycopg.errors.UndefinedObject,
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.ObjectNotInPrerequisiteState,
)
# The file as the snapshot sees it, and as it is now; of tables and of the leaves of partitioned ones.
_CHANGED_FILES = """
WITH given AS (SELECT unnest(%s::bigint[]::oid[]) AS oid)
SELECT c.oid::regclass::text
FROM (SELECT oid FROM given UNION SELECT t.relid FROM given g, pg_catalog.pg_partition_tree(g.oid) t) r
JOIN pg_catalog.pg_class c ON c.oid = r.oid
WHERE c.relkind = 'r' AND c.relfilenode IS DISTINCT FROM pg_catalog.pg_relation_filenode(c.oid)
"""
_BLOCKS = """
SELECT c.oid::bigint, CASE WHEN c.relkind = 'r'
  THEN pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::int ELSE 0 END
FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::bigint[]::oid[])
"""


class TableChanged(TransientError):
    """A table was truncated, rewritten, altered or renamed between the snapshot and our lock: take a new snapshot."""


class CopyForm(Enum):
    """How rows are sent. Text is the rule; a row whose text exceeds 1 GiB may still pass in binary."""

    TEXT = "text"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class CopyUnit:
    """One COPY: a table (a leaf of a partitioned one), or a range of its blocks."""

    table: Table
    schema: str
    name: str
    where: str = ""
    order: str = ""
    only: bool = True

    def statement(self, columns: Sequence[str], encoding: str) -> str:
        query = self.query(map(quote, columns))
        return f"COPY ({query}) TO STDOUT (ENCODING '{encoding}')"

    def binary_statement(self, columns: Sequence[str], plain: Container[str]) -> str:
        """Columns not in ``plain`` as what their output functions print (that is what ``format`` does; a cast to text
        differs for boolean, character and inet)."""
        cells = [
            name if column in plain else f"CASE WHEN num_nulls({name}) = 0 THEN format('%s', {name}) END"
            for column in columns
            for name in [quote(column)]
        ]
        return f"COPY ({self.query(cells)}) TO STDOUT (FORMAT binary)"

    def query(self, expressions: Iterable[str]) -> str:
        source = f"{quote(self.schema)}.{quote(self.name)}"
        conditions = [f"({text})" for text in (self.where, self.table.row_filter) if text]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        target = f"{'ONLY ' if self.only else ''}{source}{where}{self.order}"
        return f"SELECT {', '.join(expressions)} FROM {target}"  # noqa: S608 (quoted names, constants)


@contextmanager
def snapshot_session(address: Address, snapshot: str) -> Iterator[Connection[Row]]:
    """A connection inside a read-only transaction on the snapshot. Raises TransientError when it is gone."""
    connection = connect(address, "tailrace load")
    try:
        with translate_errors("taking the exported snapshot", address):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
            except _SNAPSHOT_GONE:
                raise TransientError(
                    f"{address.text} does not have the exported snapshot (any more)",
                    hint="another is taken; if it keeps happening: the dsn must lead to one server, without a balancer",
                ) from None
        yield connection
    finally:
        connection.close()


def lock_tables(
    connection: Connection[Row],
    address: Address,
    relids: Sequence[int],
    publication: Publication | None = None,
    *,
    waiting: Callable[[str], None] = lambda said: None,
) -> list[Table]:
    """Lock tables against DDL until the session ends and describe them as they are published.

    ``waiting`` is called now and then with the server's words while another lock is in the way; it may raise to give
    up. Raises TableChanged, and OperatorError when a table may not be read."""
    tables = read_tables(connection, address, relids)
    while refusal := _refusal(connection, address, tables):
        waiting(refusal)
        time.sleep(POLL_SECONDS)
    with translate_errors("reading the catalog", address):
        changed = connection.execute(_CHANGED_FILES, [[table.relid for table in tables]]).fetchone()
    if changed is not None:
        raise TableChanged(
            f"table {changed[0]} was truncated or rewritten while its load began",
            hint="the load is begun again with a new snapshot",
        )
    _require_same(tables, address)
    with translate_errors("measuring tables", address):
        sizes = connection.execute(_BLOCKS, [[table.relid for table in tables]]).fetchall()
    blocks = {relid: int(str(size)) for relid, size in sizes}
    return apply_publication((replace(table, blocks=blocks[table.relid]) for table in tables), publication)


def _require_same(tables: Sequence[Table], address: Address) -> None:
    """The tables must be as the snapshot shows them: names of tables and columns are resolved as they are now, so if
    two were exchanged since, one would be read for the other. Raises TableChanged.

    Reading the catalog takes no lock that a waiting ALTER TABLE could hold up: it would wait for the one we hold."""
    with connect(address, "tailrace load") as outside:
        found = read_tables(outside, address, [table.relid for table in tables])
    now = {table.relid: (table.label, table.columns, table.generated) for table in found}
    for table in tables:
        if now.get(table.relid) != (table.label, table.columns, table.generated):
            raise TableChanged(
                f"table {table.text} was altered, renamed or dropped while its load began",
                hint="the load is begun again with a new snapshot",
            )


def share_locks(connection: Connection[Row], address: Address, tables: Sequence[Table]) -> None:
    """Take in a worker's session the locks that the coordinator's has, before it reads anything.

    Once a TRUNCATE or ALTER TABLE waits for the coordinator, a worker's first read would wait behind it, and the
    coordinator for the worker: a deadlock that the server cannot see. So the wait is bounded here, where nothing has
    been read. Raises TableChanged.
    """
    refusal = _refusal(connection, address, tables, tries=_SHARE_TRIES)
    if refusal:
        raise TableChanged(
            f"a table is being truncated or altered while its load begins: {refusal}",
            hint="the load is begun again with a new snapshot",
        )


def _refusal(connection: Connection[Row], address: Address, tables: Sequence[Table], tries: int = 1) -> str:
    """Take the locks of all these tables or of none; what the server said when somebody is in the way."""
    if not tables:
        return ""
    names = sql.SQL(", ").join(
        sql.SQL("{}{}").format(sql.SQL("" if table.kind == "p" else "ONLY "), sql.Identifier(*table.label))
        for table in tables
    )
    with translate_errors("locking tables", address):
        try:
            return try_read_locks(connection, names, tries)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise TableChanged(
                f"a table was dropped or renamed while its load began: {error.diag.message_primary}",
                hint="the load is begun again with a new snapshot",
            ) from None


def plan_copies(connection: Connection[Row], address: Address, table: Table, workers: int) -> list[CopyUnit]:
    """The COPYs that read a table: block ranges of a large one, leaf by leaf of a partitioned one."""
    if table.kind != "p":
        return _ranges(table, table.schema, table.name, table.blocks, workers)
    with translate_errors("reading the partitions", address):
        leaves = connection.execute(
            "SELECT n.nspname, c.relname, pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::int"
            " FROM pg_catalog.pg_partition_tree(%s::bigint::oid::regclass) t"
            " JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE t.isleaf AND c.relkind = 'r' ORDER BY 1, 2",
            [table.relid],
        ).fetchall()
    return [
        unit
        for schema, name, blocks in leaves
        for unit in _ranges(table, str(schema), str(name), int(str(blocks)), workers)
    ]


def _ranges(table: Table, schema: str, name: str, blocks: int, workers: int) -> list[CopyUnit]:
    size = max(_BLOCKS_MIN, -(-blocks // (workers * _RANGES_PER_WORKER)))
    starts = list(range(0, blocks, size)) or [0]
    if len(starts) == 1:
        return [CopyUnit(table, schema, name)]
    units = []
    for start in starts:
        bounds = [f"ctid >= '({start},0)'"]
        if start != starts[-1]:  # the last one is open: the table may have grown since its size was read
            bounds.append(f"ctid < '({start + size},0)'")
        units.append(CopyUnit(table, schema, name, " AND ".join(bounds)))
    return units


def copy_chunks(
    connection: Connection[Row],
    address: Address,
    unit: CopyUnit,
    columns: Sequence[str],
    form: CopyForm = CopyForm.TEXT,
) -> Generator[list[pa.Array]]:
    """The unit's rows, chunk by chunk: per column an array of texts, null for NULL. Inside a transaction.

    Raises RowTooLarge for a row that the server cannot send in this form; the transaction goes on, and the rows may be
    read again in binary."""
    with _savepoint_for_large_rows(connection, address):
        if form is CopyForm.BINARY:
            yield from _copy_binary(connection, address, unit, columns)
            return
        pgconn = connection.pgconn
        sent = _copy(pgconn, unit.statement(columns, encoding_of(pgconn)), unit, address)
        for rows in sent:
            texts = parse_rows(rows.data, len(rows), len(columns))
            del rows  # what is made of them needs the memory
            yield texts


def read_with_fallback(read: Callable[[CopyForm], T]) -> T:
    """What ``read`` gives of rows as text, or else in binary. Raises RowTooLarge when the server can send neither."""
    try:
        return read(CopyForm.TEXT)
    except errors.RowTooLarge:
        return read(CopyForm.BINARY)


@contextmanager
def _savepoint_for_large_rows(connection: Connection[Row], address: Address) -> Iterator[None]:
    def say(command: LiteralString) -> None:
        with translate_errors("reading a table", address):
            connection.execute(command)

    say("SAVEPOINT reading")
    try:
        yield
    except errors.RowTooLarge:
        say("ROLLBACK TO SAVEPOINT reading")
        raise
    say("RELEASE SAVEPOINT reading")


def _copy_binary(
    connection: Connection[Row], address: Address, unit: CopyUnit, columns: Sequence[str]
) -> Iterator[list[pa.Array]]:
    """Columns whose binary form is known come in it, the others as text inside it."""
    types = {column.name: column.type_oid for column in (*unit.table.columns, *unit.table.generated)}
    bases = read_bases(connection, address, (types[name] for name in columns))
    kinds = {name: bases[types[name]].oid for name in columns}
    plain = {name: PLAIN[kind] for name, kind in kinds.items() if kind in PLAIN}
    renders = [plain.get(name, bytes) for name in columns]
    pgconn = connection.pgconn
    pgconn.exec_(f"SET LOCAL client_encoding = '{encoding_of(pgconn)}'".encode())
    for messages in _copy(pgconn, unit.binary_statement(columns, plain), unit, address):
        rows = [
            row for row in (parse_copy_row(each, len(columns)) for each in messages.each()) if row is not None
        ]
        if rows:
            yield [
                _texts(render, cells) for render, cells in zip(renders, zip(*rows, strict=True), strict=True)
            ]
    pgconn.exec_(b"SET LOCAL client_encoding = 'UTF8'")


def _texts(render: Render, cells: Iterable[memoryview | None]) -> pa.Array:
    texts = [None if cell is None else render(cell) for cell in cells]
    return _text_or_bytes(pa.array(texts, pa.large_binary()))


def _copy(pgconn: pq.abc.PGconn, statement: str, unit: CopyUnit, address: Address) -> Iterator[Messages]:
    """Chunks of whole rows: the server sends one CopyData message per row (copyto.c), which is checked later."""
    doing = f"reading table {unit.schema}.{unit.name}"
    begun = pgconn.exec_(statement.encode())
    if begun.status != pq.ExecStatus.COPY_OUT:
        raise errors.from_result(begun, doing, address.text)
    inbox = Inbox(pgconn, CHUNK_BYTES, _CELL_BYTES * begun.nfields)
    try:
        with closing(inbox):
            while (outcome := inbox.fill()) is not FillResult.END:
                if outcome is FillResult.FULL:
                    yield inbox.take()
                else:
                    wait_readable(pgconn, doing, address)
    except psycopg.OperationalError as error:
        raise errors.failure(None, str(error), doing, address.text) from None
    failed = None
    while (result := pgconn.get_result()) is not None:  # all of them: the connection may be of use yet
        if result.status != pq.ExecStatus.COMMAND_OK:
            failed = errors.from_result(result, doing, address.text)
    if failed is not None:
        raise failed
    if rows := inbox.take():
        yield rows


def parse_rows(data: Bytes, rows: int, columns: int) -> list[pa.Array]:
    """Rows in COPY's text format, end to end. Columns are strings; where a cell is not UTF-8 (the source's encoding is
    SQL_ASCII), binary. Raises IntegrityError when they are not so many rows of so many columns."""
    found = columns_of(data, rows, columns)
    if found is None:
        raise IntegrityError(f"what COPY sent cannot be read as {rows} rows", hint="report this")
    return [_text_or_bytes(column) for column in found]


def _text_or_bytes(cells: pa.Array) -> pa.Array:
    try:
        return cells.cast(pa.large_string())
    except pa.ArrowInvalid:
        return cells
