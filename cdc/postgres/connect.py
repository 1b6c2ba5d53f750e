"""Connections to a source: ordinary ones, and replication ones through libpq (psycopg has no replication client).

Both get session settings that make every value's text the same for everybody (protocol: output depends on DateStyle,
IntervalStyle, extra_float_digits, TimeZone, bytea_output, lc_monetary and search_path) and lift time limits that
would cut a long load. They are set by one query after connecting, for those parameters the server knows.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import LiteralString, Self

import psycopg
from psycopg import conninfo, pq

from tailrace.cdc.postgres import errors
from tailrace.eventstore.disclosure import is_ambiguous
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.readiness import readable, writable
from tailrace.eventstore.settings import PostgresSourceSettings

SESSION = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "search_path": "",
    "lc_monetary": "C",
    "xmloption": "content",
    "quote_all_identifiers": "off",  # names in regclass and its like
    "client_encoding": "UTF8",
    "row_security": "off",  # a policy that hides rows becomes an error instead of a loss
    "default_transaction_read_only": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "lock_timeout": "0",
    # The server's side of TCP, for a client that is gone without a word: by default it takes two hours to notice.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # ms; keepalives say nothing while something sent is not acknowledged
}
OLDEST_SERVER = 140000
_ANSWER_SECONDS = 60.0
_NO_ENCODING = "SQL_ASCII"  # of a database: text is bytes whose meaning the server does not know


class Lines:
    """Ordinary connections that another thread may break: without that, a thread would wait for ever on a connection
    whose other end has vanished."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[_Connection] = set()
        self._broken = False

    def add(self, connection: _Connection) -> None:
        with self._lock:
            self._open.add(connection)
            connection.lines = self
            if self._broken:
                _shut_down(connection)

    def close(self, connection: _Connection) -> None:
        with self._lock:  # so that ``cut`` never meets a socket that has been given back
            self._open.discard(connection)
            psycopg.Connection.close(connection)

    def cut(self) -> None:
        """Break all that are open and all that are opened later; a thread that waits on one gets TransientError."""
        with self._lock:
            self._broken = True
            for connection in self._open:
                _shut_down(connection)

    @contextmanager
    def timeout(self, seconds: float) -> Iterator[None]:
        """Cut the lines when the block takes longer than this."""
        timer = threading.Timer(seconds, self.cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class _Connection(psycopg.Connection[tuple[object, ...]]):
    """An ordinary connection that may belong to ``Lines``."""

    lines: Lines | None = None

    def close(self) -> None:
        if self.lines is not None:
            self.lines.close(self)
        else:
            super().close()


def _shut_down(connection: _Connection) -> None:
    if not connection.closed:
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a dsn leads. ``text`` names it without secrets; ``conninfo`` holds them and is never printed."""

    conninfo: dict[str, str]
    lines: Lines | None = field(default=None, compare=False)

    @classmethod
    def of(cls, settings: PostgresSourceSettings) -> Address:
        return cls.parse(settings.dsn.get_secret_value())

    @classmethod
    def parse(cls, dsn: str) -> Address:
        """Raises UsageError on a text that libpq cannot read."""
        try:
            parsed = conninfo.conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:
            raise errors.bad_dsn() from None
        if is_ambiguous(dsn) or not str(parsed.get("port") or "0").replace(",", "").isdigit():
            raise errors.bad_dsn()
        return cls({name: str(value) for name, value in parsed.items() if value is not None})

    @property
    def text(self) -> str:
        part = self.conninfo.get
        host = part("host") or part("hostaddr") or "the local socket"
        user = f" as user {part('user')}" if part("user") else ""
        if part("service") and not (part("host") or part("hostaddr")):
            return f"the database of service {part('service')}{user}"
        return (
            f"database {part('dbname') or part('user') or 'default'} at {host}:{part('port', '5432')}{user}"
        )

    @property
    def secret(self) -> str | None:
        return self.conninfo.get("password") or None

    def with_defaults(self, application: str) -> dict[str, str]:
        return {**_DEFAULTS, "application_name": application, **self.conninfo, "client_encoding": "UTF8"}

    def with_lines(self, lines: Lines) -> Self:
        """The same place; ordinary connections to it can be broken by ``lines``."""
        return replace(self, lines=lines)

    def __repr__(self) -> str:
        return f"Address({self.text})"


def connect(address: Address, application: str = "tailrace") -> psycopg.Connection[tuple[object, ...]]:
    """An ordinary autocommit connection. Raises OperatorError or TransientError with what to do."""
    try:
        connection = _Connection.connect(autocommit=True, **address.with_defaults(application))  # type: ignore[arg-type]
    except psycopg.Error as error:
        raise errors.refusal(str(error), address.text, address.secret) from None
    if address.lines is not None:
        address.lines.add(connection)
    try:
        _check_version(connection.pgconn.server_version, address)
        with translate_errors("setting up the session", address):
            connection.execute(_literal(_settings_query(SESSION)), prepare=False)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_replication(address: Address, application: str = "tailrace") -> pq.abc.PGconn:
    """A walsender connection to the source's database (simple queries only). Errors as ``connect``."""
    parameters = address.with_defaults(application)
    text = conninfo.make_conninfo("", **parameters, replication="database")
    connection = pq.PGconn.connect_start(text.encode())
    problem = _establish(connection, parameters["connect_timeout"])
    if problem is not None:
        connection.finish()
        raise errors.refusal(problem, address.text, address.secret)
    try:
        _check_version(connection.server_version, address)
        settings = SESSION | {"client_encoding": encoding_of(connection)}
        command(connection, _settings_query(settings), "setting up the replication session", address)
    except BaseException:
        connection.finish()
        raise
    return connection


def encoding_of(connection: pq.abc.PGconn) -> str:
    """The encoding in which rows are sent: UTF-8, to which every server converts. A server in SQL_ASCII refuses to send
    as UTF-8 what is not, so it is asked for the bytes."""
    return (
        _NO_ENCODING if connection.parameter_status(b"server_encoding") == _NO_ENCODING.encode() else "UTF8"
    )


def _settings_query(settings: Mapping[str, str]) -> str:
    values = ", ".join(f"('{name.lower()}', '{value}')" for name, value in settings.items())
    return f"""
SELECT pg_catalog.set_config(s.name, v.value, false)
FROM (VALUES {values}) v(name, value) JOIN pg_catalog.pg_settings s
ON pg_catalog.lower(s.name) OPERATOR(pg_catalog.=) v.name
"""  # noqa: S608 (constants of this module)


def command(connection: pq.abc.PGconn, text: str, doing: str, address: Address) -> list[list[str | None]]:
    """Run one simple query or replication command; its rows as text. Raises as ``problems.failure``."""
    result = execute(connection, text, doing, address)
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise errors.from_result(result, doing, address.text)
    return [
        [_text(result.get_value(row, column)) for column in range(result.nfields)]
        for row in range(result.ntuples)
    ]


def execute(connection: pq.abc.PGconn, text: str, doing: str, address: Address) -> pq.abc.PGresult:
    """Send one simple query or replication command and wait for its result, at most a minute.

    Raises TransientError when the connection breaks or nothing comes."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    try:
        connection.send_query(text.encode())
        while connection.is_busy():
            if not readable([connection.socket], max(0.0, deadline - time.monotonic())):
                raise errors.failure(None, "no answer", doing, address.text)
            connection.consume_input()
        result = connection.get_result()
        if result is not None and result.status != pq.ExecStatus.COPY_BOTH:
            while connection.get_result() is not None:
                pass
    except psycopg.OperationalError as error:
        raise errors.failure(None, str(error), doing, address.text) from None
    if result is None:
        raise errors.failure(None, "no answer", doing, address.text)
    return result


def _establish(connection: pq.abc.PGconn, timeout: str) -> str | None:
    """Drive libpq's connecting; what went wrong, or None. (Its blocking form holds the interpreter's lock, and with
    it the feedback of every other source.)"""
    deadline = time.monotonic() + max(2, int(timeout))  # libpq's own least
    polled: int = pq.PollingStatus.WRITING
    while polled not in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
        if connection.status == pq.ConnStatus.BAD:
            break
        left = deadline - time.monotonic()
        if left <= 0 or not (
            writable(connection.socket, left)
            if polled == pq.PollingStatus.WRITING
            else readable([connection.socket], left)
        ):
            return "timeout expired"
        polled = connection.connect_poll()
    if polled == pq.PollingStatus.OK:
        return None
    return connection.error_message.decode(errors="replace")


@contextmanager
def translate_errors(doing: str, address: Address) -> Iterator[None]:
    """Errors of psycopg inside become errors of ours that say what was being done, where, and what to do."""
    try:
        yield
    except psycopg.Error as error:
        raise errors.from_psycopg(error, doing, address.text) from error


def quote(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_all(names: Sequence[str]) -> str:
    return ", ".join(quote(name) for name in names)


def literal(text: str) -> str:
    """An SQL string literal, whatever standard_conforming_strings says."""
    quoted = text.replace("'", "''")
    return " E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in quoted else f"'{quoted}'"


def _literal(text: str) -> LiteralString:
    return text


def _check_version(version: int, address: Address) -> None:
    if version < OLDEST_SERVER:
        raise OperatorError(
            f"{address.text} runs Postgres {version // 10000}, which is too old",
            hint="capture needs Postgres 14 or later",
        )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
