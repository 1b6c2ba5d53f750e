"""Leases: who needs files as they are, and who keeps the log in order. Renewed while the holder lives.

A reader that was handed references (a Spark job, a verification) may open their files much later. It takes a lease
first, and resolves after: every file that is retired from then on stays until the lease ends. What was retired before,
the reader is never referred to. Short readers need none; they find the page again (``Store.read``).

Times are those of the hosts. A clock that jumps ahead by more than a lease ends leases early: their readers then fail
with MissingFile, at worst, and begin again; nothing is lost.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, delete, insert, select, update
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
    lease = uuid.uuid4().hex
    with catalog.write() as connection:
        connection.execute(insert(tables.leases).values(_row(connection, lease, READER, purpose)))
    with _renewed(catalog, lease):
        yield


@contextmanager
def maintaining(catalog: Catalog) -> Iterator[None]:
    """Be the only one in here; a holder that died on this host is succeeded at once, on another when its lease ends.
    Raises Busy. This saves work in vain: what keeps the log right is terms."""
    table = tables.leases
    try:
        with catalog.write() as connection:
            found = connection.execute(select(table).where(table.c.id == MAINTAINER)).one_or_none()
            if found is not None:
                if found.expires_at > now_micros() and not _died(found.holder):
                    raise Busy(
                        f"upkeep is under way: {found.holder}, since {from_micros(found.created_at):%H:%M:%S} UTC",
                        hint="nothing to do; it does the same",
                    )
                connection.execute(
                    delete(table).where(table.c.id == MAINTAINER, table.c.holder == found.holder)
                )
            connection.execute(insert(table).values(_row(connection, MAINTAINER, MAINTAINER, "upkeep")))
    except Duplicate:
        raise Busy(
            "upkeep is under way: it began at this moment", hint="nothing to do; it does the same"
        ) from None
    with _renewed(catalog, MAINTAINER):
        yield


def oldest_need(connection: Connection) -> int | None:
    """Number of the last file that was retired before the oldest living reader began; None without a reader."""
    table = tables.leases
    query = select(table.c.retired).where(table.c.role == READER, table.c.expires_at > now_micros())
    return min(connection.scalars(query), default=None)


def holders(connection: Connection) -> list[str]:
    """Who is at work on the log's files, for people."""
    rows = connection.execute(select(tables.leases).where(tables.leases.c.expires_at > now_micros()))
    return [
        f"{row.holder}, since {from_micros(row.created_at):%H:%M:%S} UTC"
        for row in rows
        if not _died(row.holder)
    ]


def forget_expired(connection: Connection) -> None:
    table = tables.leases
    connection.execute(delete(table).where(table.c.role == READER, table.c.expires_at <= now_micros()))


def _row(connection: Connection, lease: str, role: str, purpose: str) -> dict[str, object]:
    now = now_micros()
    return {
        "id": lease,
        "role": role,
        "holder": f"{purpose} by {socket.gethostname()}:{os.getpid()}",
        "retired": terms.current(connection, terms.RETIRED),
        "created_at": now,
        "expires_at": now + int(LEASE_SECONDS * 1e6),
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


@contextmanager
def _renewed(catalog: Catalog, lease: str) -> Iterator[None]:
    table = tables.leases
    mine = table.c.id == lease
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(LEASE_SECONDS / _RENEWALS):
            with suppress(TransientError), catalog.write() as connection:
                expires_at = now_micros() + int(LEASE_SECONDS * 1e6)
                connection.execute(update(table).where(mine).values(expires_at=expires_at))

    thread = threading.Thread(target=renew, name=f"lease-{lease}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(TransientError), catalog.write() as connection:
            connection.execute(delete(table).where(mine))
