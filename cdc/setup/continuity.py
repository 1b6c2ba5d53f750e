"""Whether log and server can go on together: the same system, on a history that the log knows, with our slot.

Every refusal names the command that mends it, before anything is written.
"""

from __future__ import annotations

from psycopg import Connection

from tailrace.cdc.postgres.check import Server, read_server
from tailrace.cdc.postgres.connect import Address, Lines, connect
from tailrace.cdc.postgres.errors import REPAIR_HINT, SlotLost
from tailrace.cdc.postgres.ownership import mark, require_own
from tailrace.cdc.postgres.publication import Publication, read_publication
from tailrace.cdc.postgres.replication import switch_points
from tailrace.cdc.postgres.slot import SlotInfo, read_slot, require_idle, require_usable
from tailrace.eventstore.errors import OperatorError, TransientError, UsageError, manual_page
from tailrace.eventstore.log.sources import chained_state
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.store import Store

Row = tuple[object, ...]
_START_SECONDS = 30.0  # for what is asked before the stream runs: a few reads of the catalog


class Mismatch(OperatorError):
    """The server's WAL does not go on from what the log holds; a repair begins a new incarnation of the source."""


def require_source(store: Store, name: str) -> SourceState:
    state = store.source(name)
    if state is None:
        raise UsageError(f"source {name} is not in the log", hint="run `tailrace init` first")
    return state


def check_start(store: Store, name: str, address: Address) -> tuple[SourceState, Publication | None]:
    """Whether the log and the server can go on together; the source's state, at the position that its last epoch and
    its slot tell, and its publication.

    Slot, state, server, in this order: another capture stores what the server has flushed, and confirms what it has
    stored, so none of them is taken for being ahead of the next. A publication of before, which names no log, is
    marked as this one's. Raises NotOwner, Mismatch, SlotLost (both: repair), IntegrityError (the catalog contradicts
    itself), SlotActive, OperatorError, TransientError (out of reach, a standby).
    """
    lines = Lines()
    address = address.with_lines(lines)
    with lines.timeout(_START_SECONDS), connect(address, "tailrace capture") as connection:
        slot = read_slot(connection, _require_of_postgres(require_source(store, name)).slot, address)
        state = require_source(store, name)
        server = read_server(connection, address)
        publication = read_publication(connection, state.publication, address)
        require_system(server, state, address)
        require_primary(server, address)
        if server.wal_level != "logical":
            raise OperatorError(
                f"wal_level of {address.text} is {server.wal_level}; logical decoding needs logical",
                hint="ALTER SYSTEM SET wal_level = 'logical', then restart the server; see "
                + manual_page("capture/setting-up-a-source.md", "What the server needs"),
            )
        require_own(publication, slot, store.log_id, address, database=server.database, loaded=state.loaded)
        if state.loaded:
            require_history(server, state, address)
            confirmed = _require_slot(slot, server, state, address).confirmed_flush
            state = chained_state(store, state, confirmed)
        mark(connection, publication, store.log_id, address)
    return state, publication


def _require_of_postgres(state: SourceState) -> SourceState:
    """Raises UsageError for a source whose position is that of topics of Kafka."""
    if not state.slot:
        raise UsageError(
            f"source {state.name} was not read from a replication slot, but from topics of Kafka or a recording",
            hint=f"its kind is kafka until `tailrace adopt {state.name}` has taken it over",
        )
    return state


def check_system(connection: Connection[Row], state: SourceState, address: Address) -> None:
    """Raises Mismatch when the connection leads to another system than the source was captured from."""
    require_system(read_server(connection, address), state, address)


def require_system(server: Server, state: SourceState, address: Address) -> None:
    if server.system_id != state.system_id:
        raise Mismatch(
            f"source {state.name} was prepared on system {state.system_id}, {address.text} is system "
            f"{server.system_id}",
            hint="point the source's dsn back to its server; if this one has taken its place (an upgrade, a dump "
            f"restored): `tailrace source repair {state.name}`; see "
            + manual_page("capture/network-and-failover.md", "Failover"),
        )


def require_primary(server: Server, address: Address) -> None:
    """A standby cannot be captured from; it may be about to be promoted. Raises TransientError."""
    if server.standby:
        raise TransientError(
            f"{address.text} is a standby",
            hint="promote it, or give the source's dsn the primary's address",
        )


def require_history(server: Server, state: SourceState, address: Address) -> None:
    """The server's history must hold all that the log knows of. Raises Mismatch.

    A restored server shows by its timeline, or by WAL that ends before the log does. A server that was copied back as
    files and has since written more WAL than was lost does not show.
    """
    hint = (
        f"if it was restored from a backup: `tailrace source repair {state.name}` compares every table with it; see "
        + manual_page("capture/repair.md", "What capture checks when it starts")
    )
    if state.repairing:
        raise Mismatch(
            f"a repair of source {state.name} was begun and did not finish",
            hint=f"run `tailrace source repair {state.name}` again",
        )
    if server.flush_lsn < state.through_lsn:
        raise Mismatch(
            f"the WAL of {address.text} ends at {format_lsn(server.flush_lsn)}, the log of {state.name} knows it up to "
            f"{format_lsn(state.through_lsn)}",
            hint=hint,
        )
    if not state.timeline or server.timeline == state.timeline:
        return
    points = switch_points(address, server.timeline) if server.timeline > state.timeline else {}
    left_at = points.get(state.timeline)
    if left_at is None or left_at < state.through_lsn:
        where = f", which left that one at {format_lsn(left_at)}" if left_at is not None else ""
        raise Mismatch(
            f"the log of {state.name} follows timeline {state.timeline} up to {format_lsn(state.through_lsn)}, "
            f"{address.text} is on timeline {server.timeline}{where}",
            hint=hint,
        )


def _require_slot(slot: SlotInfo | None, server: Server, state: SourceState, address: Address) -> SlotInfo:
    if slot is None:
        raise SlotLost(f"the replication slot {state.slot} is missing on {address.text}", hint=REPAIR_HINT)
    require_usable(slot, server.database, address)
    require_idle(slot, address)
    if slot.confirmed_flush > state.through_lsn:
        raise Mismatch(
            f"slot {slot.name} of {address.text} was confirmed up to {format_lsn(slot.confirmed_flush)}, the log "
            f"reaches only {format_lsn(state.through_lsn)}: changes between are lost (was the catalog restored?)",
            hint=f"put back a later backup, or `tailrace source repair {state.name}`: it compares tables with the log",
        )
    return slot
