"""An epoch's small parts end to end in one blob, which is a row of the catalog."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tailrace.eventstore.segment import encoding
from tailrace.eventstore.segment.file_reader import checksum, damaged

_ZSTD = pa.Codec("zstd", compression_level=encoding.ZSTD_LEVEL)


def encode_part(table: pa.Table) -> pa.Buffer:
    """Rows in storage order as one part of an epoch's blob: a self-contained Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def pack_blob(parts: Sequence[pa.Buffer]) -> tuple[bytes, int]:
    """The parts end to end, compressed as one (the stream headers of small parts repeat), and their plain size."""
    plain = b"".join(part.to_pybytes() for part in parts)
    return _ZSTD.compress(plain, asbytes=True), len(plain)


def unpack_blob(data: bytes, plain_bytes: int, expected: str, place: str) -> bytes:
    """The parts of a blob end to end. Raises IntegrityError (naming ``place``) when the bytes are not those written."""
    if checksum(data) != expected:
        raise damaged(place)
    return bytes(_ZSTD.decompress(data, plain_bytes, asbytes=True))
