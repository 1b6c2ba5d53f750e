"""Values in the form of their types' send functions: where they are in a message, and the text of the plain kinds.

Source: PostgreSQL documentation, "Logical Replication Message Formats" (TupleData), and COPY, "Binary Format". Rows are
sent in this form only where their text exceeds what the server can send (``tailrace.cdc.stream.binary_mode``,
``tailrace.cdc.snapshot.copy``). Types that are not plain have their text from the server
(``tailrace.cdc.postgres.value_text``)."""

from __future__ import annotations

import binascii
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tailrace.cdc.wire.buffer import HINT
from tailrace.eventstore.errors import ProtocolError

_HEADER = 25  # of an XLogData frame
_UINT16, _INT32, _UINT32 = struct.Struct(">H"), struct.Struct(">i"), struct.Struct(">I")
_INSERT, _UPDATE, _DELETE = b"IUD"
_NEW, _NULL, _UNCHANGED, _TEXT, _BINARY = b"Nnutb"
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no extension

BYTEA, TEXT = 17, 25
Render = Callable[[memoryview], bytes]


def _bytea(data: memoryview) -> bytes:
    """As ``bytea_output = hex`` prints it."""
    return b"".join((b"\\x", binascii.hexlify(data)))


def _bool(data: memoryview) -> bytes:
    return b"t" if _unpack(data, ">?") else b"f"


def _int2(data: memoryview) -> bytes:
    return b"%d" % _unpack(data, ">h")


def _int4(data: memoryview) -> bytes:
    return b"%d" % _unpack(data, ">i")


def _int8(data: memoryview) -> bytes:
    return b"%d" % _unpack(data, ">q")


def _oid(data: memoryview) -> bytes:
    return b"%d" % _unpack(data, ">I")


def _uuid(data: memoryview) -> bytes:
    digits = binascii.hexlify(data)
    if len(digits) != 32:
        raise _unreadable_error()
    return b"-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _jsonb(data: memoryview) -> bytes:
    """A version, then the text."""
    if not data or data[0] != 1:
        raise _unreadable_error()
    return bytes(data[1:])


def _vector(data: memoryview) -> bytes:
    """int2vector, oidvector: an array of one dimension. (The server does not take its own empty ones back.)"""
    layouts = {2: ">h", 4: ">I"}
    cells, at = [], 12 + 8 * _unpack(data[:4], ">i")
    while at < len(data):
        size = _unpack(data[at : at + 4], ">i")
        if size not in layouts:
            raise _unreadable_error()
        cells.append(b"%d" % _unpack(data[at + 4 : at + 4 + size], layouts[size]))
        at += 4 + size
    return b" ".join(cells)


def _unpack(data: memoryview, layout: str) -> int:
    try:
        value: int = struct.unpack(layout, data)[0]
    except struct.error:
        raise _unreadable_error() from None
    return value


def _unreadable_error() -> ProtocolError:
    return ProtocolError("a binary value is not what its type sends", hint=HINT)


PLAIN: dict[int, Render] = {
    16: _bool,
    BYTEA: _bytea,
    19: bytes,  # name
    20: _int8,
    21: _int2,
    22: _vector,  # int2vector
    23: _int4,
    TEXT: bytes,
    26: _oid,
    30: _vector,  # oidvector
    114: bytes,  # json
    1042: bytes,  # bpchar
    1043: bytes,  # varchar
    2950: _uuid,
    3802: _jsonb,
}
"""Base types, by oid, whose text is at hand. An enum's label is sent as it is printed, too."""


@dataclass(frozen=True, slots=True)
class BinaryCell:
    """A cell in binary of the relation ``relid``: bytes ``start`` to ``end`` of its frame."""

    relid: int
    column: int
    start: int
    end: int


def binary_cells(frame: bytes) -> list[BinaryCell]:
    """The binary cells of an XLogData frame with a row change; [] of any other frame. Raises ProtocolError."""
    if len(frame) <= _HEADER or frame[_HEADER] not in (_INSERT, _UPDATE, _DELETE):
        return []
    try:
        return list(_cells(frame))
    except (struct.error, IndexError):
        raise ProtocolError("a row change in binary is cut short", hint=HINT) from None


def _cells(frame: bytes) -> Iterator[BinaryCell]:
    (relid,) = _UINT32.unpack_from(frame, _HEADER + 1)
    at, more = _HEADER + 5, True
    while more:
        more = frame[at] != _NEW and frame[_HEADER] == _UPDATE  # an old row comes first
        (count,) = _UINT16.unpack_from(frame, at + 1)
        at += 3
        for column in range(count):
            kind = frame[at]
            at += 1
            if kind in (_NULL, _UNCHANGED):
                continue
            if kind not in (_TEXT, _BINARY):
                raise ProtocolError(f"unknown cell tag {kind!r} in a row change", hint=HINT)
            (size,) = _UINT32.unpack_from(frame, at)
            at += 4 + size
            if kind == _BINARY:
                yield BinaryCell(relid, column, at - size, at)
    if at != len(frame):
        raise ProtocolError("a row change in binary does not end with its cells", hint=HINT)


def replace_cells(frame: bytes, cells: Sequence[BinaryCell], texts: Sequence[bytes]) -> bytes:
    """The frame as the server sends it in text mode: ``texts`` in the place of its binary ``cells``."""
    view = memoryview(frame)
    parts: list[bytes | memoryview] = []
    at = 0
    for cell, text in zip(cells, texts, strict=True):
        parts += (view[at : cell.start - 5], b"t", _UINT32.pack(len(text)), text)
        at = cell.end
    return b"".join((*parts, view[at:]))


def parse_copy_row(message: bytes, columns: int) -> list[memoryview | None] | None:
    """The cells of one CopyData message of COPY TO … (FORMAT binary), None for NULL; None at the end of the data.

    The server sends a message per row; the first brings the header along. Raises ProtocolError."""
    at = len(_COPY_HEADER) if message.startswith(_COPY_HEADER) else 0
    view = memoryview(message)
    try:
        if message[at : at + 2] == b"\xff\xff":
            return None
        (count,) = _UINT16.unpack_from(message, at)
        at += 2
        cells: list[memoryview | None] = []
        for _ in range(count):
            (size,) = _INT32.unpack_from(message, at)
            at += 4
            cells.append(view[at : at + size] if size >= 0 else None)
            at += max(size, 0)
    except struct.error:
        raise ProtocolError("a row of COPY is cut short", hint=HINT) from None
    if count != columns or at != len(message):
        raise ProtocolError("a row of COPY has other cells than were asked for", hint=HINT)
    return cells
