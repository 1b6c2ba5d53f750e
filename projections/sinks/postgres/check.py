"""What would go wrong in a Postgres sink, found before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from tailrace.projections.sinks.contract import Target
from tailrace.projections.sinks.postgres.copy import column_type
from tailrace.projections.sinks.postgres.view import (
    columns_of,
    generation_table,
    live_generation,
    view_columns,
    visible_columns,
)
from tailrace.projections.sinks.specs import PostgresTable

NAME_BYTES = 63  # NAMEDATALEN - 1; a longer name would be cut silently
_GENERATION_DIGITS = 6
_LEDGER = ("tailrace_fences", "tailrace_live")


@dataclass(slots=True)
class Findings:
    """``problems`` hinder the build, ``remarks`` do not."""

    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def find_problems(
    connection: psycopg.Connection, spec: PostgresTable, target: Target, table: str
) -> Findings:
    """Check names, privileges, existing tables, the view's columns and publications."""
    findings = Findings()
    findings.problems += _name_problems(spec, target)
    findings.problems += _server_problems(connection, spec)
    if not findings.problems:
        findings.problems += _relation_problems(connection, spec, target, table)
        (findings.remarks if target.preview else findings.problems).extend(
            _view_problems(connection, spec, target)
        )
        _look_at_publications(connection, spec, target, table, findings)
    return findings


def published_by(connection: psycopg.Connection, schema: str, table: str) -> list[str]:
    """The publications of this database that send changes of a table, or would if it existed: FOR ALL TABLES, those of
    its schema, or its own."""
    names = connection.execute(
        "SELECT pubname FROM pg_publication WHERE puballtables"
        " UNION SELECT pubname FROM pg_publication_tables WHERE schemaname = %(s)s AND tablename = %(t)s",
        {"s": schema, "t": table},
    ).fetchall()
    if connection.info.server_version >= 150000:
        names += connection.execute(
            "SELECT pubname FROM pg_publication p JOIN pg_publication_namespace ON pnpubid = p.oid"
            " JOIN pg_namespace n ON n.oid = pnnspid WHERE nspname = %s",
            (schema,),
        ).fetchall()
    return sorted({str(name) for (name,) in names})


def foreign_relation(
    connection: psycopg.Connection, spec: PostgresTable, target: Target, table: str
) -> str | None:
    """What has the name of a generation's table, and what to do; None when nothing has. A table of another projection
    must not be dropped, so the message names its owner."""
    owner = _table_owner(connection, spec, table)
    if owner == (target.store, target.projection, target.generation):
        return None
    if owner is not None:
        store, projection, generation = owner
        return (
            f"{spec.schema}.{table} is generation {generation} of projection {projection!r} of store {store!r}:"
            " use another table name"
        )
    if _relation_kind(connection, spec.schema, table) is None:
        return None
    return f"{spec.schema}.{table} exists and is not ours: rename or drop it, or give the projection another table name"


def _table_owner(
    connection: psycopg.Connection, spec: PostgresTable, table: str
) -> tuple[str, str, int] | None:
    """(store, projection, generation) of a table in the ledger."""
    if _relation_kind(connection, spec.schema, "tailrace_fences") is None:
        return None
    row = connection.execute(
        sql.SQL("SELECT store, projection, generation FROM {} WHERE relation = %s").format(
            sql.Identifier(spec.schema, "tailrace_fences")
        ),
        (table,),
    ).fetchone()
    return None if row is None else (row[0], row[1], row[2])


def _name_problems(spec: PostgresTable, target: Target) -> list[str]:
    room = NAME_BYTES - len("__g") - _GENERATION_DIGITS
    problems = []
    if len(spec.table.encode()) > room:
        problems.append(
            f"table name {spec.table!r} has {len(spec.table.encode())} bytes; generations are named"
            f" {spec.table}__g<number>, so it may have {room}"
        )
    problems += [
        f"{what} name {name!r} has {len(name.encode())} bytes, Postgres keeps {NAME_BYTES}"
        for what, name in [("schema", spec.schema), *(("column", name) for name in target.schema.names)]
        if len(name.encode()) > NAME_BYTES
    ]
    if spec.table in _LEDGER:
        problems.append(f"table name {spec.table!r} is taken by Tailrace itself")
    columns = set(target.schema.names)
    problems += [
        f"index on {', '.join(index)}: the output has no column {name!r}"
        for index in spec.indexes
        for name in index
        if name not in columns
    ]
    problems += [f"json column {name!r} is not in the output" for name in spec.json if name not in columns]
    problems += [f"json column {name!r} is part of the key" for name in spec.json if name in target.key]
    problems += [
        f"json column {name!r} has type {target.schema.field(name).type}, it must be text"
        for name in spec.json
        if name in columns and column_type(target.schema.field(name).type) != "text"
    ]
    return problems


def _server_problems(connection: psycopg.Connection, spec: PostgresTable) -> list[str]:
    row = connection.execute(
        "SELECT pg_is_in_recovery(), current_user::text, current_database()::text,"
        " has_database_privilege(current_database(), 'CREATE'), has_database_privilege(current_database(), 'TEMP'),"
        " (SELECT has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE')"
        "  FROM pg_namespace WHERE nspname = %s)",
        (spec.schema,),
    ).fetchone()
    assert row is not None
    standby, user, database, may_create_schema, may_use_temp, may_use_schema = row
    if standby:
        return ["the server is a standby and takes no writes: name the primary in the DSN"]
    problems = []
    if not may_use_temp:
        problems.append(f"missing privilege: GRANT TEMP ON DATABASE {_q(database)} TO {_q(user)}")
    if may_use_schema is None and not may_create_schema:
        problems.append(
            f"schema {spec.schema!r} does not exist: CREATE SCHEMA {_q(spec.schema)} AUTHORIZATION {_q(user)}"
        )
    if may_use_schema is False:
        problems.append(f"missing privilege: GRANT USAGE, CREATE ON SCHEMA {_q(spec.schema)} TO {_q(user)}")
    return problems


def _relation_problems(
    connection: psycopg.Connection, spec: PostgresTable, target: Target, table: str
) -> list[str]:
    problems = []
    view = f"{spec.schema}.{spec.table}"
    kind = _relation_kind(connection, spec.schema, spec.table)
    if kind not in (None, "v"):
        problems.append(
            f"{view} exists and is no view: rename or drop it, or give the projection another table name"
        )
    owner = _view_owner(connection, spec)
    if owner is not None and owner != (target.store, target.projection):
        problems.append(f"{view} shows projection {owner[1]!r} of store {owner[0]!r}: use another table name")
    if kind == "v" and owner is None:
        problems.append(f"{view} is a view that Tailrace did not make: drop it, or use another table name")
    if kind == "v" and owner is not None:
        row = connection.execute(
            "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE nspname = %s AND relname = %s",
            (spec.schema, spec.table),
        ).fetchone()
        if row is not None and not row[0]:
            problems.append(f"{view} belongs to another user: ALTER VIEW {view} OWNER TO the sink's user")
    if stands_in_the_way := foreign_relation(connection, spec, target, table):
        problems.append(stands_in_the_way)
    return problems


def _view_problems(connection: psycopg.Connection, spec: PostgresTable, target: Target) -> list[str]:
    """Where the new columns do not fit a view that is in use. A column that the live generation lacks, too, is no loss:
    after a rollback the view has it as NULL."""
    shown = visible_columns(spec, target)
    changes = []
    live = live_generation(connection, spec.schema, target.store, target.projection)
    held = (
        None if live is None else dict(columns_of(connection, spec.schema, generation_table(spec, live), "r"))
    )
    for name, kind in view_columns(connection, spec.schema, spec.table):
        if name not in shown:
            changes += [f"column {name!r} is gone"] if not held or name in held else []
        elif shown[name] != kind:
            changes.append(f"column {name!r} changes from {kind} to {shown[name]}")
    if not changes:
        return []
    view = f"{_q(spec.schema)}.{_q(spec.table)}"
    return [
        f"view {view} cannot take the new columns ({'; '.join(changes)}): keep them as they are and add new ones,"
        f" or build under another table name and move readers over, or DROP VIEW {view} (readers then have nothing"
        " until the promotion)"
    ]


def _look_at_publications(
    connection: psycopg.Connection, spec: PostgresTable, target: Target, table: str, findings: Findings
) -> None:
    for publication in published_by(connection, spec.schema, table):
        # Publications of a store start with its name.
        if publication == target.store or publication.startswith(f"{target.store}_"):
            findings.problems.append(
                f"{spec.schema}.{table} would be captured again by publication {publication!r} of its own source:"
                " write to another schema or database, or publish the source's tables by name"
            )
        else:
            findings.remarks.append(
                f"publication {publication!r} sends the changes of {spec.schema}.{table} too"
            )


def _view_owner(connection: psycopg.Connection, spec: PostgresTable) -> tuple[str, str] | None:
    """(store, projection) of the live row that names the view."""
    if _relation_kind(connection, spec.schema, "tailrace_live") is None:
        return None
    row = connection.execute(
        sql.SQL("SELECT store, projection FROM {} WHERE relation = %s").format(
            sql.Identifier(spec.schema, "tailrace_live")
        ),
        (spec.table,),
    ).fetchone()
    return None if row is None else (row[0], row[1])


def _relation_kind(connection: psycopg.Connection, schema: str, name: str) -> str | None:
    row = connection.execute(
        "SELECT relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = %s AND relname = %s",
        (schema, name),
    ).fetchone()
    return None if row is None else str(row[0])


def _q(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
