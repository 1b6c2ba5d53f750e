"""A publication over a bridge: records are sent until each is taken, then their position is committed in our catalog.

A crash in between sends them again, with the same ids. In this process none is: what was taken, or refused for good, is
remembered until the commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.publishing.bridges.bridge import Answer, Bridge, Later, Refused
from tailrace.eventstore.publishing.bridges.delivery import deliver
from tailrace.eventstore.publishing.bridges.kept import PLACE, Kept
from tailrace.eventstore.publishing.bridges.messages import Messages, Outgoing
from tailrace.eventstore.publishing.parked import NotTaken, ParkedKey
from tailrace.eventstore.publishing.position import Position
from tailrace.eventstore.publishing.records import Published, TopicRecords
from tailrace.eventstore.settings import MIB, PublicationSettings

OpenBridge = Callable[[], Bridge]
_PAUSE_SECONDS = (0.5, 30.0)  # the first between two tries, and the longest


class BridgeSession:
    """One publisher's hold on a publication. ``patience_seconds``: how long it waits between two messages that are
    taken; None: until ``stop`` is set. ``note`` gets a line for people."""

    place = PLACE
    portion_bytes = MIB

    def __init__(
        self,
        log: Log,
        name: str,
        settings: PublicationSettings,
        open_bridge: OpenBridge,
        *,
        stop: threading.Event,
        note: Callable[[str], None] = lambda _: None,
        patience_seconds: float | None = None,
    ) -> None:
        self._name = name
        self._messages = Messages(log.log_id, name, settings)
        self._open = open_bridge
        self._stop = stop
        self._note = note
        self._patience = patience_seconds
        self._waited = self._pause_seconds = 0.0
        self._known: dict[str, Answer] = {}
        self._bridge: Bridge | None = open_bridge()
        try:
            self._kept = Kept(log.catalog, name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._bridge is not None:
            self._bridge.close()
            self._bridge = None

    def state(self) -> tuple[Position | None, list[ParkedKey]]:
        return self._kept.state()

    def require_apart(self, topics: Sequence[Published]) -> None:
        """Each message says of which topic it is."""

    def publish(
        self,
        records: Sequence[TopicRecords],
        position: Position,
        parked: Sequence[ParkedKey] = (),
        released: Sequence[ParkedKey] = (),
        dead: Sequence[TopicRecords] = (),
    ) -> None:
        """Raises TransientError when ``stop`` is set, or the patience is over, before all was taken. There are no
        ``dead`` letters here."""
        outgoing = list(self._messages.of(records))
        self._raise_refused(outgoing)
        deliver([each for each in outgoing if each.message.id not in self._known], self._send, self._wait)
        self._raise_refused(outgoing)
        failpoints.hit("portion_sent")
        self._kept.commit(position, parked, released)
        self._known.clear()

    def _raise_refused(self, outgoing: Sequence[Outgoing]) -> None:
        """All of them at once: nothing behind them was sent, so they are of different keys."""
        found: list[NotTaken] = []
        for each in reversed(outgoing):
            answer = self._known.get(each.message.id)
            if isinstance(answer, Refused):
                found.append(NotTaken(each.records, each.row, answer.reason, hint=answer.hint))
        if found:
            *others, first = found
            first.others = others[::-1]
            raise first

    def _send(self, batch: Sequence[Outgoing]) -> Sequence[Answer]:
        if self._stop.is_set():
            raise TransientError(f"publication {self._name}: stopped", hint="start it again")
        self._kept.require()
        answers = self._answers(batch)
        for each, answer in zip(batch, answers, strict=True):
            if not isinstance(answer, Later):
                self._known[each.message.id] = answer
        failpoints.hit("batch_sent")
        return answers

    def _answers(self, batch: Sequence[Outgoing]) -> Sequence[Answer]:
        try:
            if self._bridge is None:
                self._bridge = self._open()
            answers = self._bridge.send([each.message for each in batch])
        except TransientError as error:
            self.close()
            return [Later(error.message)] * len(batch)
        if len(answers) != len(batch):
            raise OperatorError(
                f"publication {self._name}: the bridge gave {len(answers)} answers for {len(batch)} messages",
                hint="a bridge of your own gives one for each: tailrace.testing.BridgeContract",
            )
        return answers

    def _wait(self, answer: Later, progress: bool) -> None:
        first, longest = _PAUSE_SECONDS
        if progress:
            self._waited = self._pause_seconds = 0.0
        self._pause_seconds = min(longest, max(first, 2 * self._pause_seconds))
        seconds = max(self._pause_seconds, answer.after_seconds)
        self._waited += seconds
        if self._patience is not None and self._waited > self._patience:
            raise TransientError(
                f"publication {self._name}: {answer.reason}", hint="nothing is lost: start it again later"
            )
        self._note(f"{answer.reason}; trying again in {seconds:g} s")
        self._stop.wait(seconds)
