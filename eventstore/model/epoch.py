"""What one append brings: rows, and whatever else becomes visible in the same epoch."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from tailrace.eventstore.model.kafka import ParkedRecord, PartitionProgress, RecordPlace
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId


@dataclass(frozen=True, slots=True)
class TopicRows:
    """Rows of one topic for one epoch, in commit order, in ``schema.change_schema(version)`` (see there)."""

    topic: TopicId
    version: int
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class EpochBatch:
    """What one atomic append brings: whole transactions of one source, and the source position they lead to.

    ``commit_lsn`` is that of the last transaction inside (the previous one when there is none), ``end_lsn`` what may
    be confirmed to the server, ``through_lsn`` below which every commit is in the log. ``new_schemas`` are topic
    versions that start with this epoch; ``completes`` the topics whose first load this epoch finishes, ``suspends``
    those that become incomplete with it (with the reason). ``load_begins`` and ``load_steps`` keep the progress of
    loads by chunks beside the rows that they load. ``published``: how the source publishes a topic's table, in words of
    the source's own (``TopicInfo.published``). ``quarantined`` become incomplete because their rows cannot be decoded;
    ``undecoded`` are frames that came for such topics, ``released`` the numbers of stored ones that this epoch decodes.
    ``incarnation``: a new life of the source begins with this epoch, whose LSNs have nothing to do with those before.
    ``progress``: how far partitions of Kafka topics are with this epoch; ``parked`` are records that could not be read,
    ``unparked`` earlier ones that are so no longer.
    ``begins``: it ends the first load, and is an epoch even without rows, so that the chain has the position.
    """

    source: str
    commit_lsn: int
    end_lsn: int
    through_lsn: int
    commit_ts: datetime | None = None
    transactions: int = 0
    rows: Sequence[TopicRows] = ()
    files: Sequence[PreparedSegment] = ()
    new_schemas: Sequence[tuple[TopicId, TopicSchema]] = ()
    completes: Sequence[TopicId] = ()
    suspends: Sequence[tuple[TopicId, str]] = ()
    published: Sequence[tuple[TopicId, str]] = ()
    load_begins: Sequence[Load] = ()
    load_steps: Sequence[LoadStep] = ()
    quarantined: Sequence[QuarantinedTopic] = ()
    undecoded: Sequence[UndecodedFrames] = ()
    released: Sequence[tuple[TopicId, int]] = ()
    incarnation: Incarnation | None = None
    begins: bool = False
    progress: Sequence[PartitionProgress] = ()
    parked: Sequence[ParkedRecord] = ()
    unparked: Sequence[RecordPlace] = ()


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A life of a source: one server's history. ``number`` is our own counter."""

    number: int
    system_id: str
    timeline: int


KeyTexts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadRange:
    """A range of keys of a load by chunks: (``after``, ``upto``], None = open. ``after`` moves up with every chunk."""

    number: int
    after: KeyTexts | None
    upto: KeyTexts | None
    rows: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """A load by chunks that is under way. ``lsn``: commit of the mark from which on the topic's rows are appended, in
    ``epoch``; ``version``: of the topic that the chunks are read in."""

    topic: TopicId
    version: int
    lsn: int
    expected_rows: int
    ranges: tuple[LoadRange, ...]
    epoch: int = 0  # known at the commit

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.ranges)

    @property
    def done(self) -> bool:
        return all(each.done for each in self.ranges)


@dataclass(frozen=True, slots=True)
class LoadStep:
    """One chunk is in the log: its range now begins behind ``after``; ``rows`` were in the chunk."""

    topic: TopicId
    number: int
    after: KeyTexts | None
    rows: int
    done: bool


@dataclass(frozen=True, slots=True)
class QuarantinedTopic:
    """A topic in quarantine: its table cannot be decoded.

    ``error`` holds no values; ``lsn`` is the commit of the transaction that could not be decoded, ``frame`` the
    message, None when it is not known or must not be stored. ``keeps``: undecoded frames are stored from that
    transaction on; ``frames`` and ``bytes`` count what is stored by now.
    """

    topic: TopicId
    error: str
    lsn: int
    frame: builtins.bytes | None = field(default=None, repr=False)
    keeps: bool = True
    frames: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class UndecodedFrames:
    """What came for a topic in quarantine in one epoch: bytes whose meaning the source knows, in ``data`` or, when
    there are many, in the file ``path``. ``number``: their place in the order, given at the commit."""

    topic: TopicId
    frames: int
    bytes: int
    checksum: str
    path: str | None = None
    data: builtins.bytes | None = field(default=None, repr=False)
    number: int = 0
