"""How far a source is: what the log holds of it, and what its server still has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.eventstore.errors import OperatorError, TailraceError, TransientError
from tailrace.eventstore.model.position import format_lsn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tailrace.cdc.kafka.lag import PartitionLag
    from tailrace.cdc.kafka.registry.client import RegistryAnswer
    from tailrace.cdc.postgres.progress import Ladder
    from tailrace.eventstore.metadata.refused_messages import RefusedMessages
    from tailrace.eventstore.model.info import SourceState, TopicInfo
    from tailrace.eventstore.publishing.parked import ParkedKey
    from tailrace.eventstore.publishing.position import Position
    from tailrace.eventstore.settings import (
        KafkaSourceSettings,
        PostgresSourceSettings,
        Settings,
        SourceSettings,
    )
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
    messages with a prefix of ours that were not believed. ``partitions`` of a source of the kind kafka, whose
    ``parked`` records could not be read; ``registry`` of schemas, where its records are in Avro. ``taken_over_at``: the
    LSN from which on the slot keeps all WAL, until taking it over from Debezium is confirmed; "" where nothing waits
    for that."""

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
    partitions: tuple[PartitionLag, ...] = ()
    parked: int = 0
    taken_over_at: str = ""
    registry: RegistryAnswer | None = None


def source_status(store: Store, name: str, settings: SourceSettings) -> SourceStatus:
    """``name`` as the catalog knows it, beside the server's own position."""
    from tailrace.cdc.setup.adopted import unconfirmed
    from tailrace.eventstore.metadata.refused_messages import refused_messages

    refused = tuple(refused_messages(store.catalog, name))
    topics = store.topics(name)
    found = _position_status(store, name, settings, topics)
    capture = _capture_process(store, name, found.ladder)
    unknown = () if found.through_lsn == "-" else tuple(_unknown_topics(store, name, topics, capture))
    known = store.source(name)
    adoption = unconfirmed(store, known) if known is not None else None
    since = format_lsn(adoption.lsn) if adoption is not None else ""
    return replace(found, refused=refused, capture=capture, unknown=unknown, taken_over_at=since)


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
    from tailrace.eventstore.metadata.kafka_progress import parked_records

    incomplete = sum(topic.complete_since is None and not topic.is_retired for topic in topics)
    known = store.source(name)
    if known is None:
        return SourceStatus(name, "not prepared: tailrace init", len(topics), incomplete, "-", None)
    if not known.loaded:
        return SourceStatus(name, "waiting for first load", len(topics), incomplete, "-", None)
    through = format_lsn(known.through_lsn)
    if settings.kind == "kafka":
        parked = parked_records(store.catalog, name)
        lag = reachable_lag(store, name, settings)
        state = "brokers out of reach" if lag is None else "read"
        found = SourceStatus(name, state, len(topics), incomplete, through, None)
        registry = asked_registry(settings)
        return replace(found, partitions=tuple(lag or ()), parked=parked, registry=registry)
    ladder = reachable_ladder(settings, known)
    if ladder is None:
        return SourceStatus(name, "server out of reach", len(topics), incomplete, through, None)
    state = "server is a standby" if ladder.standby else "loaded"
    return SourceStatus(
        name, state, len(topics), incomplete, through, ladder.head - known.through_lsn, ladder, ladder.slow,
        ladder.remaining_seconds,
    )  # fmt: skip


def reachable_ladder(settings: PostgresSourceSettings, known: SourceState) -> Ladder | None:
    """The source's ladder, None when its server is out of reach."""
    from tailrace.cdc.postgres.connect import Address
    from tailrace.cdc.postgres.progress import read_ladder

    address = Address.of(settings)
    quick = Address({"connect_timeout": str(ANSWER_SECONDS), **address.conninfo})
    try:
        return read_ladder(quick, known.slot, known.through_lsn)
    except (OperatorError, TransientError):
        return None


def reachable_lag(store: Store, name: str, settings: KafkaSourceSettings) -> list[PartitionLag] | None:
    """By partition how far a source of the kind kafka is, None when its brokers are out of reach."""
    try:
        from tailrace.cdc.kafka.lag import read_lag

        return read_lag(store, name, settings)
    except (OperatorError, TransientError):
        return None


def asked_registry(settings: KafkaSourceSettings) -> RegistryAnswer | None:
    """Whether the schema registry of a source answers; None when it has none."""
    try:
        from tailrace.cdc.kafka.registry.client import ask_registry
    except OperatorError:  # what is not installed reads no records either
        return None
    return ask_registry(settings.registry, ANSWER_SECONDS)


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


@dataclass(frozen=True, slots=True)
class PublicationStatus:
    """How far a publication is. ``epoch``: up to which everything is published (None: not known). ``waiting``: how many
    epochs behind it have rows for it (of a projection: steps), at most ``WAITING_MAX``, and ``since`` when the first of
    them was committed.
    ``parked``: keys that wait, as the destination does not take a record of theirs. ``hint``: what to do where the
    state is an error. ``holds_until``: until when retention keeps rows for it, if nothing is heard of it (None: it
    keeps none). ``destination`` is "" for one that is no longer configured."""

    name: str
    destination: str
    state: str
    epoch: int | None = None
    waiting: int | None = None
    since: datetime | None = None
    parked: tuple[ParkedKey, ...] = ()
    hint: str = ""
    holds_until: datetime | None = None


WAITING_MAX = 1000


def _published(store: Store, name: str, settings: Settings) -> tuple[str, Position | None, list[ParkedKey]]:
    """Where its position is kept, the position, and the keys that wait."""
    destination = settings.destinations[settings.publish[name].destination]
    if destination.kind == "kafka":
        from tailrace.eventstore.publishing.kafka.positions import position_topic, shown_state

        place = position_topic(settings.store.name, name)
        return place, *shown_state(destination, place)
    from tailrace.eventstore.publishing.bridges import kept

    return kept.PLACE, *kept.shown_state(store.catalog, name)


def publication_statuses(store: Store, settings: Settings) -> list[PublicationStatus]:
    """Of all publications that are configured, or that retention still keeps rows for."""
    from tailrace.eventstore.metadata.publications import publication_needs

    until = {each.name: each.holds_until for each in publication_needs(store.groups_database) if each.holds}
    found = [
        replace(publication_status(store, name, settings), holds_until=until.pop(name, None))
        for name in sorted(settings.publish)
    ]
    gone = "not configured; rows are kept for it"
    found += [
        PublicationStatus(name, "", gone, hint=f"tailrace publish --forget {name}", holds_until=each)
        for name, each in until.items()
    ]
    return found


def publication_status(store: Store, name: str, settings: Settings) -> PublicationStatus:
    """``name`` as its destination knows it, or the catalog where that keeps no position."""
    from tailrace.eventstore.publishing.position import Position

    wanted = settings.publish[name]
    try:
        place, found, parked = _published(store, name, settings)
        position = found or Position(store.log_id)
        look = _behind_result if wanted.projection else _behind_log
        behind = look(store, name, settings, position, place)
    except TailraceError as error:
        return PublicationStatus(name, wanted.destination, error.message, hint=error.hint)
    state = "nothing is published yet" if found is None else "behind" if behind else "up to date"
    since = behind[0] if behind else None
    return PublicationStatus(
        name, wanted.destination, state, position.whole_epoch, len(behind), since, tuple(parked)
    )


def _behind_log(
    store: Store, name: str, settings: Settings, position: Position, place: str
) -> Sequence[datetime | None]:
    """When the epochs committed that are not published. Raises as publishing would."""
    from tailrace.eventstore.publishing.names import require_apart
    from tailrace.eventstore.publishing.position import require_ours
    from tailrace.eventstore.subscriptions.filter import matching_topics

    wanted = settings.publish[name]
    require_ours(store, position, name, place)
    topics = [info.id for info in matching_topics(store, wanted.topics)]
    if settings.destinations[wanted.destination].kind == "kafka":
        require_apart(topics, wanted, {place, wanted.dead_letter or place})
    return [each.commit_ts for each in store.epochs(position.whole_epoch, WAITING_MAX, topics)]


def _behind_result(
    store: Store, name: str, settings: Settings, position: Position, place: str
) -> Sequence[datetime | None]:
    """The same of the steps of a projection."""
    from tailrace.projections.publishing.result_feed import require_of_results, steps_behind

    require_of_results(store, position, name, place)
    projection = settings.publish[name].projection or ""
    found = steps_behind(store, projection, position.generation, position.epoch)
    return [each.commit_ts for each in found[:WAITING_MAX]]
