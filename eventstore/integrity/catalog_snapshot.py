"""The catalog in one snapshot, as a verification needs it: the rows that name something, not what they name."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, literal, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.metadata.projection_steps import steps_of
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import PartitionRange
from tailrace.eventstore.model.topic import TopicId

AnyRow = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of a topic in one place: a file or a part of a blob."""

    place: str
    first_row: int
    rows: int
    first_epoch: int
    last_epoch: int
    ranges: Sequence[PartitionRange]


@dataclass(slots=True)
class Topic:
    """One topic: where its rows should begin and end, and everything that holds some."""

    id: int
    name: TopicId
    begins: Sequence[int]
    ends: Sequence[int]
    partitioning: Partitioning
    lineage: AnyRow | None
    start_epoch: int
    schemas: Mapping[int, TopicSchema]
    segments: list[AnyRow] = field(default_factory=list)
    runs: list[AnyRow] = field(default_factory=list)
    archived: list[AnyRow] = field(default_factory=list)
    tiles: list[Tile] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A file that the catalog names: kept frames and derived runs, which have no rows of the log, or any other."""

    path: str
    checksum: str
    bytes: int | None = None


@dataclass(slots=True)
class CatalogSnapshot:
    epoch: int
    hash: str
    topics: dict[int, Topic]
    epoch_files: Sequence[AnyRow]
    epochs: Sequence[AnyRow]
    blobs: frozenset[str]
    others: list[NamedPath]
    retired: frozenset[str]
    steps: Sequence[AnyRow]
    redactions: Sequence[AnyRow]

    def leaves_out(self, topic: int, epochs: Iterable[int]) -> Iterator[int]:
        """Those of the epochs that are in the catalog and do not say that they have rows of a topic."""
        first = self.epochs[0].epoch if self.epochs else 0
        for epoch in epochs:
            if (
                0 <= epoch - first < len(self.epochs)
                and f",{topic}," not in self.epochs[epoch - first].topics
            ):
                yield epoch

    @property
    def in_use(self) -> set[str]:
        """Every path that must be there."""
        found = {row.path for topic in self.topics.values() for row in topic.segments}
        found.update(row.path for row in self.epoch_files)
        found.update(row.path for topic in self.topics.values() for row in topic.runs)
        found.update(other.path for other in self.others)
        return found

    @property
    def paths(self) -> set[str]:
        """Every path that may be there."""
        return self.in_use | self.retired


def take(connection: Connection) -> CatalogSnapshot:
    """The whole catalog. Its size is bounded by upkeep; bytes of blobs are not part of it."""
    head = connection.execute(select(tables.log_head)).one()
    topics = topics_of(connection)
    for row in connection.execute(select(tables.segments).order_by(tables.segments.c.first_row)):
        topic = topics[row.topic_id]
        topic.segments.append(row)
        ranges = segment_index.ranges_from_json(row.ranges)
        topic.tiles.append(Tile(row.path, row.first_row, row.rows, row.first_epoch, row.last_epoch, ranges))
    runs, archived, sealed = tables.state_runs, tables.archived, literal(True).label("sealed")
    for row in connection.execute(select(runs, sealed).order_by(runs.c.epoch, runs.c.number)):
        topics[row.topic_id].runs.append(row)
    for row in connection.execute(select(archived, sealed).order_by(archived.c.first_row)):
        topics[row.topic_id].archived.append(row)
    epochs = connection.execute(select(tables.epochs).order_by(tables.epochs.c.epoch)).all()
    for row in epochs:
        for part in segment_index.parts_from_json(row.parts):
            topics[part.topic_id].tiles.append(
                Tile(blob_place(row.epoch), part.first_row, part.rows, row.epoch, row.epoch, part.ranges)
            )
    for topic in topics.values():
        topic.tiles.sort(key=lambda tile: tile.first_row)
    steps = connection.execute(steps_of().order_by(*tables.derived.primary_key)).all()
    files = tables.epoch_files
    return CatalogSnapshot(
        epoch=head.epoch,
        hash=head.hash,
        topics=topics,
        epoch_files=connection.execute(select(files).order_by(files.c.first_epoch)).all(),
        epochs=epochs,
        blobs=frozenset(connection.scalars(select(tables.blobs.c.append_id))),
        others=list(_other_files(connection, steps)),
        retired=frozenset(connection.scalars(select(tables.retired.c.path))),
        steps=steps,
        redactions=connection.execute(select(tables.redactions).order_by(tables.redactions.c.epoch)).all(),
    )


def blob_place(epoch: int) -> str:
    return f"the blob of epoch {epoch}"


def topics_of(connection: Connection) -> dict[int, Topic]:
    """The topics without what holds their rows."""
    offsets, lineage = tables.topic_offsets, tables.lineage
    query = (
        select(
            tables.topics.c.id,
            tables.topics.c.name,
            tables.topics.c.partitioning,
            offsets.c.next_offsets,
            offsets.c.whole_from,
            offsets.c.start_epoch,
        )
        .join(offsets, offsets.c.topic_id == tables.topics.c.id)
        .order_by(tables.topics.c.name)
    )
    schemas: dict[int, dict[int, TopicSchema]] = {}
    for row in connection.execute(select(tables.topic_schemas)):
        schemas.setdefault(row.topic_id, {})[row.version] = TopicSchema.from_json(row.definition)
    entries = {row.topic_id: row for row in connection.execute(select(lineage))}
    return {
        row.id: Topic(
            row.id,
            TopicId.parse(row.name),
            json.loads(row.whole_from),
            json.loads(row.next_offsets),
            Partitioning.from_json(row.partitioning),
            entries.get(row.id),
            row.start_epoch,
            schemas.get(row.id, {}),
        )
        for row in connection.execute(query)
    }


def _other_files(connection: Connection, steps: Collection[AnyRow]) -> Iterator[NamedPath]:
    kept = tables.kept_frames
    frames = select(kept.c.path, kept.c.checksum, kept.c.bytes).where(kept.c.path.is_not(None))
    for row in connection.execute(frames):
        yield NamedPath(row.path, row.checksum, row.bytes)
    yield from derived_files(steps)


def derived_files(steps: Collection[AnyRow]) -> list[NamedPath]:
    """The files of derived steps, each once: what their committer said of them, wherever a file is in it."""
    found: dict[str, NamedPath] = {}

    def walk(value: object) -> None:
        if isinstance(value, Mapping):
            if value.get("path") and "checksum" in value:
                found[value["path"]] = NamedPath(value["path"], value["checksum"], value.get("bytes"))
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    for step in steps:
        walk(json.loads(step.files))
    return list(found.values())
