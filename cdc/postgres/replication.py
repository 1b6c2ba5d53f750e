"""The replication stream: COPY_BOTH over one libpq connection, never waiting by itself.

Source: PostgreSQL documentation, "Streaming Replication Protocol" and libpq's "Functions Associated with the COPY
Command". One thread owns a stream: libpq connections are not for two.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
from psycopg import pq

from tailrace.cdc.postgres import errors
from tailrace.cdc.postgres.connect import Address, command, connect_replication, execute, literal, quote
from tailrace.cdc.postgres.inbox import FillResult, Inbox
from tailrace.cdc.wire.copy_data import Messages
from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.model.position import format_lsn, parse_lsn
from tailrace.eventstore.readiness import readable, writable

_FINISH_SECONDS = 5.0
_READ_BYTES = 1 << 20  # received per turn: between two looks at feedback and queue


class ReplicationStream:
    """An open stream of one slot. Frames are CopyData payloads (``tailrace.cdc.wire.replication``)."""

    def __init__(
        self,
        connection: pq.abc.PGconn,
        address: Address,
        slot: str,
        timeout: float | None,
        *,
        message_bytes: int,
        skipped: Callable[[int], None],
    ) -> None:
        self._skipped = skipped
        self._connection = connection
        self._inbox = Inbox(connection, _READ_BYTES, longest=message_bytes)
        self._address = address
        self._slot = slot
        self._ended: Exception | None = None  # libpq tells of an end once; frames may have come before it
        self.timeout = timeout
        """The server's wal_sender_timeout in seconds: it hangs up on a client silent for longer; None = never."""
        self.heard_at = time.monotonic()
        """When the server was last heard of, also by a part of a frame."""

    @classmethod
    def open(
        cls,
        address: Address,
        slot: str,
        start_lsn: int,
        publication: str,
        *,
        protocol: int = 1,
        binary: bool = False,
        message_bytes: int,
        skipped: Callable[[int], None],
    ) -> ReplicationStream:
        """Start pgoutput 1, or 2 (large transactions are streamed before their commit), from ``start_lsn``; values as
        text, or in ``binary`` as far as their types have a send function. Of logical messages
        longer than ``message_bytes`` nothing comes out of it; ``skipped`` is told how many there were.

        The server goes on from the slot's confirmed position when that is later. Raises SlotActive, SlotLost and
        what ``connect_replication`` raises.
        """
        connection = connect_replication(address, f"tailrace {slot}")
        try:
            timeout = _sender_timeout(connection, address)
            options = f"proto_version '{protocol}', publication_names {literal(quote(publication))}, messages 'true'"
            if protocol > 1:
                options += ", streaming 'true'"
            if binary:
                options += ", binary 'true'"
            doing = f"starting replication from slot {slot}"
            start = f"START_REPLICATION SLOT {quote(slot)} LOGICAL {format_lsn(start_lsn)} ({options})"
            result = execute(connection, start, doing, address)
            if result.status != pq.ExecStatus.COPY_BOTH:
                raise errors.from_result(result, doing, address.text)
            connection.nonblocking = 1
        except BaseException:
            connection.finish()
            raise
        return cls(connection, address, slot, timeout, message_bytes=message_bytes, skipped=skipped)

    def fileno(self) -> int:
        return self._connection.socket

    def receive(self) -> Messages:
        """Frames that have arrived, up to about a megabyte; none when there is none to be had without waiting. The
        next call overwrites them.

        Raises TransientError, SlotLost … when the server ended the stream.
        """
        if self._ended is not None:
            raise self._ended
        heard, broken = False, None
        try:
            heard = readable([self._connection.socket], 0)
            if self._inbox.fill() is FillResult.END:
                self._ended = self._end()
        except psycopg.OperationalError as error:
            broken = self._connection_error(str(error))
        frames = self._inbox.take(reuse=True)
        if heard:
            self.heard_at = time.monotonic()
        if emptied := self._inbox.take_emptied():
            self._skipped(emptied)
        if not len(frames) and (reason := self._ended or broken) is not None:
            raise reason
        return frames

    def send(self, frame: bytes) -> None:
        """Send one frame to the server. Raises TransientError when the connection is gone."""
        try:
            while self._connection.put_copy_data(frame) == 0:
                writable(self._connection.socket, 1.0)
            self.flush()
        except psycopg.OperationalError as error:
            raise self._connection_error(str(error)) from None

    def flush(self) -> None:
        """Push out what libpq has buffered. The server reads while it sends, so this does not wait for long."""
        deadline = time.monotonic() + 10.0
        while self._connection.flush() == 1:
            if time.monotonic() > deadline:
                raise self._connection_error("the server takes no data")
            writable(self._connection.socket, 0.1)

    def silence_error(self) -> TransientError:
        """The error for a server that answers no more."""
        return self._connection_error("the server has been silent and does not answer")

    def finish(self) -> None:
        """End the stream politely: CopyDone, wait for the server's, close. Frames still coming are dropped."""
        try:
            self._connection.put_copy_end()
            self.flush()
            deadline = time.monotonic() + _FINISH_SECONDS
            while time.monotonic() < deadline:
                count, _ = self._connection.get_copy_data(1)
                if count < 0:
                    break
                if count == 0:
                    readable([self._connection.socket], 0.1)
                    self._connection.consume_input()
        except (psycopg.OperationalError, TransientError):
            pass  # the last status was sent before; a server that hangs up now has nothing to tell us
        finally:
            self.close()

    def close(self) -> None:
        """Drop the connection; the server keeps what was not confirmed."""
        self._inbox.close()
        self._connection.finish()

    def _end(self) -> Exception:
        """The server ended the COPY: its reason."""
        result = self._connection.get_result()
        if result is None or result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_IN):
            return self._connection_error("the server ended the stream")
        error = errors.from_result(result, "streaming changes", self._address.text)
        if isinstance(error, errors.RowTooLarge):
            return errors.RowTooLarge(error.message, hint=errors.too_large_hint(self._slot))
        return error

    def _connection_error(self, text: str) -> TransientError:
        error = errors.failure(None, text, "streaming changes", self._address.text)
        assert isinstance(error, TransientError)
        return error


def identify(connection: pq.abc.PGconn, address: Address) -> tuple[str, int]:
    """IDENTIFY_SYSTEM: (system identifier, current flush LSN). Raises OperatorError behind a pooler."""
    rows = command(connection, "IDENTIFY_SYSTEM", "identifying the system", address)
    if len(rows) != 1 or rows[0][0] is None or rows[0][2] is None or rows[0][3] is None:
        raise OperatorError(
            f"{address.text} does not answer as a database's WAL sender",
            hint="replication does not pass a pooler: give the source's dsn the server's own host and port",
        )
    return rows[0][0], parse_lsn(rows[0][2])


def switch_points(address: Address, timeline: int) -> dict[int, int]:
    """TIMELINE_HISTORY: where each earlier timeline was left for the next, as LSNs. Empty for the first."""
    if timeline < 2:
        return {}
    connection = connect_replication(address, "tailrace check")
    try:
        query = f"TIMELINE_HISTORY {timeline}"
        rows = command(connection, query, "reading the timeline's history", address)
    finally:
        connection.finish()
    lines = [line.split("\t") for line in (rows[0][1] or "").splitlines()]
    return {int(line[0]): parse_lsn(line[1]) for line in lines if len(line) >= 2 and line[0].isdigit()}


def _sender_timeout(connection: pq.abc.PGconn, address: Address) -> float | None:
    query = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'"
    rows = command(connection, query, "reading wal_sender_timeout", address)
    milliseconds = int(rows[0][0] or 0) if rows else 0
    return milliseconds / 1000 or None
