"""Protocol version 2 in front of the version 1 path: frames in, frames of whole transactions out.

A transaction that the server streams before its commit is spooled as it comes, one file per transaction:

    unknown   until the first stream block of its id
    spooled   blocks append to its file; a rolled-back savepoint is noted
    replayed  at its commit: Begin, everything but what rolled-back savepoints left, Commit, as version 1 sends them
    dropped   at its abort, or when the connection ends: the server then streams it from its start again

The files have no names, so a crash leaves none behind (``tailrace.cdc.stream.spool_file``). They hold the rows as the
server sent them: column policies are applied at the commit.

Memory is bounded whatever a transaction's size: 64 KiB of it stay there, the rest is on the disk and is read back piece
by piece, as the reader asks for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tailrace.cdc.stream.spool_file import SpoolFile
from tailrace.cdc.wire.buffer import HINT
from tailrace.cdc.wire.copy_data import Messages
from tailrace.cdc.wire.pgoutput import StreamAbort
from tailrace.cdc.wire.streaming import StreamCommit, StreamStart, StreamStop, control, unwrap
from tailrace.eventstore.errors import OperatorError, ProtocolError, TransientError
from tailrace.eventstore.storage.private import make_folder

_RECORD = struct.Struct(">II")  # subtransaction, length
_HEADER = 25
_PIECE_BYTES = 1 << 20
_NO_POSITION = b"w" + bytes(_HEADER - 1)  # as the server sends in front of Relation and Type
_XLOGDATA = ord("w")
_STREAM_COMMIT = ord("c")


class Frames(Protocol):
    """What a session needs of its stream (``tailrace.cdc.postgres.replication.ReplicationStream``)."""

    @property
    def timeout(self) -> float | None: ...
    @property
    def heard_at(self) -> float: ...
    def fileno(self) -> int: ...
    def receive(self) -> Messages: ...
    def send(self, frame: bytes) -> None: ...
    def silence_error(self) -> TransientError: ...
    def finish(self) -> None: ...


class _Subtransactions:
    """A set of ids, of which a transaction may have millions close to each other: a bit each."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}

    def add(self, subxid: int) -> None:
        page = self._pages.setdefault(subxid >> 13, bytearray(1 << 10))
        page[subxid >> 3 & 1023] |= 1 << (subxid & 7)

    def __contains__(self, subxid: int) -> bool:
        page = self._pages.get(subxid >> 13)
        return page is not None and bool(page[subxid >> 3 & 1023] >> (subxid & 7) & 1)


@dataclass(slots=True)
class _Streamed:
    """What has come of one transaction, in order, with the subtransaction of each message."""

    file: SpoolFile
    aborted: _Subtransactions = field(default_factory=_Subtransactions)


class Spool:
    """Takes the pgoutput messages of one connection in order, gives version 1 messages out.

    ``folder`` is where large transactions are spooled; it must be on a disk, not in memory. Raises OperatorError when
    that disk is full."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[int, _Streamed] = {}
        self._open: int | None = None  # whose block is being received

    def feed(self, message: bytes) -> Iterator[bytes]:
        """What version 1 would send now. The iterator must be used up before the next message is fed: it reads a
        committed transaction back from its file. Raises ProtocolError."""
        found = control(message)
        match found:
            case None if self._open is None:
                return iter((message,))
            case None:
                self._keep(self._open, message)
            case StreamStart():
                self._start(found)
            case StreamStop():
                if self._open is None:
                    raise _error(message, "ends a stream block that did not begin")
                self._open = None
            case StreamAbort(xid, subxid):
                self._abort(xid, subxid)
            case StreamCommit():
                return self._commit(found)
        return iter(())

    def close(self) -> None:
        for stream in self._streams.values():
            stream.file.close()
        self._streams.clear()

    def _start(self, start: StreamStart) -> None:
        known = start.xid in self._streams
        if self._open is not None or start.first is known:
            raise ProtocolError(f"the stream block of transaction {start.xid} cannot begin now", hint=HINT)
        if not known:
            with self._translate_errors():
                make_folder(self._folder)
            self._streams[start.xid] = _Streamed(SpoolFile(self._folder))
        self._open = start.xid

    def _keep(self, xid: int | None, message: bytes) -> None:
        assert xid is not None
        subxid, inner = unwrap(message)
        with self._translate_errors():
            self._streams[xid].file.write(_RECORD.pack(xid if subxid is None else subxid, len(inner)) + inner)

    def _abort(self, xid: int, subxid: int) -> None:
        stream = self._streams.get(xid)
        if stream is None:  # servers send it for transactions they did not stream, too
            return
        if subxid == xid:
            self._streams.pop(xid).file.close()
        else:
            stream.aborted.add(subxid)

    def _commit(self, commit: StreamCommit) -> Iterator[bytes]:
        if commit.xid not in self._streams or self._open is not None:
            raise ProtocolError(f"the commit of transaction {commit.xid} cannot come now", hint=HINT)
        return self._replay(self._streams.pop(commit.xid), commit)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OperatorError(
                f"a transaction that the server streams cannot be kept in {self._folder}: {error.strerror}",
                hint="make room there; or set protocol = 1, with which the server keeps it until its commit",
            ) from error

    def _replay(self, stream: _Streamed, commit: StreamCommit) -> Iterator[bytes]:
        with closing(stream.file) as file:
            yield commit.begin()
            for piece in file.pieces():
                at = 0
                while at < len(piece):
                    subxid, size = _RECORD.unpack_from(piece, at)
                    at += _RECORD.size + size
                    if subxid not in stream.aborted:
                        yield bytes(piece[at - size : at])
            yield commit.commit()


class SpooledStream:
    """A replication stream of version 2 that gives frames as one of version 1 does, about ``piece_bytes`` at once."""

    def __init__(self, stream: Frames, folder: Path, piece_bytes: int = _PIECE_BYTES) -> None:
        self._stream = stream
        self._piece_bytes = piece_bytes
        self._spool = Spool(folder)
        self._received: Iterator[bytes] = iter(())  # frames that were not fed yet
        self._given: Iterator[bytes] = iter(())  # of the message fed last: what is still to be given
        self._header = self._inner_header = _NO_POSITION

    @property
    def timeout(self) -> float | None:
        return self._stream.timeout

    @property
    def heard_at(self) -> float:
        return self._stream.heard_at

    def fileno(self) -> int:
        return self._stream.fileno()

    def receive(self) -> Messages:
        """As the stream's own; nothing is read from the socket while a committed transaction is given out."""
        frames = self._take()
        if not frames:
            self._received = self._stream.receive().each()
            frames = self._take()
        return Messages.of(frames)

    def _take(self) -> list[bytes]:
        frames: list[bytes] = []
        size = 0
        while size < self._piece_bytes:
            message = next(self._given, None)
            if message is not None:
                header = self._header if message[:1] == b"C" else self._inner_header
                frames.append(header + message)
                size += len(message)
                continue
            frame = next(self._received, None)
            if frame is None:
                break
            if frame[0] == _XLOGDATA and len(frame) > _HEADER:
                # Of a streamed transaction only the commit has a position: its rows were at theirs long ago.
                self._header = frame[:_HEADER]
                self._inner_header = _NO_POSITION if frame[_HEADER] == _STREAM_COMMIT else self._header
                self._given = self._spool.feed(frame[_HEADER:])
            else:
                frames.append(frame)
        return frames

    def send(self, frame: bytes) -> None:
        self._stream.send(frame)

    def silence_error(self) -> TransientError:
        return self._stream.silence_error()

    def finish(self) -> None:
        self._spool.close()
        self._stream.finish()

    def close(self) -> None:
        self._spool.close()


def _error(message: bytes, problem: str) -> ProtocolError:
    return ProtocolError(f"pgoutput message {message[:1]!r} {problem}", hint=HINT)
