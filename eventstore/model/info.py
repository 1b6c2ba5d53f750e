"""What the catalog knows of an epoch, a source, a topic."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.topic import TopicId, TopicKind

# Why the state of a topic is not known, where it will not be known by itself.
LEFT = "left the publication"
MISMATCH = "its publication loses changes"
DROPPED = "its table was dropped"
RETIRED = "retired: nothing more is captured of it"


@dataclass(frozen=True, slots=True)
class EpochInfo:
    """One visible epoch. ``hash`` chains over its content and the previous epoch's hash."""

    epoch: int
    source: str
    commit_lsn: int
    end_lsn: int
    commit_ts: datetime | None
    rows: int
    hash: str


@dataclass(frozen=True, slots=True)
class SourceState:
    """How far a source is in the log (row ``sources``)."""

    name: str
    incarnation: int
    term: int
    commit_lsn: int
    end_lsn: int
    through_lsn: int
    system_id: str
    timeline: int
    repairing: bool  # a repair was begun and has not finished: nothing may be streamed
    slot: str
    publication: str
    loaded: bool  # the first load has been committed: there is a position to resume from


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the catalog knows it. ``complete_since`` is the epoch from which its state is known, None while it
    is incomplete (``reason`` says why). ``published`` is what its source must still say of it for that to hold."""

    id: TopicId
    kind: TopicKind
    partitioning: Partitioning
    version: int
    complete_since: int | None
    reason: str
    published: str = ""

    @property
    def partitions(self) -> int:
        """How many its rows are spread over now."""
        return self.partitioning.current.count

    @property
    def is_retired(self) -> bool:
        """Whether it was given up: its history stays, and nobody waits for more."""
        return self.complete_since is None and self.reason == RETIRED


@dataclass(frozen=True, slots=True)
class InheritedPolicy:
    """The policy that a table's column ``number`` (its attnum) has from ``name``: of its root's column, or its own."""

    number: int
    policy: str
    name: tuple[str, str, str]
