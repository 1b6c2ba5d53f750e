"""The view that readers see, and the live row beside it: switched together, in one short transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import psycopg
from psycopg import errors, sql

from eventstore.errors import Fenced, OperatorError, TransientError
from projections.sinks.base import HeldByReaders, Target
from projections.sinks.postgres_copy import column_type
from projections.sinks.postgres_grants import carry_over
from projections.sinks.postgres_place import PostgresPlace
from projections.specs import PostgresTable

# Replacing a view waits for its readers, and new readers queue behind the wait: wait shortly.
LOCK_SECONDS = 1.0

Columns = Sequence[tuple[str, str]]  # name and type (format_type) in order


def generation_table(spec: PostgresTable, generation: int) -> str:
    return f"{spec.table}__g{generation}"


def live(connection: psycopg.Connection, schema: str, store: str, projection: str) -> int | None:
    """The generation of the live row; None without one, or without the table."""
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


def shown(connection: psycopg.Connection, spec: PostgresTable, store: str, projection: str) -> int | None:
    """The generation of the live row if the view still is what its promotion made it: somebody may have dropped it
    since, or put something else in its place."""
    generation = live(connection, spec.schema, store, projection)
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
    """The view's query as the server prints it, every name with its schema; None when there is no such view."""
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


def shown_columns(spec: PostgresTable, target: Target) -> dict[str, str]:
    """The columns readers see of a generation, with their types."""
    return {
        field.name: "jsonb" if field.name in spec.json else column_type(field.type) for field in target.schema
    }


def promote(
    place: PostgresPlace, spec: PostgresTable, target: Target, table: str, expected_live: int | None
) -> None:
    """Point the view at ``table`` and the live row at the target's generation."""
    try:
        with place.transaction(lock_seconds=LOCK_SECONDS) as connection:
            _swap(connection, spec, target, table, expected_live)
    except TransientError as error:
        if not isinstance(error.__cause__, errors.LockNotAvailable):
            raise
        raise HeldByReaders(
            f"{place.text}: view {spec.schema}.{spec.table} is held by open transactions",
            hint="end the long ones (pg_stat_activity)",
        ) from error


def _swap(
    connection: psycopg.Connection, spec: PostgresTable, target: Target, table: str, expected_live: int | None
) -> None:
    pointer = sql.Identifier(spec.schema, "tailrace_live")
    # No row can be locked before there is one: promotions of this sink's schema take turns at the table.
    connection.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(pointer))
    current = live(connection, spec.schema, target.store, target.projection)
    seen = shown(connection, spec, target.store, target.projection)
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
    """CREATE OR REPLACE keeps owner, grants and dependents, on condition that the view's columns stay as they are:
    new ones come behind, one that this generation does not have (a rollback to before it) is NULL."""
    columns_shown = shown_columns(spec, target)
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
