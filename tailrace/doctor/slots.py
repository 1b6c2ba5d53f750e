"""What can fail later in a captured source: its slot, slots left behind, settings under which slots are lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import ip_address
from typing import TYPE_CHECKING

from tailrace.doctor.check import Check

if TYPE_CHECKING:
    from psycopg import Connection

    from tailrace.cdc.postgres.connect import Address
    from tailrace.eventstore.model.info import SourceState
    from tailrace.eventstore.settings import PostgresSourceSettings
    from tailrace.eventstore.store import Store

KEEP_MINIMUM_MB = 1024  # less is written in an hour by a few hundred small transactions a second
TIMEOUT_MINIMUM_MS = 10_000  # less is reached by one slow disk flush after another

# In the settings' own units: MB, ms; the last one exists from Postgres 18 on.
_SETTINGS = """
SELECT name, setting::bigint FROM pg_catalog.pg_settings
WHERE name IN ('max_slot_wal_keep_size', 'wal_sender_timeout', 'idle_replication_slot_timeout')
"""
_LEFT_BEHIND = """
SELECT slot_name::text, pg_catalog.pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), restart_lsn))
FROM pg_catalog.pg_replication_slots
WHERE starts_with(slot_name::text, %s) AND slot_name <> ALL (%s) AND NOT active AND NOT temporary
"""


def check_slots(
    store: Store, configured: Collection[str], name: str, settings: PostgresSourceSettings
) -> Iterator[Check]:
    """The slots of one source's server. ``configured``: names of all sources, whose slots are not left behind. A
    standby is skipped: another check reports it.

    Raises OperatorError and TransientError (out of reach).
    """
    from tailrace.cdc.postgres.check import read_server
    from tailrace.cdc.postgres.connect import Address, connect

    address = Address.of(settings)
    with connect(address, "tailrace doctor") as connection:
        if read_server(connection, address).standby:
            return
        info = connection.info
        yield from check_catalog_place(store.catalog.kind, info.host, info.hostaddr, f"source {name} catalog")
        yield from _check_pooler(connection, address, f"source {name} address")
        yield from _check_own_slot(connection, address, f"source {name} slot", store.source(name))
        yield from _check_left_behind(
            connection, address, f"source {name} slots", store.settings.name, configured
        )
        yield from _check_server_settings(connection, address, f"source {name}")


def check_catalog_place(catalog: str, host: str, hostaddr: str, subject: str) -> Iterator[Check]:
    """Whether the catalog is a file although the source is reached over a network."""
    local = host.startswith(("/", "@")) or (hostaddr != "" and ip_address(hostaddr).is_loopback)
    if catalog == "sqlite" and not local:
        yield Check(
            subject, "warn",
            f"it is a SQLite file, the server is on {host}: capture, projections and every other command have to "
            "run on this machine, and what is in the log is lost with its disk",
            'nothing, if that is meant; otherwise store.catalog = "postgresql://…", outside of what is captured, and '
            "store.segments on a disk that the other machines see",
        )  # fmt: skip


def _check_pooler(
    connection: Connection[tuple[object, ...]], address: Address, subject: str
) -> Iterator[Check]:
    """A pooler answers a connection with a process number of its own (protocol: BackendKeyData)."""
    from tailrace.cdc.postgres.connect import translate_errors

    with translate_errors("asking for the server's process", address):
        row = connection.execute("SELECT pg_catalog.pg_backend_pid()").fetchone()
    if row != (connection.info.backend_pid,):
        yield Check(
            subject, "warn",
            "a pooler or proxy answers in place of the server: one that gives each transaction another connection "
            "loses the settings that capture's reads depend on",
            "give the source's dsn the server's own host and port, or be sure that sessions stay on one connection",
        )  # fmt: skip


def _check_own_slot(
    connection: Connection[tuple[object, ...]], address: Address, subject: str, known: SourceState | None
) -> Iterator[Check]:
    from tailrace.cdc.postgres.errors import REPAIR_HINT
    from tailrace.cdc.postgres.slot import read_slot

    if known is None or not known.loaded:
        return
    slot = read_slot(connection, known.slot, address)
    if slot is None:
        yield Check(subject, "fail", f"{known.slot} is missing: changes since are lost", REPAIR_HINT)
    elif slot.wal_status == "lost" or slot.invalidation:
        why = f" ({slot.invalidation})" if slot.invalidation else ""
        yield Check(
            subject, "fail", f"{known.slot} was invalidated{why}: changes since are lost", REPAIR_HINT
        )
    elif slot.wal_status == "unreserved":
        yield Check(
            subject, "fail", f"{known.slot} is lost at the next checkpoint: it is over max_slot_wal_keep_size",
            "start tailrace capture now, or raise max_slot_wal_keep_size and reload the server",
        )  # fmt: skip


def _check_left_behind(
    connection: Connection[tuple[object, ...]],
    address: Address,
    subject: str,
    store: str,
    configured: Collection[str],
) -> Iterator[Check]:
    from tailrace.cdc.postgres.connect import translate_errors
    from tailrace.cdc.postgres.slot import slot_name

    ours = [slot_name(store, source) for source in configured]
    with translate_errors("looking for slots left behind", address):
        found = connection.execute(_LEFT_BEHIND, [f"{store}_", ours]).fetchall()
    for slot, kept in found:
        yield Check(
            subject, "warn", f"{slot} belongs to no configured source, nobody uses it, it keeps {kept} of WAL",
            f"SELECT pg_drop_replication_slot('{slot}') unless another configuration captures with it",
        )  # fmt: skip


def _check_server_settings(
    connection: Connection[tuple[object, ...]], address: Address, subject: str
) -> Iterator[Check]:
    from tailrace.cdc.postgres.connect import translate_errors

    with translate_errors("reading the server's settings", address):
        settings = {str(name): int(str(value)) for name, value in connection.execute(_SETTINGS).fetchall()}
    keep, timeout = settings["max_slot_wal_keep_size"], settings["wal_sender_timeout"]
    remedy = (
        "ALTER SYSTEM SET max_slot_wal_keep_size = '20GB' (what its disk can bear); SELECT pg_reload_conf()"
    )
    place = f"{subject} max_slot_wal_keep_size"
    if keep < 0:
        yield Check(
            place, "warn", "no limit: while capture stands still, WAL piles up until the server's disk is full",
            remedy,
        )  # fmt: skip
    elif keep < KEEP_MINIMUM_MB:
        yield Check(place, "warn", f"{keep} MB: the slot is lost soon after capture stands still", remedy)
    if timeout < TIMEOUT_MINIMUM_MS:
        yield Check(
            f"{subject} wal_sender_timeout", "warn",
            f"{timeout} ms: a short stall ends the connection" if timeout
            else "0: a capture whose machine is gone holds its slot until somebody ends it",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf()",
        )  # fmt: skip
    if settings.get("idle_replication_slot_timeout"):
        yield Check(
            f"{subject} idle_replication_slot_timeout", "warn",
            "the slot is invalidated when capture stands still for longer",
            "ALTER SYSTEM RESET idle_replication_slot_timeout; SELECT pg_reload_conf()",
        )  # fmt: skip
