"""The Postgres database of a sink or a reader: a connection for each transaction, and errors that say what to do.

No secret is part of a message: a database is named by host, port and name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from tailrace.eventstore import disclosure
from tailrace.eventstore.disclosure import ESCAPES, is_ambiguous
from tailrace.eventstore.errors import OperatorError, TailraceError, TransientError, UsageError
from tailrace.projections.sinks.kept import Idle, idle_connections
from tailrace.projections.sinks.postgres.json import NotJsonb

CONNECT_SECONDS = 10
LOCK_SECONDS = 10.0  # how long one application waits for another of the same generation

# Texts of the server's refusals at the door; libpq gives no SQLSTATE for them.
_REFUSALS = (
    ("password authentication failed", "check user and password"),
    ("no password supplied", "give a password in the DSN or in PGPASSWORD"),
    ("no pg_hba.conf entry", "allow this host, user and database in pg_hba.conf"),
    ("does not exist", "create it, or correct the DSN"),
    ("not permitted to log in", "ALTER ROLE … LOGIN"),
    ("permission denied for database", "GRANT CONNECT ON DATABASE … TO …"),
    ("does not support SSL", "set sslmode in the DSN to what the server offers"),
)


class PostgresPlace:
    """A Postgres database. ``title`` names it in messages, for example ``sink 'mart'``. Raises UsageError for a
    malformed DSN."""

    def __init__(self, title: str, dsn: str) -> None:
        try:
            parts = conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:
            raise UsageError(
                f"{title}: its dsn is not a Postgres connection string",
                hint="write postgresql://user:password@host:5432/database",
            ) from None
        if is_ambiguous(dsn) or not str(parts.get("port") or "0").replace(",", "").isdigit():
            raise UsageError(f"{title}: its dsn has an @ or / that is not escaped", hint=ESCAPES)
        host, port = parts.get("host") or "local socket", parts.get("port") or "5432"
        self.text = f"{title} ({host}:{port}/{parts.get('dbname') or parts.get('user') or ''})"
        self._dsn = dsn
        # A server that vanished while its connection was idle is noticed as soon as one that does not let us in.
        self._tcp: dict[str, Any] = (
            {} if "tcp_user_timeout" in parts else {"tcp_user_timeout": CONNECT_SECONDS * 1000}
        )

    @contextmanager
    def transaction(
        self, *, lock_seconds: float = LOCK_SECONDS, read_only: bool = False, snapshot: bool = False
    ) -> Iterator[psycopg.Connection]:
        """One transaction on a connection that nobody else uses: committed at the end, rolled back by an exception. All
        statements of a ``snapshot`` see what was committed before its first query, and nothing later."""
        idle = idle_connections()
        with self.translate_errors(), ExitStack() as closed:
            connection = self._begun(idle, lock_seconds, read_only, snapshot)
            closed.enter_context(connection)
            yield connection
            connection.commit()
            if idle is not None and self._dsn not in idle:
                closed.pop_all()
                idle[self._dsn] = connection

    def _begun(
        self, idle: Idle | None, lock_seconds: float, read_only: bool, snapshot: bool
    ) -> psycopg.Connection:
        """A transaction, on an idle connection unless the server has ended it meanwhile."""
        kept = idle.pop(self._dsn, None) if idle else None
        connection = kept if isinstance(kept, psycopg.Connection) else self.connect()
        try:
            connection.read_only = read_only
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ if snapshot else None
            begin(connection, lock_seconds)
        except BaseException as error:
            connection.close()
            if kept is None or not isinstance(error, psycopg.OperationalError):
                raise
            return self._begun(None, lock_seconds, read_only, snapshot)
        return connection

    def connect(self) -> psycopg.Connection:
        """A connection that the caller keeps. Use it inside ``translate_errors``."""
        return psycopg.connect(
            self._dsn,
            application_name="tailrace",
            client_encoding="utf8",
            connect_timeout=CONNECT_SECONDS,
            prepare_threshold=None,
            **self._tcp,
        )

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except psycopg.Error as error:
            raise explain(self.text, error) from error


def begin(connection: psycopg.Connection, lock_seconds: float = LOCK_SECONDS) -> None:
    """The first statements of each transaction. They are local to it, so that a pooler in transaction mode passes on a
    clean session."""
    connection.execute(
        sql.SQL(
            "SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO, YMD'; SET LOCAL bytea_output = 'hex';"
            "SET LOCAL extra_float_digits = 1; SET LOCAL synchronous_commit = on;"
            "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0;"
            "SET LOCAL lock_timeout = {}"
        ).format(sql.Literal(round(lock_seconds * 1000)))
    )


def limit_locks(connection: psycopg.Connection, seconds: float) -> None:
    """Set how long each lock is waited for in the rest of the transaction."""
    connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(round(seconds * 1000))))


def explain(place: str, error: psycopg.Error) -> TailraceError:
    """The error for the user in place of a driver's error."""
    said = f"{place}: {server_words(error)}"
    match error:
        case errors.InsufficientPrivilege():
            return OperatorError(said, hint="GRANT the missing privilege to the sink's user")
        case errors.ReadOnlySqlTransaction():
            return OperatorError(said, hint="name the primary server in the DSN, not a standby")
        case errors.DiskFull() | errors.ConfigurationLimitExceeded():
            return OperatorError(said, hint="make room on the server")
        case errors.UniqueViolation():
            return UsageError(
                said,
                hint="the projection returned two rows with one key: its key must be unique in its output",
            )
        case NotJsonb():
            return UsageError(
                f"{place}: column {error.column} is shown as jsonb, which cannot hold it: {server_words(error.cause)}",
                hint="jsonb takes JSON without \\u0000, halves of surrogate pairs and numbers beyond numeric: mend the"
                " value in the projection, or leave the column out of json=",
            )
        case errors.DataError():
            return UsageError(
                f"{said}{_copied_column(error)}",
                hint="the projection's output holds a value that Postgres cannot",
            )
        case errors.StatementTooComplex():  # it depends on the server's stack, not on the rows
            return OperatorError(said, hint="raise max_stack_depth on the server")
        case psycopg.OperationalError() if (error.sqlstate or "").startswith("54"):
            return UsageError(said, hint=_limit_hint(error))
        case errors.DependentObjectsStillExist():
            return OperatorError(
                f"{said}: {error.diag.message_detail or ''}".rstrip(": "),
                hint="drop what depends on it, or let it read the view of the projection",
            )
        case errors.LockNotAvailable():
            return TransientError(said, hint="another process holds it; try again")
        case psycopg.OperationalError() if error.sqlstate is None:
            for text, hint in _REFUSALS:
                if text in str(error):
                    return OperatorError(said, hint=hint)
            return TransientError(said, hint="is the server running and reachable from here? then try again")
        case psycopg.OperationalError() | errors.TransactionRollback():
            return TransientError(said, hint="try again")
        case _:
            return OperatorError(said, hint="see the server's log")


def _limit_hint(error: psycopg.Error) -> str:
    """What to do about a limit that no setting of the server changes (SQLSTATE class 54). psycopg calls it an error of
    operation, but trying again meets it again."""
    if isinstance(error, errors.TooManyColumns):
        return "let the projection's output have fewer columns"
    # Where in the server's source, as its sentences may be in any language: hio.c finds room for rows, and TOAST has
    # taken the long texts out of them by then.
    if error.diag.source_file in ("hio.c", "heaptoast.c"):
        return "let the projection's output have fewer columns, or combine some in a column of JSON text"
    return (
        "shorten the value in the projection (a key or an index holds about 2,700 bytes of each row): put a hash of it"
        " in the key, or index that; an index of the sink's can also be left out"
    )


def server_words(error: psycopg.Error) -> str:
    """The sentence of the server or libpq, without parts that may be values of a row."""
    diag = error.diag
    if diag.message_primary is not None:
        return disclosure.server_text(error.sqlstate, diag.message_primary, diag.message_detail, diag.context)
    lines = [line for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    text = lines[-1] if lines else type(error).__name__
    return text if isinstance(error, psycopg.OperationalError) else disclosure.hide_quoted_values(text)


def _copied_column(error: psycopg.Error) -> str:
    """The column at which COPY failed. It is the only part of COPY's context that quotes no value."""
    found = re.match(r"COPY [^,]+, line \d+, column ([^:]+)", error.diag.context or "")
    return f" in column {found[1]}" if found and not disclosure.values_are_shown() else ""
