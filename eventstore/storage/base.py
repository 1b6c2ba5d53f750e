"""What every storage of the log's files does. One contract, one suite of tests for all (tests/eventstore/test_storage).

Files are write-once: a name is either free or holds a whole, durable file that never changes. Names are unique by
construction (term and uuid), so nothing needs a conditional put. There is no rename and no append. Nothing may be
concluded from what a listing lacks or still shows: some object stores list late.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO, ClassVar

import pyarrow as pa

from tailrace.eventstore.errors import IntegrityError, MissingFile

_PART = re.compile(r"[A-Za-z0-9_.\-=]+")
NAME_BYTES_MAX = 512  # S3 allows 1,024 with the prefix


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as a listing shows it. ``modified`` has a zone."""

    path: str
    bytes: int
    modified: datetime


class Storage(ABC):
    """Files named by relative POSIX paths. Holds no handle, so it pickles into Spark tasks. All methods raise
    OperatorError, which says what to change, and TransientError (try again later)."""

    __slots__ = ()

    remote: ClassVar[
        bool
    ]  # whether bytes come over a network: then readers ask for ranges instead of whole files

    @property
    @abstractmethod
    def label(self) -> str:
        """The place for people, without secrets."""

    @abstractmethod
    def place(self, path: str) -> str:
        """A file's full name for people."""

    @abstractmethod
    def prepare(self) -> None:
        """Make what has to be there before the first file, and see that files can be written, read, listed and
        removed. Raises, with what to do, before anything depends on it; nothing of a trial stays."""

    @abstractmethod
    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A file that becomes ``path`` at the end of the block, durably. An exception inside leaves no file of that
        name. Raises IntegrityError when the name is taken: that is a bug or a foreign writer."""

    @abstractmethod
    def open(self, path: str) -> pa.Buffer:
        """The bytes of a file; of a large one they are not in memory but mapped. Raises MissingFile."""

    def identity(self, path: str) -> Hashable | None:
        """Differs from that of before when the file of a name is another, or was written to. None where nobody knows
        without reading it. Raises MissingFile."""
        return None

    @abstractmethod
    def ranges(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """A file to read parts of; errors inside the block are explained. Raises MissingFile."""

    @abstractmethod
    def exists(self, path: str) -> bool: ...

    @abstractmethod
    def files(self, prefix: str = "") -> Iterator[StoredFile]:
        """All files in folder ``prefix`` and below, in any order. Some object stores list a file late, or a while
        longer."""

    @abstractmethod
    def delete(self, path: str) -> bool:
        """Remove a file; False when it was not there. A crash may bring it back: callers delete what nothing names."""

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Make ``path`` hold ``data``, as ``create`` does."""
        with self.create(path) as file:
            file.write(data)

    def list(self, prefix: str = "") -> Iterator[str]:
        """The names of ``files``."""
        return (file.path for file in self.files(prefix))


def check_name(path: str) -> str:
    """``path`` when it is a name that every storage takes, and that leads nowhere else. Rows of the catalog name files,
    and others may write them. Raises IntegrityError."""
    parts = path.split("/")
    if len(path) > NAME_BYTES_MAX or not all(
        _PART.fullmatch(part) and part not in (".", "..") for part in parts
    ):
        raise IntegrityError(
            f"{path[:NAME_BYTES_MAX]!r} is no name of a file of the log: it may lead elsewhere; nothing was done",
            hint="who wrote that into the catalog? restore the catalog from a backup",
        )
    return path


class NameTaken(IntegrityError):
    """There is a file of that name already."""


def taken_error(place: str) -> NameTaken:
    return NameTaken(
        f"{place} exists already; files of the log are never overwritten",
        hint="check that no other store uses the place that store.segments names",
    )


def missing_error(place: str) -> MissingFile:
    return MissingFile(
        f"{place} is missing, but the catalog referred to it",
        hint="restore the segments from the same backup as the catalog; a command that was stopped hours ago "
        "has to start again",
    )
