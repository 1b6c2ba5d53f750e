"""What of server, slot, publication and Kafka keeps a source from being taken over, each with what to do. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tailrace.cdc.postgres.check import Server
from tailrace.cdc.postgres.connect import quote
from tailrace.cdc.postgres.publication import Publication
from tailrace.cdc.postgres.slot import SlotInfo
from tailrace.cdc.setup.table_choice import Level, SetupFinding
from tailrace.eventstore.model.kafka import PartitionProgress, SnapshotPhase
from tailrace.eventstore.model.position import format_lsn

_OTHER = "give --dsn the server that the connector reads"


def _blocking(subject: str, what: str, hint: str) -> SetupFinding:
    return SetupFinding(Level.BLOCKING, subject, what, hint)


def server_findings(
    server: Server, progress: Sequence[PartitionProgress], catalog_system: str
) -> list[SetupFinding]:
    """``catalog_system``: that of the Postgres which the source's settings name, "" when they name none."""
    found = []
    highest = max((max(each.commit_lsn, each.row_lsn) for each in progress), default=0)
    if highest > server.flush_lsn:
        ends = (
            f"Kafka has rows up to {format_lsn(highest)}, and the WAL ends at {format_lsn(server.flush_lsn)}"
        )
        found.append(_blocking("server", f"{ends}: it is another system, or it was restored", _OTHER))
    if catalog_system not in ("", server.system_id):
        what = f"it is system {server.system_id}, and catalog_dsn leads to system {catalog_system}"
        found.append(_blocking("server", what, _OTHER))
    if server.standby:
        found.append(_blocking("server", "it is a standby", "give --dsn the primary's address"))
    if server.wal_level != "logical":
        hint = "ALTER SYSTEM SET wal_level = 'logical', then restart the server"
        found.append(_blocking("server", f"wal_level is {server.wal_level}", hint))
    if not server.may_replicate:
        hint = f"as a superuser: ALTER ROLE {quote(server.user)} REPLICATION"
        found.append(_blocking("server", f"user {server.user} may not replicate", hint))
    return found


def slot_findings(name: str, slot: SlotInfo | None, database: str) -> list[SetupFinding]:
    what, hint = _slot_problem(slot, database)
    return [_blocking(f"slot {name}", what, hint)] if what else []


def _slot_problem(slot: SlotInfo | None, database: str) -> tuple[str, str]:
    if slot is None:
        return "there is none of this name", "give --slot the connector's slot.name (its default: debezium)"
    if slot.plugin != "pgoutput":
        return (
            f"its plugin is {slot.plugin}, which native capture cannot read",
            "let the connector go on with plugin.name=pgoutput and a new slot first, or capture the database as a"
            " source of another name, which reads its tables",
        )
    if slot.database != database:
        return f"it is of database {slot.database}, --dsn leads to {database}", "correct --dsn"
    if slot.wal_status == "lost" or slot.invalidation:
        return (
            f"it is lost ({slot.invalidation or 'WAL that it needs was removed'}), and so is what is not in Kafka",
            "let the connector take a snapshot with a new slot first, or capture the database as a source of another"
            " name, which reads its tables",
        )
    if slot.temporary:
        return "it is temporary, and goes with its connection", "name the connector's slot"
    if slot.active_pid is not None:
        return (
            f"server process {slot.active_pid} uses it",
            "stop the connector first, in Kafka Connect: PUT /connectors/NAME/stop",
        )
    return "", ""


def publication_findings(
    name: str, publication: Publication | None, own: Collection[int]
) -> list[SetupFinding]:
    """``own``: oids of tables that Tailrace writes."""
    subject = f"publication {name}"
    if publication is None:
        hint = "give --publication the connector's publication.name (its default: dbz_publication)"
        return [_blocking(subject, "there is none of this name", hint)]
    found = []
    if publication.mismatch:
        mend = f"ALTER PUBLICATION {quote(name)} SET (publish = 'insert, update, delete, truncate')"
        found.append(_blocking(subject, publication.mismatch, mend))
    if any(relid in own for relid in publication.entries):
        what = "it publishes what Tailrace writes: capturing it would never end"
        hint = "keep catalog and sinks in another database, or let the publication name its tables"
        found.append(_blocking(subject, what, hint))
    return found


def snapshot_findings(
    progress: Sequence[PartitionProgress], routes: Mapping[str, object]
) -> list[SetupFinding]:
    """``routes``: by the topics of Kafka that lead to incomplete ones of the log. Of several partitions one has the
    last row of a snapshot; the others run on until a streamed row comes."""
    running = {
        each.topic for each in progress if each.snapshot is SnapshotPhase.RUNNING and each.topic in routes
    }
    what = "a snapshot by Debezium has begun there and not ended"
    hint = "let the connector finish it, then stop the connector and try again"
    return [_blocking(each, what, hint) for each in sorted(running)]
