"""Bytes that may be too many for memory: written once, read back once, in a file without a name."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_MEMORY_BYTES = 64 << 10  # of each file: a server streams as many transactions as it has sessions


class SpoolFile:
    """Plain bytes in a file without a name (O_TMPFILE, or unlinked as soon as it is open). Only its own user and root
    reach it, through /proc; a crash leaves nothing in the folder. ``close`` frees the blocks but overwrites nothing.

    ``folder`` must be on a disk. Raises OSError when that is full."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._sizes: list[int] = []  # of the pieces in the file
        self._rest = bytearray()

    def write(self, data: bytes) -> None:
        """``data`` stays in one piece."""
        self._rest += data
        if len(self._rest) >= _MEMORY_BYTES:
            self._flush()

    def pieces(self) -> Iterator[bytes | bytearray]:
        """All that was written, in order; never cut inside of one ``write``."""
        if self._file is not None:
            self._file.seek(0)
            for size in self._sizes:
                yield self._file.read(size)
        yield self._rest

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=str(self._folder), buffering=0)  # noqa: SIM115
        written, view = 0, memoryview(self._rest)
        while written < len(view):
            written += self._file.write(view[written:])
        self._sizes.append(len(view))
        self._rest = bytearray()
