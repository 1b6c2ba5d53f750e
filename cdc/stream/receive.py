"""The socket's side of a session: frames in, blocks out, feedback. One thread, which owns the connection.

It never waits for the append side: when the queue is full it stops reading and goes on confirming the old position
(protocol page, "Streaming Replication Protocol": a client silent for wal_sender_timeout is dropped).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from tailrace.cdc.context import Task
from tailrace.cdc.postgres.errors import RowTooLarge
from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.stream.feedback import Feedback
from tailrace.cdc.stream.queue import ForgedMessages, Handover, ThroughPosition
from tailrace.cdc.stream.spool import Frames
from tailrace.cdc.wire.copy_data import Messages
from tailrace.cdc.wire.replication import Keepalive, parse, status_update
from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import ProtocolError
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.readiness import readable

_WAIT_SECONDS = 0.5  # longest sleep: how late a stop is seen
_FEEDBACK_SECONDS = 10.0
_DRAIN_SECONDS = 30.0
_PATIENCE_SECONDS = 60.0  # with a server that has no wal_sender_timeout
_XLOGDATA = ord("w")
_WAL_END = 17  # where that of an XLogData ends
_NOTHING = (
    0  # "invalid" to the server: it keeps its slot's position, and does not wait for us when it shuts down
)
# The server sends each message by itself. To a reader that sleeps until the socket is readable every one of them is a
# wake-up, paid for by the sender; so after a read that found little, some more may gather. Where much comes, the
# server is left alone until about a megabyte waits: the socket's buffers are full by then, so that it gathers too, and
# sends many at once.
_SHORT_READ_BYTES = 512 << 10
_GATHER_SECONDS = 0.001
_GATHER_BYTES, _GATHER_MUCH_SECONDS = 1 << 20, 0.025
_MUCH_BYTES = 4 << 20  # a second


def feedback_interval(sender_timeout: float | None) -> float:
    """Seconds between unprompted statuses: a third of the server's timeout, at most 10."""
    return min(_FEEDBACK_SECONDS, sender_timeout / 3) if sender_timeout else _FEEDBACK_SECONDS


def linger_of(declared: float, append_seconds: float) -> float:
    """Seconds that an epoch waits for more transactions: as declared; where appends are slow twice as long as the last
    one took, so that they take a third of the time, but no longer than three times what is declared."""
    return max(declared, min(2 * append_seconds, 3 * declared))


def _wal_end(frames: Messages) -> int:
    """The WAL end in the last frame, if that is an XLogData; else 0. It rises from commit to commit, not within
    transactions, and is 0 for Relation and Type."""
    start = int(frames.ends[-2]) if len(frames) > 1 else 0
    head = frames.data[start : start + _WAL_END]
    return int.from_bytes(head[-8:].tobytes(), "big") if head[0] == _XLOGDATA else 0


class Receiver:
    """Runs one stream, which goes on from the source's ``state`` in the log. Unless it ``confirms``, the slot stays
    where it is.

    reading   frames come in; full epochs are handed over at once, others after the linger when the appender is idle
    blocked   the queue is full: nothing is read, the old position is confirmed
    draining  ``stopped``, or a row is too large: the whole transactions that came are appended
    ended     after a clean stop ``run`` returns; it raises what else ends the session (TransientError, RowTooLarge)
    """

    def __init__(
        self,
        stream: Frames,
        handover: Handover,
        task: Task,
        state: SourceState,
        stopped: Callable[[], bool],
        tick: Callable[[], None],
        *,
        confirms: bool = True,
    ) -> None:
        settings, confirmed = task.settings, state.end_lsn
        self._stream = stream
        self._handover = handover
        self._progress = task.progress
        self._stopped = stopped
        self._tick = tick
        self._confirms = confirms
        self._declared_linger = settings.linger_ms / 1000
        epoch_bytes = min(settings.epoch_bytes, settings.queue_bytes)
        self._assembler = Assembler(epoch_bytes, settings.epoch_changes, state.commit_lsn)
        self._interval = feedback_interval(stream.timeout)
        self._feedback = Feedback(
            confirmed, interval=self._interval, patience=stream.timeout or _PATIENCE_SECONDS
        )
        self._oldest: float | None = None  # when the first whole transaction not handed over was complete
        self._read_at = time.monotonic()
        self._sent_flush = confirmed
        self._dropped = (
            0  # messages outside of transactions, counted so far; and those of them with a prefix of ours
        )
        self._forged = 0

    def run(self) -> None:
        """Returns after a clean stop; raises what else ended the session."""
        try:
            self._run()
        except RowTooLarge:
            self._drain()  # the next session meets this transaction first
            raise

    def _run(self) -> None:
        while not self._stopped():
            now = time.monotonic()
            self._feedback.note_durable(self._handover.durable_position())
            if self._handover.closed:
                return
            if self._handover.idle:
                self._count_dropped()
            self._hand_over(now)
            self._store_idle_position(now)
            self._confirm(now)
            self._tick()
            reading = not self._handover.is_full(self._assembler.pending_bytes)
            if not (reading and self._read()):
                self._listen(reading)
                self._wait(reading, now)
        self._finish()

    def _read(self) -> bool:
        try:
            return self._take_frames()
        except ProtocolError as error:
            behind = f"behind the transaction that ends at {format_lsn(self._assembler.end_lsn)}"
            raise ProtocolError(f"{error.message} ({behind})", hint=error.hint) from error.__cause__

    def _take_frames(self) -> bool:
        frames = self._stream.receive()
        if not len(frames):
            return False
        failpoints.hit("frame_received", len(frames))
        assembler, at = self._assembler, 0
        gathered, end_lsn = assembler.gathered, assembler.end_lsn
        while at < len(frames):
            at, due = assembler.take(frames, at)
            if due:
                self._cut()
            elif at < len(frames):
                self._control(frames[at])
                at += 1
        failpoints.hit("transaction_gathered", assembler.gathered - gathered)
        received = assembler.end_lsn if assembler.end_lsn > end_lsn else 0
        received = max(received, _wal_end(frames))
        if received:
            self._feedback.note_received(received)
            self._progress.set_position(received=received)
        if self._oldest is None and self._assembler.transactions:
            self._oldest = time.monotonic()
        self._gather(len(frames.data))
        return True

    def _gather(self, size: int) -> None:
        """Sleep after a short read. ``size``: its bytes."""
        now = time.monotonic()
        elapsed, self._read_at = now - self._read_at, now
        if size >= _SHORT_READ_BYTES:
            return
        if size < _MUCH_BYTES * elapsed:
            time.sleep(_GATHER_SECONDS)
        else:
            time.sleep(min(_GATHER_MUCH_SECONDS, elapsed * _GATHER_BYTES / size))

    def _listen(self, reading: bool) -> None:
        """Raises TransientError when the server is gone without a word (a half-open connection)."""
        now = time.monotonic()
        self._feedback.note_heard(self._stream.heard_at if reading else now)
        if self._feedback.is_silent(now):
            raise self._stream.silence_error()

    def _control(self, frame: bytes) -> None:
        message = parse(frame)
        assert isinstance(message, Keepalive)  # an XLogData without payload is a ProtocolError in ``parse``
        self._feedback.keepalive(
            message.wal_end,
            reply_requested=message.reply_requested,
            in_transaction=self._assembler.open,
            received_end=self._assembler.end_lsn,
        )
        self._progress.set_position(server=message.wal_end)

    def _cut(self) -> None:
        """Hand over the whole transactions, then what has come of an oversized open one."""
        block = self._assembler.cut()
        if block is not None:
            self._handover.put(block)
        if self._assembler.oversized:
            self._handover.put(self._assembler.spill())
        self._oldest = None

    def _hand_over(self, now: float) -> None:
        """Epochs are cut when full (``_read``), or after the linger once the append side has nothing to do."""
        if self._oldest is None or not self._handover.idle:
            return
        if now - self._oldest >= self._linger() or self._handover.is_full(self._assembler.pending_bytes):
            self._cut()

    def _linger(self) -> float:
        return linger_of(self._declared_linger, self._handover.append_seconds)

    def _count_dropped(self) -> None:
        """Messages outside of transactions are not captured. However many come, they are one item of the queue."""
        dropped = self._assembler.dropped_messages - self._dropped
        forged = self._assembler.forged_messages - self._forged
        if dropped > forged:
            self._progress.add_ignored(Counter({"message outside of a transaction": dropped - forged}))
        if forged:
            self._handover.put(ForgedMessages(forged))
        self._dropped, self._forged = self._dropped + dropped, self._forged + forged

    def _store_idle_position(self, now: float) -> None:
        if not self._handover.idle or self._assembler.transactions:
            return
        lsn = self._feedback.through_position(now)
        if lsn is not None:
            self._handover.put(ThroughPosition(lsn))

    def _confirm(self, now: float) -> None:
        status = self._feedback.next_status(now)
        if status is None:
            return
        flush = status.flush if self._confirms else _NOTHING
        self._stream.send(status_update(status.write, flush, flush, datetime.now(UTC), reply=status.reply))
        self._progress.set_position(confirmed=flush, durable=status.flush, queued=self._handover.bytes)
        if status.flush > self._sent_flush:
            self._sent_flush = status.flush
            failpoints.hit("position_confirmed")

    def _wait(self, reading: bool, now: float) -> None:
        timeout = min(_WAIT_SECONDS, self._interval / 2)
        if self._oldest is not None and self._handover.idle:
            timeout = min(timeout, max(0.0, self._linger() - (now - self._oldest)))
        sources: list[Frames | Handover] = [self._handover]
        if reading:
            sources.append(self._stream)
        readable(sources, timeout)

    def _finish(self) -> None:
        """Clean stop: append the whole transactions that came, confirm them, end the copy."""
        self._drain(self._confirm)
        self._confirm(time.monotonic())
        self._stream.finish()

    def _drain(self, confirm: Callable[[float], None] = lambda now: None) -> None:
        """Have the whole transactions that came appended."""
        self._count_dropped()
        block = self._assembler.cut()
        if block is not None:
            self._handover.put(block)
        deadline = time.monotonic() + _DRAIN_SECONDS
        while not self._handover.drain(min(self._interval, 1.0)) and time.monotonic() < deadline:
            self._feedback.note_durable(self._handover.durable_position())
            confirm(time.monotonic())
        self._feedback.note_durable(self._handover.durable_position())
