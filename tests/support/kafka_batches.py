"""Record batches made byte by byte, from the protocol's description alone: any that a producer or a broker could make,
and others."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import crc32c
import pyarrow as pa

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
Header = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class Record:
    delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    time_delta: int = 0


@dataclass(frozen=True)
class BatchMade:
    """Fields as they are written; ``last_delta`` and ``count`` are those of the records unless given."""

    base_offset: int
    records: Sequence[Record] = ()
    codec: str = "none"
    base_timestamp: int = 1_700_000_000_000
    max_timestamp: int = 1_700_000_000_000
    attributes: int = 0
    producer_id: int = -1
    last_delta: int | None = None
    count: int | None = None
    format: int = 2
    payload: bytes | None = field(default=None, repr=False)

    @property
    def next_offset(self) -> int:
        return self.base_offset + self._last_delta + 1

    @property
    def _last_delta(self) -> int:
        if self.last_delta is not None:
            return self.last_delta
        return self.records[-1].delta if self.records else 0

    def bytes(self) -> bytes:
        payload = self.payload
        if payload is None:
            payload = compressed(self.codec, b"".join(map(record_bytes, self.records)))
        checked = struct.pack(
            ">hiqqqhii", self.attributes | CODECS[self.codec], self._last_delta, self.base_timestamp,
            self.max_timestamp, self.producer_id, 0 if self.producer_id >= 0 else -1, -1,
            len(self.records) if self.count is None else self.count,
        ) + payload  # fmt: skip
        inner = struct.pack(">ibI", 3, self.format, crc32c.crc32c(checked)) + checked
        return struct.pack(">qi", self.base_offset, len(inner)) + inner

    def plain(self) -> BatchMade:
        return replace(self, codec="none", payload=None)


def marker(offset: int, producer_id: int, *, commit: bool) -> BatchMade:
    """The control batch at the end of a transaction."""
    record = Record(0, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0))
    return BatchMade(offset, [record], attributes=0x30, producer_id=producer_id)


def record_bytes(record: Record) -> bytes:
    body = (
        b"\x00" + varint(record.time_delta) + varint(record.delta) + sized(record.key) + sized(record.value)
    )
    body += varint(len(record.headers)) + b"".join(
        sized(part) for header in record.headers for part in header
    )
    return varint(len(body)) + body


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63) if number < 0 else number << 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*out, rest))


def compressed(codec: str, data: bytes) -> bytes:
    """By Arrow, whose codecs are others than the product's."""
    if codec == "none":
        return data
    return bytes(pa.Codec(codec).compress(data))
