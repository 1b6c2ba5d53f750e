"""A bounds-checked reader over one message: a short read, a bad tag or bytes left over is a ProtocolError."""

from __future__ import annotations

import struct

from tailrace.eventstore.errors import ProtocolError

_INT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_UINT64 = struct.Struct(">Q")

HINT = "the stream is damaged or of an unknown protocol version; nothing of this message was used"


class FieldReader:
    """Reads the fields of one message in network byte order. Every method raises ProtocolError instead of guessing."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes, what: str = "message") -> None:
        self._data = data
        self._at = 0
        self._what = what

    @property
    def offset(self) -> int:
        return self._at

    def error(self, problem: str) -> ProtocolError:
        """An error that says where in which message."""
        tag = self._data[:1]
        return ProtocolError(
            f"{self._what} {tag!r}: {problem} at byte {self._at} of {len(self._data)}", hint=HINT
        )

    def take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise self.error(f"{count} bytes expected")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def uint16(self) -> int:
        value: int = _INT16.unpack(self.take(2))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack(self.take(4))[0]
        return value

    def uint32(self) -> int:
        value: int = _UINT32.unpack(self.take(4))[0]
        return value

    def int64(self) -> int:
        value: int = _INT64.unpack(self.take(8))[0]
        return value

    def uint64(self) -> int:
        value: int = _UINT64.unpack(self.take(8))[0]
        return value

    def string(self) -> str:
        """A zero-terminated UTF-8 string."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise self.error("a string has no end")
        try:
            text = self._data[self._at : end].decode()
        except UnicodeDecodeError:
            raise self.error("a name is not UTF-8") from None
        self._at = end + 1
        return text

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def finish(self) -> None:
        """The message ends here."""
        if self._at != len(self._data):
            raise self.error("bytes behind the end of the message")
