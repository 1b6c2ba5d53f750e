"""Sealing: blobs of many small epochs become one Parquet file per topic, in one catalog transaction per chunk.

1. Take a term, so that files of a sealer that died are recognised as orphans.
2. Read the blobs of a chunk of epochs, and check them against the hashes of their epochs, which nobody can do once they
   are gone; per topic, join parts that follow one another without a gap (a large epoch's
   file may lie between) and write each run as a file with ``_partition``, ``_offset`` and ``_epoch`` columns.
3. One transaction: term still mine, blobs out, files in. Readers resolve within one snapshot, so they find either all
   of the blobs or all of the files; references handed out before carry their bytes.

A crash before 3 leaves orphans, after it nothing to do. Large epochs are files already and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection, delete, insert, select, update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.files import hash_ledger
from tailrace.eventstore.metadata import segment_index, topics
from tailrace.eventstore.model.segment_ref import PartitionRange, PreparedSegment, SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import file_reader, hash_chain, merge, row_order, segment
from tailrace.eventstore.segment.content_hash import Content, content_of

# What one chunk holds in memory, and how many rows its transaction touches.
CHUNK_BYTES = 64 << 20
CHUNK_EPOCHS = 4096


@dataclass(frozen=True, slots=True)
class _SmallEpoch:
    epoch: int
    append_id: str
    rows: int
    content: str
    parts: tuple[segment_index.BlobPart, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    epoch: int
    append_id: str
    part: segment_index.BlobPart


@dataclass(frozen=True, slots=True)
class _SealedEpochs:
    file: PreparedSegment
    topic_id: int
    first_epoch: int
    last_epoch: int
    first_row: int
    ranges: tuple[PartitionRange, ...]
    content: Content
    origin: tuple[str, str]


def seal(log: Log, up_to_epoch: int | None = None) -> int:
    """Seal all small epochs up to one (default: the head). Gives how many. Raises Fenced when another sealer began."""
    term: int | None = None
    sealed = 0
    with log.catalog.read() as connection:
        head = topics.head_epoch(connection)
    end = head if up_to_epoch is None else min(up_to_epoch, head)
    while True:
        with log.catalog.read() as connection:
            chunk = _chunk(connection, end)
            if not chunk:
                return sealed
            blobs = segment_index.plain_blobs(connection, {epoch.append_id: epoch.epoch for epoch in chunk})
            names = _topic_names(connection, {part.topic_id for epoch in chunk for part in epoch.parts})
        for epoch in chunk:
            require_parts(epoch.epoch, epoch.rows, epoch.content, epoch.parts, blobs[epoch.append_id], names)
        if term is None:
            term = terms.begin(log.catalog, terms.SEAL)
        files = [_write_run(log, names[run[0].part.topic_id], run, blobs, term) for run in _runs(chunk)]
        failpoints.hit("seal_written")
        _swap(log, chunk, files, term)
        failpoints.hit("seal_swapped")
        sealed += len(chunk)


def _chunk(connection: Connection, end: int) -> list[_SmallEpoch]:
    """The oldest unsealed epochs up to ``end``, as many as one chunk holds."""
    table = tables.epochs
    query = (
        select(
            table.c.epoch,
            table.c.append_id,
            table.c.rows,
            table.c.content,
            table.c.parts,
            table.c.blob_bytes,
        )
        .where(table.c.blob_bytes.is_not(None), table.c.epoch <= end)
        .order_by(table.c.epoch)
        .limit(CHUNK_EPOCHS)
    )
    chunk: list[_SmallEpoch] = []
    held = 0
    for row in connection.execute(query):
        parts = tuple(segment_index.parts_from_json(row.parts))
        chunk.append(_SmallEpoch(row.epoch, row.append_id, row.rows, row.content, parts))
        held += row.blob_bytes
        if held >= CHUNK_BYTES:
            break
    return chunk


def require_parts(
    epoch: int,
    rows: int,
    content: str,
    parts: Sequence[segment_index.BlobPart],
    blob: bytes,
    names: Mapping[int, TopicId],
) -> None:
    """Raises IntegrityError when a plain blob is not what its epoch's hash covers. An epoch of which some rows are in
    files is left out: a file may have been merged, and its checksum with it."""
    if rows != sum(part.rows for part in parts):
        return
    appended = (
        hash_chain.AppendedPart(
            names[part.topic_id].text,
            part.version,
            part.first_row,
            file_reader.checksum(memoryview(blob)[part.start : part.start + part.length]),
            part.ranges,
        )
        for part in parts
    )
    if hash_chain.parts_hash(appended) != content:
        raise IntegrityError(
            f"the rows of epoch {epoch} are not those its hash was made of",
            hint="the catalog was changed from outside; restore the store from a backup",
        )


def _topic_names(connection: Connection, topic_ids: set[int]) -> dict[int, TopicId]:
    table = tables.topics
    query = select(table.c.id, table.c.name).where(table.c.id.in_(topic_ids))
    return {row.id: TopicId.parse(row.name) for row in connection.execute(query)}


def _runs(chunk: Sequence[_SmallEpoch]) -> Iterator[list[_Piece]]:
    """Parts of one topic and version that follow one another in the topic's order with nothing between."""
    by_topic: dict[int, list[_Piece]] = {}
    for epoch in chunk:
        for part in epoch.parts:
            by_topic.setdefault(part.topic_id, []).append(_Piece(epoch.epoch, epoch.append_id, part))
    for pieces in by_topic.values():
        pieces.sort(key=lambda piece: piece.part.first_row)
        run: list[_Piece] = []
        for piece in pieces:
            last = run[-1].part if run else None
            if last is not None and (
                last.version != piece.part.version or last.first_row + last.rows != piece.part.first_row
            ):
                yield run
                run = []
            run.append(piece)
        yield run


def _write_run(
    log: Log, topic: TopicId, run: Sequence[_Piece], blobs: dict[str, bytes], term: int
) -> _SealedEpochs:
    refs = [segment_index.blob_ref(topic, piece.epoch, piece.part, blobs[piece.append_id]) for piece in run]
    joined = pa.concat_tables(segment.read_segment(log.storage, ref) for ref in refs).combine_chunks()
    partition = joined["_partition"].to_numpy()
    ranges = merge.joined_ranges([ranges for piece in run for ranges in piece.part.ranges], str(topic))
    lsns = [lsn for piece in run for lsn in piece.part.lsns or ()]
    arranged = row_order.ArrangedRows(
        rows=joined,
        order=pa.array(np.argsort(partition, kind="stable")),
        counts=tuple((piece.partition, piece.rows) for piece in ranges),
        lsns=(min(lsns), max(lsns)) if lsns else None,
        commit_times=None,
    )
    part = run[0].part
    name = terms.new_file(segment.folder_of(topic, part.topic_id), terms.SEAL, term)
    file = segment.write_arranged(log.storage, topic, part.version, arranged, name)
    content = content_of(joined)
    memory_bytes = log.settings.upkeep.memory_bytes
    merge.require_content(log.storage, _ref(topic, file, run, ranges), content, memory_bytes)
    parts = hash_chain.digest((ref.first_epoch, file_reader.checksum(ref.inline or b"")) for ref in refs)
    origin = (f"{len(run)} parts of epochs {run[0].epoch} to {run[-1].epoch}", parts)
    return _SealedEpochs(
        file, part.topic_id, run[0].epoch, run[-1].epoch, part.first_row, ranges, content, origin
    )


def _ref(
    topic: TopicId, file: PreparedSegment, run: Sequence[_Piece], ranges: tuple[PartitionRange, ...]
) -> SegmentRef:
    return SegmentRef(
        topic=topic,
        version=file.version,
        first_epoch=run[0].epoch,
        last_epoch=run[-1].epoch,
        rows=file.rows,
        bytes=file.bytes,
        ranges=ranges,
        path=file.path,
        sealed=True,
        checksum=file.checksum,
    )


def _swap(log: Log, chunk: Sequence[_SmallEpoch], files: Sequence[_SealedEpochs], term: int) -> None:
    numbers = [epoch.epoch for epoch in chunk]
    table = tables.epochs
    with log.catalog.write() as connection:
        terms.check(connection, terms.SEAL, term)
        changed = connection.execute(
            update(table)
            .where(table.c.epoch.in_(numbers), table.c.blob_bytes.is_not(None))
            .values(blob_bytes=None, parts="[]")
        )
        if changed.rowcount != len(numbers):
            raise IntegrityError(
                f"epochs {numbers[0]} to {numbers[-1]} changed while they were sealed; nothing was changed",
                hint="seal again",
            )
        append_ids = [epoch.append_id for epoch in chunk]
        connection.execute(delete(tables.blobs).where(tables.blobs.c.append_id.in_(append_ids)))
        if files:
            rows = [
                hash_ledger.record(connection, sealed.topic_id, terms.SEAL, [sealed.origin], [], _row(sealed))
                for sealed in files
            ]
            connection.execute(insert(tables.segments), rows)


def _row(sealed: _SealedEpochs) -> dict[str, Any]:
    file = sealed.file
    first_lsn, last_lsn = file.lsns or (None, None)
    return {
        "path": file.path,
        "topic_id": sealed.topic_id,
        "version": file.version,
        "first_epoch": sealed.first_epoch,
        "last_epoch": sealed.last_epoch,
        "first_lsn": first_lsn,
        "last_lsn": last_lsn,
        "first_row": sealed.first_row,
        "rows": file.rows,
        "bytes": file.bytes,
        "checksum": file.checksum,
        "ranges": segment_index.ranges_to_json(sealed.ranges),
        "sealed": True,
        "content": sealed.content.text,
    }
