"""Leases: who needs files as they are, who writes some, and who keeps the log in order. Renewed while the holder lives.

A reader that was handed references (a Spark job, a verification) may open their files much later. It takes a lease
first, and resolves after: every file that is retired from then on stays until the lease ends. What was retired before,
the reader is never referred to. Short readers need none; they find the page again (``Store.read``).

A driver computes a projection: it reads for long, and writes files that nothing names before its commit, under names
that hold its lease's. It commits only while its lease is there, which ends with the commit (``Lease.end``). A collector
of files first ends the leases of dead drivers (``live_drivers``), then reads which files are named: one of an ended
lease that is not named then never will be.

Times are those of the catalog: its server's, or with SQLite this host's. A clock that jumps ahead by more than a lease
ends leases early: readers then fail with MissingFile, at worst, and begin again; of two who keep the log in order the
earlier is fenced. A driver whose process can be seen (``processes``) lives as long as that, whatever the clock says.
One on another host or in another container that is taken for dead commits nothing, and computes again. A clock that is
set back leaves leases that end too late: a process that meets one cuts it down to the length of a lease, which those
who live renew and the dead do not.

A worker (a run that refreshes a projection, a build) takes a lease on each name it works on, so that a second one does
not begin the same: it would be in vain, or fence the first. What keeps results right is the compare-and-set of steps,
so these leases are short: a process that meets one whose holder it cannot see waits until it is renewed, or has ended.

A capture takes a lease that keeps nobody out (terms fence captures): it says who captures a source, and since when.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore.catalog import processes, tables, terms
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.catalog.renewals import RENEWALS
from tailrace.eventstore.errors import Fenced, TailraceError, TransientError
from tailrace.eventstore.model.time import from_micros, now_micros

READER = "reader"
DRIVER = "driver"
MAINTAINER = "maintainer"
WORKER = "worker"
CAPTURE = "capture"
LEASE_SECONDS = 120.0
WORK_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_RENEWALS = 4  # per lease: a renewal may fail or come late and the next one still does it


_INSERT = insert(tables.leases)
_DELETE = delete(tables.leases).where(tables.leases.c.id == bindparam("of"))
_DRIVERS = select(tables.leases).where(tables.leases.c.role == DRIVER).order_by(tables.leases.c.id)
"""Made once: each step of a projection asks them."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Who is at work (``run by host:pid``), and since when."""

    holder: str
    since: datetime | None


class Busy(TransientError):
    """Another process does the log's upkeep at this moment."""


class AlreadyRunning(Fenced):
    """Another process works on the same at this moment; nothing was begun."""


class LeaseEnded(TransientError):
    """This driver was taken for dead, and what it wrote may be gone."""


@contextmanager
def reader_lease(catalog: Catalog, purpose: str) -> Iterator[None]:
    """Keep every file that readers are referred to from now on, until the block ends (or this process has died).

    Where the catalog can only be read there is no lease: of a copy nobody removes files. Where it is the mount alone
    that is read-only, and upkeep runs elsewhere, a long reader may meet MissingFile."""
    if catalog.read_only:
        yield
        return
    with _lease(catalog, uuid.uuid4().hex, READER, purpose):
        yield


@dataclass
class Lease:
    """A driver's: its ``name``, and whether it is ``over`` because what was written has been committed."""

    name: str
    over: bool = False

    def end(self, connection: Connection) -> None:
        """Inside the driver's committing transaction: nobody else can end it until that is over. The committer says so
        (``over``) when it is. Raises LeaseEnded."""
        held = connection.execute(_DELETE, {"of": self.name})
        if held.rowcount != 1:
            raise LeaseEnded(
                "this process was taken for dead, and what it had written was removed; nothing was changed",
                hint="run it again",
            )


@contextmanager
def driver_lease(catalog: Catalog, name: str, purpose: str) -> Iterator[Lease]:
    """As ``reader_lease``, and keep what is written under ``name``, which nobody else may have."""
    lease = Lease(name)
    with _lease(catalog, name, DRIVER, purpose, lease):
        yield lease


@contextmanager
def work_lease(catalog: Catalog, names: Mapping[str, str], purpose: str) -> Iterator[None]:
    """Be the only one in here with any of ``names``, each with what is done then, as a sentence. Raises
    AlreadyRunning, at once when the other one is seen to live; one that cannot be seen has as long as its lease to
    renew it."""
    rows = _take_leases(catalog, names, purpose)
    try:
        with _renewal(catalog, rows, WORK_SECONDS):
            yield
    finally:
        _OWN.difference_update((row["id"], row["created_at"]) for row in rows)


@contextmanager
def capture_lease(catalog: Catalog, source: str) -> Iterator[None]:
    """Say that this process captures ``source``."""
    with _lease(catalog, f"{CAPTURE}:{source}:{uuid.uuid4().hex}", CAPTURE, CAPTURE):
        yield


def captures(connection: Connection, source: str) -> list[Worker]:
    """Who captures a source at this moment, the latest last: two only while one takes over."""
    table = tables.leases
    query = select(table).where(table.c.role == CAPTURE, table.c.expires_at > now(connection))
    return [
        Worker(_shown(row.holder), from_micros(row.created_at))
        for row in connection.execute(query.order_by(table.c.created_at))
        if row.id.startswith(f"{CAPTURE}:{source}:") and _is_running(row.holder, otherwise=True)
    ]


_OWN: set[tuple[str, int]] = set()
"""Leases of workers in this process: one of its own that is not here was given up when the catalog was out of reach."""


def _take_leases(catalog: Catalog, names: Mapping[str, str], purpose: str) -> list[dict[str, Any]]:
    table = tables.leases
    first_seen: dict[str, int] = {}
    while names:
        with suppress(Duplicate), catalog.write() as connection:
            _cut_down(connection)
            found = connection.execute(select(table).where(table.c.id.in_(names))).all()
            moment = now(connection)
            held = [row for row in found if row.expires_at > moment and not _is_abandoned(row)]
            if not held:
                for row in found:  # those alone: meanwhile another one may have taken a name
                    connection.execute(delete(table).where(*_lease_conditions(row._asdict())))
                rows = [_lease_row(connection, name, WORKER, purpose, WORK_SECONDS) for name in names]
                connection.execute(insert(table), rows)
                _OWN.update((row["id"], row["created_at"]) for row in rows)
                return rows
            for row in held:
                renewed = row.expires_at > first_seen.setdefault(row.id, row.expires_at)
                if renewed or _is_running(row.holder):
                    raise _already_running(names[row.id], row.holder, row.created_at)
        time.sleep(_LOOK_SECONDS)
    return []


def _is_abandoned(row: Row[*tuple[Any, ...]]) -> bool:
    """Whether a worker has ended, as far as its process can be seen."""
    if _process(row.holder) == processes.this_process() and _is_running(row.holder):
        return (row.id, row.created_at) not in _OWN
    return _is_running(row.holder) is False


def _already_running(what: str, holder: str, began: int) -> AlreadyRunning:
    return AlreadyRunning(
        f"{what} already: {_shown(holder)}, since {from_micros(began):%Y-%m-%d %H:%M:%S} UTC",
        hint="nothing to do: the other one does the same; to run this one instead, stop the other first",
    )


def workers(connection: Connection, prefixes: tuple[str, ...]) -> list[Worker]:
    """Who is at work at this moment on a name that begins with one of ``prefixes``."""
    table = tables.leases
    query = select(table).where(table.c.role == WORKER, table.c.expires_at > now(connection))
    return [
        Worker(_shown(row.holder), from_micros(row.created_at))
        for row in connection.execute(query.order_by(table.c.created_at))
        if row.id.startswith(prefixes) and not _is_abandoned(row)
    ]


def live_drivers(connection: Connection, prefix: str) -> dict[str, str]:
    """The drivers that live, by the names of their leases, which begin with ``prefix``; and who they are, for people.
    Leases of the others are ended for good."""
    moment = now(connection)
    found = _drivers(connection, prefix)
    living = {
        row.id: _shown(row.holder)
        for row in found
        if _is_running(row.holder, otherwise=row.expires_at > moment)
    }
    _end(connection, [row.id for row in found if row.id not in living])
    return living


def end(connection: Connection, prefix: str) -> None:
    """The leases of drivers, living or not, whose names begin with ``prefix``: none of them commits any more."""
    _end(connection, [row.id for row in _drivers(connection, prefix)])


def _drivers(connection: Connection, prefix: str) -> list[Row[*tuple[Any, ...]]]:
    """There are few; and LIKE takes capitals for small letters in SQLite."""
    return [row for row in connection.execute(_DRIVERS) if row.id.startswith(prefix)]


def _end(connection: Connection, names: Sequence[str]) -> None:
    if names:
        connection.execute(delete(tables.leases).where(tables.leases.c.id.in_(names)))


@contextmanager
def maintainer_lease(catalog: Catalog) -> Iterator[None]:
    """Be the only one in here; a holder that is seen to have died is succeeded at once, any other when its lease ends.
    Raises Busy. This saves work in vain: what keeps the log right is terms."""
    table = tables.leases
    try:
        with catalog.write() as connection:
            _cut_down(connection)
            lease = connection.execute(select(table).where(table.c.id == MAINTAINER)).one_or_none()
            begun = lease is not None and lease.expires_at > now(connection)
            held = lease is not None and begun and _is_running(lease.holder, otherwise=True)
            if lease is not None and not held:
                connection.execute(delete(table).where(*_lease_conditions(lease._asdict())))
            if not held:
                row = _lease_row(connection, MAINTAINER, MAINTAINER, "upkeep")
                connection.execute(insert(table).values(row))
        if lease is not None and held:
            raise Busy(
                f"upkeep is under way: {_shown(lease.holder)}, since {from_micros(lease.created_at):%H:%M:%S} UTC",
                hint="nothing to do; it does the same",
            )
    except Duplicate:
        raise Busy(
            "upkeep is under way: it began at this moment", hint="nothing to do; it does the same"
        ) from None
    with _renewal(catalog, [row]):
        yield


def oldest_need(connection: Connection) -> int | None:
    """Number of the last file that was retired before the oldest living reader began; None without a reader."""
    table = tables.leases
    query = select(table.c.retired).where(
        table.c.role.in_((READER, DRIVER)), table.c.expires_at > now(connection)
    )
    return min(connection.scalars(query), default=None)


def holders(connection: Connection) -> list[str]:
    """Who is at work on the log's files, for people; each once. Captures are not, nor a worker that
    waits for its next work."""
    table = tables.leases
    needed = (table.c.role.not_in((WORKER, CAPTURE)), table.c.expires_at > now(connection))
    query = select(table).where(*needed).order_by(table.c.created_at.desc())
    living = [row for row in connection.execute(query) if _is_running(row.holder, otherwise=True)]
    since = {_shown(row.holder): row.created_at for row in living}
    return [f"{holder}, since {from_micros(began):%H:%M:%S} UTC" for holder, began in since.items()]


def forget_expired(connection: Connection) -> None:
    _cut_down(connection)
    table = tables.leases
    gone = (table.c.role.in_((READER, WORKER, CAPTURE)), table.c.expires_at <= now(connection))
    connection.execute(delete(table).where(*gone))


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


def _lease_row(
    connection: Connection, lease: str, role: str, purpose: str, seconds: float = LEASE_SECONDS
) -> dict[str, Any]:
    began = now(connection)
    return {
        "id": lease,
        "role": role,
        "holder": f"{purpose} by {processes.this_process().text}",
        "retired": terms.current(connection, terms.RETIRED),
        "created_at": began,
        "expires_at": began + int(seconds * 1e6),
    }


def _process(holder: str) -> processes.Process | None:
    return processes.parse(holder.rpartition(" by ")[2])


def _shown(holder: str) -> str:
    """Who that is, for people."""
    purpose, by, process = holder.rpartition(" by ")
    return f"{purpose}{by}{processes.parse(process) or process}"


def _is_running(holder: str, *, otherwise: bool | None = None) -> bool | None:
    """Whether the process of a holder runs, whatever its lease says; ``otherwise`` when nobody here can see it."""
    process = _process(holder)
    seen = None if process is None else processes.is_running(process)
    return otherwise if seen is None else seen


def _lease_conditions(row: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    """This lease, and not that of a successor under the same id."""
    return [tables.leases.c[name] == row[name] for name in ("id", "holder", "created_at")]


@contextmanager
def _lease(
    catalog: Catalog, name: str, role: str, purpose: str, lease: Lease | None = None
) -> Iterator[None]:
    with catalog.write() as connection:
        row = _lease_row(connection, name, role, purpose)
        connection.execute(_INSERT, row)
    with _renewal(catalog, [row], lease=lease):
        yield


@contextmanager
def _renewal(
    catalog: Catalog,
    rows: Sequence[Mapping[str, Any]],
    seconds: float = LEASE_SECONDS,
    lease: Lease | None = None,
) -> Iterator[None]:
    if not rows:
        yield
        return
    table = tables.leases

    def mine() -> ColumnElement[bool]:
        return or_(*(and_(*_lease_conditions(row)) for row in rows))

    def renew() -> None:
        with suppress(TailraceError), catalog.write() as connection:  # what it is held for says it
            expires_at = now(connection) + int(seconds * 1e6)
            connection.execute(update(table).where(mine()).values(expires_at=expires_at))

    try:
        with RENEWALS.every(seconds / _RENEWALS, renew):
            yield
    finally:
        if lease is None or not lease.over:
            with suppress(TailraceError), catalog.write() as connection:
                connection.execute(delete(table).where(mine()))
