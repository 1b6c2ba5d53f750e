"""Files copied from one storage to another, each read back and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.segment import file_reader
from tailrace.eventstore.storage import Storage
from tailrace.eventstore.storage.base import NameTaken

_WORKERS = 4  # an object store answers several as fast as one


@dataclass(frozen=True, slots=True)
class NamedFile:
    path: str
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Files that are in their new place: all there are, and those that this run wrote there."""

    files: int
    bytes: int
    written: int


def copy_files(
    wanted: Sequence[NamedFile], source: Storage, target: Storage, report: Callable[[int, int], None]
) -> CopyResult:
    """Copy what is not there, and read every file back. ``report`` gets the number of files and bytes that are done.

    Raises IntegrityError for a file that is damaged here or there, MissingFile for one that is not here.
    """
    there = {file.path for file in target.files()}
    done = size = written = 0
    with ThreadPoolExecutor(_WORKERS, "move") as pool:
        running = [
            pool.submit(_copy_and_compare, file, source, target, file.path in there) for file in wanted
        ]
        sizes = {future: file.bytes for future, file in zip(running, wanted, strict=True)}
        try:
            for future in as_completed(running):
                written += future.result()
                done, size = done + 1, size + sizes[future]
                report(done, size)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return CopyResult(done, size, written)


def _copy_and_compare(file: NamedFile, source: Storage, target: Storage, there: bool) -> bool:
    """Whether the file was written now; in either case it is in its new place, and right."""
    if not there:
        there = not copy_file(source, file.path, target, file.path, file.checksum)
        failpoints.hit("move_file_copied")
    if file_reader.checksum(target.open(file.path)) != file.checksum:
        raise IntegrityError(
            f"{target.place(file.path)} is not the file of that name of the log that moves",
            hint="remove it, and run the move again",
        )
    return not there


def copy_file(source: Storage, path: str, target: Storage, name: str, checksum: str) -> bool:
    """Write a file of one storage as ``name`` of another; False when there is one of that name. Raises IntegrityError
    for one that is not what it was."""
    data = source.open(path)
    if file_reader.checksum(data) != checksum:
        raise file_reader.damage_error(source.place(path))
    try:
        target.write(name, data)
    except NameTaken:
        return False
    return True
