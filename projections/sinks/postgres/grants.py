"""Who may read a generation's table: a promotion grants on the new table what is granted on the live one.

Readers of a view need rights on the table behind it if the view checks their own (``security_invoker``); otherwise its
owner needs them. Nothing is revoked: who may read a retired table could read it without the view before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from tailrace.eventstore.errors import OperatorError


@dataclass(frozen=True, slots=True)
class Grant:
    """One privilege of one role on a table, or on one of its columns. Without ``grantee`` it is everybody's."""

    privilege: str
    column: str | None
    grantee: str | None
    grantable: bool = False


def carry_over(connection: psycopg.Connection, schema: str, live: str, table: str, view: str) -> None:
    """Grant on ``table`` what is granted on ``live`` and not yet on it, and what the view's owner needs. Raises
    OperatorError when our user may not."""
    live_one, next_one, view_one = (_oid(connection, schema, name) for name in (live, table, view))
    row = connection.execute(
        "SELECT pg_get_userbyid(relowner), pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s",
        (next_one,),
    ).fetchone()
    assert row is not None
    owner, may_grant = row
    old, columns = _columns(connection, live_one), _columns(connection, next_one)
    wanted = _grants(connection, live_one) | _owner_grants(connection, [live_one, view_one], next_one)
    wanted |= _new_column_grants(old, columns, wanted)
    there = _grants(connection, next_one)
    missing = sorted(
        (
            grant
            for grant in wanted - there
            if grant.grantee != owner
            and (grant.column is None or grant.column in columns)
            and replace(grant, grantable=True) not in there
        ),
        key=str,
    )
    if not missing:
        return
    statements = sql.SQL("; ").join(_statement(grant, schema, table) for grant in missing)
    if not may_grant:
        raise OperatorError(
            f"{schema}.{table} belongs to {owner}, and the sink's user may not grant on it what {live} grants",
            hint=f"as {owner}: {statements.as_string(connection)}; then promote again;"
            " until then readers see what they saw",
        )
    connection.execute(statements)


def _oid(connection: psycopg.Connection, schema: str, name: str) -> int | None:
    row = connection.execute(
        "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = %s AND relname = %s",
        (schema, name),
    ).fetchone()
    return None if row is None else int(row[0])


def _columns(connection: psycopg.Connection, table: int | None) -> set[str]:
    rows = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped", (table,)
    ).fetchall()
    return {str(name) for (name,) in rows}


def _grants(connection: psycopg.Connection, table: int | None) -> set[Grant]:
    """The privileges of roles other than the owner on a table and its columns."""
    rows = connection.execute(
        "SELECT privilege_type, NULL, rolname, is_grantable"
        " FROM pg_class CROSS JOIN aclexplode(relacl) LEFT JOIN pg_roles r ON r.oid = grantee"
        " WHERE pg_class.oid = %(table)s AND grantee <> relowner"
        " UNION SELECT privilege_type, attname, rolname, is_grantable"
        " FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND NOT attisdropped"
        " CROSS JOIN aclexplode(attacl) LEFT JOIN pg_roles r ON r.oid = grantee"
        " WHERE pg_class.oid = %(table)s AND grantee <> relowner",
        {"table": table},
    ).fetchall()
    return {Grant(*row) for row in rows}


def _owner_grants(
    connection: psycopg.Connection, live_and_view: Sequence[int | None], table: int | None
) -> set[Grant]:
    """The view's owner reads the table for all readers, unless the view checks their own rights. If the sink had
    another user earlier, the live table's owner may be a reader."""
    rows = connection.execute(
        "SELECT DISTINCT rolname FROM pg_class c JOIN pg_roles r ON r.oid = relowner"
        " WHERE c.oid = ANY(%s) AND NOT has_table_privilege(r.oid, %s, 'SELECT') AND NOT EXISTS"
        " (SELECT FROM pg_options_to_table(reloptions)"
        "  WHERE option_name = 'security_invoker' AND option_value::boolean)",
        (live_and_view, table),
    ).fetchall()
    return {Grant("SELECT", None, name) for (name,) in rows}


def _new_column_grants(old: set[str], new: set[str], grants: Collection[Grant]) -> set[Grant]:
    """The view reads each column, so a role that was granted all columns one by one needs the new ones too."""
    readable = defaultdict[str | None, set[str]](set)
    for grant in grants:
        if grant.column is not None and grant.privilege == "SELECT":
            readable[grant.grantee].add(grant.column)
    return {
        Grant("SELECT", column, grantee)
        for grantee, columns in readable.items()
        if columns >= old
        for column in new - old
    }


def _statement(grant: Grant, schema: str, table: str) -> sql.Composed:
    return sql.SQL("GRANT {}{} ON {} TO {}{}").format(
        sql.SQL(grant.privilege),
        sql.SQL(" ({})").format(sql.Identifier(grant.column)) if grant.column is not None else sql.SQL(""),
        sql.Identifier(schema, table),
        sql.Identifier(grant.grantee) if grant.grantee is not None else sql.SQL("PUBLIC"),
        sql.SQL(" WITH GRANT OPTION" if grant.grantable else ""),
    )
