"""Records on their way to a destination."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model.topic import TopicId

HEADERS = pa.list_(pa.struct([pa.field("name", pa.large_binary()), pa.field("value", pa.large_binary())]))
RECORDS = pa.schema(
    [
        pa.field("key", pa.large_binary()),
        pa.field("value", pa.large_binary()),
        pa.field("headers", HEADERS),
        # Where the row is in the log.
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("hash", pa.int64(), nullable=False),  # of the row's key; rows of one key stay in their order
        pa.field("to_all", pa.bool_(), nullable=False),  # it concerns every key: a truncate
    ]
)


@dataclass(frozen=True, slots=True)
class EpochRows:
    """A topic's rows of one epoch (``stored_schema``), or a part of them, by (partition, offset), in one version of its
    columns. ``ordinals``: no row of the epoch has a higher ordinal, where not all of its rows are here (else 0)."""

    topic: TopicId
    version: int
    rows: pa.Table
    ordinals: int = 0


@dataclass(frozen=True, slots=True, order=True)
class ResultId:
    """The result of a projection, as what is published."""

    projection: str

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.projection,)

    @property
    def text(self) -> str:
        return self.projection

    def __str__(self) -> str:
        return f"projection {self.projection}"


Published = TopicId | ResultId


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """What is made of rows of one topic of the log, in their order, in ``RECORDS``. One row may be several records.
    Those of a result have the bucket as their partition, and no offset."""

    topic: Published
    records: pa.Table


def bytes_of(found: TopicRecords) -> int:
    """Of keys and values."""
    sizes = (pc.sum(pc.binary_length(found.records[name])).as_py() for name in ("key", "value"))
    return sum(size or 0 for size in sizes)
