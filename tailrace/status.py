"""How far a source is: what the log holds of it, and what its server still has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.model.position import format_lsn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tailrace.cdc.postgres.progress import Ladder
    from tailrace.eventstore.metadata.refused_messages import RefusedMessages
    from tailrace.eventstore.model.info import SourceState, TopicInfo
    from tailrace.eventstore.settings import SourceSettings
    from tailrace.eventstore.store import Store

ANSWER_SECONDS = 3  # a source that is down must not hold up what is said of the others
SILENT_SECONDS = 15.0  # a capture answers its server every 10 s, or more often


@dataclass(frozen=True, slots=True)
class CaptureProcess:
    """Who captures a source, and ``since`` when (None: not known, as it does not say so in this catalog). ``problem``:
    why nothing may come of it at this moment."""

    process: str
    since: datetime | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class UnknownTopic:
    """A topic whose state is not known, why, and what to do."""

    topic: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source: what is in the log, and what the server still has for it (None: out of reach). ``slow`` is who holds
    it up, "" when nobody does; ``slot_lost_in_seconds`` is None where the server sets no limit. ``refused``: logical
    messages with a prefix of ours that were not believed."""

    name: str
    state: str
    topics: int
    incomplete: int  # without retired ones
    through_lsn: str
    behind_bytes: int | None
    ladder: Ladder | None = None
    slow: str = ""
    slot_lost_in_seconds: float | None = None
    refused: tuple[RefusedMessages, ...] = ()
    capture: CaptureProcess | None = None
    unknown: tuple[UnknownTopic, ...] = ()


def source_status(store: Store, name: str, settings: SourceSettings) -> SourceStatus:
    """``name`` as the catalog knows it, beside the server's own position."""
    from tailrace.eventstore.metadata.refused_messages import refused_messages

    refused = tuple(refused_messages(store.catalog, name))
    topics = store.topics(name)
    found = _position_status(store, name, settings, topics)
    capture = _capture_process(store, name, found.ladder)
    unknown = () if found.through_lsn == "-" else tuple(_unknown_topics(store, name, topics, capture))
    return replace(found, refused=refused, capture=capture, unknown=unknown)


def _capture_process(store: Store, name: str, ladder: Ladder | None) -> CaptureProcess | None:
    """The process that captures a source; None when none does, as far as catalog and server know."""
    from tailrace.eventstore.catalog.leases import captures

    with store.catalog.read() as connection:
        found = captures(connection, name)
    connected = ladder is not None and ladder.sent is not None
    if not found:
        return CaptureProcess("a process that is not in this catalog", None) if connected else None
    problem = ""
    if ladder is not None and not connected:
        problem = "it is not connected to the server"
    elif ladder is not None and (ladder.reply_seconds or 0.0) > SILENT_SECONDS:
        problem = f"the server has not heard of it for {ladder.reply_seconds:.0f} s"
    return CaptureProcess(found[-1].holder.removeprefix("capture by "), found[-1].since, problem)


def _unknown_topics(
    store: Store, name: str, topics: Sequence[TopicInfo], capture: CaptureProcess | None
) -> list[UnknownTopic]:
    """The incomplete topics but retired ones and those in quarantine."""
    from tailrace.eventstore.metadata.quarantine import quarantined_topics

    apart = {each.topic for each in quarantined_topics(store.catalog, name)}
    return [
        UnknownTopic(topic.id.text, topic.reason, _remedy(topic, capture))
        for topic in topics
        if topic.complete_since is None and not topic.is_retired and topic.id not in apart
    ]


def _remedy(topic: TopicInfo, capture: CaptureProcess | None) -> str:
    from tailrace.eventstore.model.info import DROPPED, LEFT, MISMATCH

    if topic.reason == DROPPED:
        return f"tailrace topic retire {topic.id.text}"
    if topic.reason == LEFT:
        return f"tailrace init publishes it again, or tailrace topic retire {topic.id.text}"
    if topic.reason.startswith(MISMATCH):
        return "tailrace doctor says how to mend the publication"
    return "wait: capture reads it" if capture else "tailrace capture"


def _position_status(
    store: Store, name: str, settings: SourceSettings, topics: Sequence[TopicInfo]
) -> SourceStatus:
    incomplete = sum(topic.complete_since is None and not topic.is_retired for topic in topics)
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
