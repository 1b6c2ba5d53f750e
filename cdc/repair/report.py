"""What a repair finds about a topic, and what it appends to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId


@dataclass(frozen=True, slots=True)
class TopicRepair:
    """The result for one topic. Rows ``added`` were missing in the log, ``changed`` differed, ``deleted`` were gone
    from the source. ``erased``: rows with cells that stay erased although the source has a value in them. ``whole``:
    why the table was read again instead of compared; ``skipped``: why it was neither."""

    topic: TopicId
    rows: int = 0
    added: int = 0
    changed: int = 0
    deleted: int = 0
    erased: int = 0
    whole: str = ""
    skipped: str = ""

    @property
    def equal(self) -> bool:
        return not (self.added or self.changed or self.deleted or self.whole or self.skipped)


@dataclass(slots=True)
class TopicCorrections:
    """One topic's part of the epoch that repairs the source."""

    repair: TopicRepair
    files: list[PreparedSegment] = field(default_factory=list)
    schema: TopicSchema | None = None
    """The version the rows are in, when it is a new one."""
    published: str = ""
    """How the snapshot has its table published (``tailrace.cdc.postgres.publication``)."""
