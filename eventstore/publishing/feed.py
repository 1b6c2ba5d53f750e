"""What a publisher sends: a feed knows where its rows are, and makes records of them, a portion at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.eventstore.publishing.parked import ParkedKey
from tailrace.eventstore.publishing.portions import PortionLimits
from tailrace.eventstore.publishing.position import Position
from tailrace.eventstore.publishing.records import Published, TopicRecords


@dataclass(frozen=True, slots=True)
class FeedPortion:
    """What one transaction of the destination takes, and the position behind it. Without records it need not be
    stored at once."""

    records: Sequence[TopicRecords]
    position: Position


class Feed(Protocol):
    """``LogFeed``, or the result of a projection."""

    def begin(self, found: Position | None, place: str) -> Position:
        """Where to go on from, given what the destination keeps in its ``place``. Raises OperatorError when that is of
        something else, UsageError when there is nothing to publish from."""
        ...

    def portions(
        self, position: Position, limits: PortionLimits, require_apart: Callable[[Sequence[Published]], None]
    ) -> Iterator[FeedPortion]:
        """What is behind a position by now; ``require_apart`` is asked before anything is read. Raises HistoryGone when
        what is behind it is not kept any more."""
        ...

    def waiting(
        self, parked: ParkedKey, position: Position, bytes_max: int
    ) -> Iterator[tuple[list[TopicRecords], ParkedKey | None]]:
        """The records of a parked key up to a position, in portions of about so many bytes; with each, what waits
        behind it (None: nothing does). There is at least one."""
        ...

    def replaced(self, records: Sequence[TopicRecords], parked: Sequence[ParkedKey]) -> list[ParkedKey]:
        """The parked keys of which these records say all there is: what waited need not be sent any more."""
        ...

    def tell(self, committed: Position, parked: Sequence[ParkedKey]) -> None:
        """Tell the store what is published and what waits, so that what is not published yet stays."""
        ...
