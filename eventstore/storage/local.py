"""Write-once files in one folder: a file is either not there or whole, durable and never changed again."""

from __future__ import annotations

import errno
import os
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, ClassVar

import pyarrow as pa

from tailrace.eventstore.errors import IntegrityError, OperatorError, TailraceError
from tailrace.eventstore.storage.base import Storage, StoredFile, check_name, missing_error, taken_error
from tailrace.eventstore.storage.private import make_folder, opener

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
        return os.path.join(self.root, path)

    def prepare(self) -> None:
        where = "let the user that runs Tailrace write there, or name another place (store.segments, archive)"
        try:
            make_folder(self.root)
        except OSError as error:
            raise OperatorError(
                f"the folder {self.root} cannot be made: {error.strerror}", hint=where
            ) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise OperatorError(f"the folder {self.root} may not be written", hint=where)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Temp file, fsync, rename, fsync of the folders. An exception inside leaves a partial file."""
        target = self._target(path)
        partial = target.with_name(target.name + PARTIAL)
        try:
            self._make_folder(target.parent)
            if target.exists():
                raise taken_error(str(target))
            with open(partial, "wb", opener=opener) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            try:
                os.rename(partial, target)
            except FileNotFoundError:  # another process made it meanwhile
                raise taken_error(str(target)) from None
            _sync_folder(target.parent)
        except OSError as error:
            raise _explain(error, target) from error

    def _target(self, path: str) -> Path:
        """Where a file is. Raises IntegrityError for a name, or a link in a folder, that leads out of ``root``."""
        target = self.root / check_name(path)
        inside = list(accumulate(path.split("/"), os.path.join, initial=str(self.root)))[1:]
        if any(map(os.path.islink, inside)) and (
            target.is_symlink() or not target.parent.resolve().is_relative_to(self.root.resolve())
        ):
            raise IntegrityError(
                f"{target} is a link, or behind one; files of the log are in their own folder",
                hint=f"put the files themselves below {self.root}; only that folder may be a link",
            )
        return target

    def _make_folder(self, folder: Path) -> None:
        for made in make_folder(folder):
            _sync_folder(made.parent)  # a new folder is durable only once its parent is

    def open(self, path: str) -> pa.Buffer:
        with self.ranges(path) as mapped:
            return mapped.read_buffer()

    def identity(self, path: str) -> Hashable:
        target = self._target(path)
        try:
            status = target.stat()
        except FileNotFoundError:
            raise missing_error(str(target)) from None
        except OSError as error:
            raise _explain(error, target) from error
        # The last one cannot be set: https://man7.org/linux/man-pages/man7/inode.7.html
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    @contextmanager
    def ranges(self, path: str) -> Iterator[pa.NativeFile]:
        target = self._target(path)
        try:
            with pa.memory_map(str(target), "r") as mapped:
                yield mapped
        except FileNotFoundError:
            raise missing_error(str(target)) from None
        except OSError as error:
            raise _explain(error, target) from error

    def exists(self, path: str) -> bool:
        return self._target(path).is_file()

    def files(self, prefix: str = "") -> Iterator[StoredFile]:
        """Partial ones included."""
        for folder, folders, names in os.walk(self._target(prefix) if prefix else self.root):
            folders.sort()
            for name in sorted(names):
                found = Path(folder) / name
                with suppress(FileNotFoundError):  # removed meanwhile
                    status = found.stat()
                    modified = datetime.fromtimestamp(status.st_mtime, UTC)
                    yield StoredFile(found.relative_to(self.root).as_posix(), status.st_size, modified)

    def delete(self, path: str) -> bool:
        target = self._target(path)
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
