"""The words of the log as values: topics, operations, rows on their way in, segments on their way out."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from tailrace.eventstore.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.eventstore.model.partitioning import Partitioning
    from tailrace.eventstore.model.schema import TopicSchema


class Op(StrEnum):
    """The field's codes for what happened to a row (those of Debezium's envelope)."""

    READ = "r"
    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    TRUNCATE = "t"
    MESSAGE = "m"


class TopicKind(StrEnum):
    TABLE = "table"  # changes of one Postgres table; identity (source, schema, table)
    EVENTS = "events"  # domain events of one category; identity (source, category)
    MESSAGES = "messages"  # transactional logical messages of a source


_PLAIN = re.compile(r"[A-Za-z0-9_\-]+")
_PART = re.compile(r'"((?:[^"]|"")*)"|([^".]+)')


@dataclass(frozen=True, slots=True, order=True)
class TopicId:
    """A topic's identity: a tuple of parts; the text form joins them by dots and quotes what is not plain."""

    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.parts) <= 3 or not all(self.parts):
            raise UsageError(
                f"{'.'.join(self.parts)!r} does not name a topic",
                hint="a topic is SOURCE.SCHEMA.TABLE or SOURCE.CATEGORY",
            )

    @classmethod
    def table(cls, source: str, schema: str, table: str) -> TopicId:
        return cls((source, schema, table))

    @classmethod
    def events(cls, source: str, category: str) -> TopicId:
        return cls((source, category))

    @classmethod
    def messages(cls, source: str) -> TopicId:
        """The transactional logical messages of a source. No schema can have this name: ``pg_`` is reserved."""
        return cls((source, "pg_logical", "messages"))

    @classmethod
    def parse(cls, text: str) -> TopicId:
        """Read the text form. Raises UsageError on a text that is not one."""
        parts: list[str] = []
        at = 0
        while True:
            match = _PART.match(text, at)
            if match is None:
                raise UsageError(
                    f"{text!r} is not a topic name",
                    hint='write SOURCE.SCHEMA.TABLE or SOURCE.CATEGORY; quote unusual parts: shop."My Schema".t',
                )
            quoted, plain = match.groups()
            parts.append(plain if quoted is None else quoted.replace('""', '"'))
            at = match.end()
            if at == len(text):
                return cls(tuple(parts))
            if text[at] != ".":
                raise UsageError(f"{text!r} is not a topic name", hint="parts are separated by one dot")
            at += 1

    @property
    def source(self) -> str:
        return self.parts[0]

    @property
    def text(self) -> str:
        return ".".join(
            part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in self.parts
        )

    def __str__(self) -> str:
        return self.text


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
    the source's own (``TopicInfo.published``). ``set_aside`` become incomplete because their rows cannot be decoded;
    ``kept`` is what came for such topics, ``released`` the numbers of what had been kept and is decoded in this epoch.
    ``incarnation``: a new life of the source begins with this epoch, whose LSNs have nothing to do with those before.
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
    set_aside: Sequence[SetAside] = ()
    kept: Sequence[KeptFrames] = ()
    released: Sequence[tuple[TopicId, int]] = ()
    incarnation: Incarnation | None = None


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
class SetAside:
    """A topic whose table cannot be decoded. ``error`` holds no values; ``lsn``: commit of the transaction that could
    not be decoded; ``frame``: the message, None when it is not known or must not be stored. ``keeps``: what comes for
    it from that transaction on is kept. ``frames`` and ``bytes`` (as stored) of what is kept by now."""

    topic: TopicId
    error: str
    lsn: int
    frame: builtins.bytes | None = field(default=None, repr=False)
    keeps: bool = True
    frames: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class KeptFrames:
    """What came for a topic that is set aside, in one epoch: bytes whose meaning the source knows, in ``data`` or, when
    there are many, in the file ``path``. ``number``: their place in the order, given at the commit."""

    topic: TopicId
    frames: int
    bytes: int
    checksum: str
    path: str | None = None
    data: builtins.bytes | None = field(default=None, repr=False)
    number: int = 0


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


@dataclass(frozen=True, slots=True)
class EpochInfo:
    """One visible epoch. ``hash`` chains over its content and the previous epoch's hash."""

    epoch: int
    source: str
    commit_lsn: int
    end_lsn: int
    commit_ts: datetime | None
    rows: int
    hash: str


@dataclass(frozen=True, slots=True)
class SourceState:
    """Where a source stands in the log (row ``sources``)."""

    name: str
    incarnation: int
    term: int
    commit_lsn: int
    end_lsn: int
    through_lsn: int
    system_id: str
    timeline: int
    repairing: bool  # a repair was begun and has not finished: nothing may be streamed
    slot: str
    publication: str
    loaded: bool  # the first load has been committed: there is a position to resume from


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the catalog knows it. ``complete_since`` is the epoch from which its state is known, None while it
    is incomplete (``reason`` says why). ``published`` is what its source must still say of it for that to hold."""

    id: TopicId
    kind: TopicKind
    partitioning: Partitioning
    version: int
    complete_since: int | None
    reason: str
    published: str = ""

    @property
    def partitions(self) -> int:
        """How many its rows are spread over now."""
        return self.partitioning.current.count
