"""The double entry of a topic's files: code that replaces files records it here, in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.segment import hash_chain
from tailrace.eventstore.segment.content_hash import Content


def record(
    connection: Connection,
    topic_id: int,
    by: str,
    inputs: Sequence[tuple[str, str]],
    gone: Sequence[Mapping[str, Any]],
    made: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Record that ``inputs`` (name, checksum) became the file ``made``, or, with None, nothing: values of ``segments``,
    ``content`` among them. Gives these with their ``origin``. ``gone``: rows of ``segments`` that are taken out."""
    table = tables.lineage
    row = connection.execute(
        select(table).where(table.c.topic_id == topic_id).with_for_update()
    ).one_or_none()
    if row is None:
        raise IntegrityError(
            f"topic {topic_id} has no row in lineage",
            hint="the catalog was changed from outside; restore it from a backup",
        )
    rows, content = row.rows, Content.parse(row.content)
    for each in gone:
        if each["content"]:
            rows, content = rows - each["rows"], content - Content.parse(each["content"])
    if made is not None and made["content"]:
        rows, content = rows + made["rows"], content + Content.parse(made["content"])
    origin = hash_chain.RewriteOrigin(row.entries + 1, row.hash, by, tuple(inputs))
    found = {**(made or {}), "origin": origin.to_json()}
    connection.execute(
        update(table)
        .where(table.c.topic_id == topic_id)
        .values(
            entries=origin.number,
            hash=hash_chain.entry_hash(origin, made or {}),
            rows=rows,
            content=content.text,
        )
    )
    return found


def record_start(connection: Connection, topic_id: int, epoch: int, rows: int) -> None:
    """Record that the topic begins behind ``epoch``, with a state run of so many rows."""
    table = tables.lineage
    connection.execute(
        update(table).where(table.c.topic_id == topic_id).values(start_epoch=epoch, start_rows=rows)
    )
