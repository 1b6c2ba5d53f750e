"""Write-once files in one folder: a file is either not there or whole, durable and never changed again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from eventstore.errors import IntegrityError, OperatorError, TailraceError

PARTIAL = ".partial"  # a file still being written; never read, collected with the orphans of its term


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """Files under ``root``, named by relative POSIX paths. Holds no handle, so it pickles into Spark tasks."""

    root: Path

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Make ``path`` hold ``data``, durably: temp file, fsync, rename, fsync of the folders.

        Raises IntegrityError when the path exists (names are unique by construction, so that is a bug or a foreign
        writer) and OperatorError when the disk is full or the folder cannot be written.
        """
        target = self.root / path
        partial = target.with_name(target.name + PARTIAL)
        try:
            self._make_folder(target.parent)
            if target.exists():
                raise IntegrityError(
                    f"{target} exists already; files of the log are never overwritten",
                    hint="check that no other store uses this segments folder",
                )
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                _write_all(descriptor, memoryview(data))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(partial, target)
            _sync_folder(target.parent)
        except OSError as error:
            raise _explain(error, target) from error

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            _sync_folder(folder.parent)  # a new folder is durable only once its parent is

    def open(self, path: str) -> pa.Buffer:
        """The bytes of a file, memory-mapped. Raises IntegrityError when it is missing."""
        target = self.root / path
        try:
            with pa.memory_map(str(target), "r") as mapped:
                return mapped.read_buffer()
        except FileNotFoundError:
            raise IntegrityError(
                f"{target} is missing, but the catalog refers to it",
                hint="restore the segments folder from the same backup as the catalog",
            ) from None
        except OSError as error:
            raise _explain(error, target) from error

    def exists(self, path: str) -> bool:
        return (self.root / path).is_file()

    def list(self, prefix: str = "") -> Iterator[str]:
        """Relative paths of all files in folder ``prefix`` and below, sorted, partial ones included."""
        top = self.root / prefix
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                yield (Path(folder) / name).relative_to(self.root).as_posix()

    def delete(self, path: str) -> bool:
        """Remove a file; False when it was not there. A crash may bring it back: callers delete what nothing names."""
        target = self.root / path
        try:
            target.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _explain(error, target) from error
        return True


def _write_all(descriptor: int, data: memoryview) -> None:
    rest = data.cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explain(error: OSError, target: Path) -> TailraceError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OperatorError(
            f"no space left for {target}", hint="free space; capture resumes where it stopped"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return OperatorError(
            f"{target} may not be accessed: {error.strerror}",
            hint="let the user that runs Tailrace read and write the segments folder",
        )
    return OperatorError(f"{target}: {error.strerror or error}", hint="check the disk of the segments folder")
