"""Applying retention: the rows that make a topic's state are written as a state run, then its oldest rows are
removed.

1. ``plan`` says where. What goes is in the topic's archive, if it has one (``archive``).
2. Write the state run there (``state_runs.write``), and the rest of a file that the cut goes through. No lock is held.
3. One transaction: term still mine, the start still where it was; the start moves, the files before it and the former
   run go and are retired, the new ones come. Readers resolve within one snapshot, so they find either.

A crash before 3 leaves orphans, after it nothing to do. Domain events and messages have no state, so no run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow.compute as pc
from sqlalchemy import Connection, delete, insert, select, update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.errors import Fenced, TailraceError, UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.files import hash_ledger
from tailrace.eventstore.maintenance.files.retired import retire
from tailrace.eventstore.maintenance.retention import archive, holds, plan
from tailrace.eventstore.maintenance.retention.archive import ArchiveFailure
from tailrace.eventstore.maintenance.retention.holds import RegisteredReader
from tailrace.eventstore.maintenance.retention.plan import HeldRows, RetentionStep, SegmentRow
from tailrace.eventstore.maintenance.state_runs.write import RunSpan, run_values, write_run
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.metadata.log_start import LogStart
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.segment_ref import PartitionRange
from tailrace.eventstore.model.topic import TopicKind
from tailrace.eventstore.segment import hash_chain
from tailrace.eventstore.segment.content_hash import Content
from tailrace.eventstore.segment.merge import require_content, require_recorded, rewrite
from tailrace.eventstore.segment.segment import folder_of, read_segment
from tailrace.eventstore.segment.select import Part
from tailrace.eventstore.subscriptions.group import all_groups
from tailrace.eventstore.subscriptions.offsets import offsets_at

# So many files that went are named in the topic's chain; of more, a hash over their names.
_NAMED = 64


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """One topic begins behind ``epoch`` now. ``events`` and ``bytes`` were removed, ``kept_events`` of them stay in
    the state run; ``forced`` are the readers it passed, ``archive`` is where the removed rows are kept."""

    topic: str
    epoch: int
    events: int
    bytes: int
    kept_events: int
    forced: tuple[str, ...] = ()
    archive: str = ""


def retain(
    log: Log, force_past: Collection[str] = ()
) -> Iterator[RetentionResult | HeldRows | ArchiveFailure]:
    """One step for each topic that has one, and what holds back or hinders the others. Raises UsageError when
    ``force_past`` names no registered reader, Fenced when another maintainer began."""
    plans = [plan.plan(log, each, force_past) for each in plan.topics(log)]
    known = {name for *_, found in plans for name in found}
    for name in force_past:
        if not any(reader.is_called(name) for reader in _all_readers(log)):
            shown = ", ".join(sorted(known)) or "nobody"
            raise UsageError(
                f"no registered reader is called {name!r}", hint=f"rows are held back by: {shown}"
            )
    term: int | None = None
    for step, held, _ in plans:
        yield from held
        if step is not None:
            if term is None:
                term = terms.begin(log.catalog, terms.RETAIN)
            try:
                kept = archive.archive_rows(log, step, term)
            except Fenced:
                raise
            except TailraceError as error:
                yield ArchiveFailure(step.info.id.text, error)
                continue
            yield _carry_out(log, step, term, kept)


def retention_due(log: Log) -> bool:
    """Whether a step is to be taken now, perhaps after small epochs were sealed."""
    return any(plan.is_overdue(log, each) or plan.plan(log, each)[0] for each in plan.topics(log))


def _all_readers(log: Log) -> list[RegisteredReader]:
    return [reader for info, *_ in plan.topics(log) for reader in holds.registered_readers(log, info.id)]


def _carry_out(
    log: Log, step: RetentionStep, term: int, kept: Sequence[Mapping[str, Any]]
) -> RetentionResult:
    name = partial(terms.new_parquet, folder_of(step.info.id, step.topic_id), terms.RETAIN, term)
    run: list[Part] = []
    if _has_state(log, step.info):
        tombstones_after = None
        if step.settings.retention.compact:
            with log.catalog.read() as connection:
                tombstones_after = plan.cutoff_by_age(
                    connection, log, step.info, step.topic_id, step.settings.tombstones
                )
        run = write_run(
            log, step.info.id, RunSpan(0, step.cut, tombstones_after), partial(name, (0, step.cut))
        )
    rests = [_rest(log, step, row, name()) for row in step.split_files]
    for part in run:
        # What it was made of goes for good, so what was written is looked at first.
        require_content(log.storage, part.ref(step.info.id), part.content, log.settings.upkeep.memory_bytes)
    start = _new_start(log, step, run)
    failpoints.hit("retention_written")
    _swap(log, step, term, _Replacement(start, run, rests, kept))
    failpoints.hit("retention_swapped")
    events = sum(start.whole) - sum(step.start.whole)
    return RetentionResult(
        topic=step.info.id.text,
        epoch=step.cut,
        events=events,
        bytes=sum(row.bytes for row in step.files) - sum(rest["bytes"] for rest in rests),
        kept_events=sum(part.rows for part in run),
        forced=tuple(reader.label for reader in step.passed),
        archive=str(step.settings.archive or ""),
    )


def _has_state(log: Log, info: TopicInfo) -> bool:
    latest = log.schemas(info.id)[-1]
    return info.kind is TopicKind.TABLE and bool(latest.key)


def _rest(log: Log, step: RetentionStep, row: SegmentRow, path: str) -> dict[str, Any]:
    """The row of ``segments`` for what a file has behind the cut, written as a file of its own."""
    ref = segment_index.file_ref(step.info.id, row)
    written = rewrite(
        log.storage,
        [ref],
        path,
        log.settings.upkeep.memory_bytes,
        change=lambda rows: rows.filter(pc.greater(rows["_epoch"], step.cut)),
    )
    require_recorded(row, sum(written.contents, Content()))
    ranges = [
        PartitionRange(piece.partition, piece.first_offset + piece.rows - kept, kept)
        for piece in ref.ranges
        if (kept := written.counts.get(piece.partition, 0))
    ]
    kept_rows = sum(piece.rows for piece in ranges)
    rest = replace(
        ref, rows=kept_rows, ranges=tuple(ranges), path=path, sealed=True, checksum=written.checksum
    )
    require_content(log.storage, rest, written.kept, log.settings.upkeep.memory_bytes)
    return {
        **row._mapping,
        "path": path,
        "first_epoch": step.cut + 1,
        "first_row": row.first_row + row.rows - kept_rows,
        "rows": kept_rows,
        "bytes": written.bytes,
        "checksum": written.checksum,
        "ranges": segment_index.ranges_to_json(ranges),
        "sealed": True,
        "content": written.kept.text,
    }


def _new_start(log: Log, step: RetentionStep, run: Sequence[Part]) -> LogStart:
    """The start behind the cut. Of a compacted topic, readers get what the run holds of epochs behind
    ``readable_after``."""
    whole = offsets_at(log, step.info.id, Cut(step.cut))
    if len(whole) != len(step.start.offsets):  # it was repartitioned since
        raise _changed_error(step)
    offsets = list(whole)
    if step.readable_after < step.cut:
        offsets = [*step.start.offsets] if not step.readable_after else _first_offsets(log, step, run, whole)
    return LogStart(step.cut, tuple(offsets), tuple(whole))


def _first_offsets(log: Log, step: RetentionStep, run: Sequence[Part], whole: Sequence[int]) -> list[int]:
    first = list(whole)
    for part in run:
        if part.last_epoch <= step.readable_after:
            continue
        ref = part.ref(step.info.id)
        rows = read_segment(log.storage, ref, columns=["_partition", "_offset", "_epoch"])
        rows = rows.filter(pc.greater(rows["_epoch"], step.readable_after))
        for group in rows.group_by("_partition").aggregate([("_offset", "min")]).to_pylist():
            first[group["_partition"]] = min(first[group["_partition"]], group["_offset_min"])
    return [max(pair) for pair in zip(first, step.start.offsets, strict=True)]


@dataclass(frozen=True, slots=True)
class _Replacement:
    """What takes the place of the files that a step removes: the topic's new start, the state run at it, rows of
    ``segments`` for what split files have behind it, and rows of ``archived`` for their copies."""

    start: LogStart
    run: Sequence[Part]
    rests: Sequence[Mapping[str, Any]]
    copies: Sequence[Mapping[str, Any]]


def _swap(log: Log, step: RetentionStep, term: int, new: _Replacement) -> None:
    segments, runs, offsets = tables.segments, tables.state_runs, tables.topic_offsets
    mine = segments.c.topic_id == step.topic_id
    _recheck_projections(log, step)
    with log.catalog.write() as connection:
        terms.check(connection, terms.RETAIN, term)
        terms.advance(connection, terms.MERGE)  # one under way may be putting together what goes now
        begun = connection.execute(
            update(offsets)
            .where(
                offsets.c.topic_id == step.topic_id,
                offsets.c.start_epoch == step.start.epoch,
                offsets.c.log_starts == json.dumps(list(step.start.offsets)),  # of as many partitions
            )
            .values(
                start_epoch=new.start.epoch,
                log_starts=json.dumps(list(new.start.offsets)),
                whole_from=json.dumps(list(new.start.whole)),
            )
        )
        split = [row.path for row in step.split_files]
        found = connection.scalars(
            select(segments.c.path).where(
                mine, segments.c.first_epoch <= step.cut, segments.c.last_epoch > step.cut
            )
        )
        if begun.rowcount != 1 or set(found) != set(split):
            raise _changed_error(step)
        leaving = (mine, segments.c.first_epoch <= step.cut)
        gone = connection.execute(select(segments).where(*leaving).order_by(segments.c.first_row)).all()
        passed = (runs.c.topic_id == step.topic_id, runs.c.epoch <= step.cut)
        former = connection.execute(select(runs.c.path, runs.c.bytes).where(*passed)).all()
        if new.copies:
            if {row.path for row in gone} != {row.path for row in step.files}:
                raise _changed_error(step)
            archive.record_copies(connection, new.copies)
        hash_ledger.record_start(
            connection, step.topic_id, new.start.epoch, sum(part.rows for part in new.run)
        )
        connection.execute(delete(segments).where(*leaving))
        connection.execute(delete(runs).where(*passed))
        retire(connection, [(row.path, row.bytes) for row in (*gone, *former)])
        made = _ledger_rows(connection, step, gone, new.rests)
        if made:
            connection.execute(insert(segments), made)
        if new.run:
            connection.execute(insert(runs), run_values(step.topic_id, 0, step.cut, new.run))


def _changed_error(step: RetentionStep) -> Fenced:
    return Fenced(
        f"files of {step.info.id} changed while its first rows were removed; nothing was changed",
        hint="the next round does it",
    )


def _ledger_rows(
    connection: Connection,
    step: RetentionStep,
    gone: Sequence[SegmentRow],
    rests: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The rows of ``segments`` for what is left of files, as entries in the topic's chain; and one for what is gone."""
    split = dict(zip((row.path for row in step.split_files), rests, strict=True))
    made = []
    whole = [row for row in gone if row.path not in split]
    if whole:
        names = [(row.path, row.checksum) for row in whole]
        if len(names) > _NAMED:
            names = [(f"{len(names)} files of epochs up to {step.cut}", hash_chain.digest(names))]
        rows = [row._asdict() for row in whole]
        hash_ledger.record(connection, step.topic_id, terms.RETAIN, names, rows, None)
    for row in gone:
        if row.path in split:
            source = [(row.path, row.checksum)]
            made.append(
                hash_ledger.record(
                    connection, step.topic_id, terms.RETAIN, source, [row._asdict()], split[row.path]
                )
            )
    return made


def _recheck_projections(log: Log, step: RetentionStep) -> None:
    """Store a position for each group that retention is forced past, so that its next poll finds out. Raises Fenced
    when another reader needs these rows by now. A group made after this check begins at the new start."""
    names = {reader.name for reader in step.passed if reader.kind == "group"}
    for group in all_groups(log):
        if group.name in names:
            with log.groups_database.write() as connection:
                group.leave_behind(connection, step.info.id)
    needing = [
        reader
        for reader in plan.holding_readers(log, log.topic(step.info.id), step.topic_id)
        if reader.epoch < step.cut
        and (reader.kind, reader.name) not in {(r.kind, r.name) for r in step.passed}
    ]
    if needing:
        raise Fenced(
            f"{needing[0].label} began to need rows of {step.info.id} that were about to be removed;"
            " nothing was changed",
            hint="the next round looks again",
        )
