"""What retention is about to remove, put into an archive first.

Every file is copied, or of one that the cut goes through the rows that go, and read back; then the transaction that
removes the rows from the log names the files in the archive. A file's name there follows from what is in it, so whoever
was killed finds what was copied and goes on. Nothing is ever removed from an archive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from sqlalchemy import select

from eventstore import failpoints, index, segment, tables
from eventstore.archived import require
from eventstore.content import Content
from eventstore.errors import Fenced, IntegrityError, TailraceError, UsageError
from eventstore.maintain import terms
from eventstore.maintain.cutoff import SegmentRow, Step
from eventstore.maintain.rewrite import require_content, require_recorded, rewrite
from eventstore.model import PartitionRange, SegmentRef
from eventstore.move.files import copied
from eventstore.storage import LocalStorage, Storage
from eventstore.storage.objects import ObjectStorage
from eventstore.storage.places import MARKER, write_marker
from eventstore.times import now_micros

if TYPE_CHECKING:
    from eventstore.log import Store

_NAME = re.compile(r"[A-Za-z0-9_.\-=]+")


@dataclass(frozen=True, slots=True)
class Unarchived:
    """A topic's step was not taken, because what it removes could not be archived."""

    topic: str
    error: TailraceError


def keep(store: Store, step: Step, term: int) -> list[dict[str, Any]]:
    """Put the rows that a step removes into its topic's archive, if it has one; gives what ``archived`` is to hold.

    Raises OperatorError or TransientError for an archive that is out of reach or another log's, IntegrityError for a
    file that is not what it should be, here or there, UsageError for one inside the log's own files.
    """
    if step.settings.archive is None:
        return []
    place = str(step.settings.archive)
    try:
        target = _claimed(store, place)
        return [_kept(store, step, row, term, place, target) for row in step.files]
    except Fenced:
        raise
    except TailraceError as error:
        raise type(error)(
            f"nothing was removed from {step.info.id}: {error.message} (archive {place})", hint=error.hint
        ) from error


def _claimed(store: Store, place: str) -> Storage:
    """The archive's storage. The first time it is made and marked as this log's; later it must be there: the folder
    under an unmounted disk is no archive."""
    target = store.archive(place)
    if _inside(target, store.storage):
        raise UsageError(
            f"{target.label} is inside {store.storage.label}, the log's own files",
            hint="archive names a place of its own",
        )
    table = tables.archived
    with store.catalog.read() as connection:
        used = connection.scalar(select(table.c.path).where(table.c.place == place).limit(1))
    if used is None and not target.exists(MARKER):
        target.prepare()
        write_marker(target, store.log_id)
    require(target, store.log_id)
    return target


def _inside(target: Storage, storage: Storage) -> bool:
    if isinstance(target, LocalStorage) and isinstance(storage, LocalStorage):
        return target.root.resolve().is_relative_to(storage.root.resolve())
    if isinstance(target, ObjectStorage) and isinstance(storage, ObjectStorage):
        same = (target.bucket, target.endpoint) == (storage.bucket, storage.endpoint)
        return same and f"{target.prefix}/".startswith(f"{storage.prefix}/" if storage.prefix else "")
    return False


def _kept(
    store: Store, step: Step, row: SegmentRow, term: int, place: str, target: Storage
) -> dict[str, Any]:
    """One file's rows up to the cut are in the archive. A sealed file goes as it is; one that capture wrote, whose rows
    do not say their positions yet, and one that stays in part are written anew."""
    ref = index.file_ref(step.info.id, row)
    if row.sealed and row.last_epoch <= step.cut:
        return _copied(step, row, ref, place, store.storage, target)
    path = terms.new_parquet(segment.folder_of(step.info.id, step.topic_id), terms.RETAIN, term)
    try:
        return _copied(step, row, _going(store, step, row, ref, path), place, store.storage, target)
    finally:
        store.storage.delete(path)


def _going(store: Store, step: Step, row: SegmentRow, ref: SegmentRef, path: str) -> SegmentRef:
    """A file of the rows that go, beside the log's own for the moment."""
    memory = store.settings.upkeep.memory_bytes
    written = rewrite(
        store.storage,
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
    require_content(store.storage, going, written.kept, memory)
    return going


def _copied(
    step: Step, row: SegmentRow, ref: SegmentRef, place: str, source: Storage, target: Storage
) -> dict[str, Any]:
    assert ref.path is not None and ref.checksum is not None
    name = f"{_folder(step)}/{ref.first_epoch:012d}-{ref.last_epoch:012d}-{ref.checksum}.parquet"
    if not target.exists(name):
        copied(source, ref.path, target, name, ref.checksum)
        failpoints.hit("archive_copied")
    if segment.checksum(target.open(name)) != ref.checksum:
        raise IntegrityError(
            f"{target.place(name)} is not the file that was archived under this name",
            hint="remove it; the next round copies it again",
        )
    return _values(step, row, ref, place, name)


def _folder(step: Step) -> str:
    text = step.info.id.text
    return text if _NAME.fullmatch(text) else f"topic-{step.topic_id}"


def _values(step: Step, row: SegmentRow, ref: SegmentRef, place: str, name: str) -> dict[str, Any]:
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
        "ranges": index.ranges_to_json(ref.ranges),
        "archived_at": now_micros(),
    }
