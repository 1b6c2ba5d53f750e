"""A recording: what capture received, in a file that can be decoded again without a server.

Format, version 1, numbers in network order::

    magic      8 bytes, "TRREC" 0 0 1
    header     length (4), JSON: source, system, publication, column policies, schema of domain events
    chunk ...  plain size (4), packed size (4), CRC-32 of what follows (4), one zstd frame of records
    record     kind (1), time recorded (8, µs since 1970), length (4), bytes

A chunk holds what one block brought, or a part of it when that is large. A last chunk that is not whole is no part of
the recording: capture ended there.

    S  a session begins: JSON with the log's position, the topics with their schemas as known then, and which
       columns and names have been protected (``tailrace.cdc.policy.history``)
    F  a pgoutput message as received, or with the protected form of its values (``tailrace.cdc.columnar.protect``)
    D  what the source's catalog said of a relation: JSON with the relation and the schema of its table
    W  a message is withheld, for its values could not be protected: JSON with the table's oid
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from tailrace.cdc.policy.patterns import parse_pattern
from tailrace.cdc.policy.policies import Policies
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA
from tailrace.eventstore.storage.private import opener

_MAGIC = b"TRREC\0\0\1"
_LENGTH = struct.Struct(">I")
_CHUNK = struct.Struct(">III")
_RECORD = struct.Struct(">cqI")
_CHUNK_BYTES = 64 << 20  # of records, and one more: then they are written
_RECORD_BYTES_MAX = 1 << 30
_CHUNK_BYTES_MAX = _RECORD_BYTES_MAX + _CHUNK_BYTES  # of a damaged length nothing is allocated

SESSION, FRAME, DESCRIPTION, WITHHELD = b"S", b"F", b"D", b"W"


@dataclass(frozen=True, slots=True)
class RecordingHeader:
    """Where a recording is from. ``rules``: the source's column policies as (pattern, policy), hashes with the
    fingerprint of their key."""

    source: str
    system_id: str
    publication: str
    rules: tuple[tuple[str, str], ...] = ()
    events_schema: str = EVENTS_SCHEMA

    @property
    def policies(self) -> Policies:
        """For values that have their protected form already."""
        return Policies(
            tuple((text, parse_pattern(text, 3), policy) for text, policy in self.rules), applied=True
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One record; ``at``: when it was recorded, µs since 1970."""

    kind: bytes
    at: int
    data: bytes

    @property
    def document(self) -> Mapping[str, Any]:
        found: dict[str, Any] = json.loads(self.data)
        return found


class RecordingWriter:
    """Writes a new file. ``flush`` gives the records since the last one to the system as one chunk."""

    def __init__(self, path: Path, header: RecordingHeader) -> None:
        """Raises UsageError when the file exists, OperatorError when it cannot be written."""
        self._path = path
        self._records: list[bytes] = []
        self._bytes = 0
        head = json.dumps(asdict(header)).encode()
        try:
            self._file: BinaryIO = open(path, "xb", opener=opener)  # noqa: SIM115
            self._write(_MAGIC + _LENGTH.pack(len(head)) + head)
        except FileExistsError:
            raise UsageError(
                f"{path} exists already; recordings are not overwritten", hint="name another file"
            ) from None
        except OSError as error:
            raise OperatorError(
                f"{path} cannot be written: {error.strerror}", hint="name another file"
            ) from error

    def add(self, kind: bytes, at: int, data: bytes) -> None:
        """Raises OperatorError when the disk is full, or no recording could be read with this record."""
        if len(data) > _RECORD_BYTES_MAX:
            raise OperatorError(
                f"a message of {len(data)} bytes is too large for a recording",
                hint="capture without --record",
            )
        if self._bytes + len(data) > _CHUNK_BYTES:
            self.flush()
        self._records.append(_RECORD.pack(kind, at, len(data)) + data)
        self._bytes += len(self._records[-1])

    def flush(self) -> None:
        """Raises OperatorError when the disk is full."""
        if not self._records:
            return
        plain = b"".join(self._records)
        self._records.clear()
        self._bytes = 0
        packed: bytes = pa.compress(plain, codec="zstd", asbytes=True)
        try:
            self._write(_CHUNK.pack(len(plain), len(packed), zlib.crc32(packed)) + packed)
        except OSError as error:
            raise OperatorError(
                f"{self._path} cannot be written: {error.strerror}",
                hint="capture without --record, or make room",
            ) from error

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()


class Recording:
    """A recording to be read. Raises UsageError on a file that is none, or of a later version."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                magic = file.read(len(_MAGIC))
                if magic != _MAGIC:
                    raise UsageError(
                        f"{path} is no recording that this version can read",
                        hint="`tailrace capture --record FILE` makes one",
                    )
                (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
                document = json.loads(file.read(length))
                self._begin = file.tell()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}", hint="name a recording") from error
        except (struct.error, ValueError) as error:
            raise UsageError(f"{path} is damaged: its header cannot be read", hint="record again") from error
        document["rules"] = tuple((text, policy) for text, policy in document["rules"])
        self.header = RecordingHeader(**document)

    def records(self) -> Iterator[Record]:
        """In the order in which they were written, up to the last whole chunk."""
        with self._path.open("rb") as file:
            file.seek(self._begin)
            while (plain := _next_chunk(file)) is not None:
                at = 0
                while at < len(plain):
                    kind, moment, length = _RECORD.unpack_from(plain, at)
                    at += _RECORD.size
                    yield Record(kind, moment, plain[at : at + length])
                    at += length


def _next_chunk(file: BinaryIO) -> bytes | None:
    head = file.read(_CHUNK.size)
    if len(head) < _CHUNK.size:
        return None
    size, packed_size, checksum = _CHUNK.unpack(head)
    packed = file.read(packed_size) if max(size, packed_size) <= _CHUNK_BYTES_MAX else b""
    if len(packed) < packed_size or zlib.crc32(packed) != checksum:
        return None
    plain: bytes = pa.decompress(packed, size, codec="zstd", asbytes=True)
    return plain
