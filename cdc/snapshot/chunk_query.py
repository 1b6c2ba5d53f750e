"""Chunks of a table in the order of its key, each in a transaction of its own that ends with a mark in the WAL."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise

import psycopg
import pyarrow as pa
from psycopg import Connection, sql
from psycopg.pq import TransactionStatus

from tailrace.cdc.postgres.connect import Address, connect, literal, quote, quote_all, translate_errors
from tailrace.cdc.postgres.locks import try_read_locks
from tailrace.cdc.postgres.publication import read_publication
from tailrace.cdc.postgres.tables import TREE, Table, apply_publication, read_tables
from tailrace.cdc.snapshot.chunk_merge import PgSnapshot
from tailrace.cdc.snapshot.copy import CopyUnit, TableChanged, copy_chunks, read_with_fallback
from tailrace.eventstore.model.epoch import KeyTexts
from tailrace.eventstore.model.schema import Column

Row = tuple[object, ...]
_SAMPLE_ROWS = 1000
CHUNK_BYTES = 16 << 20  # of texts, wanted; about what becomes one file
_CHUNK_BYTES_MAX = 2 * CHUNK_BYTES
_LOCK_TRIES = 3

# The key's columns as its index has them: in another order the server would sort the table for every chunk.
_KEY_ORDER = """
SELECT a.attname FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid,
unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
JOIN pg_catalog.pg_attribute a ON a.attnum = k.attnum
WHERE i.indrelid = %(relid)s::bigint::oid AND a.attrelid = i.indrelid AND k.place <= i.indnkeyatts
  AND CASE WHEN c.relreplident = 'i' THEN i.indisreplident ELSE i.indisprimary END
ORDER BY k.place
"""
# Where the comparison operators of key types live that extensions brought (citext): with an empty search path ``>``
# would compare such a key as text, in another order than ORDER BY.
_OPERATOR_SCHEMAS = """
SELECT DISTINCT n.nspname FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
JOIN pg_catalog.pg_namespace n ON n.oid = b.typnamespace
WHERE a.attrelid = %(relid)s::bigint::oid AND a.attname = ANY (%(names)s) AND b.typtype = 'b'
  AND n.nspname <> 'pg_catalog' ORDER BY 1
"""
_SIZE = (
    TREE
    + """
SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint, coalesce(sum(pg_catalog.pg_relation_size(c.oid)), 0)::bigint
FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid WHERE c.relkind = 'r'
"""
)


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """A table and its key columns in the order of their index."""

    table: Table
    key: tuple[Column, ...]

    @property
    def key_at(self) -> tuple[int, ...]:
        """Where the key columns stand among the table's."""
        names = [column.name for column in self.table.columns]
        return tuple(names.index(column.name) for column in self.key)

    def texts_of(self, texts: Sequence[pa.Array], row: int) -> KeyTexts:
        return tuple(texts[at][row].as_py() for at in self.key_at)

    def key_comparison(self, sign: str, key: KeyTexts) -> str:
        """Compares rows with a key."""
        return f"({self.columns}) {sign} {_tuple(self.key, key)}"

    def key_list(self, keys: Sequence[KeyTexts]) -> str:
        """Finds rows by their keys, whose cells are in the table's order of columns."""
        names = {column.name for column in self.key}
        columns = [column for column in self.table.columns if column.name in names]
        listed = ", ".join(_tuple(columns, key) for key in keys)
        return f"({quote_all([column.name for column in columns])}) IN ({listed})"

    @property
    def columns(self) -> str:
        return quote_all([column.name for column in self.key])


def _tuple(columns: Sequence[Column], key: KeyTexts) -> str:
    cells = [f"{literal(text)}::{column.type_name}" for text, column in zip(key, columns, strict=True)]
    return f"({', '.join(cells)})"


@dataclass(frozen=True, slots=True)
class ChunkBounds:
    """Which rows a chunk takes: up to ``limit`` of those with a key in (``after``, ``upto``] (cells in the order of the
    index), or those with one of ``keys`` (in the order of the table)."""

    after: KeyTexts | None = None
    upto: KeyTexts | None = None
    limit: int = 0
    keys: tuple[KeyTexts, ...] = ()

    def unit(self, keyset: KeyedTable) -> CopyUnit:
        table = keyset.table
        if self.keys:
            conditions, order = [keyset.key_list(self.keys)], ""
        else:
            bounds = [(">", self.after), ("<=", self.upto)]
            conditions = [keyset.key_comparison(sign, key) for sign, key in bounds if key is not None]
            order = f" ORDER BY {keyset.columns} LIMIT {self.limit}"
        return CopyUnit(table, *table.label, " AND ".join(conditions), order, only=table.kind != "p")


class ChunkTooLarge(Exception):
    """A chunk has too many bytes for its rows are larger than those before. About ``rows`` of them make a chunk. The
    connection is in the middle of a COPY and of no more use: cancelling could hit the statement after it."""

    def __init__(self, rows: int) -> None:
        super().__init__(f"{rows} rows make a chunk")
        self.rows = rows


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Rows as texts per column, and what the transaction that read them sees."""

    texts: list[pa.Array]
    snapshot: PgSnapshot

    @property
    def rows(self) -> int:
        return len(self.texts[0])

    @property
    def bytes(self) -> int:
        return sum(column.nbytes for column in self.texts)


def open_session(address: Address) -> Connection[Row]:
    """A connection for chunks. Its commits wait for no standby: a mark is read from the WAL of this server."""
    connection = connect(address, "tailrace load")
    try:
        with translate_errors("setting up the session", address):
            connection.execute("SET synchronous_commit = local")
            connection.execute("SET default_transaction_read_only = off")
    except BaseException:
        connection.close()
        raise
    return connection


def read_keyset(
    connection: Connection[Row], address: Address, publication: str, relid: int
) -> KeyedTable | None:
    """The table with this oid as it is published, None when it is gone or has no key."""
    # Of this table alone: the row filter of another one would have to wait for that one's lock.
    published = read_publication(connection, publication, address, [relid])
    tables = apply_publication(read_tables(connection, address, [relid]), published)
    with translate_errors("reading the catalog", address):
        names = [str(name) for (name,) in connection.execute(_KEY_ORDER, {"relid": relid}).fetchall()]
    if not tables or set(names) != set(tables[0].key) or not names:
        return None
    by_name = {column.name: column for column in tables[0].columns}
    return KeyedTable(tables[0], tuple(by_name[name] for name in names))


def plan_ranges(
    connection: Connection[Row], address: Address, keyset: KeyedTable, parts: int, bytes_min: int
) -> tuple[int, list[tuple[KeyTexts | None, KeyTexts | None]]]:
    """About how many rows the table has, and ranges of keys of about the same size: one when it is small.

    Raises TableChanged when it is locked: sampling partitions would wait for one while holding others."""
    with translate_errors(f"estimating table {keyset.table.text}", address), connection.transaction():
        _lock(connection, keyset.table.label)
        row = connection.execute(_SIZE, {"relids": [keyset.table.relid]}).fetchone()
        assert row is not None
        rows, size = int(str(row[0])), int(str(row[1]))
        if size < bytes_min or parts < 2:
            return rows, [(None, None)]
        only = "" if keyset.table.kind == "p" else "ONLY "
        table = f"{quote(keyset.table.schema)}.{quote(keyset.table.name)}"
        percent = min(100.0, 100.0 * _SAMPLE_ROWS / max(rows, 1))
        texts = ", ".join(f"{quote(column.name)}::text" for column in keyset.key)
        sample = connection.execute(
            sql.SQL(
                f"SELECT {texts} FROM {only}{table} TABLESAMPLE SYSTEM ({percent})"  # noqa: S608 (quoted names)
                f" ORDER BY {keyset.columns}"
            )
        ).fetchall()
    cuts = [tuple(map(str, sample[len(sample) * part // parts])) for part in range(1, parts) if sample]
    bounds: list[KeyTexts | None] = [None, *dict.fromkeys(cuts), None]
    return rows, list(pairwise(bounds))


@contextmanager
def chunk(
    connection: Connection[Row],
    address: Address,
    publication: str,
    relid: int,
    label: tuple[str, str],
    piece: ChunkBounds,
) -> Iterator[tuple[KeyedTable, ChunkRows]]:
    """Read a piece of a table inside a transaction that is left open: ``commit_mark`` ends it, anything else undoes it.

    The lock comes before the snapshot, so that no TRUNCATE or ALTER TABLE lies between them, and is held up to the
    mark. Raises TableChanged when it is not to be had, or the table is another one now; ChunkTooLarge.
    """
    doing = f"reading table {'.'.join(label)}"
    try:
        with translate_errors(doing, address):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE")
            _lock(connection, label)
            row = connection.execute("SELECT pg_catalog.pg_current_snapshot()::text").fetchone()
            assert row is not None
            snapshot = PgSnapshot.parse(str(row[0]))
        keyset = read_keyset(connection, address, publication, relid)
        if keyset is None or keyset.table.label != label:
            raise TableChanged(f"table {'.'.join(label)} was dropped, renamed or lost its key")
        _use_operators(connection, address, keyset)
        columns = [column.name for column in keyset.table.columns]
        unit = piece.unit(keyset)
        most = len(piece.keys) or piece.limit
        parts = read_with_fallback(
            lambda form: _read_bounded(copy_chunks(connection, address, unit, columns, form), most)
        )
        empty = pa.array([], pa.large_string())
        texts = [
            pa.concat_arrays([part[at] for part in parts]) if parts else empty for at in range(len(columns))
        ]
        yield keyset, ChunkRows(texts, snapshot)
    finally:
        status = connection.info.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):  # else it is of no more use
            connection.execute("ROLLBACK")


def _read_bounded(parts: Generator[list[pa.Array]], most: int) -> list[list[pa.Array]]:
    """The parts of a chunk of ``most`` rows. Raises ChunkTooLarge; a single row may have any size."""
    found, rows, size = [], 0, 0
    with closing(parts):
        for part in parts:
            found.append(part)
            rows += len(part[0])
            size += sum(cells.nbytes for cells in part)
            if size > _CHUNK_BYTES_MAX and rows < most:
                raise ChunkTooLarge(max(1, rows * CHUNK_BYTES // size))
    return found


def _use_operators(connection: Connection[Row], address: Address, keyset: KeyedTable) -> None:
    names = [column.name for column in keyset.key]
    with translate_errors("reading the catalog", address):
        wanted = {"relid": keyset.table.relid, "names": names}
        schemas = [str(name) for (name,) in connection.execute(_OPERATOR_SCHEMAS, wanted).fetchall()]
        if schemas:
            path = sql.SQL(", ").join(map(sql.Identifier, schemas))
            connection.execute(sql.SQL("SET LOCAL search_path = {}").format(path))


def _lock(connection: Connection[Row], label: tuple[str, str]) -> None:
    """The lock that reading takes, of a partitioned table with those of all its partitions or with none."""
    try:
        refused = try_read_locks(connection, sql.Identifier(*label), _LOCK_TRIES)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        raise TableChanged(f"table {'.'.join(label)} was dropped or renamed") from None
    if refused:
        raise TableChanged(f"table {'.'.join(label)} is locked by another session")


def commit_mark(connection: Connection[Row], address: Address, prefix: str, content: bytes) -> None:
    """Commit a transactional logical message, with the open transaction if there is one."""
    with translate_errors("writing a mark into the WAL", address):
        connection.execute(
            "SELECT pg_catalog.pg_logical_emit_message(true, %s, %s::bytea)", [prefix, content]
        )
        if connection.info.transaction_status:
            connection.execute("COMMIT")


def transactions_begun(connection: Connection[Row], address: Address) -> int:
    """The id that the next transaction gets."""
    return _snapshot_part(connection, address, "xmax")


def transactions_ended(connection: Connection[Row], address: Address) -> int:
    """Every transaction with a lower id has ended and, when it committed, is visible."""
    return _snapshot_part(connection, address, "xmin")


def _snapshot_part(connection: Connection[Row], address: Address, part: str) -> int:
    with translate_errors("looking for running transactions", address):
        query = sql.SQL("SELECT pg_catalog.{}(pg_catalog.pg_current_snapshot())::text")
        row = connection.execute(query.format(sql.Identifier(f"pg_snapshot_{part}"))).fetchone()
    assert row is not None
    return int(str(row[0]))
