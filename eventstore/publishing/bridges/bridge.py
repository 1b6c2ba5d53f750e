"""What a bridge is: it sends messages to one system, and says of each what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Message:
    """One record on its way. A message that is sent again has the same ``id``, whatever happened in between."""

    id: str
    """32 letters and digits; no other message of any store has it."""
    name: str
    """What the publication's ``topic`` makes of the log's topic: letters, digits, ``.``, ``_`` and ``-``."""
    topic: str
    """Of the log: ``shop.public.orders``."""
    place: str
    """Where its row is in the topic: ``PARTITION/OFFSET``. Offsets grow in the order of each key."""
    key: bytes | None
    value: bytes | None
    """None: with ``rows``, the row is gone."""
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """The system has it, and will still have it after a crash of its own."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The system will never take this message as it is: it is parked, and its key waits. ``hint``: what to do."""

    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class Later:
    """Not taken, or not known to be: the same message may be sent again, not before ``after_seconds``."""

    reason: str
    after_seconds: float = 0.0


Answer: TypeAlias = Taken | Refused | Later
TAKEN = Taken()


class Bridge(Protocol):
    """A connection to one system. Opening one raises TransientError when the system is out of reach, and OperatorError
    when somebody has to act."""

    def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        """Send them, in any order and side by side: no two have the same key. Gives an answer for each, once all are
        known. Raises TransientError when the connection is lost: what was not known to be taken is sent again, over a
        new bridge. Raises OperatorError when nothing more can be sent before somebody has acted."""

    def check(self) -> None:
        """Whether the system answers, without sending a message. Raises as ``send`` does."""

    def close(self) -> None: ...
