"""A server is silent while rows are read: does it work, or has the connection died?

The stream has keepalives; a COPY has none, and a half-open connection may look alive to TCP on this side (a middlebox
answers for the server). But the server knows what its process waits for, and another connection can read that: a
process that waits for its client, while the client waits for it, has lost it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing, suppress

from psycopg import Connection, pq

from tailrace.cdc.postgres import errors
from tailrace.cdc.postgres.connect import Address, connect, translate_errors
from tailrace.eventstore.errors import TailraceError, TransientError
from tailrace.eventstore.readiness import readable

Row = tuple[object, ...]
_FIRST_SECONDS, _LONGEST_SECONDS = 5.0, 60.0  # of silence before the server is asked, and asked again
_LATE_SECONDS = 1.0  # what was on its way while the server was asked
_WAITS_FOR_CLIENT = """
SELECT wait_event_type IS NOT DISTINCT FROM 'Client' FROM pg_catalog.pg_stat_activity WHERE pid = %s
"""
_END = """
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE pid = ANY (%s) AND usename = current_user AND application_name LIKE 'tailrace %%'
"""


def wait_readable(pgconn: pq.abc.PGconn, doing: str, address: Address) -> None:
    """Wait until the server has sent something. Raises TransientError when the server waits for us."""
    silence = _FIRST_SECONDS
    while not readable([pgconn.socket], silence):
        if _waits_for_client(pgconn.backend_pid, address) and not _has_input(pgconn, _LATE_SECONDS):
            raise errors.failure(None, "the connection is dead, though nobody closed it", doing, address.text)
        silence = min(2 * silence, _LONGEST_SECONDS)


def end_sessions(address: Address, pids: Collection[int]) -> None:
    """End sessions of ours that the server may still keep for a client that is gone. They would hold locks and slots
    until the server's TCP notices, which may take hours."""
    with suppress(TailraceError), closing(connect(address, "tailrace load")) as connection:
        _ask(connection, address, _END, list(pids))


def _waits_for_client(pid: int, address: Address) -> bool:
    """Also true when the server has no such process any more; false when it cannot be asked."""
    try:
        with closing(connect(address, "tailrace load")) as connection:
            rows = _ask(connection, address, _WAITS_FOR_CLIENT, pid)
    except TransientError:
        return False
    return not rows or bool(rows[0][0])


def _ask(connection: Connection[Row], address: Address, query: str, parameter: object) -> list[Row]:
    with translate_errors("looking after connections", address):
        return connection.execute(query.encode(), [parameter]).fetchall()


def _has_input(pgconn: pq.abc.PGconn, seconds: float) -> bool:
    return readable([pgconn.socket], seconds)
