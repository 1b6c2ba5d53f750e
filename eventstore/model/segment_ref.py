"""Segments from outside: a file that is not in the log yet, and a reference to one that is."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.eventstore.model.topic import TopicId


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """A contiguous run of one partition inside a segment: rows are sorted by (partition, offset), offsets are dense,
    so row i of the run has offset ``first_offset + i``."""

    partition: int
    first_offset: int
    rows: int


@dataclass(frozen=True, slots=True)
class PreparedSegment:
    """A durable, not yet registered file: what a first load writes before the epoch that makes it visible.

    ``counts`` are rows per partition in file order (partition ascending); ``lsns`` and ``commit_times`` the smallest
    and largest ``_lsn`` and ``_commit_ts`` (µs since 1970) of its rows."""

    topic: TopicId
    version: int
    path: str
    bytes: int
    rows: int
    checksum: str
    counts: Sequence[tuple[int, int]]
    lsns: tuple[int, int] | None = None
    commit_times: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """All a task needs to read a segment without the catalog. Pickles small unless ``inline`` carries the bytes.

    ``path`` is relative to the segments folder, or None for an inline blob part (Arrow IPC stream bytes). A sealed
    file may hold more epochs than asked for: ``first_epoch`` and ``last_epoch`` are the wanted ones and
    ``read_segment`` drops the others, as it drops transactions at or above ``below_lsn``. ``rows``, ``bytes`` and
    ``ranges`` describe the whole segment.
    """

    topic: TopicId
    version: int
    first_epoch: int
    last_epoch: int
    rows: int
    bytes: int
    ranges: Sequence[PartitionRange]
    path: str | None = None
    inline: builtins.bytes | None = field(default=None, repr=False)
    sealed: bool = False  # sealed files carry _partition, _epoch and _offset as columns
    checksum: str = ""  # of the file; none: it was compared before, as an inline part's blob was
    below_lsn: int | None = (
        None  # of the last epoch only transactions with commit_lsn < below_lsn, when the cut is inside it
    )
