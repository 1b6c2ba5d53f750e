"""A second decoder of record batches, slow and plain, written from Kafka's protocol guide ("Record Batch", "Record",
"Control Batches") and not from ``eventstore/kafka``'s code. Only decompression is the product's."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import crc32c

from tailrace.eventstore.kafka.codecs import Codec, Damaged, OutputFull, decompress_into

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]
_HEAD = struct.Struct(">qiibIhiqqqhii")
_VARINT_BYTES, _VARLONG_BYTES = 5, 10


class Refused(Exception):
    """The bytes are not what a producer may write."""


def decode(data: bytes, first: int, aborted: Sequence[tuple[int, int]], bytes_max: int) -> list[Row]:
    """Committed records from an offset on. ``aborted``: producer and first offset of each aborted transaction."""
    rows: list[Row] = []
    waiting, open_ones, next_offset = sorted(aborted, key=lambda each: each[1]), set[int](), 0
    at = 0
    while len(data) - at > 16:
        base, length = struct.unpack_from(">qi", data, at)
        if data[at + 16] != 2 or length < _HEAD.size - 12:
            raise Refused("head")
        whole = data[at : at + 12 + length]
        if len(whole) < 12 + length:
            break  # a broker may cut the last one
        at += len(whole)
        (base, _, _, _, checksum, attributes, last, base_time, max_time, producer, _, _, count) = (
            _HEAD.unpack_from(whole)
        )
        if crc32c.crc32c(whole[21:]) != checksum:
            raise Refused("checksum")
        if base < 0 or last < 0 or base + last >= (1 << 63) - 1 or not 0 <= count <= last + 1:
            raise Refused("offsets")
        if attributes & 7 > 4:
            raise Refused("codec")
        if base < next_offset:
            raise Refused("order")
        next_offset = base + last + 1
        payload = whole[_HEAD.size :]
        control, transactional = bool(attributes & 0x20), bool(attributes & 0x10)
        if producer != -1:
            while waiting and waiting[0][1] <= base + last:
                open_ones.add(waiting.pop(0)[0])
            if control and _aborts(attributes, payload):
                open_ones.discard(producer)
        hidden = control or (transactional and producer in open_ones)
        if hidden or base + last < first:
            continue
        plain = _decompressed(Codec(attributes & 7), payload, bytes_max)
        found = _Reader(plain).records(count, last)
        appended = bool(attributes & 0x08)
        for delta, time_delta, key, value, headers in found:
            if base + delta >= first:
                time = max_time if appended else _wrapped(base_time + time_delta)
                rows.append((base + delta, time, key, value, headers))
    return rows


def _aborts(attributes: int, payload: bytes) -> bool:
    return attributes & 7 == 0 and len(payload) >= 9 and payload[7:9] == b"\x00\x00"


def _decompressed(codec: Codec, payload: bytes, bytes_max: int) -> bytes:
    room = bytearray(bytes_max)
    try:
        return bytes(room[: decompress_into(codec, payload, memoryview(room))])
    except (OutputFull, Damaged):
        raise Refused("compressed") from None


def _wrapped(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


class _Reader:
    """Takes bytes from the front of a region."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def records(
        self, count: int, last: int
    ) -> list[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]]:
        found, before = [], -1
        for _ in range(count):
            body = self.sized()
            if not body:
                raise Refused("record")
            inside = _Reader(body[1:])
            time_delta = inside.varint(_VARLONG_BYTES)
            delta = inside.varint()
            if not before < delta <= last:
                raise Refused("delta")
            before = delta
            key, value, headers = inside.sized(), inside.sized(), []
            many = inside.varint()
            if many < 0:
                raise Refused("headers")
            for _ in range(many):
                name = inside.sized()
                if name is None:
                    raise Refused("header")
                headers.append((name, inside.sized()))
            if inside.rest:
                raise Refused("record")
            found.append((delta, time_delta, key, value, headers))
        if self.rest:
            raise Refused("records")
        return found

    def sized(self) -> bytes | None:
        size = self.varint()
        if size == -1:
            return None
        if not 0 <= size <= len(self.rest):
            raise Refused("size")
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def varint(self, bytes_max: int = _VARINT_BYTES) -> int:
        number = 0
        for place, byte in enumerate(self.rest[:bytes_max]):
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                self.rest = self.rest[place + 1 :]
                number &= (1 << 64) - 1
                return (number >> 1) ^ -(number & 1)
        raise Refused("varint")
