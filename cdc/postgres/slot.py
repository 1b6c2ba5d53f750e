"""Replication slots: what state they are in, making them with an exported snapshot, dropping them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg import Connection, pq

from tailrace.cdc.postgres import errors
from tailrace.cdc.postgres.connect import Address, quote, translate_errors
from tailrace.cdc.postgres.errors import REPAIR_HINT, SlotActive, SlotLost
from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.model.position import parse_lsn
from tailrace.eventstore.readiness import readable

_PG15 = 150000
_CANCEL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A row of pg_replication_slots. ``active_pid`` is the server process that uses it; LSNs 0 when unset."""

    name: str
    plugin: str
    database: str
    temporary: bool
    active_pid: int | None
    confirmed_flush: int
    restart: int
    wal_status: str
    invalidation: str


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A new slot. Everything that commits below ``consistent_point`` is in ``snapshot``, everything else is streamed.
    The snapshot lives until the connection's next command."""

    slot: str
    consistent_point: int
    snapshot: str


def slot_name(store: str, source: str) -> str:
    """A name of at most 63 lower-case characters: both parts are ``tailrace.eventstore.settings.Name``."""
    return f"{store}_{source}"


def read_slot(connection: Connection[tuple[object, ...]], name: str, address: Address) -> SlotInfo | None:
    """The slot's state, None when there is none."""
    with translate_errors("reading the replication slot", address):
        row = connection.execute(
            """
            SELECT s.plugin, s.database, s.temporary, s.active_pid, s.confirmed_flush_lsn::text, s.restart_lsn::text,
                   coalesce(s.wal_status, 'lost'), to_jsonb(s) ->> 'invalidation_reason'
            FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s
            """,
            [name],
        ).fetchone()
    if row is None:
        return None
    plugin, database, temporary, pid, confirmed, restart, wal_status, invalidation = row
    return SlotInfo(
        name=name,
        plugin=str(plugin or "physical"),
        database=str(database or ""),
        temporary=bool(temporary),
        active_pid=int(str(pid)) if pid is not None else None,
        confirmed_flush=parse_lsn(str(confirmed)) if confirmed else 0,
        restart=parse_lsn(str(restart)) if restart else 0,
        wal_status=str(wal_status),
        invalidation=str(invalidation or ""),
    )


def require_of_database(slot: SlotInfo, database: str, address: Address) -> None:
    """Raise OperatorError for a slot that we cannot have made: of another plugin, or another database of the server."""
    if slot.plugin != "pgoutput" or slot.database != database:
        raise OperatorError(
            f"the replication slot {slot.name} of {address.text} is not ours: "
            f"plugin {slot.plugin}, database {slot.database or 'none'}",
            hint="choose another [store] name, or drop that slot if nobody needs it",
        )


def require_usable(slot: SlotInfo, database: str, address: Address) -> None:
    """Raise when the slot cannot be streamed from: foreign, lost or invalidated."""
    require_of_database(slot, database, address)
    if slot.wal_status == "lost" or slot.invalidation:
        raise SlotLost(
            f"the replication slot {slot.name} of {address.text} was invalidated: wal_status {slot.wal_status}"
            + (f", invalidation_reason {slot.invalidation}" if slot.invalidation else ""),
            hint=REPAIR_HINT,
        )


def require_idle(slot: SlotInfo, address: Address) -> None:
    """Raise SlotActive when another process uses the slot."""
    if slot.active_pid is not None:
        raise SlotActive(
            f"the replication slot {slot.name} of {address.text} is in use by another process "
            f"(server process {slot.active_pid})",
            hint="end the other capture; if its machine is gone: "
            f"SELECT pg_terminate_backend({slot.active_pid})",
            pid=slot.active_pid,
        )


def create_exported(
    connection: pq.abc.PGconn,
    name: str,
    address: Address,
    *,
    waiting: Callable[[], None],
    temporary: bool = False,
) -> ExportedSnapshot:
    """CREATE_REPLICATION_SLOT with an exported snapshot, which dies with the connection's next command or end.

    The server waits until every transaction that is running now has ended; meanwhile ``waiting`` is called about
    twice a second and may raise to give up. A temporary slot goes with its connection. Raises OperatorError: no free
    slot, name taken, wal_level.
    """
    kind = " TEMPORARY" if temporary else ""
    option = "(SNAPSHOT 'export')" if connection.server_version >= _PG15 else "EXPORT_SNAPSHOT"
    text = f"CREATE_REPLICATION_SLOT {quote(name)}{kind} LOGICAL pgoutput {option}"
    connection.send_query(text.encode())
    answered = False
    try:
        while _is_busy(connection, address):
            if not readable([connection.socket], 0.5):
                waiting()
        answered = True
    finally:
        if not answered:  # a server process that waits does not notice that we hang up
            _cancel(connection, address)
    result = connection.get_result()
    assert result is not None
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise errors.from_result(result, f"creating the replication slot {name}", address.text)
    point, snapshot = result.get_value(0, 1), result.get_value(0, 2)
    assert point is not None and snapshot is not None
    return ExportedSnapshot(name, parse_lsn(point.decode()), snapshot.decode())


def _is_busy(connection: pq.abc.PGconn, address: Address) -> bool:
    try:
        connection.consume_input()
        return bool(connection.is_busy())
    except psycopg.OperationalError as error:
        raise errors.failure(None, str(error), "creating the replication slot", address.text) from None


def _cancel(connection: pq.abc.PGconn, address: Address) -> None:
    """Cancel the running command and wait a moment until the server has taken its slot back."""
    try:
        connection.get_cancel().cancel()
        deadline = time.monotonic() + _CANCEL_SECONDS
        while _is_busy(connection, address) and time.monotonic() < deadline:
            readable([connection.socket], 0.1)
    except (psycopg.OperationalError, TransientError):
        pass  # the connection is gone, and the command with it


def longest_transaction(connection: Connection[tuple[object, ...]], address: Address) -> str:
    """Who keeps a new slot waiting: the oldest running transaction that writes, as a sentence; "" when none."""
    with translate_errors("looking for running transactions", address):
        row = connection.execute(
            """
            SELECT pid, coalesce(nullif(application_name, ''), backend_type), state,
                   extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::int
            FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start LIMIT 1
            """
        ).fetchone()
    if row is None:
        return ""
    return f"server process {row[0]} ({row[1]}, {row[2]}) has a transaction open for {row[3]} s"


def drop_slot(connection: Connection[tuple[object, ...]], name: str, address: Address) -> None:
    """Drop the slot; nothing to do when it is gone. Raises SlotActive."""
    with translate_errors(f"dropping the replication slot {name}", address):
        connection.execute(
            "SELECT pg_catalog.pg_drop_replication_slot(slot_name)"
            " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
            [name],
        )
