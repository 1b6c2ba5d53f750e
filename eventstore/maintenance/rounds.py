"""A round of upkeep: seal, merge, retention, state runs, fold, remove. Safe beside everything, wherever and whenever.

At any moment one process does it (``leases.maintainer_lease``). It may be killed at any point: the next round goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection, delete, func, insert, select

from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.catalog.leases import DRIVER, READER, maintainer_lease, now, oldest_need
from tailrace.eventstore.errors import Fenced, TailraceError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.files import tiers
from tailrace.eventstore.maintenance.files.fold import fold
from tailrace.eventstore.maintenance.files.merge import MergeResult, merge
from tailrace.eventstore.maintenance.files.orphans import collect_orphans
from tailrace.eventstore.maintenance.files.owner import require_own_segments
from tailrace.eventstore.maintenance.files.retired import collect_retired
from tailrace.eventstore.maintenance.files.seal import seal
from tailrace.eventstore.maintenance.retention.apply import RetentionResult, retain, retention_due
from tailrace.eventstore.maintenance.retention.archive import ArchiveFailure, remove_abandoned_copies
from tailrace.eventstore.maintenance.retention.holds import registered_readers
from tailrace.eventstore.maintenance.retention.plan import HeldRows, check_policies
from tailrace.eventstore.maintenance.state_runs.compact import CompactionResult, compact
from tailrace.eventstore.maintenance.state_runs.due import due_runs
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.model.time import from_micros, now_micros
from tailrace.eventstore.model.topic import TopicId

_T = TypeVar("_T")
SEAL_BYTES = 16 << 20  # of small epochs are worth a round, however few they are


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did. ``head``: the newest epoch when it began."""

    head: int = 0
    sealed_epochs: int = 0
    merged_files: int = 0
    written_files: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    folded_epochs: int = 0
    removed_files: int = 0
    removed_bytes: int = 0
    orphans: int = 0
    removed: tuple[RetentionResult, ...] = ()
    held: tuple[HeldRows, ...] = ()
    runs: tuple[CompactionResult, ...] = ()
    seconds: float = 0.0

    @property
    def idle(self) -> bool:
        """Nothing was done, whatever was held back."""
        done = (self.sealed_epochs, self.merged_files, self.folded_epochs, self.removed_files, self.orphans)
        return not any(done) and not self.removed and not self.runs

    @classmethod
    def from_json(cls, text: str) -> Round:
        values = json.loads(text)
        values["removed"] = tuple(RetentionResult(**each) for each in values["removed"])
        values["held"] = tuple(HeldRows(**each) for each in values["held"])
        values["runs"] = tuple(CompactionResult(**each) for each in values["runs"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class UpkeepStatus:
    """The work that is left to upkeep, as one snapshot shows it. ``tiers``: files and bytes by size, small to large."""

    epoch_rows: int
    epoch_files: int
    unsealed_epochs: int
    unsealed_bytes: int
    tiers: dict[str, tuple[int, int]]
    retired_files: int
    retired_bytes: int
    readers: int
    finished_at: datetime | None
    last: Round | None

    @property
    def files(self) -> int:
        return sum(files for files, _ in self.tiers.values())


def maintain(
    log: Log,
    *,
    report: Callable[[str], None] = lambda _: None,
    force_past: Collection[str] = (),
) -> Round:
    """Seal all small epochs, merge, remove what retention says, make state runs, fold, remove files. ``force_past``:
    names of registered readers whom retention passes. Raises Busy or Fenced; UsageError at once when nobody is called
    as in ``force_past``; when all else is done, UsageError for a policy that a topic cannot have, and what keeps a
    topic from its archive."""
    began = time.monotonic()
    with maintainer_lease(log.catalog):
        with log.catalog.write() as connection:
            # Those who were killed have left files of these terms. Sealing takes one only when there is something to
            # seal: jobs seal, too, and would be stopped.
            for name in (terms.MERGE, terms.RETAIN, terms.STATE, terms.FOLD):
                terms.advance(connection, name)
            head = topics.head_epoch(connection)
        report("sealing")
        sealed = 0
        with suppress(Fenced):  # by a job, which seals all there is before it reads
            sealed = seal(log)
        merged = _collect(
            merge_files(log),
            lambda done: report(f"merging: {sum(each.files for each in done):,} files to {len(done):,}"),
        )
        report("retention")
        removed, held, hindered = _apply_retention(log, force_past, report)
        hindered += remove_abandoned_copies(log)
        runs = _collect(
            compact(log),
            lambda done: report(f"state run: {done[-1].topic} up to epoch {done[-1].epoch:,}"),
        )
        folded = _collect(
            fold(log, log.settings.upkeep.keep_epochs),
            lambda done: report(f"folding: {sum(each.rows for each in done):,} epochs"),
        )
        report("removing")
        require_own_segments(log)
        removed_files, removed_bytes = collect_retired(log, log.settings.upkeep.keep_seconds)
        orphans = collect_orphans(log)
        done = Round(
            head=head,
            sealed_epochs=sealed,
            merged_files=sum(each.files for each in merged),
            written_files=len(merged),
            read_bytes=sum(each.bytes_read for each in merged),
            written_bytes=sum(each.bytes_written for each in merged),
            folded_epochs=sum(each.rows for each in folded),
            removed_files=removed_files,
            removed_bytes=removed_bytes,
            orphans=orphans,
            removed=tuple(removed),
            held=tuple(held),
            runs=tuple(runs),
            seconds=round(time.monotonic() - began, 3),
        )
        _record(log, done)
        check_policies(log)
        for error in hindered:
            raise error
    return done


def _collect(made: Iterable[_T], report: Callable[[list[_T]], None]) -> list[_T]:
    """Collect what is made, and report each piece as it comes."""
    done: list[_T] = []
    for each in made:
        done.append(each)
        report(done)
    return done


def _apply_retention(
    log: Log, force_past: Collection[str], report: Callable[[str], None]
) -> tuple[list[RetentionResult], list[HeldRows], list[TailraceError]]:
    """What retention removed, what holds it back, and what keeps topics from their archives."""
    removed: list[RetentionResult] = []
    held: list[HeldRows] = []
    hindered: list[TailraceError] = []
    for outcome in retain(log, force_past):
        if isinstance(outcome, HeldRows):
            held.append(outcome)
        elif isinstance(outcome, ArchiveFailure):
            hindered.append(outcome.error)
            report(f"retention: {outcome.topic} could not be archived")
        else:
            removed.append(outcome)
            report(f"retention: {outcome.topic} begins behind epoch {outcome.epoch:,}")
    return removed, held, hindered


def _record(log: Log, done: Round) -> None:
    table = tables.upkeep
    with log.catalog.write() as connection:
        connection.execute(delete(table))
        connection.execute(
            insert(table).values(id=1, finished_at=now_micros(), report=json.dumps(asdict(done)))
        )


def merge_files(log: Log) -> Iterator[MergeResult]:
    """As ``merge``, but for what readers have read and have yet to read."""

    def positions(topic: TopicId) -> set[int]:
        return {reader.epoch for reader in registered_readers(log, topic)}

    return merge(log, log.settings.upkeep.memory_bytes, positions)


def is_due(log: Log) -> bool:
    """Whether a round is worth its start: enough epochs since the last one, many bytes of small ones,
    or replaced files whose time has come."""
    retired = tables.retired
    with log.catalog.read() as connection:
        limit = now(connection) - int(log.settings.upkeep.keep_seconds * 1e6)
        head = topics.head_epoch(connection)
        _, size = _count_unsealed(connection)
        waiting = select(retired.c.number).where(retired.c.retired_at <= limit)
        needed = oldest_need(connection)
        if needed is not None:
            waiting = waiting.where(retired.c.number <= needed)
        due = connection.scalar(waiting.limit(1))
        last = _last_round(connection)
    fresh = head - (last[1].head if last is not None else 0)
    if retention_due(log) or next(due_runs(log), None) is not None:
        return True
    return fresh >= log.settings.upkeep.seal_epochs or size >= SEAL_BYTES or due is not None


def _last_round(connection: Connection) -> tuple[datetime | None, Round] | None:
    row = connection.execute(select(tables.upkeep)).one_or_none()
    return None if row is None else (from_micros(row.finished_at), Round.from_json(row.report))


def upkeep_status(log: Log) -> UpkeepStatus:
    """What ``status`` and the metrics show."""
    segments, retired, leases = tables.segments, tables.retired, tables.leases
    with log.catalog.read() as connection:
        count, size = _count_unsealed(connection)
        epochs = connection.scalar(select(func.count()).select_from(tables.epochs)) or 0
        folded = connection.scalar(select(func.count()).select_from(tables.epoch_files)) or 0
        sizes = sorted(connection.scalars(select(segments.c.bytes)))
        gone = connection.execute(select(func.count(), func.sum(retired.c.bytes)).select_from(retired)).one()
        readers = connection.scalar(
            select(func.count())
            .select_from(leases)
            .where(leases.c.role.in_((READER, DRIVER)), leases.c.expires_at > now(connection))
        )
        last = _last_round(connection)
    found: dict[str, tuple[int, int]] = {}
    for each in sizes:
        name = tiers.tier_name(each)
        files, held = found.get(name, (0, 0))
        found[name] = (files + 1, held + each)
    return UpkeepStatus(
        epoch_rows=epochs,
        epoch_files=folded,
        unsealed_epochs=count,
        unsealed_bytes=size,
        tiers=found,
        retired_files=gone[0],
        retired_bytes=int(gone[1] or 0),
        readers=readers or 0,
        finished_at=None if last is None else last[0],
        last=None if last is None else last[1],
    )


def _count_unsealed(connection: Connection) -> tuple[int, int]:
    table = tables.epochs
    query = select(func.count(), func.sum(table.c.blob_bytes)).where(table.c.blob_bytes.is_not(None))
    count, size = connection.execute(query).one()
    return int(count), int(size or 0)
