"""Files that a catalog names, copied to another storage, each read back and compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.segment import file_reader
from tailrace.eventstore.storage import Storage
from tailrace.eventstore.storage.base import Taken

_WORKERS = 4  # an object store answers several as fast as one
# Every table whose rows name files in the segments' place. ``archived`` and ``archiving`` name files elsewhere;
# ``retired`` ones that only readers of before may want, of which a store that has moved has none.
NAMING = (tables.segments, tables.state_runs, tables.epoch_files, tables.kept_frames)


@dataclass(frozen=True, slots=True)
class NamedFile:
    path: str
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Copied:
    """Files that are in their new place: all there are, and those that this run wrote there."""

    files: int
    bytes: int
    written: int


def named_files(connection: Connection) -> list[NamedFile]:
    """Every file that the log and its projections need, by path."""
    found = {}
    for table in NAMING:
        columns = table.c.path, table.c.bytes, table.c.checksum
        for row in connection.execute(select(*columns).where(table.c.path.is_not(None))):
            found[row.path] = NamedFile(row.path, row.bytes, row.checksum)
    for text in connection.scalars(select(tables.derived.c.files)):
        found.update({file.path: file for file in _derived(json.loads(text))})
    return [found[path] for path in sorted(found)]


def _derived(value: Any) -> Iterator[NamedFile]:
    """Files in a step's JSON: whatever has a path and a checksum."""
    if isinstance(value, dict):
        if value.get("path"):
            yield NamedFile(value["path"], value["bytes"], value["checksum"])
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _derived(each)


def copy_files(
    wanted: Sequence[NamedFile], source: Storage, target: Storage, report: Callable[[int, int], None]
) -> Copied:
    """Copy what is not there, and read every file back. ``report`` is told files and bytes that are done.

    Raises IntegrityError for a file that is damaged here or there, MissingFile for one that is not here.
    """
    there = {file.path for file in target.files()}
    done = size = written = 0
    with ThreadPoolExecutor(_WORKERS, "move") as pool:
        running = [pool.submit(_settle, file, source, target, file.path in there) for file in wanted]
        sizes = {future: file.bytes for future, file in zip(running, wanted, strict=True)}
        try:
            for future in as_completed(running):
                written += future.result()
                done, size = done + 1, size + sizes[future]
                report(done, size)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return Copied(done, size, written)


def _settle(file: NamedFile, source: Storage, target: Storage, there: bool) -> bool:
    """The file is in its new place, and right; whether it was written now."""
    if not there:
        there = not copied(source, file.path, target, file.path, file.checksum)
        failpoints.hit("move_file_copied")
    if file_reader.checksum(target.open(file.path)) != file.checksum:
        raise IntegrityError(
            f"{target.place(file.path)} is not the file of that name of the log that moves",
            hint="remove it, and run the move again",
        )
    return not there


def copied(source: Storage, path: str, target: Storage, name: str, checksum: str) -> bool:
    """Write a file of one storage as ``name`` of another; False when there is one of that name. Raises IntegrityError
    for one that is not what it was."""
    data = source.open(path)
    if file_reader.checksum(data) != checksum:
        raise file_reader.damaged(source.place(path))
    try:
        target.write(name, data)
    except Taken:
        return False
    return True
