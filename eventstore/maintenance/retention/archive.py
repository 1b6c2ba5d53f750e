"""Archiving the rows that retention is about to remove.

Every file is copied, or of one that the cut goes through the rows that go, and read back; then the transaction that
removes the rows from the log names the files in the archive. A file's name there follows from its content, so a round
that was killed finds what was copied and goes on. What is named is never removed from an archive.

A copy is noted before it is made. One that no step came to name, because its file was written again since (merged, or
with rows erased), is removed by the next round: nobody would know what it holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc
from sqlalchemy import Connection, Row, bindparam, delete, exists, insert, select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.errors import Fenced, IntegrityError, TailraceError, UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.retention.plan import RetentionStep, SegmentRow
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.metadata.archived import require
from tailrace.eventstore.model.segment_ref import PartitionRange, SegmentRef
from tailrace.eventstore.model.time import now_micros
from tailrace.eventstore.segment import file_reader, segment
from tailrace.eventstore.segment.content_hash import Content
from tailrace.eventstore.segment.copy import copy_file
from tailrace.eventstore.segment.merge import require_content, require_recorded, rewrite
from tailrace.eventstore.storage import LocalStorage, Storage
from tailrace.eventstore.storage.local import PARTIAL
from tailrace.eventstore.storage.object_store import ObjectStorage
from tailrace.eventstore.storage.open import MARKER, write_marker

_NAME = re.compile(r"[A-Za-z0-9_.\-=]+")
_COPYING_SECONDS = 86_400  # no copy of one file takes longer


@dataclass(frozen=True, slots=True)
class ArchiveFailure:
    """A topic's step was not taken, because what it removes could not be archived."""

    topic: str
    error: TailraceError


def archive_rows(log: Log, step: RetentionStep, term: int) -> list[dict[str, Any]]:
    """Put the rows that a step removes into its topic's archive, if it has one; gives what ``archived`` is to hold.

    Raises OperatorError or TransientError for an archive that is out of reach or another log's, IntegrityError for a
    file that is not what it should be, here or there, UsageError for one inside the log's own files.
    """
    if step.settings.archive is None:
        return []
    place = str(step.settings.archive)
    try:
        archive = _Archive(log, step, term, place, _claim_archive(log, place))
        return [_archive_file(archive, row) for row in step.files]
    except Fenced:
        raise
    except TailraceError as error:
        raise type(error)(
            f"nothing was removed from {step.info.id}: {error.message} (archive {place})", hint=error.hint
        ) from error


def _claim_archive(log: Log, place: str) -> Storage:
    """The archive's storage. The first time it is made and marked as this log's; later it must be there: the folder
    under an unmounted disk is no archive."""
    target = log.archive(place)
    if _inside(target, log.storage):
        raise UsageError(
            f"{target.label} is inside {log.storage.label}, the log's own files",
            hint="give the archive a place of its own",
        )
    table = tables.archived
    with log.catalog.read() as connection:
        used = connection.scalar(select(table.c.path).where(table.c.place == place).limit(1))
    if used is None and not target.exists(MARKER):
        target.prepare()
        write_marker(target, log.log_id)
    require(target, log.log_id)
    return target


def _inside(target: Storage, storage: Storage) -> bool:
    if isinstance(target, LocalStorage) and isinstance(storage, LocalStorage):
        return target.root.resolve().is_relative_to(storage.root.resolve())
    if isinstance(target, ObjectStorage) and isinstance(storage, ObjectStorage):
        same = (target.bucket, target.endpoint) == (storage.bucket, storage.endpoint)
        return same and f"{target.prefix}/".startswith(f"{storage.prefix}/" if storage.prefix else "")
    return False


@dataclass(frozen=True, slots=True)
class _Archive:
    """Where a step's files go. ``place`` names it, ``storage`` is it."""

    log: Log
    step: RetentionStep
    term: int
    place: str
    storage: Storage


def _archive_file(archive: _Archive, row: SegmentRow) -> dict[str, Any]:
    """One file's rows up to the cut are in the archive. A sealed file goes as it is; one that capture wrote, whose rows
    do not say their positions yet, and one that stays in part are written again."""
    log, step = archive.log, archive.step
    ref = segment_index.file_ref(step.info.id, row)
    if row.sealed and row.last_epoch <= step.cut:
        return _copy(archive, row, ref)
    path = terms.new_parquet(segment.folder_of(step.info.id, step.topic_id), terms.RETAIN, archive.term)
    try:
        return _copy(archive, row, _write_removed_rows(log, step, row, ref, path))
    finally:
        log.storage.delete(path)


def _write_removed_rows(
    log: Log, step: RetentionStep, row: SegmentRow, ref: SegmentRef, path: str
) -> SegmentRef:
    """A file of the rows that go, beside the log's own for the moment."""
    memory = log.settings.upkeep.memory_bytes
    written = rewrite(
        log.storage,
        [ref],
        path,
        memory,
        change=lambda rows: rows.filter(pc.less_equal(rows["_epoch"], step.cut)),
    )
    require_recorded(row, sum(written.contents, Content()))
    ranges = tuple(
        PartitionRange(piece.partition, piece.first_offset, gone)
        for piece in ref.ranges
        if (gone := written.counts.get(piece.partition, 0))
    )
    going = replace(
        ref,
        last_epoch=min(ref.last_epoch, step.cut),
        rows=sum(piece.rows for piece in ranges),
        bytes=written.bytes,
        ranges=ranges,
        path=path,
        sealed=True,
        checksum=written.checksum,
    )
    require_content(log.storage, going, written.kept, memory)
    return going


def _copy(archive: _Archive, row: SegmentRow, ref: SegmentRef) -> dict[str, Any]:
    assert ref.path is not None and ref.checksum is not None
    target = archive.storage
    name = f"{_folder(archive.step)}/{ref.first_epoch:012d}-{ref.last_epoch:012d}-{ref.checksum}.parquet"
    _note(archive, name, row.path)
    if not target.exists(name):
        copy_file(archive.log.storage, ref.path, target, name, ref.checksum)
        failpoints.hit("archive_copied")
    if file_reader.checksum(target.open(name)) != ref.checksum:
        raise IntegrityError(
            f"{target.place(name)} is not the file that was archived under this name",
            hint="remove it; the next round copies it again",
        )
    return _values(archive.step, row, ref, archive.place, name)


def _note(archive: _Archive, name: str, source: str) -> None:
    """Note that a file of the log is about to be copied. Raises Fenced when another maintainer began."""
    table = tables.archiving
    values = {
        "place": archive.place,
        "path": name,
        "topic_id": archive.step.topic_id,
        "source": source,
        "begun_at": now_micros(),
    }
    with archive.log.catalog.write() as connection:
        terms.check(connection, terms.RETAIN, archive.term)
        connection.execute(delete(table).where(table.c.place == archive.place, table.c.path == name))
        connection.execute(insert(table).values(values))


def record_copies(connection: Connection, kept: Sequence[Mapping[str, Any]]) -> None:
    """Inside the transaction that removes their rows from the log: these copies are the archive's now."""
    table = tables.archiving
    connection.execute(insert(tables.archived), kept)
    connection.execute(
        delete(table).where(table.c.place == bindparam("its_place"), table.c.path == bindparam("its_path")),
        [{"its_place": each["place"], "its_path": each["path"]} for each in kept],
    )


def abandoned_copies(connection: Connection, topic_id: int | None = None) -> list[Row[*tuple[Any, ...]]]:
    """Copies (rows of ``archiving``), of a topic or all, whose file the log has no more, so that no step comes to name
    them."""
    table, segments, kept = tables.archiving, tables.segments, tables.archived
    of_archive = exists().where(kept.c.place == table.c.place, kept.c.path == table.c.path)
    query = select(table).where(table.c.source.not_in(select(segments.c.path)), ~of_archive)
    if topic_id is not None:
        query = query.where(table.c.topic_id == topic_id)
    return list(connection.execute(query.order_by(table.c.place, table.c.path)))


def remove_abandoned_copies(log: Log) -> list[TailraceError]:
    """Remove such copies from their archives; gives why some could not be, of archives that topics still have. May be
    killed at any point."""
    with log.catalog.read() as connection:
        found = abandoned_copies(connection)
    errors = []
    used = {str(each.archive) for each in log.settings.topics.values()}
    for place in dict.fromkeys(row.place for row in found):
        try:
            _remove(log, place, [row for row in found if row.place == place])
        except TailraceError as error:
            if place in used:
                errors.append(error)
    return errors


def _remove(log: Log, place: str, rows: Sequence[Row[*tuple[Any, ...]]]) -> None:
    target = log.archive(place)
    require(target, log.log_id)
    table = tables.archiving
    late = now_micros() - _COPYING_SECONDS * 1_000_000
    for row in rows:
        half = target.delete(f"{row.path}{PARTIAL}")
        # A round that was overtaken in the middle of a copy may still end it.
        if target.delete(row.path) or half or row.begun_at < late:
            with log.catalog.write() as connection:
                connection.execute(delete(table).where(table.c.place == place, table.c.path == row.path))


def _folder(step: RetentionStep) -> str:
    text = step.info.id.text
    return text if _NAME.fullmatch(text) else f"topic-{step.topic_id}"


def _values(step: RetentionStep, row: SegmentRow, ref: SegmentRef, place: str, name: str) -> dict[str, Any]:
    return {
        "place": place,
        "path": name,
        "topic_id": step.topic_id,
        "version": row.version,
        "first_epoch": ref.first_epoch,
        "last_epoch": ref.last_epoch,
        "first_row": row.first_row,
        "rows": ref.rows,
        "bytes": ref.bytes,
        "checksum": ref.checksum,
        "ranges": segment_index.ranges_to_json(ref.ranges),
        "archived_at": now_micros(),
    }
