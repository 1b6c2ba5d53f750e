"""The file of a reference, opened whole or in parts; never past damage."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.segment import encoding
from tailrace.eventstore.storage import Storage

# Of files that are not on this machine, larger ones are read by ranges: a request costs as much as so many bytes.
RANGES_BYTES_MIN = 1 << 20


def checksum(data: bytes | pa.Buffer | memoryview) -> str:
    """XXH3-128 as hexadecimal: notices damage; the epoch hash chain (SHA-256 over these) notices exchange."""
    return xxhash.xxh3_128_hexdigest(data)


def damage_error(place: str) -> IntegrityError:
    return IntegrityError(
        f"{place} is damaged: its checksum is not the one in the catalog",
        hint="restore it from a backup; the log is never read past damage",
    )


def open_file(storage: Storage, ref: SegmentRef, coded: Collection[str] = ()) -> pq.ParquetFile:
    """The file of a reference, compared with the reference's checksum, if it has one; texts of ``coded`` columns as
    dictionaries. Raises MissingFile, OperatorError for one of a later format and, when it is damaged,
    IntegrityError."""
    assert ref.path is not None
    data = storage.open(ref.path)
    if ref.checksum and checksum(data) != ref.checksum:
        raise damage_error(storage.place(ref.path))
    return _parquet(pa.BufferReader(data), coded, storage.place(ref.path))


@contextmanager
def open_parts(
    storage: Storage,
    ref: SegmentRef,
    *,
    whole: bool,
    coded: Collection[str] = (),
) -> Iterator[pq.ParquetFile]:
    """``open_file`` for who needs only parts, unless ``whole``. A large file that is far away is then read by ranges:
    its size is compared, and the checksum of every page that is read, which is not that of the whole."""
    assert ref.path is not None
    if whole or not storage.remote or ref.bytes < RANGES_BYTES_MIN:
        with open_file(storage, ref, coded) as file:
            yield file
        return
    with storage.ranges(ref.path) as raw:
        if raw.size() != ref.bytes:
            raise damage_error(storage.place(ref.path))
        try:
            with _parquet(
                raw, coded, storage.place(ref.path), pre_buffer=True, page_checksum_verification=True
            ) as file:
                yield file
        except pa.ArrowInvalid:
            raise damage_error(storage.place(ref.path)) from None


def _parquet(source: pa.NativeFile, coded: Collection[str], place: str, **how: bool) -> pq.ParquetFile:
    """Texts of ``coded`` columns as dictionaries, where they are stored so: to make one costs more than the texts."""
    metadata = pq.read_metadata(source)
    encoding.require_known(metadata, place)
    paths = encoding.coded_paths(metadata).intersection(coded) if coded else ()
    return pq.ParquetFile(source, metadata=metadata, read_dictionary=list(paths), **how)
