"""The stored form of messages that cannot be decoded yet. Pure.

Each part can be decoded by itself: pgoutput messages as version 1 sends them, each transaction between its Begin and
its Commit (a part of a transaction larger than memory, too), each table's Relation in front of its first row. Rows keep
the ordinals of their transaction: ``ORDINAL`` messages of our own say where these do not follow one another.

Format: ``_MAGIC``, lengths of the rest before and after compression (8 bytes each), then in one zstd frame for each
message its length (4 bytes) and its bytes; numbers in network order. One may follow another: small ones are joined.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator

import pyarrow as pa

from tailrace.cdc.wire.block import FrameBlock
from tailrace.cdc.wire.replication import moment
from tailrace.eventstore.errors import IntegrityError

ORDINAL = "tailrace.ordinal"
_MAGIC = b"TRKEPT\0\1"
_LENGTH = struct.Struct(">I")
_SIZES = struct.Struct(">QQ")
_BEGIN = struct.Struct(">cQqI")
_COMMIT = struct.Struct(">cBQQq")
_TRUNCATE = struct.Struct(">cIBI")
_MESSAGE = struct.Struct(">cBQ")


class UndecodedBlock:
    """The undecoded messages of one topic in one block."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self._relations: dict[int, bytes] = {}
        self._open: tuple[int, int, int] | None = None
        self._next = 0  # ordinal of the next row, when nothing else is said
        self.frames = 0

    def row(
        self, transaction: tuple[int, int, int], ordinal: int, relid: int, relation: bytes, message: bytes
    ) -> int:
        """Add a row (or a truncate of this one table) of a transaction: (commit LSN, commit time in µs since 2000,
        xid). ``relation``: as it was announced last. Returns how many ordinals the row takes: an update may be two
        rows, which only decoding shows."""
        self._begin(transaction)
        if relation and self._relations.get(relid) != relation:
            self._relations[relid] = relation
            self._messages.append(relation)
        if ordinal != self._next:
            self._messages.append(_ordinal(ordinal))
        self._messages.append(message)
        self.frames += 1
        taken = 2 if message[:1] == b"U" else 1
        self._next = -1 if taken == 2 else ordinal + 1
        return taken

    def message(self, transaction: tuple[int, int, int], message: bytes) -> None:
        """Add a message that is no row."""
        self._begin(transaction)
        self._messages.append(message)

    def pack(self) -> bytes:
        self._end()
        plain = b"".join(part for each in self._messages for part in (_LENGTH.pack(len(each)), each))
        packed: bytes = pa.compress(plain, codec="zstd", asbytes=True)
        return _MAGIC + _SIZES.pack(len(plain), len(packed)) + packed

    def _begin(self, transaction: tuple[int, int, int]) -> None:
        if self._open == transaction:
            return
        self._end()
        lsn, commit_ts, xid = transaction
        self._messages.append(_BEGIN.pack(b"B", lsn, commit_ts, xid))
        self._open, self._next = transaction, 0

    def _end(self) -> None:
        if self._open is not None:
            lsn, commit_ts, _ = self._open
            self._messages.append(_COMMIT.pack(b"C", 0, lsn, lsn + 1, commit_ts))
            self._open = None


def truncate_message(relid: int) -> bytes:
    """A Truncate of one table."""
    return _TRUNCATE.pack(b"T", 1, 0, relid)


def unpack(data: bytes) -> FrameBlock:
    """The output of one or several ``pack`` as one block to decode. Raises IntegrityError."""
    messages = [message for plain in _parts(data) for message in _messages(plain)]
    ends, end = array("q"), 0
    for message in messages:
        end += len(message)
        ends.append(end)
    commits = [_COMMIT.unpack(message) for message in messages if message[:1] == b"C"]
    _, _, lsn, end_lsn, commit_ts = commits[-1]
    return FrameBlock(b"".join(messages), ends, len(commits), len(messages), lsn, end_lsn, moment(commit_ts))


def _parts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        if data[at : at + len(_MAGIC)] != _MAGIC:
            raise IntegrityError(
                "the stored frames of a topic in quarantine are in another format than this version writes",
                hint="read the table again: tailrace source snapshot",
            )
        at += len(_MAGIC)
        plain, packed = _SIZES.unpack_from(data, at)
        at += _SIZES.size
        yield pa.decompress(data[at : at + packed], plain, codec="zstd", asbytes=True)
        at += packed


def _messages(plain: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(plain):
        (length,) = _LENGTH.unpack_from(plain, at)
        yield plain[at + _LENGTH.size : at + _LENGTH.size + length]
        at += _LENGTH.size + length


def _ordinal(number: int) -> bytes:
    content = b"%d" % number
    return b"".join((_MESSAGE.pack(b"M", 1, 0), ORDINAL.encode(), b"\0", _LENGTH.pack(len(content)), content))
