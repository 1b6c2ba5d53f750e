"""Which segments hold a topic's rows: from rows of the catalog to references that tasks read without it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, func, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import damaged_row
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.segment_ref import PartitionRange, SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import file_reader, segment

# One page of small epochs: what is decompressed and held at once.
_PAGE_EPOCHS = 512
_PAGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class BlobPart:
    """One topic's rows inside an epoch's blob: ``length`` bytes from ``start`` of the plain blob."""

    topic_id: int
    version: int
    start: int
    length: int
    rows: int
    first_row: int
    lsns: tuple[int, int] | None
    ranges: tuple[PartitionRange, ...]


def ranges_to_json(ranges: Sequence[PartitionRange]) -> str:
    return json.dumps([(r.partition, r.first_offset, r.rows) for r in ranges], separators=(",", ":"))


def ranges_from_json(text: str) -> tuple[PartitionRange, ...]:
    return tuple(PartitionRange(*triple) for triple in json.loads(text))


def parts_to_json(parts: Sequence[BlobPart]) -> str:
    rows = [
        (
            part.topic_id,
            part.version,
            part.start,
            part.length,
            part.rows,
            part.first_row,
            part.lsns,
            [(r.partition, r.first_offset, r.rows) for r in part.ranges],
        )
        for part in parts
    ]
    return json.dumps(rows, separators=(",", ":"))


def parts_from_json(text: str) -> list[BlobPart]:
    return [
        BlobPart(
            topic_id,
            version,
            start,
            length,
            rows,
            first_row,
            None if lsns is None else (lsns[0], lsns[1]),
            tuple(PartitionRange(*triple) for triple in ranges),
        )
        for topic_id, version, start, length, rows, first_row, lsns, ranges in json.loads(text)
    ]


def topics_text(topic_ids: Collection[int]) -> str:
    """``epochs.topics``: ids between commas, so that ``LIKE '%,3,%'`` finds one."""
    return "," + "".join(f"{topic_id}," for topic_id in sorted(topic_ids))


@dataclass(frozen=True, slots=True)
class Page:
    """References of consecutive epochs in order, complete up to and including epoch ``through``. ``row``: how many rows
    of the topic come before what follows; None where that is not known."""

    refs: list[SegmentRef]
    through: int
    row: int | None


def page(
    connection: Connection, topic: TopicId, topic_id: int, cut: Cut, after: int, row: int | None = None
) -> Page:
    """The next references of a topic after an epoch and up to the cut, their blobs inlined. ``row``: that of the page
    before, or of the topic's start.

    Run inside one snapshot: sealing replaces blobs by files in one transaction, and never by less. Raises
    IntegrityError naming the catalog's row where rows of the topic are missing, or there twice.
    """
    files = _files(connection, topic_id, after, cut.epoch)
    blobs, through = _blob_rows(connection, topic_id, after, cut.epoch)
    # A sealed file is of a run of epochs with nothing else of the topic between: take it whole.
    for file in files:
        if file.first_epoch <= through:
            through = max(through, min(file.last_epoch, cut.epoch))
    found = [_file_entry(topic, file) for file in files if file.first_epoch <= through]
    found += _blob_entries(connection, topic, topic_id, blobs)
    below = cut.below_lsn.get(topic.source)
    inside = cut.epoch if below is None else cut.inside.get(topic.source, cut.epoch)
    refs = []
    found.sort(key=lambda entry: entry.first_row)
    following = _require_dense(topic, found, row, after)
    for entry in found:
        first, last = max(entry.ref.first_epoch, after + 1), min(entry.ref.last_epoch, through, inside)
        cuts = below is not None and last == inside
        if first > last or (cuts and first == last and below is not None and entry.begins_at(below)):
            continue
        limit = below if cuts and below is not None and entry.reaches(below) else None
        refs.append(replace(entry.ref, first_epoch=first, last_epoch=last, below_lsn=limit))
    return Page(refs, through, following)


def rows_up_to(connection: Connection, topic_id: int, epoch: int) -> int:
    """How many rows of a topic come up to the end of the last file that ends at this epoch or before; 0 without one."""
    table = tables.segments
    query = select(func.max(table.c.first_row + table.c.rows))
    return connection.scalar(query.where(table.c.topic_id == topic_id, table.c.last_epoch <= epoch)) or 0


def _require_dense(topic: TopicId, entries: Sequence[_PageEntry], row: int | None, after: int) -> int | None:
    """The row that comes behind the entries, which follow one another without a gap: in the topic's order, and in each
    partition."""
    offsets: dict[int, int] = {}
    if row is not None and entries and entries[0].ref.first_epoch <= after:
        row = min(
            row, entries[0].first_row
        )  # a file that was made since, also of rows that a page before had
    for entry in entries:
        ref = entry.ref
        place = f"segments: path {ref.path}" if ref.path is not None else f"epochs: epoch {ref.first_epoch}"
        if ref.rows != sum(piece.rows for piece in ref.ranges):
            raise damaged_row(place, f"its rows of {topic} are not those of its ranges")
        broken = row is not None and entry.first_row != row
        for piece in ref.ranges:
            broken |= offsets.setdefault(piece.partition, piece.first_offset) != piece.first_offset
            offsets[piece.partition] = piece.first_offset + piece.rows
        if broken:
            raise damaged_row(place, f"rows of {topic} before it are missing, or there twice")
        row = entry.first_row + ref.rows
    return row


@dataclass(frozen=True, slots=True)
class _PageEntry:
    ref: SegmentRef
    first_row: int
    first_lsn: int | None
    last_lsn: int | None

    def reaches(self, lsn: int) -> bool:
        return self.last_lsn is not None and self.last_lsn >= lsn

    def begins_at(self, lsn: int) -> bool:
        return self.first_lsn is not None and self.first_lsn >= lsn


def _files(connection: Connection, topic_id: int, after: int, upto: int) -> Sequence[Row[*tuple[Any, ...]]]:
    table = tables.segments
    query = (
        select(table)
        .where(table.c.topic_id == topic_id, table.c.last_epoch > after, table.c.first_epoch <= upto)
        .order_by(table.c.first_row)
    )
    return connection.execute(query).all()


def _blob_rows(
    connection: Connection, topic_id: int, after: int, upto: int
) -> tuple[list[Row[*tuple[Any, ...]]], int]:
    """Small epochs with rows of the topic, as many as a page holds, and the epoch up to which these are all."""
    table = tables.epochs
    query = (
        select(table.c.epoch, table.c.append_id, table.c.parts, table.c.blob_bytes)
        .where(
            table.c.epoch > after,
            table.c.epoch <= upto,
            table.c.blob_bytes.is_not(None),
            table.c.topics.like(f"%,{topic_id},%"),
        )
        .order_by(table.c.epoch)
        .limit(_PAGE_EPOCHS)
    )
    rows = list(connection.execute(query))
    held = 0
    for count, row in enumerate(rows, start=1):
        held += row.blob_bytes
        if held >= _PAGE_BYTES and count < len(rows):
            return rows[:count], row.epoch
    return rows, rows[-1].epoch if len(rows) == _PAGE_EPOCHS else upto


def _file_entry(topic: TopicId, row: Row[*tuple[Any, ...]]) -> _PageEntry:
    return _PageEntry(file_ref(topic, row), row.first_row, row.first_lsn, row.last_lsn)


def file_ref(topic: TopicId, row: Row[*tuple[Any, ...]]) -> SegmentRef:
    """All rows of a file, from its row of ``segments``. Raises IntegrityError when that cannot be read."""
    try:
        ranges = ranges_from_json(row.ranges)
    except (ValueError, TypeError):
        raise damaged_row(f"segments: path {row.path}", "its ranges cannot be read") from None
    if "origin" in row._mapping and bool(row.origin) != row.sealed:
        raise damaged_row(
            f"segments: path {row.path}", "it is said to be sealed, or made of others, and not both"
        )
    return SegmentRef(
        topic=topic,
        version=row.version,
        first_epoch=row.first_epoch,
        last_epoch=row.last_epoch,
        rows=row.rows,
        bytes=row.bytes,
        ranges=ranges,
        path=row.path,
        sealed=row.sealed,
        checksum=row.checksum,
    )


def _blob_entries(
    connection: Connection, topic: TopicId, topic_id: int, rows: Sequence[Row[*tuple[Any, ...]]]
) -> list[_PageEntry]:
    blobs = plain_blobs(connection, {row.append_id: row.epoch for row in rows})
    found = []
    for row in rows:
        try:
            parts = parts_from_json(row.parts)
        except (ValueError, TypeError, IndexError):
            raise damaged_row(f"epochs: epoch {row.epoch}", "its parts cannot be read") from None
        blob = blobs[row.append_id]
        if sum(part.length for part in parts) != len(blob):
            raise damaged_row(f"epochs: epoch {row.epoch}", "its parts are not those of its blob")
        found += [_blob_entry(topic, row.epoch, part, blob) for part in parts if part.topic_id == topic_id]
    return found


def _blob_entry(topic: TopicId, epoch: int, part: BlobPart, blob: bytes) -> _PageEntry:
    ref = blob_ref(topic, epoch, part, blob)
    first_lsn, last_lsn = part.lsns or (None, None)
    return _PageEntry(ref, part.first_row, first_lsn, last_lsn)


def blob_ref(topic: TopicId, epoch: int, part: BlobPart, blob: bytes) -> SegmentRef:
    """One topic's part of the plain blob of an epoch."""
    return SegmentRef(
        topic=topic,
        version=part.version,
        first_epoch=epoch,
        last_epoch=epoch,
        rows=part.rows,
        bytes=part.length,
        ranges=part.ranges,
        inline=blob[part.start : part.start + part.length],
    )


def plain_blobs(connection: Connection, epochs: Mapping[str, int]) -> dict[str, bytes]:
    """Plain bytes of blobs by append id. Raises IntegrityError, naming the epoch, when one is damaged or missing."""
    table = tables.blobs
    found = {
        row.append_id: row
        for row in connection.execute(select(table).where(table.c.append_id.in_(list(epochs))))
    }
    plain: dict[str, bytes] = {}
    for append_id, epoch in epochs.items():
        row = found.get(append_id)
        if row is None:
            raise file_reader.damage_error(f"the blob of epoch {epoch}")
        plain[append_id] = segment.unpack_blob(
            row.data, row.plain_bytes, row.checksum, f"the blob of epoch {epoch}"
        )
    return plain
