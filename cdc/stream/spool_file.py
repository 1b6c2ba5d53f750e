"""Bytes that may be too many for memory: written once, read back once, in a file without a name.

Nobody else can read a sealed one: what reaches the disk is combined with the output of SHAKE-256 (FIPS 202) of a random
key and the place, a stream cipher. The key is for one file and stands in this process's memory alone, so what a disk
keeps of a removed file says nothing either. Changes are not looked for: nobody can open the file.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

_MEMORY_BYTES = 64 << 10  # of each: a server streams as many transactions as it has sessions
_SLICE_BYTES = 256 << 10  # so much of the key stream is made at once, also for a message of hundreds of MB
_KEY_BYTES = 32


class Overflow:
    """``folder`` must be on a disk. Raises OSError when that is full."""

    def __init__(self, folder: Path, *, sealed: bool) -> None:
        self._folder = folder
        self._key = secrets.token_bytes(_KEY_BYTES) if sealed else None
        self._file: IO[bytes] | None = None
        self._sizes: list[int] = []  # of the pieces in the file
        self._rest = bytearray()

    def write(self, data: bytes) -> None:
        """``data`` stays in one piece."""
        self._rest += data
        if len(self._rest) >= _MEMORY_BYTES:
            self._flush()

    def pieces(self) -> Iterator[bytearray]:
        """All that was written, in order; never cut inside of one ``write``."""
        if self._file is not None:
            self._file.seek(0)
            at = 0
            for size in self._sizes:
                piece = bytearray(self._file.read(size))
                self._seal(piece, at)
                at += size
                yield piece
        yield self._rest

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=str(self._folder), buffering=0)  # noqa: SIM115
        size = len(self._rest)
        self._seal(self._rest, sum(self._sizes))
        written, view = 0, memoryview(self._rest)
        while written < size:
            written += self._file.write(view[written:])
        self._sizes.append(size)
        self._rest = bytearray()

    def _seal(self, data: bytearray, at: int) -> None:
        """In place, ``data`` beginning at place ``at`` of the file; done twice it is open again."""
        if self._key is None:
            return
        plain = np.frombuffer(data, np.uint8)
        for start in range(0, len(data), _SLICE_BYTES):
            part = plain[start : start + _SLICE_BYTES]
            stream = hashlib.shake_256(self._key + (at + start).to_bytes(8, "big")).digest(len(part))
            part ^= np.frombuffer(stream, np.uint8)
