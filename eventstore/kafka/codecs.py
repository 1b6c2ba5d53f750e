"""The five codecs of record batches. What comes out goes into a buffer of a given size: a small batch that claims to be
huge fills no memory.

Sources: Kafka's protocol guide, "Record Batch" (codec numbers); snappy-java's SnappyOutputStream (the frame around
blocks of snappy); Kafka's Lz4BlockInputStream, which refuses frames whose blocks depend on each other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum

from tailrace.eventstore.errors import optional_part

with optional_part("Kafka", "kafka"):
    import cramjam

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """As the lowest three bits of a batch's attributes number them."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class OutputFull(Exception):
    """What comes out is larger than the buffer."""


class Damaged(Exception):
    """The bytes are not what the codec writes."""


_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")
_BLOCK_SIZE = struct.Struct(">i")
_SNAPPY_SIZE_BYTES_MAX = 5
_FULL = "failed to write whole buffer"  # what the writer of Rust's standard library says of a buffer that has no room
_LZ4_LEVEL, _GZIP_LEVEL, _ZSTD_LEVEL = 1, 1, 3


def decompress_into(codec: Codec, data: Buffer, out: memoryview) -> int:
    """How many bytes were put into ``out``. Raises ``OutputFull`` and ``Damaged``."""
    try:
        return _DECOMPRESS[codec](data, out)
    except cramjam.DecompressionError as error:
        if _FULL in str(error):
            raise OutputFull from None
        raise Damaged(str(error)) from None


def compress(codec: Codec, data: Buffer) -> Buffer:
    """``data``, as brokers and all clients read it."""
    return _COMPRESS[codec](data)


def compressed_size_max(size: int) -> int:
    """No codec makes more of so many bytes: what cannot be compressed is kept, with a head for each block."""
    return size + size // 100 + 1024


def _copy(data: Buffer, out: memoryview) -> int:
    if len(data) > len(out):
        raise OutputFull
    out[: len(data)] = data
    return len(data)


def _gzip(data: Buffer, out: memoryview) -> int:
    return int(cramjam.gzip.decompress_into(data, out))


def _lz4(data: Buffer, out: memoryview) -> int:
    return int(cramjam.lz4.decompress_into(data, out))


def _zstd(data: Buffer, out: memoryview) -> int:
    return int(cramjam.zstd.decompress_into(data, out))


def _snappy(data: Buffer, out: memoryview) -> int:
    """Java's clients put a frame around blocks, librdkafka sends one block without."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data, out)
    at, to = _XERIAL_HEADER.size, 0
    while at < len(data):
        if len(data) - at < _BLOCK_SIZE.size:
            raise Damaged("snappy: half the size of a block")
        (size,) = _BLOCK_SIZE.unpack_from(data, at)
        at += _BLOCK_SIZE.size
        if not 0 <= size <= len(data) - at:
            raise Damaged(f"snappy: a block of {size} bytes where {len(data) - at} are left")
        to += _snappy_block(data[at : at + size], out[to:])
        at += size
    return to


def _snappy_block(data: Buffer, out: memoryview) -> int:
    """Its size stands in front, as a varint, and is not believed before there is room for it."""
    size = 0
    for place, byte in enumerate(bytes(data[:_SNAPPY_SIZE_BYTES_MAX])):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    else:
        raise Damaged("snappy: no size in front")
    if size > len(out):
        raise OutputFull
    return int(cramjam.snappy.decompress_raw_into(data, out[:size])) if size else 0


def _compress_snappy(data: Buffer) -> Buffer:
    block = memoryview(cramjam.snappy.compress_raw(data))
    return b"".join((_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1), _BLOCK_SIZE.pack(len(block)), block))


def _compress_lz4(data: Buffer) -> Buffer:
    compressor = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # it takes nothing else
    return memoryview(compressor.finish())


_DECOMPRESS: dict[Codec, Callable[[Buffer, memoryview], int]] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_COMPRESS: dict[Codec, Callable[[Buffer], Buffer]] = {
    Codec.NONE: lambda data: data,
    Codec.GZIP: lambda data: memoryview(cramjam.gzip.compress(data, _GZIP_LEVEL)),
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: lambda data: memoryview(cramjam.zstd.compress(data, _ZSTD_LEVEL)),
}
