"""The view that readers see and its row in the live table, switched together in one short transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import psycopg
from psycopg import errors, sql

from tailrace.eventstore.errors import Fenced, OperatorError
from tailrace.projections.sinks.contract import HeldByReaders, Target
from tailrace.projections.sinks.postgres.connect import PostgresPlace
from tailrace.projections.sinks.postgres.copy import column_type
from tailrace.projections.sinks.postgres.grants import carry_over
from tailrace.projections.sinks.specs import PostgresTable

# Replacing a view waits for its readers, and new readers queue behind the wait: wait shortly, and not at all for a
# transaction that is older than this already.
LOCK_SECONDS = 1.0
LONG_SECONDS = 1.0

Columns = Sequence[tuple[str, str]]  # name and type (format_type) in order


def generation_table(spec: PostgresTable, generation: int) -> str:
    return f"{spec.table}__g{generation}"


def live_generation(connection: psycopg.Connection, schema: str, store: str, projection: str) -> int | None:
    """The generation of the live row; None without one, or without the live table."""
    known = connection.execute(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = %s AND relname = 'tailrace_live'",
        (schema,),
    ).fetchone()
    if known is None:
        return None
    row = connection.execute(
        sql.SQL("SELECT generation FROM {} WHERE store = %s AND projection = %s").format(
            sql.Identifier(schema, "tailrace_live")
        ),
        (store, projection),
    ).fetchone()
    return None if row is None else int(row[0])


def visible_generation(
    connection: psycopg.Connection, spec: PostgresTable, store: str, projection: str
) -> int | None:
    """The generation of the live row, if the view is still what its promotion made: somebody may have dropped or
    replaced it."""
    generation = live_generation(connection, spec.schema, store, projection)
    if generation is None:
        return None
    row = connection.execute(
        sql.SQL("SELECT definition FROM {} WHERE store = %s AND projection = %s").format(
            sql.Identifier(spec.schema, "tailrace_live")
        ),
        (store, projection),
    ).fetchone()
    made = None if row is None else row[0]
    return generation if made is not None and made == _definition(connection, spec) else None


def _definition(connection: psycopg.Connection, spec: PostgresTable) -> str | None:
    """The view's query as the server prints it, with schemas; None when there is no such view."""
    connection.execute("SET LOCAL search_path = pg_catalog")
    row = connection.execute(
        "SELECT pg_get_viewdef(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = %s AND relname = %s AND relkind = 'v'",
        (spec.schema, spec.table),
    ).fetchone()
    return None if row is None else str(row[0])


def columns_of(connection: psycopg.Connection, schema: str, name: str, kind: Literal["r", "v"]) -> Columns:
    """The columns of a table (r) or view (v); empty when there is none."""
    return connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute a"
        " JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = %s AND relname = %s AND relkind = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (schema, name, kind),
    ).fetchall()


def view_columns(connection: psycopg.Connection, schema: str, name: str) -> Columns:
    """The columns of a view; empty when there is none."""
    return columns_of(connection, schema, name, "v")


def visible_columns(spec: PostgresTable, target: Target) -> dict[str, str]:
    """The columns that readers see of a generation, with their types."""
    return {
        field.name: "jsonb" if field.name in spec.json else column_type(field.type) for field in target.schema
    }


def promote(
    place: PostgresPlace, spec: PostgresTable, target: Target, table: str, expected_live: int | None
) -> None:
    """Point the view at ``table`` and the live row at the target's generation. Raises HeldByReaders where that would
    make other readers of the view wait long."""
    with place.transaction(lock_seconds=LOCK_SECONDS) as connection:
        try:
            _take_turn(connection, place, spec)
            _swap(connection, place, spec, target, table, expected_live)
        except errors.LockNotAvailable as error:
            raise _held_error(place, spec, "") from error


def _take_turn(connection: psycopg.Connection, place: PostgresPlace, spec: PostgresTable) -> None:
    """Promotions into a schema lock the live table one after another: a row that does not exist yet cannot be
    locked."""
    try:
        connection.execute(
            sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(
                sql.Identifier(spec.schema, "tailrace_live")
            )
        )
    except errors.LockNotAvailable as error:
        raise HeldByReaders(
            f"{place.text}: another promotion into schema {spec.schema} goes on", hint="try again"
        ) from error


def _refuse_long(connection: psycopg.Connection, place: PostgresPlace, spec: PostgresTable) -> None:
    """Raises HeldByReaders for an old transaction that holds the view: a promotion queued behind it would hold up every
    later reader. Where its age cannot be seen (pg_read_all_stats), it counts as young."""
    row = connection.execute(
        "SELECT l.pid, a.application_name, a.state, floor(extract(epoch FROM clock_timestamp() - a.xact_start))::bigint"
        " FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = %s AND relname = %s AND l.locktype = 'relation' AND l.granted"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND l.pid <> pg_backend_pid() AND a.xact_start < clock_timestamp() - make_interval(secs => %s)"
        " ORDER BY a.xact_start LIMIT 1",
        (spec.schema, spec.table, LONG_SECONDS),
    ).fetchone()
    if row is not None:
        pid, application, state, age = row
        raise _held_error(
            place, spec, f": server process {pid} ({application or 'no name'}, {state}) for {age} s"
        )


def _held_error(place: PostgresPlace, spec: PostgresTable, who: str) -> HeldByReaders:
    return HeldByReaders(
        f"{place.text}: view {spec.schema}.{spec.table} is held by open transactions{who}",
        hint="end the long ones (pg_stat_activity)",
    )


def _swap(
    connection: psycopg.Connection,
    place: PostgresPlace,
    spec: PostgresTable,
    target: Target,
    table: str,
    expected_live: int | None,
) -> None:
    pointer = sql.Identifier(spec.schema, "tailrace_live")
    current = live_generation(connection, spec.schema, target.store, target.projection)
    seen = visible_generation(connection, spec, target.store, target.projection)
    if not {current, seen} & {target.generation, expected_live}:
        raise Fenced(
            f"projection {target.projection!r} shows generation {current}, not {expected_live}",
            hint="another process promoted meanwhile; look at its generations, then promote again",
        )
    existing = view_columns(connection, spec.schema, spec.table)
    if seen == target.generation:
        return
    if existing and current is not None:
        carry_over(connection, spec.schema, generation_table(spec, current), table, spec.table)
    _refuse_long(connection, place, spec)
    connection.execute(_replacement(connection, spec, target, table, existing))
    try:
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (store, projection, generation, relation, key, definition)"
                " VALUES (%s, %s, %s, %s, %s, %s)"
                " ON CONFLICT (store, projection) DO UPDATE SET generation = excluded.generation,"
                " relation = excluded.relation, key = excluded.key, definition = excluded.definition,"
                " promoted_at = now()"
            ).format(pointer),
            (
                target.store,
                target.projection,
                target.generation,
                spec.table,
                list(target.key),
                _definition(connection, spec),
            ),
        )
    except errors.UniqueViolation:
        raise OperatorError(
            f"view {spec.schema}.{spec.table} belongs to another projection",
            hint="give this projection another table name",
        ) from None


def _replacement(
    connection: psycopg.Connection, spec: PostgresTable, target: Target, table: str, existing: Columns
) -> sql.Composed:
    """CREATE OR REPLACE keeps owner, grants and dependents if the view's columns stay: new ones come last, and one that
    this generation does not have (after a rollback) is NULL."""
    columns_shown = visible_columns(spec, target)
    changed = [
        f"{name} is {kind}, would be {columns_shown[name]}"
        for name, kind in existing
        if name in columns_shown and columns_shown[name] != kind
    ]
    if changed:
        raise OperatorError(
            f"view {spec.schema}.{spec.table} cannot show {target}: " + "; ".join(changed),
            hint="drop the view with what depends on it and promote again, or use another table name",
        )
    order = [name for name, _ in existing] + [name for name in columns_shown if name not in dict(existing)]
    kinds = {**dict(existing), **columns_shown}
    columns = sql.SQL(", ").join(
        sql.SQL("{}::{} AS {}").format(
            sql.Identifier(name) if name in columns_shown else sql.NULL,
            sql.SQL(kinds[name]),
            sql.Identifier(name),
        )
        for name in order
    )
    return sql.SQL("CREATE OR REPLACE VIEW {} {} AS SELECT {} FROM {}").format(
        sql.Identifier(spec.schema, spec.table),
        _options(connection, spec),
        columns,
        sql.Identifier(spec.schema, table),
    )


def _options(connection: psycopg.Connection, spec: PostgresTable) -> sql.Composable:
    """The view's own options (security_barrier …), which CREATE OR REPLACE would reset."""
    row = connection.execute(
        "SELECT reloptions FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = %s AND relname = %s AND relkind = 'v'",
        (spec.schema, spec.table),
    ).fetchone()
    pairs = [option.partition("=") for option in (row[0] if row else None) or ()]
    if not pairs:
        return sql.SQL("")
    settings = (sql.SQL("{}={}").format(sql.Identifier(name), sql.Literal(value)) for name, _, value in pairs)
    return sql.SQL("WITH ({})").format(sql.SQL(", ").join(settings))
