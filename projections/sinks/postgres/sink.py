"""Generations as logged Postgres tables, behind a view. A step is one transaction; a first step, which nobody reads
yet, is one for each bucket.

``schema.table__g<N>`` holds generation N. Two small tables are beside it: ``tailrace_fences`` (the fence of each
generation) and ``tailrace_live`` (the generation that the view shows). Rows and fence change in one transaction, and so
do view and live row. Tables are logged: an unlogged one is empty after a crash, whatever its fence says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import psycopg
import pyarrow as pa
from psycopg import errors, sql

from tailrace.eventstore.errors import DifferenceFound, UsageError
from tailrace.eventstore.model.position import Fence
from tailrace.eventstore.settings import SinkSettings
from tailrace.projections.sinks.contract import (
    SinkSnapshot,
    Target,
    check_step,
    column_problems,
    keys_for,
    raise_problems,
    require_filled,
    require_same_log,
    rows_for,
)
from tailrace.projections.sinks.postgres import json, view
from tailrace.projections.sinks.postgres.check import find_problems, foreign_relation
from tailrace.projections.sinks.postgres.connect import PostgresPlace, limit_locks
from tailrace.projections.sinks.postgres.copy import column_type, copy_in, copy_out
from tailrace.projections.sinks.postgres.load_progress import COLUMN, LoadedBuckets, LoadingRow
from tailrace.projections.sinks.postgres.view import generation_table
from tailrace.projections.sinks.specs import PostgresTable

# Who reads a retired table keeps it from being dropped, and others who read it queue behind the wait: wait shortly, but
# longer than deadlock_timeout's default, after which the server ends an autovacuum that is in the way.
DROP_LOCK_SECONDS = 1.5
_UPSERTS, _DELETES = "tailrace_upserts", "tailrace_deletes"  # temporary tables
_HELD_BYTES = 1 << 20
"""Rows that wait to be copied together: a COPY costs as much as many small rows."""
_LEDGER_LOCK = 0x7461696C  # any number: two creators of the ledger tables take turns

Columns = Mapping[str, str]
"""The types of columns by their names."""


class PostgresSink:
    """The atomic sink for ``PostgresTable``."""

    kind: Literal["atomic", "monotonic"] = "atomic"

    def __init__(self, spec: PostgresTable, settings: SinkSettings) -> None:
        dsn = settings.dsn.get_secret_value() if settings.dsn else ""
        self._spec = spec
        self._place = PostgresPlace(f"sink {spec.sink!r}", dsn)

    def check(self, target: Target) -> list[str]:
        problems = column_problems(target)
        raise_problems(target, problems)
        with self._place.transaction(read_only=True) as connection:
            table = generation_table(self._spec, target.generation)
            found = find_problems(connection, self._spec, target, table)
        raise_problems(target, found.problems)
        return found.remarks

    def create(self, target: Target) -> None:
        raise_problems(target, column_problems(target))
        table = generation_table(self._spec, target.generation)
        with self._place.transaction() as connection:
            self._create_ledger(connection)
            exists = _exists(connection, self._spec.schema, table)
            if problem := foreign_relation(connection, self._spec, target, table):
                raise_problems(target, [problem])
            require_same_log(target, self._owner_in(connection, target))
            self._register(connection, target, table)
            if (
                exists
                and self._locked_state(connection, target)[0] is None
                and not self._can_resume(connection, target)
            ):
                # An earlier try: its columns may not be today's.
                connection.execute(sql.SQL("DROP TABLE {}").format(self._identifier(table)))
                exists = False
            if not exists:
                self._create_table(connection, target, table)
                self._forget_fence(connection, target)

    def owner(self, target: Target) -> str | None:
        with self._place.transaction(read_only=True) as connection:
            return self._owner_in(connection, target)

    def _owner_in(self, connection: psycopg.Connection, target: Target) -> str | None:
        """None, too, for a generation that was dropped by hand."""
        if not _exists(connection, self._spec.schema, "tailrace_fences"):
            return None
        row = connection.execute(
            sql.SQL(
                "SELECT log_id, relation FROM {} WHERE store = %s AND projection = %s AND generation = %s"
            ).format(self._identifier("tailrace_fences")),
            (target.store, target.projection, target.generation),
        ).fetchone()
        return row[0] if row is not None and _exists(connection, self._spec.schema, row[1]) else None

    @contextmanager
    def load(self, target: Target, expected: Fence | None, to: Fence) -> Iterator[PostgresLoad]:
        with self._place.transaction() as connection:
            found, columns = self._locked_state(connection, target)
            check_step(target, found, expected, to)
            self._check_columns(target, columns)
            begun = self._loaded_buckets(connection, target, to) if expected is None else None
            load = PostgresLoad(
                connection, self._spec, target, begun, self._loading_row(connection, target), to
            )
            yield load
            if not load.committed:
                connection.rollback()

    def _loading_row(self, connection: psycopg.Connection, target: Target) -> LoadingRow:
        return LoadingRow(connection, self._identifier("tailrace_fences"), target)

    def _can_resume(self, connection: psycopg.Connection, target: Target) -> bool:
        """Whether the table has buckets of a first load, in the right columns."""
        table = generation_table(self._spec, target.generation)
        begun = self._loading_row(connection, target).read() is not None
        return begun and not self._changed_columns(
            target, dict(view.columns_of(connection, self._spec.schema, table, "r"))
        )

    def _loaded_buckets(self, connection: psycopg.Connection, target: Target, to: Fence) -> LoadedBuckets:
        """The buckets of a first load to this fence that are complete. Rows of any other load are removed."""
        row = self._loading_row(connection, target)
        loaded = row.read()
        if loaded is not None and loaded.is_of(to):
            return loaded
        if loaded is not None:
            table = self._identifier(generation_table(self._spec, target.generation))
            connection.execute(sql.SQL("TRUNCATE {}").format(table))
            row.forget()
        return LoadedBuckets.of(to)

    def fence(self, target: Target) -> Fence | None:
        with self._place.transaction(read_only=True) as connection:
            return self._fence_in(connection, target)

    def promote(self, target: Target, expected_live: int | None) -> None:
        require_filled(target, self.fence(target))
        table = generation_table(self._spec, target.generation)
        view.promote(self._place, self._spec, target, table, expected_live)

    def live(self, store: str, projection: str) -> int | None:
        with self._place.transaction(read_only=True) as connection:
            return view.visible_generation(connection, self._spec, store, projection)

    def drop(self, target: Target) -> None:
        with self._place.transaction() as connection:
            if not _exists(connection, self._spec.schema, "tailrace_fences"):
                return
            require_same_log(target, self._owner_in(connection, target))
            live = view.live_generation(connection, self._spec.schema, target.store, target.projection)
            if live == target.generation:
                raise UsageError(f"{target} is live", hint="promote another generation first")
            fences = sql.Identifier(self._spec.schema, "tailrace_fences")
            row = connection.execute(
                sql.SQL(
                    "DELETE FROM {} WHERE store = %s AND projection = %s AND generation = %s RETURNING relation"
                ).format(fences),
                (target.store, target.projection, target.generation),
            ).fetchone()
            if row is not None:
                limit_locks(connection, DROP_LOCK_SECONDS)
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._identifier(row[0])))

    def scan(self, target: Target) -> Iterator[pa.RecordBatch]:
        with self._place.transaction(read_only=True) as connection:
            yield from self._rows(connection, target)

    @contextmanager
    def snapshot(self, target: Target) -> Iterator[SinkSnapshot]:
        with self._place.transaction(read_only=True, snapshot=True) as connection:
            yield SinkSnapshot(self._fence_in(connection, target), self._rows(connection, target))

    def _rows(self, connection: psycopg.Connection, target: Target) -> Iterator[pa.RecordBatch]:
        table = generation_table(self._spec, target.generation)
        columns = dict(view.columns_of(connection, self._spec.schema, table, "r"))
        if columns:
            self._check_columns(target, columns)
            yield from copy_out(connection.cursor(), self._identifier(table), target.schema)

    def _fence_in(self, connection: psycopg.Connection, target: Target) -> Fence | None:
        try:
            return self._read_state(connection, target, sql.SQL(""))[0]
        except errors.UndefinedTable:  # the ledger
            connection.rollback()
            return None

    def _changed_columns(self, target: Target, found: Columns) -> list[str]:
        return [
            f"{field.name} is {found.get(field.name, 'gone')}, was {self._column_type(field)}"
            for field in target.schema
            if found.get(field.name) != self._column_type(field)
        ]

    def _check_columns(self, target: Target, found: Columns) -> None:
        changed = self._changed_columns(target, found)
        if changed:
            table = generation_table(self._spec, target.generation)
            raise DifferenceFound(
                f"{self._place.text}: somebody changed the columns of {self._spec.schema}.{table}: "
                + "; ".join(changed),
                hint=f"tailrace rebuild {target.projection} makes it right",
            )

    def _column_type(self, field: pa.Field) -> str:
        return "json" if field.name in self._spec.json else column_type(field.type)

    def _identifier(self, table: str) -> sql.Identifier:
        return sql.Identifier(self._spec.schema, table)

    def _create_ledger(self, connection: psycopg.Connection) -> None:
        schema = self._spec.schema
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LEDGER_LOCK,))
        known = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
        if known is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        if not _exists(connection, schema, "tailrace_fences"):
            connection.execute(
                sql.SQL(
                    "CREATE TABLE {} (store text, projection text, generation bigint, relation text NOT NULL UNIQUE,"
                    " log_id text, epoch bigint, epoch_hash text, written_at timestamptz NOT NULL DEFAULT now(),"
                    " loading text, PRIMARY KEY (store, projection, generation))"
                ).format(self._identifier("tailrace_fences"))
            )
        if COLUMN not in dict(view.columns_of(connection, schema, "tailrace_fences", "r")):
            connection.execute(
                sql.SQL("ALTER TABLE {} ADD COLUMN loading text").format(self._identifier("tailrace_fences"))
            )
        if not _exists(connection, schema, "tailrace_live"):
            live = self._identifier("tailrace_live")
            connection.execute(
                sql.SQL(
                    "CREATE TABLE {} (store text, projection text, generation bigint NOT NULL,"
                    " relation text NOT NULL UNIQUE, key text[] NOT NULL, definition text,"
                    " promoted_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (store, projection))"
                ).format(live)
            )
            # Who may read a view may know which generation it shows, and by which key.
            connection.execute(sql.SQL("GRANT SELECT ON {} TO PUBLIC").format(live))

    def _register(self, connection: psycopg.Connection, target: Target, table: str) -> None:
        connection.execute(
            sql.SQL(
                "INSERT INTO {} AS f (store, projection, generation, relation, log_id) VALUES (%s, %s, %s, %s, %s)"
                " ON CONFLICT (store, projection, generation) DO UPDATE SET log_id = EXCLUDED.log_id"
                " WHERE f.epoch IS NULL"
            ).format(self._identifier("tailrace_fences")),
            (target.store, target.projection, target.generation, table, target.log_id),
        )

    def _create_table(self, connection: psycopg.Connection, target: Target, table: str) -> None:
        columns = [
            sql.SQL("{} {}").format(
                sql.Identifier(field.name),
                sql.SQL(self._column_type(field)),
            )
            for field in target.schema
        ]
        parts = sql.SQL(", ").join([*columns, *map(json.guard, self._spec.json)])
        connection.execute(sql.SQL("CREATE TABLE {} ({})").format(self._identifier(table), parts))
        comment = f"Tailrace: {target} of store {target.store!r}; written by it alone"
        connection.execute(
            sql.SQL("COMMENT ON TABLE {} IS {}").format(self._identifier(table), sql.Literal(comment))
        )

    def _forget_fence(self, connection: psycopg.Connection, target: Target) -> None:
        """A fence that outlived its table (dropped by hand) says nothing about the new one."""
        connection.execute(
            sql.SQL(
                "UPDATE {} SET log_id = %s, epoch = NULL, epoch_hash = NULL, loading = NULL"
                " WHERE store = %s AND projection = %s AND generation = %s"
            ).format(self._identifier("tailrace_fences")),
            (target.log_id, target.store, target.projection, target.generation),
        )

    def _locked_state(self, connection: psycopg.Connection, target: Target) -> tuple[Fence | None, Columns]:
        try:
            return self._read_state(connection, target, sql.SQL(" FOR UPDATE OF f"), needed=True)
        except errors.UndefinedTable:
            raise UsageError(f"{target} does not exist in the sink", hint="create it first") from None

    def _read_state(
        self, connection: psycopg.Connection, target: Target, lock: sql.SQL, *, needed: bool = False
    ) -> tuple[Fence | None, Columns]:
        """A generation's fence, and the columns of its table: each step needs both, and asks once. A fence without a
        table, which was dropped by hand, is none."""
        row = connection.execute(
            sql.SQL(
                "SELECT log_id, epoch, epoch_hash, (SELECT json_object_agg(attname, format_type(atttypid, atttypmod))"
                " FROM pg_attribute JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace"
                " WHERE nspname = %s AND relname = %s AND relkind = 'r' AND attnum > 0 AND NOT attisdropped)"
                " FROM {} AS f WHERE store = %s AND projection = %s AND generation = %s{}"
            ).format(self._identifier("tailrace_fences"), lock),
            (
                self._spec.schema,
                generation_table(self._spec, target.generation),
                target.store,
                target.projection,
                target.generation,
            ),
        ).fetchone()
        if row is None and needed:
            raise UsageError(f"{target} does not exist in the sink", hint="create it first")
        if row is None:
            return None, {}
        log_id, epoch, epoch_hash, columns = row
        if epoch is None or columns is None:
            return None, columns or {}
        return Fence(
            log_id, target.projection, target.generation, epoch=epoch, epoch_hash=epoch_hash
        ), columns


class PostgresLoad:
    """One step in an open transaction. The first step goes straight into the table, a transaction for each bucket, and
    the key is built afterwards. Later steps are gathered in temporary tables and applied by up to three statements.
    ``begun``: the complete buckets of a first step."""

    def __init__(
        self,
        connection: psycopg.Connection,
        spec: PostgresTable,
        target: Target,
        begun: LoadedBuckets | None,
        row: LoadingRow,
        to: Fence,
    ) -> None:
        self.committed = False
        self._connection = connection
        self._cursor: psycopg.Cursor[Any] = connection.cursor()
        self._spec, self._target, self._to = spec, target, to
        self._begun, self._row = begun, row
        self._table = sql.Identifier(spec.schema, generation_table(spec, target.generation))
        self._key = sql.SQL(", ").join(map(sql.Identifier, target.key))
        self._gathered: set[str] = set()
        self._held: dict[str, list[pa.Table]] = {_UPSERTS: [], _DELETES: []}

    def write(self, bucket: int, upserts: pa.Table, deletes: pa.Table) -> None:
        rows = rows_for(self._target, upserts)
        if self._begun is not None:
            self._copy(self._table, rows)
            return
        for name, some in ((_UPSERTS, rows), (_DELETES, keys_for(self._target, deletes))):
            if some.num_rows:
                self._held[name].append(some)
            if sum(each.nbytes for each in self._held[name]) > _HELD_BYTES:
                self._gather(name)

    def _copy(self, relation: sql.Composable, rows: pa.Table) -> None:
        with json.name_column(
            self._connection, rows, [name for name in self._spec.json if name in rows.column_names]
        ):
            copy_in(self._cursor, relation, rows)

    def _gather(self, name: str) -> None:
        """The rows held, into a temporary table, which is made for the first ones: it costs as much as many of them."""
        if not self._held[name]:
            return
        if name not in self._gathered:
            columns = self._key if name == _DELETES else sql.SQL("*")
            self._cursor.execute(
                sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                    sql.Identifier(name), columns, self._table
                )
            )
            self._gathered.add(name)
        self._copy(sql.Identifier("pg_temp", name), pa.concat_tables(self._held[name]))
        self._held[name] = []

    @property
    def done(self) -> tuple[int, ...]:
        return self._begun.buckets if self._begun else ()

    def bucket_done(self, bucket: int) -> None:
        if self._begun is not None:
            self._begun = self._row.add(self._begun, bucket)

    def commit(self) -> None:
        if self._begun is not None:
            self._finish_table()
            self._row.forget()
        else:
            self._apply()
        to = self._to
        self._cursor.execute(
            sql.SQL(
                "UPDATE {} SET log_id = %s, epoch = %s, epoch_hash = %s, written_at = now()"
                " WHERE store = %s AND projection = %s AND generation = %s"
            ).format(sql.Identifier(self._spec.schema, "tailrace_fences")),
            (to.log_id, to.epoch, to.epoch_hash, self._target.store, to.projection, to.generation),
        )
        self._connection.commit()
        self.committed = True

    def _finish_table(self) -> None:
        self._cursor.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(self._table, self._key))
        for columns in self._spec.indexes:
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            self._cursor.execute(sql.SQL("CREATE INDEX ON {} ({})").format(self._table, names))
        self._cursor.execute(sql.SQL("ANALYZE {}").format(self._table))

    def _apply(self) -> None:
        for name in self._held:
            self._gather(name)
        if _DELETES in self._gathered:
            same_key = sql.SQL(" AND ").join(
                sql.SQL("old.{0} = gone.{0}").format(sql.Identifier(name)) for name in self._target.key
            )
            self._cursor.execute(
                sql.SQL("DELETE FROM {} AS old USING {} AS gone WHERE {}").format(
                    self._table, sql.Identifier("pg_temp", _DELETES), same_key
                )
            )
        if _UPSERTS in self._gathered:
            self._upsert(sql.Identifier("pg_temp", _UPSERTS))

    def _upsert(self, gathered: sql.Composable) -> None:
        json.check(self._connection, gathered, self._spec.json)
        values = [name for name in self._target.schema.names if name not in self._target.key]
        changes = sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in values
        )
        action = sql.SQL("DO UPDATE SET {}").format(changes) if values else sql.SQL("DO NOTHING")
        names = sql.SQL(", ").join(map(sql.Identifier, self._target.schema.names))
        self._cursor.execute(
            sql.SQL("INSERT INTO {0} ({1}) SELECT {1} FROM {2} ON CONFLICT ({3}) {4}").format(
                self._table, names, gathered, self._key, action
            )
        )


def _exists(connection: psycopg.Connection, schema: str, name: str) -> bool:
    row = connection.execute(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = %s",
        (schema, name),
    ).fetchone()
    return row is not None
