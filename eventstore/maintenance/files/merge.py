"""Merging: neighbouring files of a topic become one, by size tier (``tiers``), in one catalog transaction per file.

1. Take a term, so that files of a merge that died are recognised as orphans.
2. Choose groups among files that lie wholly below the oldest epoch that is not sealed: so no blob ever lies between, or
   within an epoch beside, rows of one file, and a reader that goes by epochs finds each once.
3. Write the merged file; no lock is held.
4. One transaction: term still mine, the merged file in, the others out and retired (``retired``). Readers resolve
within one snapshot, so they find either the former files or the merged one.

A crash before 4 leaves an orphan, after it nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Row, delete, func, insert, select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.files import hash_ledger, tiers
from tailrace.eventstore.maintenance.files.retired import retire
from tailrace.eventstore.metadata import segment_index, topics
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment.content_hash import Content
from tailrace.eventstore.segment.merge import joined_ranges, require_content, require_recorded, rewrite
from tailrace.eventstore.segment.segment import folder_of

_Row = Row[*tuple[Any, ...]]
Positions = Callable[[TopicId], Collection[int]]
"""The epochs up to which the readers of a topic have read."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """One file that replaced others."""

    files: int
    bytes_read: int
    bytes_written: int


def merge(log: Log, memory_bytes: int, positions: Positions = lambda _: ()) -> Iterator[MergeResult]:
    """Merge until no group is left, one file per step, within that many bytes of decoded rows. ``positions``: see
    ``tiers``. Raises Fenced when another merge began; what was done until then stays."""
    term: int | None = None
    for topic_id, topic in _topics(log):
        while groups := _groups(log, topic_id, partial(positions, topic)):
            for group in groups:
                if term is None:
                    term = terms.begin(log.catalog, terms.MERGE)
                yield _merge_one(log, topic, group, term, memory_bytes)


def _topics(log: Log) -> list[tuple[int, TopicId]]:
    """Those with several files."""
    topic_id = tables.segments.c.topic_id
    several = select(topic_id).group_by(topic_id).having(func.count() > 1)
    query = select(tables.topics.c.id, tables.topics.c.name).where(tables.topics.c.id.in_(several))
    with log.catalog.read() as connection:
        rows = connection.execute(query.order_by(tables.topics.c.id))
        return [(row.id, TopicId.parse(row.name)) for row in rows]


def _groups(log: Log, topic_id: int, positions: Callable[[], Collection[int]]) -> list[list[_Row]]:
    table = tables.segments
    with log.catalog.read() as connection:
        query = select(table).where(table.c.topic_id == topic_id).order_by(table.c.first_row)
        unsealed = topics.oldest_unsealed(connection)
        if unsealed is not None:
            query = query.where(table.c.last_epoch < unsealed)
        rows = {row.path: row for row in connection.execute(query)}
    files = [
        tiers.TierFile(row.path, row.version, row.first_row, row.rows, row.bytes, row.last_epoch)
        for row in rows.values()
    ]
    groups = tiers.plan(files, positions()) if tiers.plan(files) else []  # few topics have any
    return [[rows[file.path] for file in group] for group in groups]


def _merge_one(log: Log, topic: TopicId, group: Sequence[_Row], term: int, memory_bytes: int) -> MergeResult:
    inputs = [segment_index.file_ref(topic, row) for row in group]
    ranges = joined_ranges([piece for ref in inputs for piece in ref.ranges], str(topic))
    path = terms.new_parquet(folder_of(topic, group[0].topic_id), terms.MERGE, term)
    written = rewrite(log.storage, inputs, path, memory_bytes)
    failpoints.hit("merge_written")
    for row, found in zip(group, written.contents, strict=True):
        require_recorded(row, found)
    content = sum(written.contents, Content())
    lsns = [lsn for row in group for lsn in (row.first_lsn, row.last_lsn) if lsn is not None]
    values = {
        "path": path,
        "topic_id": group[0].topic_id,
        "version": group[0].version,
        "first_epoch": min(row.first_epoch for row in group),
        "last_epoch": max(row.last_epoch for row in group),
        "first_lsn": min(lsns, default=None),
        "last_lsn": max(lsns, default=None),
        "first_row": group[0].first_row,
        "rows": sum(row.rows for row in group),
        "bytes": written.bytes,
        "checksum": written.checksum,
        "ranges": segment_index.ranges_to_json(ranges),
        "sealed": True,
        "content": content.text,
    }
    merged = replace(
        inputs[0], rows=values["rows"], ranges=ranges, path=path, sealed=True, checksum=written.checksum
    )
    require_content(log.storage, merged, content, memory_bytes)
    _swap(log, group, values, term)
    failpoints.hit("merge_swapped")
    return MergeResult(len(group), sum(row.bytes for row in group), written.bytes)


def _swap(log: Log, group: Sequence[_Row], values: dict[str, Any], term: int) -> None:
    table = tables.segments
    with log.catalog.write() as connection:
        terms.check(connection, terms.MERGE, term)
        gone = connection.execute(delete(table).where(table.c.path.in_([row.path for row in group])))
        if gone.rowcount != len(group):
            raise IntegrityError(
                f"files of topic {values['topic_id']} changed while they were merged; nothing was changed",
                hint="merge again",
            )
        made_of = [(row.path, row.checksum) for row in group]
        replaced = [row._asdict() for row in group]
        made = hash_ledger.record(connection, values["topic_id"], terms.MERGE, made_of, replaced, values)
        connection.execute(insert(table).values(made))
        retire(connection, [(row.path, row.bytes) for row in group])
