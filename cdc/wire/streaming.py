"""Protocol version 2: what a server says about a transaction that it streams before its commit.

Source: PostgreSQL documentation, "Logical Replication Message Formats". Between Stream Start and Stream Stop every
message carries, behind its tag, the id of the (sub)transaction it belongs to; Origin alone does not. Blocks of
different transactions follow each other and never nest. Everything else is version 1 (``tailrace.cdc.wire.pgoutput``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tailrace.cdc.wire.buffer import FieldReader
from tailrace.cdc.wire.pgoutput import StreamAbort

_BEGIN = struct.Struct(">cQqI")
_COMMIT = struct.Struct(">cBQQq")
_TAGGED = frozenset(b"RYIUDTM")
_ORIGIN = ord("O")


@dataclass(frozen=True, slots=True)
class StreamStart:
    """``first``: no block of this transaction came before on this connection."""

    xid: int
    first: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    pass


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """As ``Begin`` and ``Commit`` in one: a streamed transaction's commit LSN and time are known only now."""

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int

    def begin(self) -> bytes:
        """The Begin that version 1 would have sent in front."""
        return _BEGIN.pack(b"B", self.commit_lsn, self.commit_ts, self.xid)

    def commit(self) -> bytes:
        """The Commit that version 1 would have sent at the end."""
        return _COMMIT.pack(b"C", 0, self.commit_lsn, self.end_lsn, self.commit_ts)


Control = StreamStart | StreamStop | StreamCommit | StreamAbort


def control(frame: bytes) -> Control | None:
    """Parse a message about streaming; None for any other. Raises ProtocolError."""
    tag = frame[:1]
    if tag not in (b"S", b"E", b"c", b"A"):
        return None
    reader = FieldReader(frame, "pgoutput message")
    reader.byte()
    message: Control
    if tag == b"S":
        message = StreamStart(reader.uint32(), _flag(reader, 1) == 1)
    elif tag == b"E":
        message = StreamStop()
    elif tag == b"A":
        message = StreamAbort(reader.uint32(), reader.uint32())
        if reader.left:  # abort LSN and time, sent with streaming = parallel
            reader.take(16)
    else:
        xid = reader.uint32()
        _flag(reader, 0)
        message = StreamCommit(xid, reader.uint64(), reader.uint64(), reader.int64())
    reader.finish()
    return message


def unwrap(frame: bytes) -> tuple[int | None, bytes]:
    """A message inside a stream block: its subtransaction (None: Origin carries none), and what version 1 would have
    sent. Raises ProtocolError on a message that cannot come there."""
    reader = FieldReader(frame, "streamed pgoutput message")
    tag = reader.byte()
    if tag == _ORIGIN:
        return None, frame
    if tag not in _TAGGED:
        raise reader.error("cannot come inside a stream block")
    return reader.uint32(), frame[:1] + frame[5:]


def _flag(reader: FieldReader, most: int) -> int:
    value = reader.byte()
    if value > most:
        raise reader.error("unknown flags")
    return value
