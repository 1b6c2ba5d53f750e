"""Any bytes as what a broker sent of a partition: the decoder and the reference give the same records, or both refuse.

A frame is a batch: flags, the fields of its head, and its records, with the checksum and the lengths as they should be,
so that what a producer may write wrong is reached. By its flags a frame may also be a batch byte for byte.
"""

from __future__ import annotations

import re
import struct
from types import MappingProxyType

import pyarrow as pa

from tailrace.eventstore.errors import OperatorError, ProtocolError
from tailrace.eventstore.kafka import batches, codecs, records
from tailrace.eventstore.kafka.batches import AbortedTransaction
from tests.fuzz import batch_reference
from tests.fuzz.batch_reference import Refused, Row
from tests.fuzz.fuzzing import Target, pack, unpack
from tests.support.kafka_batches import CODECS, BatchMade, Record, compressed, marker, record_bytes

# Flags; attributes; base offset, last offset's difference, count, times, producer's id.
_FRAME = struct.Struct(">BBqiiqqb")
_AS_IT_IS, _COMPRESSED_ALREADY = 0x80, 0x40
_NAMES = {number: name for name, number in CODECS.items()}
_BYTES_MAX = 1 << 16
_FIRST, _ABORTED = 3, (AbortedTransaction(7, 4), AbortedTransaction(8, 6))


def batch_bytes(frame: bytes) -> bytes:
    if len(frame) < _FRAME.size or frame[0] & _AS_IT_IS:
        return frame[1:]
    flags, attributes, base, last, count, time, max_time, producer = _FRAME.unpack_from(frame)
    payload = frame[_FRAME.size :]
    codec = _NAMES.get(attributes & 7, "none")
    if not flags & _COMPRESSED_ALREADY:
        payload = compressed(codec, payload)
    return BatchMade(
        base, (), codec, time, max_time, attributes, producer, last, count, payload=payload
    ).bytes()  # fmt: skip


def check(data: bytes) -> list[str]:
    sent = b"".join(map(batch_bytes, unpack(data)))
    expected: list[Row] | None = None
    words: list[str] = []
    try:
        expected = batch_reference.decode(sent, _FIRST, _ABORTED, _BYTES_MAX)
    except Refused as error:
        words = [str(error)]
    refused, tables = None, list[records.RecordBatchRows]()
    try:
        tables += records.decode(
            records.FetchedBatches("t", 0, _FIRST, memoryview(sent), _ABORTED),
            headers=True,
            batch_bytes_max=_BYTES_MAX,
        )
    except (ProtocolError, OperatorError) as error:
        refused = error
    if refused is not None:
        assert refused.hint and "topic t, partition 0" in refused.message
        assert expected is None, f"only the decoder refuses: {refused.message}"
        return [*words, re.sub("[0-9]+", "N", refused.message)]
    assert expected is not None, f"only the reference refuses: {words}"
    assert [row for each in tables for row in rows_of(each.table)] == expected
    return []


def rows_of(table: pa.Table) -> list[Row]:
    table.validate(full=True)
    times = table["timestamp"].cast(pa.int64()).fill_null(-1)
    columns = (table[name].to_pylist() for name in ("offset", "key", "value", "headers"))
    return [
        (offset, time, key, value, [(each["name"], each["value"]) for each in headers])
        for time, (offset, key, value, headers) in zip(
            times.to_pylist(), zip(*columns, strict=True), strict=True
        )
    ]


def seeds() -> dict[str, bytes]:
    """Batches of every codec, transactions, headers, and bytes as they are."""
    two = [
        Record(0, b"k", b"v" * 70, ((b"name", None), (b"", b"x"))),
        Record(2, None, b"", time_delta=-(1 << 40)),
    ]
    plain = b"".join(map(record_bytes, two))
    found = {
        name: [
            _frame(number, 10, 2, 2, plain),
            _frame(number, 20, 2, 2, compressed(name, plain), flags=_COMPRESSED_ALREADY),
        ]
        for name, number in CODECS.items()
    }  # fmt: skip
    found["transactions"] = [
        _frame(0x10, 4, 2, 2, plain, producer=7),
        bytes([_AS_IT_IS]) + marker(7, 7, commit=False).bytes(),
        _frame(0x10, 8, 2, 2, plain, producer=7),
        _frame(0x18, 11, 2, 2, plain, producer=8),
    ]
    found["as it is"] = [bytes([_AS_IT_IS]) + BatchMade(5, two).bytes() + BatchMade(8, two).bytes()[:40]]
    found["empty"] = [_frame(0, 3, 0, 0, b"")]
    return {name: pack(frames) for name, frames in found.items()}


def _frame(
    attributes: int, base: int, last: int, count: int, payload: bytes, *, producer: int = -1, flags: int = 0
) -> bytes:
    return _FRAME.pack(flags, attributes, base, last, count, 1_700_000_000_000, -1, producer) + payload


TARGET = Target(
    "batches",
    check,
    lambda: MappingProxyType(seeds()),
    (batches, codecs, records, batch_reference),
    bytes((0, 1, 2, 3, 4, 7, 8, 9, 14, 0x10, 0x20, 0x3F, 0x40, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)),
)
