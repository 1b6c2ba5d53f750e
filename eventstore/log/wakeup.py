"""Waking those who follow the log: a hint after each epoch, never the only way to learn of it.

Postgres: NOTIFY inside the committing transaction (delivered at its commit, once per epoch), LISTEN on a connection of
its own. SQLite: each follower binds a Unix datagram socket in a folder beside the database, and who commits sends one
datagram to each. Followers poll as well, so a lost hint costs a second, not correctness.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import psycopg
import psycopg.sql
from sqlalchemy import Connection, func
from sqlalchemy import select as sql_select

from tailrace.eventstore.catalog.database import Catalog, translate_errors
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.readiness import readable
from tailrace.eventstore.storage.private import make_folder

# sun_path of sockaddr_un is 108 bytes on Linux and 104 on the BSDs, with the final zero.
_LONGEST_SOCKET_PATH = 100


class Deadline:
    """``seconds`` from now, None = never."""

    def __init__(self, seconds: float | None) -> None:
        self._at = float("inf") if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(self._at - time.monotonic(), 0.0)


class Listener(Protocol):
    """A wait that a hint ends early. Hints that came since it was opened count, so open it before looking."""

    def wait(self, seconds: float) -> None: ...


class Waker(Protocol):
    """Both ends of the hints of one store."""

    def notify_in(self, connection: Connection) -> None:
        """Called inside the transaction that commits an epoch."""

    def notify(self, epoch: int) -> None:
        """Called after that commit. Never fails."""

    def listen(self) -> AbstractContextManager[Listener]:
        """A listener that collects hints from now on."""


class SocketWaker:
    """SQLite: sockets in ``<database>.wake/``. A folder that cannot be written means polling only."""

    def __init__(self, database: Path) -> None:
        self._folder = database.with_name(database.name + ".wake")

    def notify_in(self, connection: Connection) -> None:
        """Nothing: SQLite has no notifications."""

    def notify(self, epoch: int) -> None:
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(".sock")]
        except OSError:
            return  # nobody has ever listened
        if not names:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, _addresses(self._folder) as address:
            sender.setblocking(False)
            for name in names:
                try:
                    sender.sendto(b"%d" % epoch, address(name))
                except OSError as error:
                    # Refused: the follower died without removing its socket. A full one will wake up anyhow.
                    if error.errno == errno.ECONNREFUSED:
                        _remove(self._folder / name)

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        name = f"{os.getpid()}-{uuid.uuid4().hex[:12]}.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            try:
                make_folder(self._folder)
                with _addresses(self._folder) as address:
                    receiver.bind(address(name))
            except OSError:
                yield _Sleeper()
                return
            receiver.setblocking(False)
            try:
                yield _SocketListener(receiver)
            finally:
                _remove(self._folder / name)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        return  # somebody else removed it, or it is not ours to remove


@contextmanager
def _addresses(folder: Path) -> Iterator[_SocketAddress]:
    """Socket addresses in a folder whose path may be longer than an address holds: then through its descriptor."""
    if len(os.fsencode(folder)) + 40 <= _LONGEST_SOCKET_PATH:
        yield _SocketAddress(str(folder))
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _SocketAddress(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class _SocketAddress:
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, name: str) -> str:
        return f"{self._folder}/{name}"


class _Sleeper:
    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


class _SocketListener:
    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver

    def wait(self, seconds: float) -> None:
        readable([self._receiver], seconds)
        try:
            while self._receiver.recv(64):
                pass  # one look at the catalog answers all hints so far
        except BlockingIOError:
            return


class NotifyWaker:
    """Postgres: one channel per store; the log's schema is part of its name, since channels belong to databases."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._channel = f"tailrace_{catalog.schema}"

    def notify_in(self, connection: Connection) -> None:
        connection.execute(sql_select(func.pg_notify(self._channel, "")))

    def notify(self, epoch: int) -> None:
        """Nothing: the commit did it."""

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        listener = _NotifyListener(self._catalog, self._channel)
        try:
            listener.connect()
            yield listener
        finally:
            listener.close()


class _NotifyListener:
    def __init__(self, catalog: Catalog, channel: str) -> None:
        self._catalog = catalog
        self._channel = channel
        self._connection: psycopg.Connection | None = None

    def connect(self) -> None:
        """LISTEN on a connection of our own; without one, ``wait`` sleeps and tries again."""
        try:
            with translate_errors(self._catalog):
                pooled = self._catalog.engine.raw_connection()
        except TransientError:
            return
        connection = pooled.driver_connection
        pooled.detach()  # it waits for hours; the pool shall not count it
        assert isinstance(connection, psycopg.Connection)
        try:
            connection.autocommit = True
            connection.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(self._channel)))
        except psycopg.OperationalError:
            connection.close()
            return
        self._connection = connection

    def wait(self, seconds: float) -> None:
        if self._connection is None:
            time.sleep(seconds)
            self.connect()
            return
        try:
            for _ in self._connection.notifies(timeout=seconds, stop_after=1):
                pass
        except psycopg.OperationalError:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def waker_of(catalog: Catalog) -> Waker:
    return NotifyWaker(catalog) if catalog.path is None else SocketWaker(catalog.path)
