"""Topics of the log as they grow: a record for each row, in the publication's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata.publications import record_need
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.publishing.feed import FeedPortion
from tailrace.eventstore.publishing.formats.formats import FORMATS
from tailrace.eventstore.publishing.parked import ParkedKey, behind_rows, topic_of, waiting_records
from tailrace.eventstore.publishing.portions import PortionLimits, key_portions, portions
from tailrace.eventstore.publishing.position import Position, require_ours
from tailrace.eventstore.publishing.records import EpochRows, Published, TopicRecords
from tailrace.eventstore.settings import PublicationSettings
from tailrace.eventstore.subscriptions.filter import check_topics, matching_topics


class LogFeed:
    """``name`` is the publication's."""

    def __init__(self, log: Log, name: str, settings: PublicationSettings) -> None:
        self._log = log
        self._name = name
        self._settings = settings

    def begin(self, found: Position | None, place: str) -> Position:
        check_topics(self._log, self._settings.topics)
        position = found or Position(self._log.log_id)
        require_ours(self._log, position, self._name, place)
        return position

    def portions(
        self, position: Position, limits: PortionLimits, require_apart: Callable[[Sequence[Published]], None]
    ) -> Iterator[FeedPortion]:
        head = self._log.head()
        if head is None or head.epoch == position.whole_epoch:
            return
        topics = self._topics()
        require_apart([each.id for each in topics])
        for portion in portions(self._log, topics, position, head.epoch, limits):
            (info,) = self._log.epochs(portion.epoch - 1, 1)
            behind = Position(self._log.log_id, info.epoch, info.hash, portion.inside)
            yield FeedPortion(self._records(portion.rows), behind)

    def waiting(
        self, parked: ParkedKey, position: Position, bytes_max: int
    ) -> Iterator[tuple[list[TopicRecords], ParkedKey | None]]:
        topic = self._log.topic(topic_of(parked))
        found: list[EpochRows] = []
        for following in key_portions(self._log, topic, parked, position.whole_epoch, bytes_max):
            if found:
                yield self._waiting(found, parked), behind_rows(parked, found[-1].rows)
            found = following
        yield self._waiting(found, parked), None

    def _waiting(self, found: Sequence[EpochRows], parked: ParkedKey) -> list[TopicRecords]:
        return [waiting_records(made, parked) for made in self._records(found)]

    def replaced(self, records: Sequence[TopicRecords], parked: Sequence[ParkedKey]) -> list[ParkedKey]:
        return []

    def tell(self, committed: Position, parked: Sequence[ParkedKey]) -> None:
        waiting: dict[str, int] = {}
        for each in parked:
            waiting[each.topic] = min(each.after_epoch, waiting.get(each.topic, each.after_epoch))
        wanted = self._settings
        epoch, seconds = committed.whole_epoch, wanted.retention_waits
        record_need(self._log.groups_database, self._name, wanted.topics, epoch, waiting, seconds)

    def _records(self, found: Sequence[EpochRows]) -> list[TopicRecords]:
        make = FORMATS[self._settings.format].records
        schemas = {
            topic: {schema.version: schema for schema in self._log.schemas(topic)}
            for topic in {each.topic for each in found}
        }
        return [TopicRecords(each.topic, make(each, schemas[each.topic][each.version])) for each in found]

    def _topics(self) -> list[TopicInfo]:
        """The topics of now that match. Raises UsageError for one that the format has no form for."""
        found = matching_topics(self._log, self._settings.topics)
        kind = FORMATS[self._settings.format].kind
        for each in found:
            if each.kind != kind:
                raise UsageError(
                    f"publication {self._name}: {each.id} is of the kind {each.kind.value}, and the format "
                    f"{self._settings.format} is for topics of the kind {kind.value}",
                    hint=f'leave it out of publish.{self._name}.topics with "!{each.id}"',
                )
        return found
