"""One statement on the caller's connection, whatever library it is of, in the caller's transaction."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeAlias, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from tailrace.eventstore.errors import OperatorError, TailraceError, UsageError
from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA, chosen_schema, in_schema

if TYPE_CHECKING:
    from sqlalchemy import Connection, TextClause
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

DatabaseConnection: TypeAlias = "psycopg.Connection[Any] | Connection | Session"
AsyncDatabaseConnection: TypeAlias = "psycopg.AsyncConnection[Any] | AsyncConnection | AsyncSession"

_PARAMETER = re.compile(r"%\((\w+)\)s")
_NOT_INSTALLED = {"42883", "3F000", "42P01"}  # no such function, schema, table
_FORBIDDEN = "42501"

# What an application that appends and loads needs.
GRANTS: Final = (
    "GRANT USAGE ON SCHEMA tailrace TO {role};",
    "GRANT EXECUTE ON FUNCTION tailrace.append_one, tailrace.append_many, tailrace.append_tagged,"
    " tailrace.append_all, tailrace.append_once, tailrace.put_snapshot TO {role};",
    "GRANT SELECT ON tailrace.events, tailrace.snapshots, tailrace.tags, tailrace.tagged_events TO {role};",
)
# One whose events have personal values, and one that forgets.
PERSONAL_GRANT: Final = (
    "GRANT EXECUTE ON FUNCTION tailrace.seal_keys, tailrace.open_keys, tailrace.tag_secret TO {role};"
)
FORGET_GRANT: Final = (
    "GRANT EXECUTE ON FUNCTION tailrace.begin_forgetting, tailrace.keys_of, tailrace.forget_keys, tailrace.rotate_key,"
    " tailrace.events_of_keys, tailrace.drop_tags, tailrace.drop_derived TO {role};"
)
# One that emits events without a table.
EMIT_GRANT: Final = "GRANT EXECUTE ON FUNCTION tailrace.emit_events TO {role};"
# And one that runs process managers.
PROCESS_GRANT: Final = "GRANT SELECT, INSERT, UPDATE, DELETE ON tailrace.timers TO {role};"

# What a message of the server tells of.
_GRANTS_BY_WORD: Final = (
    *((word, (PERSONAL_GRANT,)) for word in ("seal_keys", "open_keys", "tag_secret")),
    *(
        (word, (FORGET_GRANT,))
        for word in ("begin_forgetting", "keys_of", "forget_keys", "rotate_key", "events_of", "drop_")
    ),
    ("emit_events", (EMIT_GRANT,)),
    ("timers", (PROCESS_GRANT,)),
)


Ask: TypeAlias = Callable[[LiteralString, Mapping[str, object]], Awaitable[Sequence[tuple[Any, ...]]]]
"""Gives the rows of a statement with parameters."""


def ask_of(connection: DatabaseConnection, schema: str | None = None) -> Ask:
    """What runs statements on a connection that blocks, as coroutines that never wait; on tables in a schema (default:
    this process's)."""

    async def ask(query: LiteralString, values: Mapping[str, object]) -> Sequence[tuple[Any, ...]]:
        return run(connection, query, values, schema)

    return ask


def run(
    connection: DatabaseConnection,
    query: LiteralString,
    values: Mapping[str, object],
    schema: str | None = None,
) -> Sequence[tuple[Any, ...]]:
    """Rows of a query with ``%(name)s`` parameters, of tables in a schema (default: this process's). Never commits,
    never rolls back.

    Raises OperatorError when that schema is missing or may not be used, UsageError for a connection that is not to
    Postgres. Every other error of the server is the caller's, as the library raises it: it is his transaction.
    """
    schema = chosen_schema(schema)
    query = in_schema(query, schema)
    if not isinstance(connection, psycopg.Connection):
        return _run_on_sqlalchemy(connection, query, values, schema)
    try:
        with connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(query, values).fetchall()
    except psycopg.Error as error:
        raise _translate(error, schema) or error from None


async def run_async(
    connection: AsyncDatabaseConnection, query: LiteralString, values: Mapping[str, object]
) -> Sequence[tuple[Any, ...]]:
    """``run`` on a connection that is awaited."""
    schema = chosen_schema()
    query = in_schema(query, schema)
    if isinstance(connection, psycopg.AsyncConnection):
        try:
            async with connection.cursor(row_factory=tuple_row) as cursor:
                return await (await cursor.execute(query, values)).fetchall()
        except psycopg.Error as error:
            raise _translate(error, schema) or error from None
    if "sqlalchemy.ext.asyncio" in sys.modules:
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

        if isinstance(connection, (AsyncConnection, AsyncSession)):
            return await connection.run_sync(_run_on_sqlalchemy, query, values, schema)
    raise UsageError(
        f"a {type(connection).__name__} is not a connection that is awaited",
        hint="pass a psycopg AsyncConnection, or a SQLAlchemy AsyncConnection or AsyncSession",
    )


@asynccontextmanager
async def in_transaction(connection: DatabaseConnection | AsyncDatabaseConnection) -> AsyncIterator[None]:
    """Several statements as one: in the caller's transaction, else in one of their own. Raises UsageError for a
    connection of SQLAlchemy that commits each statement."""
    if isinstance(connection, psycopg.Connection):
        with connection.transaction() if _commits_each(connection) else nullcontext():
            yield
    elif isinstance(connection, psycopg.AsyncConnection):
        async with connection.transaction() if _commits_each(connection) else nullcontext():
            yield
    else:
        given = cast("Any", connection)
        if hasattr(given, "run_sync"):
            await given.run_sync(_require_transaction)
        else:
            _require_transaction(given)
        yield


def _require_transaction(connection: Connection | Session) -> None:
    """SQLAlchemy begins one by itself, unless it is told not to."""
    bound = connection if hasattr(connection, "get_isolation_level") else connection.connection()
    if getattr(cast("Connection", bound).connection.dbapi_connection, "autocommit", False):
        raise UsageError(
            "this has to be one transaction, and the connection commits each statement by itself",
            hint="inline projections and processes need it: leave out isolation_level=AUTOCOMMIT",
        )


def _commits_each(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE


def _run_on_sqlalchemy(
    connection: Connection | Session, query: LiteralString, values: Mapping[str, object], schema: str
) -> Sequence[tuple[Any, ...]]:
    """Only who hands in one of its connections has it imported: importing it takes longer than all of the rest."""
    if "sqlalchemy" in sys.modules:
        from sqlalchemy import Connection
        from sqlalchemy.exc import DBAPIError

        # While sqlalchemy.orm is imported, other threads' use of SQLAlchemy fails: that is not for us to begin.
        orm = sys.modules.get("sqlalchemy.orm")
        session: Session | None = connection if orm and isinstance(connection, orm.Session) else None
        if session is not None or isinstance(connection, Connection):
            bind: Any = connection if session is None else session.get_bind()
            if bind.dialect.name != "postgresql":
                raise UsageError(
                    f"domain events live in Postgres, this connection is to {bind.dialect.name}",
                    hint="pass a connection to the source database",
                )
            try:
                return [tuple(row) for row in connection.execute(_text(query), dict(values))]
            except DBAPIError as error:
                raise _translate(error.orig, schema) or error from None
    raise UsageError(
        f"a {type(connection).__name__} is not a connection that events can be appended on",
        hint="pass a psycopg Connection, or a SQLAlchemy Connection or Session",
    )


@functools.cache
def _text(query: LiteralString) -> TextClause:
    from sqlalchemy import text

    return text(_PARAMETER.sub(r":\1", query))


def _translate(error: BaseException | None, schema: str) -> TailraceError | None:
    state = getattr(error, "sqlstate", None)
    if state in _NOT_INSTALLED:
        return OperatorError(
            f"this database has no tables for domain events (schema {schema}), or those of an earlier release",
            hint="run: tailrace init --events"
            if schema == EVENTS_SCHEMA
            else f"run: tailrace init --events, with events_schema = {schema!r} for the source",
        )
    if state == _FORBIDDEN:
        wanted = next((grant for word, grant in _GRANTS_BY_WORD if word in str(error)), GRANTS)
        grants = in_schema(" ".join(wanted), schema)
        return OperatorError(
            f"this user may not use domain events (schema {schema})",
            hint="as the owner of the tables: " + grants.format(role="APPLICATION"),
        )
    return None
