"""One statement on the caller's connection, whatever library it is of, in the caller's transaction."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg.rows import tuple_row
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tailrace.eventstore.errors import OperatorError, TailraceError, UsageError, manual_page

AnyConnection = psycopg.Connection[Any] | Connection | Session

_PARAMETER = re.compile(r"%\((\w+)\)s")
_NOT_INSTALLED = {"42883", "3F000", "42P01"}  # no such function, schema, table
_FORBIDDEN = "42501"


def run(
    connection: AnyConnection, query: LiteralString, values: Mapping[str, object]
) -> Sequence[tuple[Any, ...]]:
    """Rows of a query with ``%(name)s`` parameters. Never commits, never rolls back.

    Raises OperatorError when schema tailrace is missing or may not be used, UsageError for a connection that is not
    to Postgres. Every other error of the server is the caller's, as the library raises it: it is his transaction.
    """
    try:
        if isinstance(connection, psycopg.Connection):
            with connection.cursor(row_factory=tuple_row) as cursor:
                return cursor.execute(query, values).fetchall()
        if not isinstance(connection, (Connection, Session)):
            raise UsageError(
                f"a {type(connection).__name__} is not a connection that events can be appended on",
                hint="pass a psycopg Connection, or a SQLAlchemy Connection or Session",
            )
        bind = connection.get_bind() if isinstance(connection, Session) else connection
        if bind.dialect.name != "postgresql":
            raise UsageError(
                f"domain events live in Postgres, this connection is to {bind.dialect.name}",
                hint="pass a connection to the source database",
            )
        return [tuple(row) for row in connection.execute(text(_PARAMETER.sub(r":\1", query)), dict(values))]
    except psycopg.Error as error:
        raise _translate(error.sqlstate) or error from None
    except DBAPIError as error:
        raise _translate(getattr(error.orig, "sqlstate", None)) or error from None


def _translate(state: str | None) -> TailraceError | None:
    if state in _NOT_INSTALLED:
        return OperatorError(
            "this database has no tables for domain events (schema tailrace)",
            hint="run: tailrace init --events",
        )
    if state == _FORBIDDEN:
        return OperatorError(
            "this user may not use domain events (schema tailrace)",
            hint="grant an application's privileges; see "
            + manual_page("capture/setting-up-a-source.md", "The tables of domain events"),
        )
    return None
