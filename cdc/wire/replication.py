"""The frames of a replication connection: what the server wraps WAL in, and what the client answers.

Source: PostgreSQL documentation, "Streaming Replication Protocol" (XLogData, Primary keepalive message, Standby status
update). Times are µs since 2000-01-01 UTC, as the server counts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tailrace.cdc.wire.buffer import FieldReader

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
UNIX_EPOCH_MICROS = 946_684_800_000_000  # 2000-01-01 in µs since 1970-01-01

_XLOGDATA_HEADER = 25
_XLOGDATA, _MESSAGE = b"wM"
_EMPTY_MESSAGE_BYTES = 4 + 1 + 8 + 1 + 4  # transaction id, flags, LSN, prefix, length
_STATUS = struct.Struct(">cQQQqB")


@dataclass(frozen=True, slots=True)
class XLogData:
    """One frame 'w'. ``start`` and ``end`` are 0 for Relation and Type messages: no position follows from them."""

    start: int
    end: int
    sent: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Keepalive:
    """One frame 'k'. The server has sent all that it has below ``wal_end``."""

    wal_end: int
    sent: int
    reply_requested: bool


def without_long_message(frame: bytes | memoryview, bytes_max: int) -> bytes | None:
    """What stands for an XLogData frame with a logical message longer than that; None of any other frame.

    It is an empty message outside of transactions, in both protocol versions (zeros are also a transaction id in front
    of it): that is dropped further on, and its position counts. Any role may emit a message of up to 1 GiB, so this is
    asked before the frame is copied."""
    if len(frame) <= bytes_max or frame[0] != _XLOGDATA or frame[_XLOGDATA_HEADER] != _MESSAGE:
        return None
    return bytes(frame[: _XLOGDATA_HEADER + 1]) + bytes(_EMPTY_MESSAGE_BYTES)


def parse(frame: bytes) -> XLogData | Keepalive:
    """Open one CopyData frame from the server. Raises ProtocolError."""
    if frame[:1] == b"w" and len(frame) > _XLOGDATA_HEADER:  # the frequent one, without a Reader's calls
        start, end, sent = _HEADER.unpack_from(frame, 1)
        return XLogData(start, end, sent, frame[_XLOGDATA_HEADER:])
    reader = FieldReader(frame, "replication frame")
    tag = reader.byte()
    if tag == ord("k"):
        keepalive = Keepalive(reader.uint64(), reader.int64(), _flag(reader))
        reader.finish()
        return keepalive
    if tag == ord("w"):
        raise reader.error("no message behind the header")
    raise reader.error("unknown tag")


_HEADER = struct.Struct(">QQq")


def _flag(reader: FieldReader) -> bool:
    value = reader.byte()
    if value > 1:
        raise reader.error("a flag that is neither 0 nor 1")
    return value == 1


def status_update(write: int, flush: int, apply: int, now: datetime, *, reply: bool = False) -> bytes:
    """The standby status update 'r'. Only ``flush`` moves a logical slot."""
    return _STATUS.pack(b"r", write, flush, apply, micros(now), reply)


def micros(moment: datetime) -> int:
    """µs since 2000-01-01 UTC."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment(micros: int) -> datetime:
    """The time of a server's µs count. Raises ProtocolError when no calendar has it."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise FieldReader(b"").error(f"the time {micros} µs is out of range") from None
