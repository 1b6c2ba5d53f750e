"""Logical messages of our own in front of recorder and decoder: only those that are ours pass.

Any role may emit a logical message with any prefix. So of those with our prefix

    a DDL description, an emitted event
                       passes when its secret has signed it (``tailrace.cdc.wire.authentic``), without the
                       signature. One with an unknown signature has the secrets read again, once for all transactions
                       that were visible then: they may be new. Without a secret none passes
    a mark of a load   passes when a load of this session waits for it: it is 16 random bytes that nobody else knows
    anything else      never passes. Those outside of transactions do not come here (``tailrace.cdc.stream.assemble``)

What does not pass is counted, and has no other effect.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from tailrace.cdc.snapshot.chunk_apply import BEGIN_PREFIX, CHUNK_PREFIX
from tailrace.cdc.snapshot.chunk_merge import PgSnapshot
from tailrace.cdc.wire import authentic, ddl_message, emitted, pgoutput
from tailrace.cdc.wire.block import FrameBlock, PartialBlock
from tailrace.eventstore.errors import ProtocolError, TransientError

AnyBlock = TypeVar("AnyBlock", bound=FrameBlock | PartialBlock)
ReadSecrets = Callable[[], tuple[Mapping[str, bytes], str]]
"""Secrets that may be trusted, by the prefix of their messages, and ``pg_current_snapshot()`` of that moment."""

MARKS = "marks of loads that are not this session's"
OUTSIDE = "messages outside of transactions with a prefix of Tailrace's"
_SIGNED = {ddl_message.PREFIX: "DDL descriptions", emitted.PREFIX: "emitted events"}
_MARK_BYTES = 16
_XID = slice(17, 21)  # of a Begin
_VISIBLE_SECONDS = 10.0
_POLL_SECONDS = 0.05


class OwnMessages:
    """Filters the blocks of one session, in order. ``waits``: whether a load waits for a mark with this content."""

    def __init__(self, read_secrets: ReadSecrets, waits: Callable[[bytes], bool]) -> None:
        self._read_secrets = read_secrets
        self._waits = waits
        self._secrets: Mapping[str, bytes] = {}
        self._known: PgSnapshot | None = None
        self._last = (-1, 0)  # transaction and LSN of the last one that passed by its signature

    def filter(self, block: AnyBlock) -> tuple[AnyBlock, Counter[str]]:
        """The block as recorder and decoder may see it, and what was left out, by kind. Raises what reading the secret
        raises."""
        refused: Counter[str] = Counter()
        data = np.frombuffer(block.data, np.uint8)
        ends = np.frombuffer(block.ends, np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
        tags = data[starts]
        changed: dict[int, bytes] = {}
        begins = np.flatnonzero(tags == ord("B"))
        for at in np.flatnonzero(tags == ord("M")).tolist():
            start, end = int(starts[at]), int(ends[at])
            frame = bytes(block.data[start:end])
            if not authentic.claims_to_be_ours(frame):
                continue
            before = int(np.searchsorted(begins, at)) - 1
            if before >= 0:
                begin = int(starts[begins[before]])
                xid = int.from_bytes(bytes(block.data[begin + _XID.start : begin + _XID.stop]), "big")
            else:
                xid = block.continues or 0
            passed, kind = self._pass(frame, xid)
            if kind:
                refused[kind] += 1
            if passed != frame:
                changed[at] = passed
        if changed:
            _replace(block, starts.tolist(), changed)
        return block, refused

    def _pass(self, frame: bytes, xid: int) -> tuple[bytes, str]:
        """The frame as it passes (b"": not at all), and what it is counted as when it does not."""
        try:
            message = pgoutput.decode(frame)
        except ProtocolError:
            return frame, ""  # the decoder says what is wrong with it
        assert isinstance(message, pgoutput.Message)
        if message.prefix in (BEGIN_PREFIX, CHUNK_PREFIX):
            waited = len(message.content) == _MARK_BYTES and self._waits(message.content)
            return (frame, "") if waited else (b"", MARKS)
        what = _SIGNED.get(message.prefix)
        if what is None:
            return b"", "messages with a prefix of Tailrace's"
        body = self._verify(message, xid)
        if body is None:
            return b"", f"{what} without a valid signature"
        self._last = (xid, message.lsn)
        head = frame[: len(frame) - len(message.content) - 4]
        return head + len(body).to_bytes(4, "big") + body, ""

    def _verify(self, message: pgoutput.Message, xid: int) -> bytes | None:
        after = self._last[1] if self._last[0] == xid else 0
        while True:
            secret = self._secrets.get(message.prefix)
            if secret is not None:
                body = authentic.verify(
                    message.content, secret, message.prefix, xid=xid, after=after, lsn=message.lsn
                )
                if body is not None:
                    return body
            if self._known is not None and self._known.sees(np.array([xid], np.int64)).all():
                return None
            self._read(xid)

    def _read(self, xid: int) -> None:
        """A commit is in the stream before it is visible: a secret may be the work of this very transaction."""
        deadline = time.monotonic() + _VISIBLE_SECONDS
        while True:
            self._secrets, text = self._read_secrets()
            self._known = PgSnapshot.parse(text)
            if self._known.sees(np.array([xid], np.int64)).all():
                return
            if time.monotonic() > deadline:
                raise TransientError(
                    f"transaction {xid} is in the stream and not visible yet in the source",
                    hint="does a synchronous standby answer? Capture tries again",
                )
            time.sleep(_POLL_SECONDS)


def _replace(block: FrameBlock | PartialBlock, starts: list[int], changed: dict[int, bytes]) -> None:
    """Put other frames into a block, or none."""
    data, ends, kept = bytearray(), array("q"), 0
    for number, end in enumerate(block.ends):
        frame = changed.get(number)
        if frame == b"":
            data += block.data[kept : starts[number]]
            kept = end
            continue
        if frame is not None:
            data += block.data[kept : starts[number]]
            data += frame
            kept = end
        ends.append(len(data) + (end - kept))
    data += block.data[kept:]
    block.data, block.ends = bytes(data), ends
