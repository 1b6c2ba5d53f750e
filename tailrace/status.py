"""How far a source is: what the log holds of it, and what its server still has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.model.position import format_lsn

if TYPE_CHECKING:
    from tailrace.cdc.postgres.progress import Ladder
    from tailrace.eventstore.metadata.refused_messages import RefusedMessages
    from tailrace.eventstore.model.info import SourceState
    from tailrace.eventstore.settings import SourceSettings
    from tailrace.eventstore.store import Store

ANSWER_SECONDS = 3  # a source that is down must not hold up what is said of the others


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source: what is in the log, and what the server still has for it (None: out of reach). ``slow`` is who holds
    it up, "" when nobody does; ``slot_lost_in_seconds`` is None where the server sets no limit. ``refused``: logical
    messages with a prefix of ours that were not believed."""

    name: str
    state: str
    topics: int
    incomplete: int
    through_lsn: str
    behind_bytes: int | None
    ladder: Ladder | None = None
    slow: str = ""
    slot_lost_in_seconds: float | None = None
    refused: tuple[RefusedMessages, ...] = ()


def source_status(store: Store, name: str, settings: SourceSettings) -> SourceStatus:
    """``name`` as the catalog knows it, beside the server's own position."""
    from tailrace.eventstore.metadata.refused_messages import refused_messages

    refused = tuple(refused_messages(store.catalog, name))
    return replace(_position_status(store, name, settings), refused=refused)


def _position_status(store: Store, name: str, settings: SourceSettings) -> SourceStatus:
    topics = store.topics(name)
    incomplete = sum(topic.complete_since is None for topic in topics)
    known = store.source(name)
    if known is None:
        return SourceStatus(name, "not prepared: tailrace init", len(topics), incomplete, "-", None)
    if not known.loaded:
        return SourceStatus(name, "waiting for first load", len(topics), incomplete, "-", None)
    ladder = reachable_ladder(settings, known)
    through = format_lsn(known.through_lsn)
    if ladder is None:
        return SourceStatus(name, "server out of reach", len(topics), incomplete, through, None)
    state = "server is a standby" if ladder.standby else "loaded"
    return SourceStatus(
        name, state, len(topics), incomplete, through, ladder.head - known.through_lsn, ladder, ladder.slow,
        ladder.remaining_seconds,
    )  # fmt: skip


def reachable_ladder(settings: SourceSettings, known: SourceState) -> Ladder | None:
    """The source's ladder, None when its server is out of reach."""
    from tailrace.cdc.postgres.connect import Address
    from tailrace.cdc.postgres.progress import read_ladder

    address = Address.of(settings)
    quick = Address({"connect_timeout": str(ANSWER_SECONDS), **address.conninfo})
    try:
        return read_ladder(quick, known.slot, known.through_lsn)
    except (OperatorError, TransientError):
        return None


def server_flush_lsn(dsn: str) -> int | None:
    """The server's WAL flush position (a standby's replay position), None when it is out of reach."""
    import psycopg

    from tailrace.eventstore.model.position import parse_lsn

    try:
        with psycopg.connect(dsn, connect_timeout=ANSWER_SECONDS, autocommit=True) as connection:
            row = connection.execute(
                "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
                " ELSE pg_current_wal_flush_lsn() END::text"
            ).fetchone()
    except psycopg.Error:
        return None
    return parse_lsn(row[0]) if row else None
