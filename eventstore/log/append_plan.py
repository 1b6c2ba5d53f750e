"""What one append writes, computed before its transaction: parts with their offsets, the blob, the catalog's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.partitioning import TopicIncarnation
from tailrace.eventstore.model.segment_ref import PartitionRange, PreparedSegment
from tailrace.eventstore.model.time import to_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import file_reader, hash_chain, row_order, segment


class TopicPlace(Protocol):
    """Where rows of a topic go."""

    @property
    def id(self) -> int: ...
    @property
    def incarnation(self) -> TopicIncarnation: ...
    @property
    def next_offsets(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class AppendPart:
    """One topic's rows in the append, with their offsets assigned: a file or a part of the blob."""

    topic: TopicId
    topic_id: int
    version: int
    ranges: tuple[PartitionRange, ...]
    rows: int
    bytes: int
    checksum: str
    lsns: tuple[int, int] | None
    commit_times: tuple[int, int] | None
    first_row: int  # stored rows of the topic before these: the order of its segments
    path: str | None
    start: int = 0


@dataclass(slots=True)
class Append:
    """Everything one append will write, computed before its transaction so that a retry writes the same."""

    id: str
    batch: EpochBatch
    previous: SourceState
    previous_append: str
    parts: list[AppendPart] = field(default_factory=list)
    blob: bytes | None = None
    blob_plain_bytes: int = 0
    blob_checksum: str = ""
    made: list[str] = field(default_factory=list)  # files that this plan brought about
    replaced: list[str] = field(default_factory=list)  # files of the batch that some of them replace
    next_offsets: dict[TopicId, list[int]] = field(default_factory=dict)

    @property
    def incarnation(self) -> int:
        begun = self.batch.incarnation
        return self.previous.incarnation if begun is None else begun.number

    @property
    def is_epoch(self) -> bool:
        batch = self.batch
        return bool(
            batch.incarnation
            or batch.begins
            or self.parts
            or batch.completes
            or batch.suspends
            or batch.new_schemas
            or batch.load_begins
            or batch.load_steps
            or batch.quarantined
            or batch.progress
            or batch.parked
            or batch.unparked
            or batch.undecoded  # its position counts: sent again, they would be stored twice
        )

    def assign(
        self, topic: TopicId, place: TopicPlace, counts: Sequence[tuple[int, int]]
    ) -> tuple[int, tuple[PartitionRange, ...]]:
        """Offsets of the next rows of a topic: the number of its stored rows before them, and their ranges."""
        following = self.next_offsets.setdefault(topic, list(place.next_offsets))
        first_row = sum(following)
        ranges = []
        for partition, rows in counts:
            ranges.append(PartitionRange(partition, following[partition], rows))
            following[partition] += rows
        return first_row, tuple(ranges)


def add_file(append: Append, file: PreparedSegment, topic: TopicPlace) -> None:
    """A prepared file, with its offsets."""
    first_row, ranges = append.assign(file.topic, topic, file.counts)
    append.parts.append(
        AppendPart(
            topic=file.topic,
            topic_id=topic.id,
            version=file.version,
            ranges=ranges,
            rows=file.rows,
            bytes=file.bytes,
            checksum=file.checksum,
            lsns=file.lsns,
            commit_times=file.commit_times,
            first_row=first_row,
            path=file.path,
        )
    )


def add_blob(append: Append, small: Sequence[TopicRows], place: Callable[[TopicId], TopicPlace]) -> None:
    """All rows of a small epoch as the parts of one blob."""
    buffers: list[pa.Buffer] = []
    start = 0
    for rows in small:
        topic = place(rows.topic)
        arranged = row_order.arrange(rows.rows, topic.incarnation)
        data = segment.encode_part(arranged.table)
        first_row, ranges = append.assign(rows.topic, topic, arranged.counts)
        append.parts.append(
            AppendPart(
                topic=rows.topic,
                topic_id=topic.id,
                version=rows.version,
                ranges=ranges,
                rows=arranged.count,
                bytes=data.size,
                checksum=file_reader.checksum(data),
                lsns=arranged.lsns,
                commit_times=arranged.commit_times,
                first_row=first_row,
                path=None,
                start=start,
            )
        )
        buffers.append(data)
        start += data.size
    append.blob, append.blob_plain_bytes = segment.pack_blob(buffers)
    append.blob_checksum = file_reader.checksum(append.blob)


def content_hash(append: Append) -> str:
    """``epochs.content``."""
    return hash_chain.parts_hash(
        hash_chain.AppendedPart(part.topic.text, part.version, part.first_row, part.checksum, part.ranges)
        for part in append.parts
    )


def epoch_values(append: Append, epoch: int, previous: str, content: str, declared: str) -> dict[str, Any]:
    """The row of an epoch, its hash included. ``declared``: what holds of the topics from it on."""
    batch, parts = append.batch, append.parts
    commit_ts = to_micros(batch.commit_ts)
    lsns = [lsn for part in parts if part.lsns for lsn in part.lsns]
    times = [ts for part in parts if part.commit_times for ts in part.commit_times]
    if not times and commit_ts is not None:
        times = [commit_ts]
    small = [part for part in parts if part.path is None]
    directory = [
        segment_index.BlobPart(p.topic_id, p.version, p.start, p.bytes, p.rows, p.first_row, p.lsns, p.ranges)
        for p in small
    ]
    values = {
        "epoch": epoch,
        "append_id": append.id,
        "source": append.previous.name,
        "incarnation": append.incarnation,
        "commit_lsn": batch.commit_lsn,
        "end_lsn": batch.end_lsn,
        "first_lsn": min(lsns, default=None),
        "last_lsn": max(lsns, default=None),
        "commit_ts": commit_ts,
        "first_ts": min(times, default=None),
        "last_ts": max(times, default=None),
        "transactions": batch.transactions,
        "rows": sum(part.rows for part in parts),
        "content": content,
        "topics": segment_index.topics_text({part.topic_id for part in parts}),
        "parts": segment_index.parts_to_json(directory),
        "blob_bytes": append.blob_plain_bytes if append.blob is not None else None,
        "declared": declared,
    }
    return {**values, "hash": hash_chain.epoch_hash(previous, values)}


def segment_values(part: AppendPart, epoch: int) -> dict[str, Any]:
    first_lsn, last_lsn = part.lsns or (None, None)
    return {
        "path": part.path,
        "topic_id": part.topic_id,
        "version": part.version,
        "first_epoch": epoch,
        "last_epoch": epoch,
        "first_lsn": first_lsn,
        "last_lsn": last_lsn,
        "first_row": part.first_row,
        "rows": part.rows,
        "bytes": part.bytes,
        "checksum": part.checksum,
        "ranges": segment_index.ranges_to_json(part.ranges),
        "sealed": False,
    }
