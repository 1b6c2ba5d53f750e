"""Files in this process's memory, for tests: stricter than a disk and than any object store.

- A name is used once, even after its file was removed, and no file is a folder of another.
- Listings are one listing late: they show what was there at the one before, removed files too.
- What a writer is given is copied at once, and no reader sees it before its block ends; an exception leaves nothing.
- A reader that is still open when its file is removed is an error, as is a reader that is never closed.
- It does not pickle: another process would see another memory.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa

from tailrace.eventstore.storage.base import Storage, StoredFile, check_name, missing_error, taken_error


@dataclass(slots=True)
class MemoryStorage(Storage):
    """``label`` names it in messages."""

    name: str = "memory"
    remote: ClassVar[bool] = True  # so readers ask for ranges
    _contents: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)
    _listed: dict[str, StoredFile] = field(default_factory=dict)
    _readers: dict[str, int] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __reduce__(self) -> Any:
        raise TypeError("files in memory are this process's alone")

    @property
    def label(self) -> str:
        return f"memory:{self.name}"

    def place(self, path: str) -> str:
        return f"{self.label}/{path}"

    def prepare(self) -> None:
        pass

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        self._reserve(check_name(path))
        with io.BytesIO() as file:
            yield file
            with self._lock:
                self._contents[path] = (file.getvalue(), datetime.now(UTC))

    def _reserve(self, path: str) -> None:
        with self._lock:
            if path in self._used:
                raise taken_error(self.place(path))
            if any(used.startswith(path + "/") or path.startswith(used + "/") for used in self._used):
                raise ValueError(f"{path} is both a file and a folder")
            self._used.add(path)

    def open(self, path: str) -> pa.Buffer:
        with self._lock:
            if check_name(path) not in self._contents:
                raise missing_error(self.place(path))
            return pa.py_buffer(self._contents[path][0])

    @contextmanager
    def ranges(self, path: str) -> Iterator[pa.NativeFile]:
        with self._lock:
            data = self.open(path)
            self._readers[path] = self._readers.get(path, 0) + 1
        try:
            with pa.BufferReader(data) as reader:
                yield reader
        finally:
            with self._lock:
                self._readers[path] -= 1

    def exists(self, path: str) -> bool:
        with self._lock:
            return check_name(path) in self._contents

    def files(self, prefix: str = "") -> Iterator[StoredFile]:
        with self._lock:
            late = self._listed
            self._listed = {
                path: StoredFile(path, len(data), modified)
                for path, (data, modified) in self._contents.items()
            }
        inside = f"{prefix}/" if prefix else ""
        yield from (file for path, file in late.items() if path.startswith(inside))

    def delete(self, path: str) -> bool:
        with self._lock:
            if self._readers.get(path):
                raise RuntimeError(f"{path} is removed while it is read")
            return self._contents.pop(check_name(path), None) is not None

    def check_closed(self) -> None:
        """Raises RuntimeError when a reader was left open."""
        with self._lock:
            left = sorted(path for path, count in self._readers.items() if count)
        if left:
            raise RuntimeError(f"readers left open: {', '.join(left)}")
