"""The bytes of a result's files, compared with their checksums.

What a look-up touches of a large file is few pages, and its checksum needs all. Files of results are never changed, so
a process compares one once, until it is no longer the file that was compared.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Final, Protocol

import pyarrow as pa

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.segment import file_reader
from tailrace.eventstore.storage import Storage

_FILES_MOST: Final = 100_000


class _Named(Protocol):
    @property
    def path(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def checksum(self) -> str: ...


def _identity(storage: Storage, file: _Named) -> Hashable | None:
    found = storage.identity(file.path)
    return None if found is None else (found, file.start)


class CheckedFiles:
    """Which files a process has compared, the latest ``_FILES_MOST`` of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compared: dict[Hashable, str] = {}

    def open(self, storage: Storage, file: _Named) -> pa.Buffer:
        """The bytes of a file, or of a part of one. Raises IntegrityError when it is not what the catalog says,
        MissingFile."""
        identity = _identity(storage, file)
        data = storage.open(file.path)
        if file.start or data.size != file.bytes:
            start = min(file.start, data.size)
            data = data.slice(start, min(file.bytes, data.size - start))
        with self._lock:
            if identity is not None and self._compared.get(identity) == file.checksum:
                return data
        self._compare(storage, file, data)
        if identity is not None:
            with self._lock:
                self._compared[identity] = file.checksum
                while len(self._compared) > _FILES_MOST:
                    del self._compared[next(iter(self._compared))]
        return data

    def _compare(self, storage: Storage, file: _Named, data: pa.Buffer) -> None:
        if file_reader.checksum(data) != file.checksum:
            raise IntegrityError(
                f"{storage.place(file.path)} is damaged: its checksum is not the one in the catalog",
                hint="rebuild the projection: its result is computed again from the log",
            )
