"""What a server must allow before anything is prepared or streamed, each failure with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import Connection

from tailrace.cdc.postgres.connect import Address, connect_replication, translate_errors
from tailrace.cdc.postgres.replication import identify
from tailrace.cdc.postgres.slot import read_slot
from tailrace.eventstore.model.position import parse_lsn

Row = tuple[object, ...]

_SERVER = """
SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
       current_setting('max_replication_slots')::int,
       (SELECT count(*) FROM pg_catalog.pg_replication_slots)::int,
       current_setting('max_wal_senders')::int,
       (SELECT count(*) FROM pg_catalog.pg_stat_replication)::int,
       pg_catalog.pg_is_in_recovery(),
       pg_catalog.has_database_privilege(current_database(), 'CREATE'),
       (SELECT r.rolsuper OR r.rolreplication FROM pg_catalog.pg_roles r WHERE r.rolname = current_user),
       EXISTS (SELECT FROM pg_catalog.pg_roles m WHERE m.rolname IN ('rds_replication', 'replication')
               AND pg_catalog.pg_has_role(current_user, m.oid, 'MEMBER')),
       current_user, current_setting('wal_sender_timeout'), current_database(),
       (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_flush_lsn() END::text,
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN 0 ELSE
         ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_flush_lsn()), 8))::bit(32)::int END
"""


@dataclass(frozen=True, slots=True)
class Server:
    """The source's server as its user sees it."""

    version: int
    wal_level: str
    slots: int
    slots_used: int
    senders: int
    senders_used: int
    standby: bool
    may_create: bool
    may_replicate: bool
    user: str
    sender_timeout: str
    database: str
    system_id: str
    flush_lsn: int
    timeline: int  # 0 on a standby


@dataclass(frozen=True, slots=True)
class Problem:
    what: str
    hint: str


def read_server(connection: Connection[Row], address: Address) -> Server:
    with translate_errors("reading the server's settings", address):
        row = connection.execute(_SERVER).fetchone()
    assert row is not None
    version, wal_level, slots, slots_used, senders, senders_used, standby, create, role, member, *rest = row
    return Server(
        version=int(str(version)),
        wal_level=str(wal_level),
        slots=int(str(slots)),
        slots_used=int(str(slots_used)),
        senders=int(str(senders)),
        senders_used=int(str(senders_used)),
        standby=bool(standby),
        may_create=bool(create),
        may_replicate=bool(role) or bool(member),
        user=str(rest[0]),
        sender_timeout=str(rest[1]),
        database=str(rest[2]),
        system_id=str(rest[3]),
        flush_lsn=parse_lsn(str(rest[4])),
        timeline=int(str(rest[5])),
    )


def server_problems(
    server: Server, connection: Connection[Row], slot: str, address: Address
) -> list[Problem]:
    """Everything that would keep capture from starting, apart from tables and publication; [] when nothing does."""
    problems = []
    if server.wal_level != "logical":
        problems.append(
            Problem(
                f"wal_level is {server.wal_level}; logical decoding needs logical",
                "ALTER SYSTEM SET wal_level = 'logical', then restart the server",
            )
        )
    if not server.may_replicate:
        problems.append(
            Problem(
                f"user {server.user} may not replicate",
                f'as a superuser: ALTER ROLE "{server.user}" REPLICATION',
            )
        )
    if server.standby:
        problems.append(
            Problem(
                "the server is a standby, where no publication can be made",
                "give the dsn the primary's address",
            )
        )
    if read_slot(connection, slot, address) is None and server.slots_used >= server.slots:
        problems.append(
            Problem(
                f"all {server.slots} replication slots are taken",
                "raise max_replication_slots (needs a restart), or drop one that nobody needs",
            )
        )
    if server.senders_used >= server.senders:
        problems.append(
            Problem(
                f"all {server.senders} WAL senders are taken",
                "raise max_wal_senders (needs a restart), or end a standby or capture that is no longer needed",
            )
        )
    if not problems:
        problems += _replication_problems(server, address)
    return problems


def _replication_problems(server: Server, address: Address) -> list[Problem]:
    """A replication connection must lead to the same system: poolers and balanced addresses do not."""
    replication = connect_replication(address, "tailrace check")
    try:
        system_id, _ = identify(replication, address)
    finally:
        replication.finish()
    if system_id == server.system_id:
        return []
    return [
        Problem(
            f"ordinary connections lead to system {server.system_id}, replication ones to {system_id}",
            "give the dsn the address of one server, not of a balancer or pooler",
        )
    ]
