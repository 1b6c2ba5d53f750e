"""Where values that were erased from the log may still lie: what redaction cannot reach, or reaches later."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import Connection, func, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.group_tables import parked
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.redaction.receipts import Remnant
from tailrace.eventstore.maintenance.retention import archive
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.metadata.generations import GenerationState, chain_end, inputs_of, is_partial
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment.segment import folder_of

_FORGOTTEN = "erased with the row"
_OFFSETS_AT_ONCE = 500


def remnants(log: Log, connection: Connection, info: TopicInfo, topic_id: int) -> list[Remnant]:
    """The copies that this transaction's catalog knows of, and those that no catalog can know, which are always
    named."""
    return [
        *_replaced_files(connection, info, topic_id),
        *_undecoded_frames(connection, topic_id),
        *_parked_records(connection, info.id.source),
        *_archived_files(connection, topic_id),
        *projections_of(connection, info.id),
        Remnant(
            "the catalog's database",
            "pages that held rows before they were sealed, until they are used again",
            "VACUUM the database" if log.catalog.kind == "sqlite" else "VACUUM FULL its table blobs",
        ),
        Remnant(
            f"source {info.id.source}",
            "the table, its WAL, its replicas and backups: what changes there, or is read again, enters the log",
            "delete or change the row there, and then erase again what came meanwhile",
        ),
        Remnant(
            "copies",
            "backups of the store, recordings of capture, exports, what consumers and sinks keep",
            "remove them, or erase again after a restore: `tailrace log redactions` says what",
        ),
    ]


def current_remnants(log: Log, topic: TopicId) -> list[Remnant]:
    """The same, as it is now."""
    info = log.topic(topic)
    with log.catalog.read() as connection:
        return remnants(log, connection, info, topics.topic_ids(connection, [topic])[topic])


def _replaced_files(connection: Connection, info: TopicInfo, topic_id: int) -> Iterator[Remnant]:
    table = tables.retired
    mine = table.c.path.startswith(f"{folder_of(info.id, topic_id)}/", autoescape=True)
    query = select(func.count()).select_from(table).where(mine)
    if files := connection.scalar(query):
        yield Remnant(
            f"{files} replaced {'file' if files == 1 else 'files'}",
            "kept for readers that began before (store.upkeep.keep_seconds, and leases); upkeep removes them",
            "tailrace log redact … --wait returns when they are gone, --now does not wait for readers",
        )


def _undecoded_frames(connection: Connection, topic_id: int) -> Iterator[Remnant]:
    quarantined, kept = tables.set_aside, tables.kept_frames
    if connection.scalar(select(quarantined.c.topic_id).where(quarantined.c.topic_id == topic_id)) is None:
        return
    parts = connection.scalar(select(func.sum(kept.c.frames)).where(kept.c.topic_id == topic_id))
    yield Remnant(
        "undecoded frames in quarantine",
        f"{int(parts or 0)} messages that could not be decoded yet may hold values of any row",
        "tailrace source retry, then erase again",
    )


def _parked_records(connection: Connection, source: str) -> Iterator[Remnant]:
    table = tables.parked_records
    query = select(func.count()).select_from(table).where(table.c.source == source)
    if records := connection.scalar(query):
        yield Remnant(
            "parked records",
            f"{records} records of Kafka that could not be read may hold values of any row",
            f"tailrace source parked {source}, with --retry or --discard, then erase again",
        )


def _archived_files(connection: Connection, topic_id: int) -> Iterator[Remnant]:
    table = tables.archived
    query = select(table.c.place, func.count()).where(table.c.topic_id == topic_id).group_by(table.c.place)
    for place, files in connection.execute(query):
        yield Remnant(
            f"archive {place}",
            f"{files} {'file' if files == 1 else 'files'} that retention copied there",
            "rewrite or remove them there",
        )
    unfinished = Counter(row.place for row in archive.abandoned_copies(connection, topic_id))
    for place, files in unfinished.items():
        yield Remnant(
            f"archive {place}, unfinished",
            f"{files} {'file' if files == 1 else 'files'} that retention began to archive before the erasure",
            "the next round of upkeep removes them: tailrace store maintain; "
            f"if that archive is no more: tailrace log archives --gone {shlex.quote(place)}",
        )


def projections_of(connection: Connection, topic: TopicId, before: int | None = None) -> Iterator[Remnant]:
    """Results that follow from a topic; ``before``: those that were computed up to an earlier epoch."""
    table, live = tables.generations, tables.live
    now = {row.projection: row.generation for row in connection.execute(select(live))}
    for row in connection.execute(select(table).order_by(table.c.projection, table.c.generation)):
        if all(need.topic != topic.text for need in inputs_of(row.inputs)):
            continue
        end = chain_end(connection, row.projection, row.generation)
        if before is not None and end is not None and end.to_epoch >= before:
            continue
        name, number, holds = row.projection, row.generation, "its result and sink"
        if is_partial(name):
            name, _, own = name.partition(".")
            number, holds = int(own), "its partial results"
        newer = row.state == GenerationState.READY.value and number > now.get(name, 0)
        follows = row.as_of is None and (number == now.get(name) or newer)
        yield Remnant(
            f"projection {name}, generation {number}",
            f"{holds}, until it is refreshed" if follows else f"{holds}: it is not refreshed",
            f"tailrace run {name}" if follows else f"tailrace projection gc {name}",
        )


def forget_errors(log: Log, topic: TopicId, offsets: Mapping[int, Sequence[int]]) -> None:
    """Remove the errors of parked events: they may quote values."""
    database = log.groups_database
    for partition, found in offsets.items():
        for at in range(0, len(found), _OFFSETS_AT_ONCE):
            mine = (
                parked.c.topic == topic.text,
                parked.c.partition == partition,
                parked.c.event_offset.in_(list(found[at : at + _OFFSETS_AT_ONCE])),
            )
            with database.write() as connection:
                connection.execute(
                    update(parked).where(*mine, parked.c.attempts > 0).values(error=_FORGOTTEN)
                )
