"""Write-once files in one folder: a file is either not there or whole, durable and never changed again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from eventstore.errors import IntegrityError, MissingFile, OperatorError, TailraceError

PARTIAL = ".partial"  # a file still being written; never read, collected with the orphans of its term


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """Files under ``root``, named by relative POSIX paths. Holds no handle, so it pickles into Spark tasks."""

    root: Path

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Make ``path`` hold ``data``, as ``create`` does."""
        with self.create(path) as file:
            file.write(data)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """A file that becomes ``path`` at the end of the block, durably: temp file, fsync, rename, fsync of the
        folders. An exception inside leaves a partial file.

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
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
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
        """The bytes of a file, memory-mapped. Raises MissingFile."""
        target = self.root / path
        try:
            with pa.memory_map(str(target), "r") as mapped:
                return mapped.read_buffer()
        except FileNotFoundError:
            raise MissingFile(
                f"{target} is missing, but the catalog referred to it",
                hint="restore the segments folder from the same backup as the catalog; what began hours ago and was "
                "stopped meanwhile has to begin again",
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
