"""Planning retention: where does a topic's policy cut, how far may it, and is a step worth it? Nothing is changed.

Not past a registered reader (``holds``), a load, an epoch that is not sealed. Steps that would rewrite much to remove
little wait.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.catalog.database import retry_on_missing_file
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.retention import holds
from tailrace.eventstore.maintenance.retention.holds import RegisteredReader
from tailrace.eventstore.metadata import log_start
from tailrace.eventstore.metadata.epochs import EpochFilter, Timeline
from tailrace.eventstore.metadata.log_start import LogStart
from tailrace.eventstore.metadata.topics import head_epoch, sealed_upto, topic_info, topic_query
from tailrace.eventstore.model import retention
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.time import now_micros
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.settings import TopicSettings

# A step rewrites the state run and perhaps a file: it waits until it removes this part of what it would write, or
# until rows are older than their time by this part of it.
WORTH = 0.25
OVERDUE = 0.1

SegmentRow = Row[*tuple[Any, ...]]
TopicRow = tuple[TopicInfo, int, TopicSettings]


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows that a reader keeps from being removed: from the oldest that it needs to where the policy would have cut.
    ``bytes`` are as stored, ``seconds`` the age of the oldest."""

    topic: str
    reader: str
    why: str
    events: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Extent:
    """Epochs and bytes of a file."""

    first_epoch: int
    last_epoch: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RetentionStep:
    """What is to be done with one topic. ``files`` are those with rows up to ``cut``, ``readable_after`` the epoch up
    to which readers get nothing, even of what the run holds."""

    info: TopicInfo
    topic_id: int
    settings: TopicSettings
    start: LogStart
    cut: int
    readable_after: int
    files: tuple[SegmentRow, ...]
    passed: tuple[RegisteredReader, ...]

    @property
    def whole_files(self) -> list[SegmentRow]:
        return [row for row in self.files if row.last_epoch <= self.cut]

    @property
    def split_files(self) -> list[SegmentRow]:
        return [row for row in self.files if row.last_epoch > self.cut]


def check_policies(log: Log) -> None:
    """Raises UsageError for a policy that a topic cannot have."""
    for info in log.topics():
        settings = retention.setting_of(log.settings.topics, info.id.text)
        if settings is not None and settings.retention.compact and info.kind is not TopicKind.TABLE:
            raise UsageError(
                f'retention of {info.id}: "compact" keeps the last row of each key, but {info.kind.value} have no '
                "state: each one counts",
                hint='limit it by time or size ("90d", "50GiB"), or leave the topic out of the pattern',
            )


def topics(log: Log) -> list[TopicRow]:
    found = []
    with log.catalog.read() as connection:
        rows = connection.execute(topic_query().order_by(tables.topics.c.id)).all()
    for row in rows:
        info = topic_info(row, row.version)
        settings = retention.setting_of(log.settings.topics, info.id.text)
        if settings is None or settings.retention.keeps_all:
            continue
        if settings.retention.compact and info.kind is not TopicKind.TABLE:
            continue  # ``check`` says so
        found.append((info, row.id, settings))
    return found


def withheld_rows(log: Log) -> list[HeldRows]:
    """What registered readers and loads keep from being removed now."""
    return [each for topic in topics(log) for each in plan(log, topic)[1]]


def plan(
    log: Log, topic: TopicRow, force_past: Collection[str] = ()
) -> tuple[RetentionStep | None, list[HeldRows], set[str]]:
    """The topic's step, None when there is none or it is not worth it yet; who holds back rows beyond it; and the
    names of all who do."""
    info, topic_id, settings = topic

    def look(connection: Connection) -> tuple[LogStart, list[SegmentRow], int, int]:
        sealed, files = sealed_upto(connection), _files(connection, topic_id)
        deleted = _deleted_upto(connection, log, info, topic_id, settings, files)
        compacted = _compacted_upto(connection, log, info, topic_id, settings)
        return log_start.read(connection, topic_id), files, min(deleted, sealed), min(compacted, sealed)

    start, files, deleted, compacted = retry_on_missing_file(log.catalog, look)
    wanted = max(deleted, compacted)
    if not any(row.first_epoch <= wanted for row in files):
        return None, [], set()
    blocking = [reader for reader in holding_readers(log, info, topic_id) if reader.epoch < wanted]
    forced = [reader for reader in blocking if any(reader.is_called(name) for name in force_past)]
    blocking = [reader for reader in blocking if reader not in forced]
    cut = min([wanted, *(reader.epoch for reader in blocking)])
    held = [_withheld(log, info.id, topic_id, reader, wanted, files) for reader in blocking]
    names = {reader.label for reader in blocking}
    step = RetentionStep(
        info=info,
        topic_id=topic_id,
        settings=settings,
        start=start,
        cut=cut,
        readable_after=min(deleted, cut) if settings.retention.compact else cut,
        files=tuple(row for row in files if row.first_epoch <= cut),
        passed=tuple(reader for reader in forced if reader.epoch < cut),
    )
    due = cut > start.epoch and step.files and (step.passed or _is_worth(log, step))
    return (step if due else None), [each for each in held if each.events], names


def holding_readers(log: Log, info: TopicInfo, topic_id: int) -> list[RegisteredReader]:
    """All whose rows may not be removed. Of a retired topic these are groups and publications alone: no load will put
    its state together again, and no projection that reads it can go on."""
    readers = holds.registered_readers(log, info.id)
    if info.is_retired:
        return [reader for reader in readers if reader.kind in ("group", "publication")]
    load = holds.load_hold(log, topic_id)
    return [*readers, *([load] if load is not None else [])]


def _files(connection: Connection, topic_id: int) -> list[SegmentRow]:
    table = tables.segments
    return list(
        connection.execute(select(table).where(table.c.topic_id == topic_id).order_by(table.c.first_row))
    )


def _deleted_upto(
    connection: Connection,
    log: Log,
    info: TopicInfo,
    topic_id: int,
    settings: TopicSettings,
    files: Sequence[SegmentRow],
) -> int:
    """The last epoch whose rows readers are not to get any more, by time or size."""
    upto = 0
    if settings.retention.seconds is not None:
        upto = cutoff_by_age(connection, log, info, topic_id, settings.retention.seconds)
    if settings.retention.bytes is not None:
        extents = [Extent(row.first_epoch, row.last_epoch, row.bytes) for row in files]
        upto = max(upto, cutoff_by_size(extents, settings.retention.bytes))
    return upto


def _compacted_upto(
    connection: Connection, log: Log, info: TopicInfo, topic_id: int, settings: TopicSettings
) -> int:
    if not settings.retention.compact:
        return 0
    return cutoff_by_age(connection, log, info, topic_id, settings.compact_after)


def cutoff_by_age(connection: Connection, log: Log, info: TopicInfo, topic_id: int, seconds: float) -> int:
    """The last epoch before the topic's first row that is younger: by this host's clock and by the catalog's server's,
    since what is removed because one of them is ahead is gone."""
    limit = min(now_micros(), leases.now(connection)) - int(seconds * 1e6)
    which = EpochFilter(source=info.id.source, later_than=limit, topics=frozenset({topic_id}))
    younger = Timeline(connection, log.storage).first(which)
    return head_epoch(connection) if younger is None else int(younger.epoch) - 1


def cutoff_by_size(files: Sequence[Extent], limit: int) -> int:
    """The last epoch of the files without which the rest still has ``limit`` bytes."""
    held, kept = 0, len(files)
    while kept and held < limit:
        kept -= 1
        held += files[kept].bytes
    if not kept:
        return 0
    return min(
        max(file.last_epoch for file in files[:kept]), min(file.first_epoch for file in files[kept:]) - 1
    )


def is_worthwhile(removed: int, written: int) -> bool:
    """Whether a step that removes so many bytes is worth writing so many."""
    return removed >= WORTH * written


def is_overdue(log: Log, topic: TopicRow) -> bool:
    """Whether rows whose time is over lie in epochs that are not sealed yet."""
    info, topic_id, settings = topic
    limits = [settings.retention.seconds, settings.compact_after if settings.retention.compact else None]
    seconds = min((limit for limit in limits if limit is not None), default=None)
    if seconds is None:
        return False
    limit = now_micros() - int(seconds * (1 + OVERDUE) * 1e6)

    def look(connection: Connection) -> bool:
        after = sealed_upto(connection)
        which = EpochFilter(source=info.id.source, after=after, dated=True, topics=frozenset({topic_id}))
        waiting = Timeline(connection, log.storage).first(which)
        return waiting is not None and (waiting.last_ts or 0) <= limit

    return retry_on_missing_file(log.catalog, look)


def _is_worth(log: Log, step: RetentionStep) -> bool:
    gain = sum(row.bytes for row in step.whole_files)
    gain += sum(
        row.bytes * (step.cut - row.first_epoch + 1) // (row.last_epoch - row.first_epoch + 1)
        for row in step.split_files
    )
    table = tables.state_runs
    with log.catalog.read() as connection:
        mine = (table.c.topic_id == step.topic_id, table.c.epoch == step.start.epoch)
        runs = sum(connection.scalars(select(table.c.bytes).where(*mine)))
        if is_worthwhile(gain, runs + sum(row.bytes for row in step.split_files)):
            return True
        seconds = step.settings.retention.seconds
        if seconds is None:
            return False
        overdue = cutoff_by_age(connection, log, step.info, step.topic_id, seconds * (1 + OVERDUE))
    return any(row.first_epoch <= min(overdue, step.cut) for row in step.files)


def _withheld(
    log: Log,
    topic: TopicId,
    topic_id: int,
    reader: RegisteredReader,
    wanted: int,
    files: Sequence[SegmentRow],
) -> HeldRows:
    between = [row for row in files if row.last_epoch > reader.epoch and row.first_epoch <= wanted]
    which = EpochFilter(after=reader.epoch, dated=True, topics=frozenset({topic_id}))
    first = retry_on_missing_file(
        log.catalog, lambda connection: Timeline(connection, log.storage).first(which)
    )
    age = 0.0 if first is None or first.commit_ts is None else (now_micros() - first.commit_ts) / 1e6
    return HeldRows(
        topic=topic.text,
        reader=reader.label,
        why=reader.why,
        events=sum(row.rows for row in between),
        bytes=sum(row.bytes for row in between),
        seconds=max(age, 0.0),
    )
