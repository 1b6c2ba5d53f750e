"""Leases: who needs files as they are, and who keeps the log in order. Renewed while the holder lives.

A reader that was handed references (a Spark job, a verification) may open their files much later. It takes a lease
first, and resolves after: every file that is retired from then on stays until the lease ends. What was retired before,
the reader is never referred to. Short readers need none; they find the page again (``Store.read``).

Times are those of the catalog: its server's, or with SQLite this host's. A clock that jumps ahead by more than a lease
ends leases early: readers then fail with MissingFile, at worst, and begin again; of two who keep the log in order the
earlier is fenced. A clock that is set back leaves leases that end too late: whoever meets one cuts it down to the
length of a lease, which those who live renew and the dead do not.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError as Duplicate

from eventstore import tables
from eventstore.catalog import Catalog
from eventstore.errors import TransientError
from eventstore.maintain import terms
from eventstore.times import from_micros, now_micros

READER = "reader"
MAINTAINER = "maintainer"
LEASE_SECONDS = 120.0
_RENEWALS = 4  # per lease: a renewal may fail or come late and the next one still does it


class Busy(TransientError):
    """Somebody else keeps the log in order at this moment."""


@contextmanager
def pinned(catalog: Catalog, purpose: str) -> Iterator[None]:
    """Keep every file that readers are referred to from now on, until the block ends (or this process has died)."""
    with catalog.write() as connection:
        row = _row(connection, uuid.uuid4().hex, READER, purpose)
        connection.execute(insert(tables.leases).values(row))
    with _renewed(catalog, row):
        yield


@contextmanager
def maintaining(catalog: Catalog) -> Iterator[None]:
    """Be the only one in here; a holder that died on this host is succeeded at once, on another when its lease ends.
    Raises Busy. This saves work in vain: what keeps the log right is terms."""
    table = tables.leases
    try:
        with catalog.write() as connection:
            _cut_down(connection)
            found = connection.execute(select(table).where(table.c.id == MAINTAINER)).one_or_none()
            held = found is not None and found.expires_at > now(connection) and not _died(found.holder)
            if found is not None and not held:
                connection.execute(delete(table).where(*_same(found._asdict())))
            if not held:
                row = _row(connection, MAINTAINER, MAINTAINER, "upkeep")
                connection.execute(insert(table).values(row))
        if found is not None and held:
            raise Busy(
                f"upkeep is under way: {found.holder}, since {from_micros(found.created_at):%H:%M:%S} UTC",
                hint="nothing to do; it does the same",
            )
    except Duplicate:
        raise Busy(
            "upkeep is under way: it began at this moment", hint="nothing to do; it does the same"
        ) from None
    with _renewed(catalog, row):
        yield


def oldest_need(connection: Connection) -> int | None:
    """Number of the last file that was retired before the oldest living reader began; None without a reader."""
    table = tables.leases
    query = select(table.c.retired).where(table.c.role == READER, table.c.expires_at > now(connection))
    return min(connection.scalars(query), default=None)


def holders(connection: Connection) -> list[str]:
    """Who is at work on the log's files, for people."""
    rows = connection.execute(select(tables.leases).where(tables.leases.c.expires_at > now(connection)))
    return [
        f"{row.holder}, since {from_micros(row.created_at):%H:%M:%S} UTC"
        for row in rows
        if not _died(row.holder)
    ]


def forget_expired(connection: Connection) -> None:
    _cut_down(connection)
    table = tables.leases
    connection.execute(delete(table).where(table.c.role == READER, table.c.expires_at <= now(connection)))


def now(connection: Connection) -> int:
    """µs since 1970. Hosts that share a catalog compare times of one clock: its server's."""
    if connection.dialect.name == "postgresql":
        seconds = connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one()
        return int(seconds * 1_000_000)
    return now_micros()


def _cut_down(connection: Connection) -> None:
    """Leases that end later than any that begins now were given before the clock was set back."""
    table = tables.leases
    latest = now(connection) + int(LEASE_SECONDS * 1e6)
    connection.execute(update(table).where(table.c.expires_at > latest).values(expires_at=latest))


def _row(connection: Connection, lease: str, role: str, purpose: str) -> dict[str, Any]:
    began = now(connection)
    return {
        "id": lease,
        "role": role,
        "holder": f"{purpose} by {socket.gethostname()}:{os.getpid()}",
        "retired": terms.current(connection, terms.RETIRED),
        "created_at": began,
        "expires_at": began + int(LEASE_SECONDS * 1e6),
    }


def _died(holder: str) -> bool:
    """Whether a holder was a process of this host that is no more."""
    host, _, pid = holder.rpartition(" ")[2].rpartition(":")
    if host != socket.gethostname() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _same(row: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    """This lease, and not that of a successor under the same id."""
    return [tables.leases.c[name] == row[name] for name in ("id", "holder", "created_at")]


@contextmanager
def _renewed(catalog: Catalog, row: Mapping[str, Any]) -> Iterator[None]:
    table = tables.leases
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(LEASE_SECONDS / _RENEWALS):
            with suppress(TransientError), catalog.write() as connection:
                expires_at = now(connection) + int(LEASE_SECONDS * 1e6)
                connection.execute(update(table).where(*_same(row)).values(expires_at=expires_at))

    thread = threading.Thread(target=renew, name=f"lease-{row['id']}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(TransientError), catalog.write() as connection:
            connection.execute(delete(table).where(*_same(row)))
