"""A snapshot of the source at a position that the log has, so that what both say can be compared.

A temporary slot exports a snapshot; its consistent point is the position: the snapshot holds exactly what commits
below it. It is given once the log has come that far.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import Connection

from tailrace.cdc.context import Task, lock_wait, transaction_wait
from tailrace.cdc.postgres.connect import connect, connect_replication
from tailrace.cdc.postgres.publication import Publication, read_publication
from tailrace.cdc.postgres.slot import create_exported, read_slot
from tailrace.cdc.postgres.tables import Table, read_tables
from tailrace.cdc.setup.continuity import check_system, require_source
from tailrace.cdc.snapshot.copy import TableChanged, lock_tables, snapshot_session
from tailrace.cdc.topics import Topics, is_events
from tailrace.eventstore.catalog.leases import captures
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.topic import TopicId

Row = tuple[object, ...]
WAIT_SECONDS = 60.0
START_SECONDS = 10.0
"""How long a capture that was started a moment ago may take until it says in the catalog that it captures."""

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class SnapshotAtLog:
    """What the source holds at ``lsn``, which the log has. ``tables`` by oid (that of domain events by 0) are locked
    against DDL until it is over. ``connection`` is inside a read-only transaction."""

    connection: Connection[Row]
    lsn: int
    tables: Mapping[int, Table]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to wait for the log to come to the position, and of these for a capture to begin; ``say`` is told what is
    waited for."""

    log: float = WAIT_SECONDS
    start: float = START_SECONDS
    say: Callable[[str], None] = lambda text: None


@contextmanager
def snapshot_at_log(
    task: Task, selected: Sequence[TopicId], patience: Patience, purpose: str
) -> Iterator[SnapshotAtLog]:
    """A snapshot with the tables of some topics. What readers are referred to inside stays, for ``purpose``.

    Raises TransientError without a capture, and when the log does not reach the position in time, OperatorError
    (privileges, no free slot)."""
    address = task.address
    source = require_source(task.store, task.name)
    waits_until = time.monotonic() + patience.log
    with connect(address, "tailrace verify") as control, task.store.pinned(purpose):
        check_system(control, source, address)
        waiting = transaction_wait(task, control)
        while True:
            replication = connect_replication(address, "tailrace verify")
            try:
                slot = f"{source.slot[:40]}_verify_{secrets.token_hex(4)}"
                exported = create_exported(replication, slot, address, waiting=waiting, temporary=True)
                lsn = exported.consistent_point
                with snapshot_session(address, exported.snapshot) as snapshot:
                    # Before any lock: who truncates a table would wait as long, and its readers behind that.
                    _wait_for(task, control, lsn, waits_until, patience)
                    publication = read_publication(snapshot, source.publication, address)
                    try:
                        tables = _lock(task, snapshot, selected, publication)
                    except TableChanged:  # between the snapshot and our locks: again, with a new one
                        if time.monotonic() > waits_until:
                            raise
                        continue
                    yield SnapshotAtLog(snapshot, lsn, tables)
                    return
            finally:
                replication.finish()


def _lock(
    task: Task, snapshot: Connection[Row], selected: Sequence[TopicId], publication: Publication | None
) -> dict[int, Table]:
    topics, schema = Topics.read(task.store, task.name), task.settings.events_schema
    wanted = {topics.relid(topic) for topic in selected if topic in topics.tables}
    if any(topic not in topics.tables for topic in selected):
        wanted |= {table.relid for table in read_tables(snapshot, task.address) if is_events(table, schema)}
    locked = lock_tables(snapshot, task.address, sorted(wanted), publication, waiting=lock_wait(task))
    return {0 if is_events(table, schema) else table.relid: table for table in locked}


def _wait_for(task: Task, control: Connection[Row], lsn: int, deadline: float, patience: Patience) -> None:
    """Wait until the log has everything that commits below ``lsn``."""
    name = task.name
    starts_until = time.monotonic() + min(patience.start, patience.log)
    while (reached := require_source(task.store, name)).through_lsn < lsn:
        now = time.monotonic()
        positions = f"the log of source {name} is at {format_lsn(reached.through_lsn)}"
        if _is_captured(task, control, reached.slot):
            starts_until = 0.0
        elif now > starts_until:
            raise TransientError(
                f"{positions}, it is compared at {format_lsn(lsn)}, and no capture runs that would bring it there",
                hint="start `tailrace capture`, and try again beside it",
            )
        else:
            left = f"{patience.start:.0f} s, in case one has just been started"
            patience.say(f"no process captures {name}: waiting for one up to {left}")
        if now > deadline:
            raise TransientError(
                f"{positions} and did not reach {format_lsn(lsn)}, where it is compared, within"
                f" {patience.log:.0f} s",
                hint="capture is behind: wait and try again",
            )
        time.sleep(_POLL_SECONDS)


def _is_captured(task: Task, control: Connection[Row], name: str) -> bool:
    """Whether a process captures the source: it says so in the catalog, or has the slot."""
    with task.store.catalog.read() as connection:
        if captures(connection, task.name):
            return True
    slot = read_slot(control, name, task.address)
    return slot is not None and slot.active_pid is not None
