"""Every type that the server knows goes through first load and stream, and comes out as it went in.

The oracle is the server: what the log holds, given back to it as text, has the same binary form (send function) as
the original, or prints the same where there is none. The database's own settings are hostile on purpose.
"""

# ruff: noqa: S608 (names and types of our own)

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import pq, sql
from psycopg.pq import Format

from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.tables import read_tables
from tailrace.cdc.postgres.value_text import Renderer
from tailrace.cdc.snapshot.copy import CopyForm, CopyUnit, copy_chunks
from tailrace.cdc.stream.binary_mode import TextStream
from tailrace.cdc.wire import binary
from tailrace.cdc.wire.copy_data import Messages
from tailrace.cdc.wire.pgoutput import Relation, decode
from tailrace.embedded import PostgresServer
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.postgres_text import postgres_texts
from tailrace.eventstore.model.schema import TopicSchema, arrow_type
from tailrace.eventstore.store import Store
from tests.cdc.columnar.values.every_type import EDGES_OF_VECTORS, NO_INPUT, USER_TYPES, Catalog, Kind
from tests.fixtures.databases import drop_database
from tests.fixtures.scale import Scale
from tests.fixtures.servers import FAST_SETTINGS, ServerFactory
from tests.support.capturing import (
    RunningCapture,
    Site,
    assert_equals_source,
    init_and_capture,
    rows,
    server_version,
    table,
)
from tests.support.installed import pgvector_programs, system_programs

SEED = 20_261_121
STREAMED = 1_000_000  # added to the id of a row that comes by the stream
COLUMNS = 50  # of a table
KEY_COLUMNS = 31  # and the id; an index takes 32
KEY_BYTES = 50  # of a value: all together must fit into a page of the index
KEY_ROWS = 20
FILLED = 400  # columns added to a table
HOSTILE = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "TimeZone": "Asia/Kathmandu",
    "search_path": "pg_temp, information_schema, public, pg_catalog",
    "xmloption": "document",
    "quote_all_identifiers": "on",
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
    "backslash_quote": "on",
    "array_nulls": "off",
}
PLAIN = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "TimeZone": "UTC",
    "search_path": "",
    "lc_monetary": "C",
    "xmloption": "content",
    "quote_all_identifiers": "off",
    "array_nulls": "on",  # of input
}
_NO_SEND = (
    "query_int",
    "ean13",
    "isbn13",
    "ismn13",
    "issn13",
    "isbn",
    "ismn",
    "issn",
    "upc",
    "seg",
    "own_integer",
)
_NOT_TAKEN_BACK = ("int2vector[]", "oidvector[]", "tsquery", "tsquery[]")  # when empty
UNSENDABLE = {
    *("aclitem", "aclitem[]"),
    *_NOT_TAKEN_BACK,
    *(f"public.{name}{dimensions}" for name in _NO_SEND for dimensions in ("", "[]")),
}
"""Kinds that are no part of what is streamed in binary here."""
Texts = list[str | None]
NOT_UTF8 = "surrogateescape"
"""Servers before 16 print a "char" above 127 as that byte, which is no text; texts here hold it nevertheless."""


@dataclass(frozen=True)
class Everything:
    """A database with values of every type in ``tables``: each an id and some columns."""

    dsn: str
    tables: dict[str, list[Kind]]
    without_values: frozenset[str]


# What a server refuses of what it printed itself, also inside of rows and arrays.
REFUSED = (
    b"more than one function",
    b"more than one operator",
    b"invalid byte sequence",
    b"invalid input syntax for type interval",
    b"interval field value out of range",
)
DATABASE = "every_type"


@pytest.fixture(scope="module")
def everything(postgres: PostgresServer, scale: Scale) -> Iterator[Everything]:
    try:
        yield build(postgres, scale)
    finally:
        drop_database(postgres, DATABASE)


def build(server: PostgresServer, scale: Scale) -> Everything:
    dsn = server.dsn(DATABASE)
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}".encode())
        for setting, value in HOSTILE.items():
            connection.execute(f"ALTER DATABASE {DATABASE} SET {setting} = '{value}'".encode())
    with session(dsn) as connection:
        connection.execute("SET client_min_messages = error")
        for (extension,) in connection.execute("SELECT name FROM pg_available_extensions").fetchall():
            connection.pgconn.exec_(f'CREATE EXTENSION "{extension}" SCHEMA public CASCADE'.encode())
        connection.execute(USER_TYPES.encode())
        catalog = Catalog(
            connection, SEED, scale.pick(smoke=6, full=300), system_rows=scale.pick(smoke=False, full=True)
        )
        kinds = catalog.kinds()
        tables = {
            f"every_{start // COLUMNS}": kinds[start : start + COLUMNS]
            for start in range(0, len(kinds), COLUMNS)
        }
        for number, part in tables.items():
            create(connection, number, part)
        return Everything(dsn, tables, frozenset(catalog.without_values))


def session(dsn: str) -> psycopg.Connection[Any]:
    """A session that prints what is expected, whatever the database's own settings are."""
    connection = psycopg.connect(dsn, autocommit=True, client_encoding="UTF8")
    for setting, value in PLAIN.items():
        connection.execute("SELECT set_config(%s, %s, false)", [setting, value])
    return connection


def create(connection: psycopg.Connection[Any], name: str, kinds: Sequence[Kind]) -> None:
    columns = ", ".join(f"c{at} {kind.name}" for at, kind in enumerate(kinds))
    connection.execute(f"CREATE TABLE public.{name} (id integer PRIMARY KEY, {columns})".encode())
    connection.execute(f"ALTER TABLE public.{name} REPLICA IDENTITY FULL".encode())
    fill(connection, name, kinds, max(len(kind.values) for kind in kinds) + 1)  # the last row is all NULL


def fill(connection: psycopg.Connection[Any], name: str, kinds: Sequence[Kind], rows: int) -> None:
    """Rows with the ids from 0 on, of one value of each type or NULL when there are no more."""
    insert = f"INSERT INTO public.{name} VALUES ($1, {', '.join(f'${at + 2}' for at in range(len(kinds)))})"
    for row in range(rows):
        cells = [kind.values[row] if row < len(kind.values) else None for kind in kinds]
        result = connection.pgconn.exec_params(
            insert.encode(),
            [str(row).encode(), *(cell.data if cell else None for cell in cells)],
            [23, *(kind.oid for kind in kinds)],
            [Format.TEXT, *(Format(bool(cell and cell.binary)) for cell in cells)],
        )
        assert result.status == pq.ExecStatus.COMMAND_OK, connection.pgconn.error_message.decode()


def printed(connection: psycopg.Connection[Any], name: str) -> dict[int, Texts]:
    """The table's rows by id, as the types' output functions print them."""
    result = connection.pgconn.exec_(f"TABLE public.{name}".encode())
    assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message
    cells = [
        [
            None if cell is None else cell.decode(errors=NOT_UTF8)
            for cell in (result.get_value(row, at) for at in range(result.nfields))
        ]
        for row in range(result.ntuples)
    ]
    return {int(row[0] or 0): row[1:] for row in cells}


@dataclass(frozen=True)
class LogRow:
    """One row of the log, its images as texts."""

    op: str
    after: Texts | None
    before: Texts | None


def log_rows_by_id(store: Store, name: str) -> dict[int, list[LogRow]]:
    """The topic's rows by id, in order."""
    topic = table(name)
    (schema,) = store.schemas(topic)
    rows: dict[int, list[LogRow]] = defaultdict(list)
    for batch in store.read(topic):
        ids = batch.column("key").field("id").to_pylist()
        images = [image_texts(batch, image, sign, schema) for image, sign in (("after", 1), ("before", -1))]
        for number, op, after, before in zip(ids, batch.column("_op").to_pylist(), *images, strict=True):
            rows[number].append(LogRow(op, after, before))
    return rows


def image_texts(batch: pa.RecordBatch, image: str, sign: int, schema: TopicSchema) -> list[Texts | None]:
    """Each row's cells but the id, from the typed columns and ``_raw``; None for a row without the image."""
    struct = batch.column(image)
    columns = [postgres_texts(struct.field(column.name)).to_pylist() for column in schema.columns]
    at = {column.id: number for number, column in enumerate(schema.columns)}
    for row, entries in enumerate(batch.column("_raw").to_pylist()):
        for number, text in entries or ():
            if number * sign > 0:
                assert columns[at[abs(number)]][row] is None
                columns[at[abs(number)]][row] = text.decode(errors=NOT_UTF8)
    cells = zip(*columns[1:], strict=True)
    return [
        list(row) if valid else None for row, valid in zip(cells, struct.is_valid().to_pylist(), strict=True)
    ]


@pytest.mark.versions
def test_every_type_goes_through_first_load_and_stream(everything: Everything, tmp_path: Path) -> None:
    without_libxml = server_version(everything.dsn) == 18  # the packaged one
    assert everything.without_values - NO_INPUT == ({"xml"} if without_libxml else set())
    assert_goes_through(everything, tmp_path)


@pytest.mark.servers
def test_every_type_of_the_systems_server_goes_through(
    postgres_server: ServerFactory, scale: Scale, tmp_path: Path
) -> None:
    """It is built with libxml, which the packaged one is not, and with ICU."""
    everything = build(postgres_server(bin_dir=system_programs(), settings=FAST_SETTINGS), scale)
    assert everything.without_values - NO_INPUT == set()
    assert_goes_through(everything, tmp_path)


@pytest.mark.servers
def test_vectors_of_pgvector_go_through(postgres_server: ServerFactory, scale: Scale, tmp_path: Path) -> None:
    """With a dimension, without one, in arrays, and with bits changed at random."""
    everything = build(postgres_server(bin_dir=pgvector_programs(), settings=FAST_SETTINGS), scale)
    names = {kind.name for kinds in everything.tables.values() for kind in kinds}
    vectors = {"public.vector", "public.halfvec", "public.sparsevec"}
    assert names >= vectors | {f"{name}[]" for name in vectors} | EDGES_OF_VECTORS.keys()
    assert_goes_through(everything, tmp_path)


def assert_goes_through(everything: Everything, tmp_path: Path) -> None:
    site = Site.at(tmp_path, everything.dsn, tables=["public.every_*"])
    site.init()
    with RunningCapture(site) as capture, session(everything.dsn) as source:
        capture.catch_up()
        for name in everything.tables:
            columns = ", ".join(f"c{at}" for at in range(len(everything.tables[name])))
            source.execute(
                f"INSERT INTO public.{name} SELECT id + {STREAMED}, {columns} FROM public.{name}".encode()
            )
            source.execute(f"UPDATE public.{name} SET id = id WHERE id >= {STREAMED}".encode())
        capture.catch_up()
        others: list[tuple[object, ...]] = []
        for name, kinds in everything.tables.items():
            expected, found = printed(source, name), log_rows_by_id(capture.store, name)
            for row, cells in expected.items():
                assert [each.op for each in found[row]] == (["r"] if row < STREAMED else ["c", "u"])
                assert [each.before is None for each in found[row]] == (
                    [True] if row < STREAMED else [True, False]
                )
                for image in (image for each in found[row] for image in (each.after, each.before) if image):
                    differ = [
                        (kind.name, want, got)
                        for kind, want, got in zip(kinds, cells, image, strict=True)
                        if want != got
                    ]
                    assert differ == []
            assert found.keys() == expected.keys()
            for at, kind in enumerate(kinds):
                texts = {row: cells[at] for row, cells in expected.items() if row < STREAMED}
                others += other_values(source, f"public.{name}", f"c{at}", kind, texts)
        assert others == []
        assert_equals_source(site)


def other_values(
    source: psycopg.Connection[Any], table_name: str, column: str, kind: Kind, texts: dict[int, str | None]
) -> list[tuple[object, ...]]:
    """Cells of a column whose text in the log, given back to the server, has another binary form; where the type has
    none, prints otherwise; or is refused.

    Some things of a value are in no text: the bits of a NaN beyond its being one, and which of several functions or
    operators of one name a ``regproc`` or ``regoper`` means. A "char" that is not UTF-8 is not taken back as text, nor
    are the longest intervals.
    """
    for form in (Format.BINARY, Format.TEXT):
        result = source.pgconn.exec_params(
            f"SELECT id, {column} FROM {table_name}".encode(), None, result_format=form
        )
        if result.status == pq.ExecStatus.TUPLES_OK:
            break
    cells = {
        number(result.get_value(row, 0), form): result.get_value(row, 1) for row in range(result.ntuples)
    }
    others: list[tuple[object, ...]] = []
    for row, text in texts.items():
        back = source.pgconn.exec_params(
            f"SELECT $1::{kind.name}".encode(),
            [None if text is None else text.encode(errors=NOT_UTF8)],
            result_format=form,
        )
        if back.status != pq.ExecStatus.TUPLES_OK:
            if not any(reason in back.error_message for reason in REFUSED):
                others.append((kind.name, text, back.error_message.decode().splitlines()[0]))
        elif back.get_value(0, 0) != cells[row] and not (text is not None and "NaN" in text):
            others.append((kind.name, text, cells[row], back.get_value(0, 0)))
    return others


def number(cell: bytes | None, form: Format) -> int:
    assert cell is not None
    return int.from_bytes(cell, "big", signed=True) if form == Format.BINARY else int(cell)


@pytest.mark.versions
def test_keys_of_every_type_are_the_same_from_load_and_stream(everything: Everything, tmp_path: Path) -> None:
    with session(everything.dsn) as source:
        tables = key_tables(source, everything)
        site = Site.at(tmp_path, everything.dsn, name="keys", tables=["public.key_*"])
        with init_and_capture(site) as capture:
            texts = {name: printed(source, name) for name in tables}
            for name in tables:
                source.execute(f"UPDATE public.{name} SET n = n + 1".encode())
                source.execute(f"UPDATE public.{name} SET id = id + {STREAMED} WHERE id % 2 = 0".encode())
                source.execute(f"DELETE FROM public.{name} WHERE id % 5 = 0".encode())
            capture.catch_up()
            for name, kinds in tables.items():
                for batch in capture.store.read(table(name)):
                    for key, row_hash in zip(
                        batch.column("key").to_pylist(), batch.column("_hash").to_pylist(), strict=True
                    ):
                        cells = texts[name][key["id"] % STREAMED][: len(kinds)]
                        texts_of_key = [cell and cell.encode(errors=NOT_UTF8) for cell in cells]
                        assert row_hash == keys.hash_texts([str(key["id"]), *texts_of_key])
            assert_equals_source(site)


def key_tables(source: psycopg.Connection[Any], everything: Everything) -> dict[str, list[Kind]]:
    """Tables whose key has a column of each type that can be sorted; rows repeat the short values."""
    sortable = []
    for kind in (kind for kinds in everything.tables.values() for kind in kinds if not kind.system):
        values = tuple(value for value in kind.values if len(value.data) <= KEY_BYTES)
        ordered = source.pgconn.exec_(f"SELECT NULL::{kind.name} AS x ORDER BY x".encode())
        if values and ordered.status == pq.ExecStatus.TUPLES_OK:
            sortable.append(Kind(kind.name, kind.oid, values))
    assert len(sortable) > 100
    tables = {
        f"key_{start // KEY_COLUMNS}": sortable[start : start + KEY_COLUMNS]
        for start in range(0, len(sortable), KEY_COLUMNS)
    }
    for name, kinds in tables.items():
        names = [f"c{at}" for at in range(len(kinds))]
        columns = ", ".join(f"{column} {kind.name}" for column, kind in zip(names, kinds, strict=True))
        source.execute(
            f"CREATE TABLE public.{name} (id integer, {columns}, n integer DEFAULT 0,"
            f" PRIMARY KEY (id, {', '.join(names)}))".encode()
        )
        fill(
            source,
            name,
            [Kind(k.name, k.oid, k.values * (KEY_ROWS // len(k.values) + 1)) for k in kinds],
            KEY_ROWS,
        )
    return tables


@pytest.mark.versions
def test_rows_from_before_a_column_have_its_default_in_every_type(
    everything: Everything, tmp_path: Path
) -> None:
    """The server keeps the default of a new column beside the old rows, and the log takes it from there."""
    with session(everything.dsn) as source:
        domains = {oid for (oid,) in source.execute("SELECT oid::bigint FROM pg_type WHERE typtype = 'd'")}
        defaults = [  # a domain's default may be checked row by row, which rewrites the table
            (kind.name, value.data.decode())
            for kinds in everything.tables.values()
            for kind in kinds
            if kind.oid not in domains and not kind.name.startswith("regrole")  # which the server forbids
            for value in kind.values[: 1 if arrow_type(kind.oid) == pa.string() else None]
            if len(value.data) <= KEY_BYTES and not value.binary
        ]
        parts = [defaults[start : start + FILLED] for start in range(0, len(defaults), FILLED)]
        names = [f"filled_{number}" for number in range(len(parts))]
        for name in names:
            source.execute(f"CREATE TABLE public.{name} (id integer PRIMARY KEY)".encode())
            source.execute(f"INSERT INTO public.{name} VALUES (1), (2)".encode())
        site = Site.at(tmp_path, everything.dsn, name="fills", tables=["public.filled_*"])
        with init_and_capture(site) as capture:
            for name, part in zip(names, parts, strict=True):
                added = (
                    f"ADD c{at} {kind} DEFAULT {sql.Literal(text).as_string(None)}"
                    for at, (kind, text) in enumerate(part)
                )
                source.execute(f"ALTER TABLE public.{name} {', '.join(added)}".encode())
                source.execute(f"INSERT INTO public.{name} VALUES (3)".encode())
            capture.catch_up()
            loaded = [row["_op"] for name in names for row in rows(capture.store, table(name))]
            assert loaded == ["r", "r", "c"] * len(names)  # it was not read again
            assert_equals_source(site)


@pytest.mark.versions
def test_binary_is_turned_into_the_text_that_the_server_prints(everything: Everything) -> None:
    """What a row that is too large for text mode is read in: by COPY and by the stream, value for value."""
    address = Address.parse(everything.dsn)
    with connect(address) as connection, Renderer(address) as renderer:
        described = {table.name: table for table in read_tables(connection, address)}
        left: set[str] = set()
        for name, kinds in everything.tables.items():
            unit = CopyUnit(described[name], "public", name, order=" ORDER BY id")
            own = {f"c{at}": kind for at, kind in enumerate(kinds) if not kind.system}
            columns = ["id", *own]
            with connection.transaction():
                text, rendered = (
                    [pa.concat_arrays(parts) for parts in zip(*chunks, strict=True)]
                    for chunks in (copy_chunks(connection, address, unit, columns, form) for form in CopyForm)
                )
            for column, printed, turned in zip(columns, text, rendered, strict=True):
                assert printed.equals(turned), column
            left |= compare_streams(connection, renderer, name, own)
    assert left <= UNSENDABLE


def compare_streams(connection: Any, renderer: Renderer, name: str, kinds: Mapping[str, Kind]) -> set[str]:
    """Compare what pgoutput sends of all rows in text and, turned into text, in binary; which kinds it cannot send."""
    sent = {column: kind for column, kind in kinds.items() if is_sendable(connection, name, column, kind)}
    sendable = ["id", *sent]
    connection.execute(
        f"CREATE TABLE public.again AS SELECT {', '.join(sendable)} FROM public.{name} LIMIT 0"
    )
    connection.execute("CREATE PUBLICATION again FOR TABLE public.again")
    connection.execute("SELECT pg_create_logical_replication_slot('again', 'pgoutput')")
    try:
        # Servers before 15 send that, too, and autovacuum's transactions at any time: without a message.
        connection.execute("COMMENT ON TABLE public.again IS 'a transaction that changes no row'")
        connection.execute(f"INSERT INTO public.again SELECT {', '.join(sendable)} FROM public.{name}")
        text, sent_binary = peek(connection, "false"), peek(connection, "true")
    finally:
        connection.execute("SELECT pg_drop_replication_slot('again')")
        connection.execute("DROP PUBLICATION again")
        connection.execute("DROP TABLE public.again")
    frames = TextStream(Recorded(sent_binary), renderer, "again", 0)
    assert list(frames.receive().each()) == text
    relation = next(
        message for message in map(decode, (frame[25:] for frame in text)) if isinstance(message, Relation)
    )
    assert len(relation.columns) == len(sendable)
    assert sum(map(len, map(binary.binary_cells, sent_binary))) > len(sent)
    return {kind.name for kind in kinds.values()} - {kind.name for kind in sent.values()}


def peek(connection: Any, binary: str) -> list[bytes]:
    """XLogData frames with the messages of the slot ``again``, without transactions of no message."""
    options = ["proto_version", "1", "publication_names", "again", "binary", binary]
    query = "SELECT data FROM pg_logical_slot_peek_binary_changes('again', NULL, NULL, VARIADIC %s)"
    messages = [message for (message,) in connection.execute(query, [options]).fetchall()]
    empty = {at for at, pair in enumerate(pairwise(messages)) if pair[0][:1] + pair[1][:1] == b"BC"}
    return [b"w" + bytes(24) + m for at, m in enumerate(messages) if not {at, at - 1} & empty]


class Recorded:
    """A stream of frames that were recorded before."""

    timeout: float | None = None
    heard_at = 0.0

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames

    def fileno(self) -> int:
        raise NotImplementedError

    def receive(self) -> Messages:
        return Messages.of(self._frames)

    def send(self, frame: bytes) -> None:
        raise NotImplementedError

    def silence_error(self) -> TransientError:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError


def is_sendable(connection: Any, table: str, column: str, kind: Kind) -> bool:
    """Whether the server sends the column's values in binary, and takes them back."""
    query = f"SELECT {column} FROM public.{table} WHERE {column} IS NOT NULL".encode()
    result = connection.pgconn.exec_params(query, None, result_format=Format.BINARY)
    if result.status != pq.ExecStatus.TUPLES_OK:
        return False
    cells = [result.get_value(row, 0) for row in range(result.ntuples)]
    return kind.oid in binary.PLAIN or all(
        connection.pgconn.exec_params(b"SELECT $1", [cell], [kind.oid], [Format.BINARY]).status
        == pq.ExecStatus.TUPLES_OK
        for cell in cells
    )
