"""Write-once files in one folder: a file is either not there or whole, durable and never changed again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, ClassVar

import pyarrow as pa

from tailrace.eventstore.errors import OperatorError, TailraceError
from tailrace.eventstore.storage.base import Storage, StoredFile, missing_error, taken_error

PARTIAL = ".partial"  # a file still being written; never read, collected with the orphans of its term


@dataclass(frozen=True, slots=True)
class LocalStorage(Storage):
    """Files under ``root``."""

    root: Path
    remote: ClassVar[bool] = False

    @property
    def label(self) -> str:
        return str(self.root)

    def place(self, path: str) -> str:
        return str(self.root / path)

    def prepare(self) -> None:
        where = "let the user that runs Tailrace write there, or name another place (store.segments, archive)"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OperatorError(
                f"the folder {self.root} cannot be made: {error.strerror}", hint=where
            ) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise OperatorError(f"the folder {self.root} may not be written", hint=where)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Temp file, fsync, rename, fsync of the folders. An exception inside leaves a partial file."""
        target = self.root / path
        partial = target.with_name(target.name + PARTIAL)
        try:
            self._make_folder(target.parent)
            if target.exists():
                raise taken_error(str(target))
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
        absent = []
        while not folder.is_dir():
            absent.append(folder)
            folder = folder.parent
        for folder in reversed(absent):
            folder.mkdir(exist_ok=True)
            _sync_folder(folder.parent)  # a new folder is durable only once its parent is

    def open(self, path: str) -> pa.Buffer:
        with self.ranges(path) as mapped:
            return mapped.read_buffer()

    @contextmanager
    def ranges(self, path: str) -> Iterator[pa.NativeFile]:
        target = self.root / path
        try:
            with pa.memory_map(str(target), "r") as mapped:
                yield mapped
        except FileNotFoundError:
            raise missing_error(str(target)) from None
        except OSError as error:
            raise _explain(error, target) from error

    def exists(self, path: str) -> bool:
        return (self.root / path).is_file()

    def files(self, prefix: str = "") -> Iterator[StoredFile]:
        """Partial ones included."""
        for folder, folders, names in os.walk(self.root / prefix):
            folders.sort()
            for name in sorted(names):
                found = Path(folder) / name
                with suppress(FileNotFoundError):  # removed meanwhile
                    status = found.stat()
                    modified = datetime.fromtimestamp(status.st_mtime, UTC)
                    yield StoredFile(found.relative_to(self.root).as_posix(), status.st_size, modified)

    def delete(self, path: str) -> bool:
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
            hint="let the user that runs Tailrace read and write that folder",
        )
    return OperatorError(f"{target}: {error.strerror or error}", hint="check the disk of that folder")
