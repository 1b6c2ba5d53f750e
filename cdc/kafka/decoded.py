"""What comes of the records of one partition of a table's Kafka topic."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.schema import TopicSchema

ORIGINS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),  # of the record in its partition
        pa.field("xid", pa.int64()),  # source.txId
        pa.field("lsn", pa.int64()),  # source.lsn: of the row, not of its commit
        pa.field("commit_lsn", pa.int64()),  # source.sequence[0]: of the last commit before this row's
        pa.field("snapshot", pa.string()),  # source.snapshot: false true first last incremental …
        pa.field("transaction", pa.string()),  # transaction.id, where the connector says it
    ]
)
"""By appended row, in their order: where it comes from. Null is what the record does not say."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A record that cannot be read. ``reason`` holds no values."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows in offset order. ``rows``: one batch for each version of the schema that follows another; ``schemas`` are
    the versions that begin here. ``origins``: one row per appended row, in ``ORIGINS``. ``ignored``: records that say
    nothing new, as tombstones behind deletes."""

    rows: tuple[TopicRows, ...]
    schemas: tuple[TopicSchema, ...]
    origins: pa.Table
    parked: tuple[Parked, ...]
    ignored: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows will stand in the log: the commit LSN of their epoch, and the ordinal of the first of them."""

    lsn: int
    first_ordinal: int = 0
