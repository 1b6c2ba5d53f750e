"""What to confirm to the server, and when. Pure: the clock is an argument, in seconds of any monotonic clock.

The rules (``Standby status update``; only ``flush`` moves a logical slot):

1. ``flush`` is a position below which every commit is durable in the log, and never goes back.
2. It moves with the catalog commit (``note_durable``), never with what was received.
3. A keepalive's WAL end is such a position too, once everything received before that keepalive is in the log and no
   transaction was open; it is stored as ``through_lsn`` first (``through_position``, then ``note_durable``). Otherwise
   an idle database keeps its WAL for ever.
4. A reply that is asked for is given at once; without being asked, one every ``interval``; also under backpressure
   and inside a huge transaction, with the old ``flush``.
5. A server that is not heard of for half of ``patience`` is asked for a reply; one that stays silent after that for
   one and a half of it is gone (``is_silent``): a connection whose other end vanished says nothing by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

THROUGH_INTERVAL = (
    0.25  # seconds between two through_lsn moves: a catalog on the same server writes WAL with each
)


@dataclass(frozen=True, slots=True)
class Status:
    """The fields of one standby status update."""

    write: int
    flush: int
    apply: int
    reply: bool = False


class Feedback:
    """State of one connection. ``confirmed`` is the position stored in the log (``through_lsn``) when it started;
    ``interval`` at most a third of the server's ``wal_sender_timeout``; ``patience`` (seconds) about that timeout.
    One thread at a time."""

    def __init__(self, confirmed: int, *, interval: float = 10.0, patience: float = 60.0) -> None:
        self._flush = confirmed
        self._write = confirmed
        self._interval = interval
        self._patience = patience
        self._heard_at: float | None = None
        self._asked_at: float | None = None
        self._sent_flush = -1
        self._sent_at: float | None = None
        self._reply = False
        # An idle keepalive: its WAL end, and the end of the last commit received before it.
        self._idle_end = 0
        self._idle_needs = 0
        self._through_at: float | None = None

    @property
    def flush(self) -> int:
        return self._flush

    def note_received(self, lsn: int) -> None:
        """A frame of WAL came. ``lsn`` is its header's end; 0 (Relation, Type) says nothing."""
        self._write = max(self._write, lsn)

    def note_heard(self, at: float) -> None:
        """Something came from the server at ``at``, or nobody listened until then."""
        if self._heard_at is None or at > self._heard_at:
            self._heard_at, self._asked_at = at, None

    def is_silent(self, now: float) -> bool:
        """The server was asked for a reply and has not been heard of since: the connection is dead."""
        return self._asked_at is not None and now - self._asked_at >= 1.5 * self._patience

    def note_durable(self, lsn: int) -> None:
        """The catalog committed: every commit below ``lsn`` (an ``end_lsn`` or a ``through_lsn``) is in the log."""
        self._flush = max(self._flush, lsn)
        self._write = max(self._write, self._flush)

    def keepalive(
        self, wal_end: int, *, reply_requested: bool, in_transaction: bool, received_end: int
    ) -> None:
        """A keepalive came. ``received_end`` is the end LSN of the last commit received before it (0: none)."""
        self._write = max(self._write, wal_end)
        self._reply = self._reply or reply_requested
        if not in_transaction and wal_end >= received_end:
            self._idle_end, self._idle_needs = wal_end, received_end

    def through_position(self, now: float) -> int | None:
        """A position to store as ``through_lsn`` and to report by ``note_durable`` then; None for none now."""
        if self._idle_end <= self._flush or self._idle_needs > self._flush:
            return None
        if self._through_at is not None and now - self._through_at < THROUGH_INTERVAL:
            return None
        self._through_at = now
        return self._idle_end

    def next_status(self, now: float) -> Status | None:
        """The status to send now, or None. Calling it counts as having sent it."""
        waited = self._sent_at is None or now - self._sent_at >= self._interval
        ask = (
            self._asked_at is None
            and self._heard_at is not None
            and now - self._heard_at >= self._patience / 2
        )
        if not (self._reply or waited or ask or self._flush > self._sent_flush):
            return None
        if ask:
            self._asked_at = now
        self._reply = False
        self._sent_at, self._sent_flush = now, self._flush
        return Status(self._write, self._flush, self._flush, ask)
