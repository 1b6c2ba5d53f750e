"""What the append side of a session knows of a load that runs beside the stream, whichever of the two kinds it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tailrace.cdc.columnar.decode import ControlMessage
from tailrace.eventstore.model.epoch import EpochBatch, Load, LoadStep, TopicRows
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId

Versions = Mapping[tuple[TopicId, int], TopicSchema]


@dataclass(slots=True)
class LoadOutput:
    """What loads add to one epoch: rows of their topics, and the progress that these rows mean. ``after_commit`` is
    called once the epoch is in the log."""

    rows: list[TopicRows] = field(default_factory=list)
    begins: list[Load] = field(default_factory=list)
    published: list[tuple[TopicId, str]] = field(default_factory=list)
    steps: list[LoadStep] = field(default_factory=list)
    after_commit: list[Callable[[], None]] = field(default_factory=list)


class TopicLoad(Protocol):
    """The load of some topics beside a running stream. Each topic goes through

        waiting    the load has not begun: rows of the stream are held back, or dropped because the load will read them
        appending  (chunks only) rows of the stream are appended with the chunks between them, so a change that puts
                   them in doubt suspends the topic
        ready      everything is read; the epoch of ``batch`` completes the topic, which leaves ``topics``

    ``start`` and ``close`` are called by the session, everything else by the append thread."""

    @property
    def topics(self) -> Collection[TopicId]:
        """The topics that are not complete yet."""

    def start(self) -> None: ...

    def close(self) -> None: ...

    def waits_for(self, mark: bytes) -> bool:
        """Whether it waits for a mark with this content."""

    def appends(self, topic: TopicId) -> bool:
        """Whether the stream's rows of this topic are appended already."""

    def take(self, rows: Sequence[TopicRows], control: Sequence[ControlMessage], output: LoadOutput) -> None:
        """Take the load's topics out of the rows of a block, in commit order; what may be appended goes to
        ``output``."""

    def take_part(self, rows: TopicRows) -> bool:
        """Take rows of a transaction that has not committed yet. Whether they are to be written."""

    def keep_version(self, topic: TopicId, schema: TopicSchema) -> None:
        """The stream brought a version of a topic that is not appended yet."""

    def doubt(self, topic: TopicId, lsn: int) -> None:
        """The commit at ``lsn`` may have changed rows of a topic that is not appended yet, without saying which."""

    def ready(self, through_lsn: int) -> bool:
        """Whether topics can be completed in a log that has all commits below ``through_lsn``. Raises what ended the
        load."""

    def batch(self, state: SourceState, unstored: Versions) -> EpochBatch:
        """The epoch that completes topics. ``unstored`` are versions seen in the stream that the log does not have.
        Raises TopicsChanged when a table must be read again."""
