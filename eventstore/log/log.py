"""The log as readers see it: what is in it, its rows up to a position, and the epochs that come."""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
from sqlalchemy import Connection, select

from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.catalog.database import Catalog, retry_on_missing_file
from tailrace.eventstore.catalog.open import open_groups
from tailrace.eventstore.catalog.requests import Requests
from tailrace.eventstore.log import follow
from tailrace.eventstore.log.as_of import resolve
from tailrace.eventstore.log.one_look import OneLook, asked_once
from tailrace.eventstore.log.reader import Selection, TopicReader
from tailrace.eventstore.log.state_segments import KnownStates, StateReader
from tailrace.eventstore.log.wakeup import Waker, waker_of
from tailrace.eventstore.metadata import archived, log_start, segment_index, topics
from tailrace.eventstore.metadata.archived import ArchivedFile
from tailrace.eventstore.metadata.epochs import EpochFilter
from tailrace.eventstore.metadata.generations import DerivedCatalog
from tailrace.eventstore.metadata.log_start import LogStart
from tailrace.eventstore.metadata.projection_steps import ProjectionSteps
from tailrace.eventstore.metadata.run_records import RunRecords
from tailrace.eventstore.model.info import EpochInfo, SourceState, TopicInfo
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.storage import Storage
from tailrace.eventstore.storage.open import open_place
from tailrace.eventstore.streams.database.key_places import KeyPlace

POLL_SECONDS = 1.0


class Log:
    """An open log: its catalog, its storage, and what can be read of both.

    Whatever works on a log takes a ``Log``; ``Store`` adds what users start from here. Threads may share it.
    """

    def __init__(
        self, settings: StoreSettings, catalog: Catalog, storage: Storage, spool: Path, root: Path
    ) -> None:
        self.settings = settings
        self.root = root  # relative folders of the settings begin here
        self.spool = spool  # a folder of this machine for what a crash may lose; it may not be there yet
        self.catalog = catalog
        self.storage = storage
        self.waker: Waker = waker_of(catalog)
        self.derived = DerivedCatalog(catalog)
        self.steps = ProjectionSteps(catalog)
        self.run_records = RunRecords(catalog)
        self.requests = Requests(catalog)
        with catalog.read() as connection:
            self.log_id: str = connection.execute(select(tables.log.c.log_id)).scalar_one()
        self.look = OneLook()
        self._known_states = KnownStates()
        self._groups: Catalog | None = None
        self._groups_lock = threading.Lock()

    def close(self) -> None:
        if self._groups is not None:
            self._groups.close()
        self.catalog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # what is in it

    def head(self) -> EpochInfo | None:
        """The last visible epoch; None in an empty log."""
        with self.catalog.read() as connection:
            head = topics.head_epoch(connection)
        return self.epoch(head) if head else None

    @asked_once
    def epoch(self, number: int) -> EpochInfo | None:
        """One epoch; None when the log has no such, or not any more."""
        found = self.epochs(number - 1, 1)
        return found[0] if found and found[0].epoch == number else None

    def epochs(
        self, after: int = 0, limit: int = 1000, topics: Sequence[TopicId | str] | None = None
    ) -> list[EpochInfo]:
        """Up to ``limit`` visible epochs after ``after`` (of these topics, if named), in order, without gaps."""
        return follow.page(
            self.catalog, self.storage, EpochFilter(after=after, topics=self._ids_of(topics)), limit
        )

    def sources(self) -> list[SourceState]:
        with self.catalog.read() as connection:
            rows = connection.execute(select(tables.sources).order_by(tables.sources.c.name)).all()
        return [topics.source_state(row) for row in rows]

    def source(self, name: str) -> SourceState | None:
        with self.catalog.read() as connection:
            row = topics.source_row(connection, name)
        return None if row is None else topics.source_state(row)

    def keys_of(self, source: str) -> KeyPlace | None:
        """Where the keys of a source's personal values are, if settings say."""
        url = self.settings.keys.get(source)
        return None if url is None else KeyPlace(url)

    def topics(self, source: str | None = None) -> list[TopicInfo]:
        which = () if source is None else (tables.topics.c.source == source,)
        with self.catalog.read() as connection:
            return topics.topic_infos(connection, *which)

    @asked_once
    def topic(self, topic: TopicId | str) -> TopicInfo:
        """One topic, by its name ("shop.public.customer") or identity. Raises UsageError, with names that come close,
        when the log has no such topic."""
        wanted = TopicId.of(topic)
        with self.catalog.read() as connection:
            found = topics.topic_infos(connection, tables.topics.c.name == wanted.text)
            if not found:
                raise topics.unknown_topic(connection, wanted)
            return found[0]

    @asked_once
    def schemas(self, topic: TopicId | str) -> list[TopicSchema]:
        """All versions, oldest first. Raises UsageError for an unknown topic."""
        topic_id = self._topic_id(topic)
        with self.catalog.read() as connection:
            return topics.schemas(connection, topic_id)

    @asked_once
    def schemas_at(self, topic: TopicId | str, cut: Cut) -> list[TopicSchema]:
        """Versions that hold at the cut or before it, oldest first. Raises UsageError for an unknown topic."""
        topic_id = self._topic_id(topic)
        below = cut.below_lsn.get(TopicId.of(topic).source)
        with self.catalog.read() as connection:
            found = topics.schemas(connection, topic_id, until=cut.epoch)
        return [schema for schema in found if below is None or schema.from_lsn < below]

    @asked_once
    def require_complete(self, topic: TopicId | str, cut: Cut) -> None:
        """Raises IncompleteTopic when the topic's state is not known at the cut (first load, repair)."""
        topic_id = self._topic_id(topic)
        with self.catalog.read() as connection:
            topics.require_complete(connection, TopicId.of(topic), topic_id, cut)

    def require_history(self, topic: TopicId | str, cut: Cut) -> None:
        """Raises HistoryGone when retention removed rows behind the cut."""
        wanted = TopicId.of(topic)
        topic_id = self._topic_id(wanted)
        with self.catalog.read() as connection:
            start = log_start.read(connection, topic_id)
            if not start.has(wanted, cut):
                raise log_start.history_gone(connection, self.storage, wanted, start)

    # reading

    def cut(self, as_of: str | int | datetime | None = None) -> Cut:
        """Where a position is in the log: None = the head, an epoch, an LSN (``0/16B3748`` of the only source or
        ``SOURCE=0/16B3748``: transactions that committed below it), or a time (naive = UTC: up to the last position
        before the first commit later than it). Raises UsageError for one that is beyond the head or none at all."""
        if isinstance(as_of, int):
            found: Cut = self.look.answer(("cut", as_of), lambda: resolve(self.catalog, self.storage, as_of))
            return found
        return resolve(self.catalog, self.storage, as_of)

    def wait_for(self, position: str | int, *, timeout: float = 10.0) -> int:
        """Wait until the log holds everything up to a position, an epoch or an LSN (``0/16B3748``, ``SOURCE=0/16B3748``
        where there are several sources), such as ``tailrace.position`` gives; the epoch that it is in.

        ``timeout`` is in seconds; 0 looks once. Raises NotYet when the time is over, UsageError for what is no such
        position: of no time anybody knows whether all that committed before it has come.
        """
        return follow.wait_for(self.cut, self.waker, position, timeout).epoch

    @asked_once
    def segments(self, topic: TopicId | str, cut: Cut, after_epoch: int = 0) -> list[SegmentRef]:
        """References to all rows of a topic after an epoch (0: from its start) and up to a cut, in epoch order, blobs
        inlined. Raises HistoryGone when retention removed some of them.

        Read each with ``segment.read_segment``, which drops what lies outside. Holds the plain bytes of all small
        epochs: for long ranges of an unsealed log use ``read``, which goes by pages. Their files stay for
        ``upkeep.keep_seconds`` when they are replaced; to read them later, resolve inside ``pinned``.
        """
        return self._reader(topic).segments(cut, after_epoch)

    @asked_once
    def state_segments(self, topic: TopicId | str, cut: Cut, *, every_row: bool = False) -> list[SegmentRef]:
        """References to rows that make a topic's state at a cut, in its order: those of its state runs up to there, and
        all of the epochs for which there is none. ``every_row``: only the run in place of rows that are gone. Raises
        HistoryGone for a cut before the topic's start."""
        wanted = TopicId.of(topic)
        reader = StateReader(self.catalog, self.storage, wanted, self._topic_id(topic))
        if self.look.is_taken and not every_row and not cut.below_lsn:
            return [*self._known_states.segments(reader, cut).refs]
        return [*reader.segments(cut, every_row=every_row).refs]

    @asked_once
    def log_start(self, topic: TopicId | str) -> LogStart:
        """Where the topic's rows begin since retention removed earlier ones; epoch 0: nothing was removed."""
        topic_id = self._topic_id(topic)
        with self.catalog.read() as connection:
            return log_start.read(connection, topic_id)

    def files(self, topic: TopicId | str) -> list[SegmentRef]:
        """Sealed and large files of a topic, in its order, for readers of their own (``storage.place`` is where one
        is). What is newer than the last ``seal`` is in the catalog. They stay for ``upkeep.keep_seconds`` after they
        were replaced."""
        wanted = TopicId.of(topic)
        topic_id = self._topic_id(wanted)
        table = tables.segments
        query = select(table).where(table.c.topic_id == topic_id).order_by(table.c.first_row)
        with self.catalog.read() as connection:
            return [segment_index.file_ref(wanted, row) for row in connection.execute(query)]

    def archived_files(self, topic: TopicId | str) -> list[ArchivedFile]:
        """Files that were copied to an archive before retention removed their rows, in the topic's order."""
        wanted = TopicId.of(topic)
        topic_id = self._topic_id(wanted)
        with self.catalog.read() as connection:
            return archived.read(connection, wanted, topic_id, self.archive)

    def archive(self, place: str) -> Storage:
        """The storage of an archive, as the topics' settings and ``ArchivedFile.archive`` name it."""
        return open_place(place, self.settings.s3, self.root)

    def read(
        self,
        topic: TopicId | str,
        *,
        after_epoch: int = 0,
        cut: Cut | None = None,
        partitions: Collection[int] | None = None,
        offsets: Mapping[int, tuple[int, int]] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a topic in epoch order, within an epoch by (partition, offset), up to the cut (default: the head).

        Batches have the columns of ``segment.stored_schema`` of their version, or those named, in that order; the
        version is in the schema metadata (``tailrace:version``). ``offsets`` restricts to partitions and half-open
        offset ranges: ``{0: (first, end)}``. ``after_epoch`` 0 begins where the topic does (``log_start``; a compacted
        one with what is left of its first rows, by partition in offset order). Raises UsageError for an unknown topic,
        HistoryGone when retention removed what is asked for, IntegrityError naming what is damaged.
        """
        reader = self._reader(topic)
        if offsets is not None:
            partitions = set(offsets) & set(offsets if partitions is None else partitions)
        end = self.cut() if cut is None else cut
        return reader.read(Selection(end, partitions, offsets, columns), after_epoch)

    def removed_until(self, topic: TopicId | str) -> datetime | None:
        """Commit time (UTC) of the last epoch whose rows of the topic retention removed; None when it removed none."""
        topic_id = self._topic_id(topic)

        def moment(connection: Connection) -> datetime | None:
            return log_start.moment(connection, self.storage, log_start.read(connection, topic_id))

        return retry_on_missing_file(self.catalog, moment)

    def follow(
        self,
        topics: Sequence[TopicId | str] | None = None,
        *,
        after_epoch: int,
        timeout: float | None = None,
        poll: float = POLL_SECONDS,
    ) -> Generator[EpochInfo, None, None]:
        """Epochs after ``after_epoch`` (of these topics, if named) as they become visible, in order.

        Ends when ``timeout`` seconds pass without one; None = never. A commit wakes it; every ``poll`` seconds it
        looks by itself.
        """
        which = EpochFilter(after=after_epoch, topics=self._ids_of(topics))
        yield from follow.follow(self.catalog, self.storage, self.waker, which, timeout, poll)

    def _ids_of(self, topics: Sequence[TopicId | str] | None) -> frozenset[int] | None:
        return None if topics is None else frozenset(map(self._topic_id, topics))

    @property
    def groups_database(self) -> Catalog:
        """Where the state of consumer groups is kept: opened, with SQLite also made, at the first use."""
        with self._groups_lock:
            if self._groups is None:
                self._groups = open_groups(self.catalog)
            return self._groups

    def pinned(self, purpose: str) -> AbstractContextManager[None]:
        """Inside, files that ``segments`` refers to stay, however long it takes. Use it to hand references on."""
        return leases.reader_lease(self.catalog, purpose)

    def _reader(self, topic: TopicId | str) -> TopicReader:
        return TopicReader(self.catalog, self.storage, TopicId.of(topic), self._topic_id(topic))

    @asked_once
    def _topic_id(self, topic: TopicId | str) -> int:
        wanted = TopicId.of(topic)
        with self.catalog.read() as connection:
            found = topics.topic_ids(connection, [wanted])
            if not found:
                raise topics.unknown_topic(connection, wanted)
        return found[wanted]
