"""Topics in quarantine, because their table cannot be decoded, and the undecoded frames that came for them since.

Both change in the transaction that moves the source's position, so a frame is either kept or in the log, never both.
Whatever completes such a topic, or has it read again, drops what was kept; its files are orphans then.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.model.epoch import QuarantinedTopic, UndecodedFrames
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import file_reader
from tailrace.eventstore.storage import Storage

SUFFIX = ".frames"
_JOINED_BYTES = 64 << 10  # what one append may write again


def reason(topic: QuarantinedTopic) -> str:
    return f"in quarantine since {format_lsn(topic.lsn)}: {topic.error}"


def begin(connection: Connection, topic_id: int, topic: QuarantinedTopic) -> None:
    """What was kept before, if anything, is dropped."""
    end(connection, topic_id)
    connection.execute(
        insert(tables.set_aside).values(
            topic_id=topic_id, error=topic.error, lsn=topic.lsn, frame=topic.frame, keeps=topic.keeps
        )
    )


def end(connection: Connection, topic_id: int) -> None:
    for table in (tables.kept_frames, tables.set_aside):
        connection.execute(delete(table).where(table.c.topic_id == topic_id))


def add(connection: Connection, topic_id: int, kept: UndecodedFrames) -> None:
    """Behind all that is kept already; a little is joined to the part before, so that parts stay few."""
    table = tables.kept_frames
    parts = select(table).where(table.c.topic_id == topic_id)
    last = connection.execute(parts.order_by(table.c.number.desc()).limit(1)).one_or_none()
    if last is not None and last.data and kept.data and last.bytes + kept.bytes <= _JOINED_BYTES:
        data = last.data + kept.data
        connection.execute(
            update(table)
            .where(table.c.topic_id == topic_id, table.c.number == last.number)
            .values(
                frames=last.frames + kept.frames,
                bytes=len(data),
                checksum=file_reader.checksum(data),
                data=data,
            )
        )
        return
    number = last.number + 1 if last is not None else 1
    connection.execute(
        insert(table).values(
            topic_id=topic_id,
            number=number,
            frames=kept.frames,
            bytes=kept.bytes,
            checksum=kept.checksum,
            path=kept.path,
            data=kept.data,
        )
    )


def release(connection: Connection, topic_id: int, number: int) -> None:
    table = tables.kept_frames
    connection.execute(delete(table).where(table.c.topic_id == topic_id, table.c.number == number))


def first_frames(catalog: Catalog, storage: Storage, topic: TopicId) -> tuple[UndecodedFrames, bytes] | None:
    """The first frames that are kept for a topic in quarantine and are still to be decoded. Raises IntegrityError when
    they are damaged."""
    with catalog.read() as connection:
        kept = _first_row(connection, topic)
    if kept is None:
        return None
    data = storage.open(kept.path).to_pybytes() if kept.path else kept.data or b""
    if file_reader.checksum(data) != kept.checksum:
        raise IntegrityError(
            f"what was stored undecoded for {topic} is damaged: its checksum is not the one in the catalog",
            hint="restore the store from a backup, or read the table again: tailrace source snapshot",
        )
    return kept, data


def _first_row(connection: Connection, topic: TopicId) -> UndecodedFrames | None:
    table, topics = tables.kept_frames, tables.topics
    query = (
        select(table)
        .join(topics, topics.c.id == table.c.topic_id)
        .where(topics.c.name == topic.text)
        .order_by(table.c.number)
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    return UndecodedFrames(topic, row.frames, row.bytes, row.checksum, row.path, row.data, row.number)


def quarantined_topics(catalog: Catalog, source: str | None = None) -> list[QuarantinedTopic]:
    """Topics in quarantine, with how much is kept of each."""
    table, kept, topics = tables.set_aside, tables.kept_frames, tables.topics
    sums = (
        select(
            kept.c.topic_id, func.sum(kept.c.frames).label("frames"), func.sum(kept.c.bytes).label("bytes")
        )
        .group_by(kept.c.topic_id)
        .subquery()
    )
    query = (
        select(table, topics.c.name, sums.c.frames, sums.c.bytes)
        .join(topics, topics.c.id == table.c.topic_id)
        .outerjoin(sums, sums.c.topic_id == table.c.topic_id)
        .order_by(topics.c.name)
    )
    if source is not None:
        query = query.where(topics.c.source == source)
    with catalog.read() as connection:
        return [_topic_of_row(row) for row in connection.execute(query)]


def _topic_of_row(row: Row[*tuple[Any, ...]]) -> QuarantinedTopic:
    return QuarantinedTopic(
        topic=TopicId.parse(row.name),
        error=row.error,
        lsn=row.lsn,
        frame=row.frame,
        keeps=row.keeps,
        frames=int(row.frames or 0),
        bytes=int(row.bytes or 0),
    )
