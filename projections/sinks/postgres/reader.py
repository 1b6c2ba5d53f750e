"""Rows of a projection through its view, looked up by key. For anything else, query the view with SQL."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors, sql
from psycopg.adapt import Loader
from psycopg.pq import Format

from tailrace.eventstore.errors import DifferenceFound, TransientError, UsageError
from tailrace.eventstore.settings import SinkSettings
from tailrace.projections.sinks.keys import typed_key
from tailrace.projections.sinks.postgres.connect import PostgresPlace, server_words
from tailrace.projections.sinks.postgres.copy import arrow_type, column_type
from tailrace.projections.sinks.reader import (
    GenerationMovedBack,
    Hit,
    KeyReader,
    Row,
    SeenGeneration,
    cannot_search,
    in_utc,
    nothing_live_error,
)
from tailrace.projections.sinks.specs import PostgresTable


class _JsonText(Loader):
    """jsonb as text, as in every other sink. Its binary form is a version byte before the text (jsonb.c)."""

    format = Format.BINARY

    def load(self, data: Any) -> str:
        return bytes(data)[1:].decode()


class PostgresReader(KeyReader):
    """Looks keys up in ``schema.table`` over one connection. A broken connection is opened again."""

    def __init__(self, spec: PostgresTable, settings: SinkSettings, store: str, projection: str) -> None:
        dsn = settings.dsn.get_secret_value() if settings.dsn else ""
        self._place = PostgresPlace(f"sink {spec.sink!r}", dsn)
        self._spec, self._store, self._projection = spec, store, projection
        self._followed = SeenGeneration(projection)
        self._connection: psycopg.Connection | None = None
        self._key: pa.Schema | None = None
        self._lock = threading.Lock()

    def many(self, keys: Sequence[object]) -> list[Row | None]:
        with self._lock:
            try:
                return self._look_up(keys)
            except GenerationMovedBack:
                raise
            except TransientError:  # a server that was restarted since the last call answers a new connection
                if self._connection is None:
                    raise
                self._drop_connection()
                return self._look_up(keys)

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        view = f"{self._spec.schema}.{self._spec.table}"
        raise cannot_search(self._projection, f"query the view {view} with SQL")

    def close(self) -> None:
        with self._lock:
            self._drop_connection()

    def _look_up(self, keys: Sequence[object]) -> list[Row | None]:
        if not keys:
            return []
        with self._place.translate_errors():
            if self._connection is None:
                self._connection = self._place.connect()
                self._connection.autocommit = True
            columns, cells = self._cells(self._connection, keys)
            try:
                found = self._select(self._connection, columns, cells)
            except errors.UndefinedTable:
                self._key = None
                raise nothing_live_error(self._projection) from None
            except (psycopg.DataError, psycopg.ProgrammingError) as error:
                if error.sqlstate == errors.InsufficientPrivilege.sqlstate:
                    raise
                self._key = None
                wanted = ", ".join(f"{name} {kind}" for name, kind in _column_types(columns))
                said = server_words(error)
                raise UsageError(
                    f"projection {self._projection!r} cannot look up these keys: {said}",
                    hint=f"its key is ({wanted})",
                ) from None
        if found is None:
            self._key = None
            return self._look_up(keys)
        return found

    def _cells(
        self, connection: psycopg.Connection, keys: Sequence[object]
    ) -> tuple[pa.Schema, list[list[object]]]:
        """The key's columns and the values of each. A key that does not fit the columns that were known may fit those
        of a promotion since."""
        if self._key is not None:
            try:
                return self._key, self._to_columns(self._key, keys)
            except UsageError:
                pass
        self._key = self._key_columns(connection)
        return self._key, self._to_columns(self._key, keys)

    def _to_columns(self, columns: pa.Schema, keys: Sequence[object]) -> list[list[object]]:
        rows = [typed_key(key, columns.names, columns, self._projection) for key in keys]
        return [list(column) for column in zip(*rows, strict=True)]

    def _select(
        self, connection: psycopg.Connection, key: pa.Schema, cells: Sequence[list[object]]
    ) -> list[Row | None] | None:
        """The query; None when a promotion has brought other key columns."""
        names = key.names
        arrays = sql.SQL(", ").join(
            sql.SQL("%s::{}[]").format(sql.SQL(kind)) for _, kind in _column_types(key)
        )
        names_of_keys = sql.SQL(", ").join(sql.Identifier(f"key {i}") for i in range(len(names)))
        same = sql.SQL(" AND ").join(
            sql.SQL("found.{} = asked.{}").format(sql.Identifier(name), sql.Identifier(f"key {i}"))
            for i, name in enumerate(names)
        )
        generation, named = None, names
        cursor: psycopg.Cursor[Any] = connection.cursor(binary=True)
        cursor.adapters.register_loader("jsonb", _JsonText)
        cursor.execute(
            sql.SQL(
                "SELECT live.generation, live.key, place, found.*"
                " FROM unnest({arrays}) WITH ORDINALITY AS asked ({asked}, place) LEFT JOIN {view} AS found ON {same}"
                " LEFT JOIN {live} AS live ON live.store = %s AND live.projection = %s"
            ).format(
                arrays=arrays,
                asked=names_of_keys,
                same=same,
                view=sql.Identifier(self._spec.schema, self._spec.table),
                live=sql.Identifier(self._spec.schema, "tailrace_live"),
            ),
            [*cells, self._store, self._projection],
        )
        columns = [column.name for column in cursor.description or ()][3:]
        rows: list[Row | None] = [None] * len(cells[0])
        for live, live_key, place, *values in cursor:
            generation, named = live, live_key
            row = dict(zip(columns, map(in_utc, values), strict=True))
            rows[place - 1] = row if row[names[0]] is not None else None  # a key has no NULL
        if generation is None:
            raise nothing_live_error(self._projection)
        if named != names:
            return None
        self._followed.reads(generation, self._followed.seen)
        return rows

    def _key_columns(self, connection: psycopg.Connection) -> pa.Schema:
        try:
            row = connection.execute(
                sql.SQL("SELECT key FROM {} WHERE store = %s AND projection = %s").format(
                    sql.Identifier(self._spec.schema, "tailrace_live")
                ),
                (self._store, self._projection),
            ).fetchone()
        except errors.UndefinedTable:
            row = None
        if row is None:
            raise nothing_live_error(self._projection)
        kinds: dict[str, str] = dict(
            connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
                " WHERE attrelid = to_regclass(%s) AND attnum > 0",
                (sql.Identifier(self._spec.schema, self._spec.table).as_string(connection),),
            ).fetchall()
        )
        if not kinds:
            raise nothing_live_error(self._projection)
        found = {name: arrow_type(kinds.get(name, "")) for name in row[0]}
        if None in found.values():
            raise DifferenceFound(
                f"{self._place.text}: somebody changed the view {self._spec.schema}.{self._spec.table}",
                hint=f"tailrace rebuild {self._projection} makes it right",
            )
        return pa.schema(list(found.items()))

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._key = None


def _column_types(columns: pa.Schema) -> list[tuple[str, str]]:
    """Columns with the names that the server has for their types."""
    return [(column.name, column_type(column.type)) for column in columns]
