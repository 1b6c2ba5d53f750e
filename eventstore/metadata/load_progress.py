"""Progress of loads by chunks, in the catalog: moved in the transaction that makes a chunk's rows visible."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.model.epoch import KeyTexts, Load, LoadRange, LoadStep
from tailrace.eventstore.model.topic import TopicId


def read(catalog: Catalog, topic: TopicId) -> Load | None:
    """The load by chunks of a topic that is under way."""
    table, ranges, topics = tables.loads, tables.load_ranges, tables.topics
    query = select(table).join(topics, topics.c.id == table.c.topic_id).where(topics.c.name == topic.text)
    with catalog.read() as connection:
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        query = select(ranges).where(ranges.c.topic_id == row.topic_id).order_by(ranges.c.number)
        found = tuple(_range(each) for each in connection.execute(query))
    return Load(topic, row.version, row.lsn, row.expected_rows, found, row.epoch)


def begin(connection: Connection, topic_id: int, load: Load, epoch: int) -> None:
    """A load takes the place of the one before it, if any."""
    end(connection, topic_id)
    connection.execute(
        insert(tables.loads).values(
            topic_id=topic_id,
            version=load.version,
            lsn=load.lsn,
            epoch=epoch,
            expected_rows=load.expected_rows,
        )
    )
    connection.execute(
        insert(tables.load_ranges),
        [
            {
                "topic_id": topic_id,
                "number": each.number,
                "after": _to_json(each.after),
                "upto": _to_json(each.upto),
                "rows": each.rows,
                "done": each.done,
            }
            for each in load.ranges
        ],
    )


def step(connection: Connection, step: LoadStep, topic_id: Callable[[TopicId], int]) -> None:
    table = tables.load_ranges
    connection.execute(
        update(table)
        .where(table.c.topic_id == topic_id(step.topic), table.c.number == step.number)
        .values(after=_to_json(step.after), rows=table.c.rows + step.rows, done=step.done)
    )


def end(connection: Connection, topic_id: int) -> None:
    for table in (tables.load_ranges, tables.loads):
        connection.execute(delete(table).where(table.c.topic_id == topic_id))


def _range(row: Row[*tuple[Any, ...]]) -> LoadRange:
    return LoadRange(row.number, _from_json(row.after), _from_json(row.upto), row.rows, row.done)


def _to_json(key: KeyTexts | None) -> str | None:
    return None if key is None else json.dumps(key, ensure_ascii=False)


def _from_json(text: str | None) -> KeyTexts | None:
    return None if text is None else tuple(json.loads(text))
