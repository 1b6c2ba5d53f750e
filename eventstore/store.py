"""The store: open it, see what is in it, read it, follow it. Writing is ``SourceWriter``'s, got by ``take_over``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import pyarrow as pa
from sqlalchemy import Connection, select

from tailrace.eventstore.catalog import relocation, tables
from tailrace.eventstore.catalog.database import Catalog, open_catalog
from tailrace.eventstore.catalog.requests import Requests
from tailrace.eventstore.errors import MissingFile
from tailrace.eventstore.log import as_of as cuts
from tailrace.eventstore.log import follow, pairing, reader, sources
from tailrace.eventstore.log.wakeup import Waker, waker_of
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.metadata import archived, load_progress, log_start, quarantine, segment_index
from tailrace.eventstore.metadata import topics as registry
from tailrace.eventstore.metadata.archived import ArchivedFile
from tailrace.eventstore.metadata.epochs import Which
from tailrace.eventstore.metadata.generations import DerivedCatalog
from tailrace.eventstore.metadata.log_start import LogStart
from tailrace.eventstore.metadata.run_records import RunRecords
from tailrace.eventstore.model.model import (
    EpochInfo,
    KeptFrames,
    Load,
    SegmentRef,
    SetAside,
    SourceState,
    TopicId,
    TopicInfo,
)
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.storage import LocalStorage, Storage
from tailrace.eventstore.storage.open import open_place, open_storage

if TYPE_CHECKING:
    from tailrace.eventstore.integrity.findings import Verified
    from tailrace.eventstore.maintenance.files.fold import Folded
    from tailrace.eventstore.maintenance.files.merge import Merged
    from tailrace.eventstore.maintenance.rounds import Round
    from tailrace.eventstore.maintenance.state_runs.compact import Compacted
    from tailrace.eventstore.maintenance.state_runs.write import Workers
    from tailrace.eventstore.model.model import Op
    from tailrace.eventstore.subscriptions.group import Group
    from tailrace.eventstore.subscriptions.tail import Followed

POLL_SECONDS = 1.0
_LOOKS = 5  # each can miss a file only when a merge ended and its files were removed meanwhile
_T = TypeVar("_T")


class Store:
    """One log: catalog and segments. Safe to share between threads; cheap to open once per process."""

    def __init__(
        self, settings: StoreSettings, catalog: Catalog, storage: Storage, spool: Path, root: Path
    ) -> None:
        self.settings = settings
        self.root = root  # relative folders of the settings are relative to it
        self.spool = spool  # a folder of this machine for what no crash needs back; it may not be there yet
        self.catalog = catalog
        self.storage = storage
        self.waker: Waker = waker_of(catalog)
        self.derived = DerivedCatalog(catalog)
        self.run_records = RunRecords(catalog)
        self.requests = Requests(catalog)
        with catalog.read() as connection:
            self.log_id: str = connection.execute(select(tables.log.c.log_id)).scalar_one()
        self._groups: Catalog | None = None
        self._groups_lock = threading.Lock()

    @classmethod
    def open(
        cls, settings: StoreSettings | None = None, *, create: bool = False, root: Path | None = None
    ) -> Store:
        """Open the store that the settings name; relative paths are relative to ``root`` (default: the current
        folder). ``create`` makes the catalog and its folders when they are not there.

        Raises OperatorError when there is no store, it has another format, or it may not be used; UsageError for
        settings that cannot be; TransientError when the catalog's server is out of reach.
        """
        chosen = settings or StoreSettings()
        base = (root or Path.cwd()).absolute()
        storage = open_storage(chosen, base)
        if create:
            storage.prepare()
        catalog = open_catalog(chosen.catalog, store_name=chosen.name, root=base, create=create)
        try:
            spool = (storage.root if isinstance(storage, LocalStorage) else base / ".tailrace") / "spool"
            store = cls(chosen, catalog, storage, spool, base)
            relocation.check(catalog)
            pairing.require(catalog, storage, store.log_id, create=create)
            if create and catalog.kind == "postgres":  # consumers may not make tables there
                store.groups_database  # noqa: B018
            return store
        except BaseException:
            catalog.close()
            raise

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
            head = registry.head_epoch(connection)
        found = self.epochs(head - 1, 1) if head else []
        return found[0] if found else None

    def epochs(
        self, after: int = 0, limit: int = 1000, topics: Sequence[TopicId] | None = None
    ) -> list[EpochInfo]:
        """Up to ``limit`` visible epochs after ``after`` (of these topics, if named), in order, without gaps."""
        return follow.page(self, Which(after=after, topics=self._ids_of(topics)), limit)

    def looked_up(self, look: Callable[[Connection], _T]) -> _T:
        """What ``look`` finds in a snapshot of the catalog; in another one when a file was merged away since."""
        for _ in range(_LOOKS - 1):
            with suppress(MissingFile), self.catalog.read() as connection:
                return look(connection)
        with self.catalog.read() as connection:
            return look(connection)

    def sources(self) -> list[SourceState]:
        with self.catalog.read() as connection:
            rows = connection.execute(select(tables.sources).order_by(tables.sources.c.name)).all()
        return [registry.source_state(row) for row in rows]

    def source(self, name: str) -> SourceState | None:
        with self.catalog.read() as connection:
            row = registry.source_row(connection, name)
        return None if row is None else registry.source_state(row)

    def topics(self, source: str | None = None) -> list[TopicInfo]:
        query = registry.topic_query().order_by(tables.topics.c.name)
        if source is not None:
            query = query.where(tables.topics.c.source == source)
        with self.catalog.read() as connection:
            rows = connection.execute(query).all()
        return [registry.topic_info(row) for row in rows]

    def topic(self, topic: TopicId) -> TopicInfo:
        """Raises UsageError, with names that come close, when the log has no such topic."""
        with self.catalog.read() as connection:
            row = registry.topic_row(connection, topic)
            if row is None:
                raise registry.unknown_topic(connection, topic)
            return registry.topic_info(row)

    def schemas(self, topic: TopicId) -> list[TopicSchema]:
        """All versions, oldest first. Raises UsageError for an unknown topic."""
        topic_id = self._topic_id(topic)
        with self.catalog.read() as connection:
            return registry.schemas(connection, topic_id)

    def latest_schemas(self, source: str) -> dict[TopicId, TopicSchema]:
        """Of every topic of a source its latest version, in the order in which the log got them."""
        with self.catalog.read() as connection:
            return registry.latest_schemas(connection, source)

    def load(self, topic: TopicId) -> Load | None:
        """The load by chunks that is under way, None when there is none."""
        topic_id = self._topic_id(topic)
        with self.catalog.read() as connection:
            return load_progress.read(connection, topic, topic_id)

    def set_aside(self, source: str | None = None) -> list[SetAside]:
        """Topics that are set aside because their table cannot be decoded."""
        with self.catalog.read() as connection:
            return quarantine.read(connection, source)

    def first_kept(self, topic: TopicId) -> tuple[KeptFrames, bytes] | None:
        """What was kept first for a topic that is set aside and is still to be decoded. Raises IntegrityError when it
        is damaged."""
        return quarantine.first_kept(self.catalog, self.storage, topic)

    def schemas_at(self, topic: TopicId, cut: Cut) -> list[TopicSchema]:
        """Versions that hold at the cut or before it, oldest first. Raises UsageError for an unknown topic."""
        topic_id = self._topic_id(topic)
        below = cut.below_lsn.get(topic.source)
        with self.catalog.read() as connection:
            found = registry.schemas(connection, topic_id, until=cut.epoch)
        return [schema for schema in found if below is None or schema.from_lsn < below]

    def require_complete(self, topic: TopicId, cut: Cut) -> None:
        """Raises IncompleteTopic when the topic's state is not known at the cut (first load, repair)."""
        topic_id = self._topic_id(topic)
        with self.catalog.read() as connection:
            registry.require_complete(connection, topic, topic_id, cut)

    def require_history(self, topic: TopicId, cut: Cut) -> None:
        """Raises HistoryGone when retention removed rows behind the cut."""
        topic_id = self._topic_id(topic)
        with self.catalog.read() as connection:
            start = log_start.read(connection, topic_id)
            if not start.has(topic, cut):
                raise log_start.gone(connection, self.storage, topic, start)

    # writing

    def register_source(self, name: str, *, slot: str, publication: str, system_id: str) -> SourceState:
        """Add a source, or give back the one there is. Slot, publication and system may change until the first load
        is in the log; afterwards the log's positions belong to that one system (OperatorError)."""
        return sources.register_source(
            self.catalog, name, slot=slot, publication=publication, system_id=system_id
        )

    def register_topic(
        self, topic: TopicId, schema: TopicSchema, *, reason: str = registry.WAITING
    ) -> TopicInfo:
        """Add a topic of a registered source, or give back the one there is. It is incomplete for ``reason`` until an
        epoch completes it; an empty reason means that nothing came before the stream (events, messages)."""
        sources.register_topic(self.catalog, topic, schema, self.settings.partitions, reason)
        return self.topic(topic)

    def take_over(self, source: str) -> SourceWriter:
        """Become the one writer of a source: a new term, which fences every earlier writer at its next commit.

        Call it only after the server has let us stream (START_REPLICATION succeeded, or the slot was created):
        otherwise a process that cannot capture would stop one that can. Raises UsageError for an unknown source,
        OperatorError when the catalog itself is published.
        """
        row = sources.new_term(self.catalog, source)
        return SourceWriter(self, registry.source_state(row), row.last_append)

    # reading

    def cut(self, as_of: str | int | datetime | None = None) -> Cut:
        """Where a position is in the log: None = the head, an epoch, an LSN (``0/16B3748`` of the only source or
        ``SOURCE=0/16B3748``: transactions that committed below it), or a time (naive = UTC: up to the last position
        before the first commit later than it). Raises UsageError for one that is beyond the head or none at all."""
        asked = cuts.parse(as_of)
        return self.looked_up(lambda connection: cuts.Resolver(connection, self.storage).resolve(asked))

    def segments(self, topic: TopicId, cut: Cut, after_epoch: int = 0) -> list[SegmentRef]:
        """References to all rows of a topic after an epoch (0: from its start) and up to a cut, in epoch order, blobs
        inlined. Raises HistoryGone when retention removed some of them.

        Read each with ``segment.read_segment``, which drops what lies outside. Holds the plain bytes of all small
        epochs: for long ranges of an unsealed log use ``read``, which goes by pages. Their files stay for
        ``upkeep.keep_seconds`` when they are replaced; whoever may read them later resolves inside ``pinned``.
        """
        return reader.segments(self, topic, self._topic_id(topic), cut, after_epoch)

    def state_segments(self, topic: TopicId, cut: Cut, *, every_row: bool = False) -> list[SegmentRef]:
        """References to rows that make a topic's state at a cut, in its order: those of its state runs up to there, and
        all of the epochs for which there is none. ``every_row``: only the run in place of rows that are gone. Raises
        HistoryGone for a cut before the topic's start."""
        return reader.state_segments(self, topic, self._topic_id(topic), cut, every_row=every_row)

    def log_start(self, topic: TopicId) -> LogStart:
        """Where the topic's rows begin since retention removed earlier ones; epoch 0: nothing was removed."""
        topic_id = self._topic_id(topic)
        with self.catalog.read() as connection:
            return log_start.read(connection, topic_id)

    def files(self, topic: TopicId) -> list[SegmentRef]:
        """Sealed and large files of a topic, in its order, for readers of their own (``storage.place`` is where one
        is). What is newer than the last ``seal`` is in the catalog. They stay for ``upkeep.keep_seconds`` after they
        were replaced."""
        topic_id = self._topic_id(topic)
        table = tables.segments
        query = select(table).where(table.c.topic_id == topic_id).order_by(table.c.first_row)
        with self.catalog.read() as connection:
            return [segment_index.file_ref(topic, row) for row in connection.execute(query)]

    def archived(self, topic: TopicId) -> list[ArchivedFile]:
        """Files that were copied to an archive before retention removed their rows, in the topic's order."""
        topic_id = self._topic_id(topic)
        with self.catalog.read() as connection:
            return archived.read(connection, topic, topic_id, self.archive)

    def archive(self, place: str) -> Storage:
        """The storage of an archive, as the topics' settings and ``ArchivedFile.archive`` name it."""
        return open_place(place, self.settings.s3, self.root)

    def read(
        self,
        topic: TopicId,
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
        topic_id = self._topic_id(topic)
        if offsets is not None:
            partitions = set(offsets) & set(offsets if partitions is None else partitions)
        end = self.cut() if cut is None else cut
        return reader.read(self, reader.Rows(topic, topic_id, end, partitions, offsets, columns), after_epoch)

    def removed_until(self, topic: TopicId) -> datetime | None:
        """Commit time (UTC) of the last epoch whose rows of the topic retention removed; None when it removed none."""
        topic_id = self._topic_id(topic)

        def look(connection: Connection) -> datetime | None:
            return log_start.moment(connection, self.storage, log_start.read(connection, topic_id))

        return self.looked_up(look)

    def had_rows(self, topic: TopicId) -> bool:
        """Whether the topic ever had a row, also when retention removed all of them."""
        topic_id = self._topic_id(topic)
        with self.catalog.read() as connection:
            return any(json.loads(registry.next_offsets(connection, topic_id)))

    def follow(
        self,
        topics: Sequence[TopicId] | None = None,
        *,
        after_epoch: int,
        timeout: float | None = None,
        poll: float = POLL_SECONDS,
    ) -> Generator[EpochInfo, None, None]:
        """Epochs after ``after_epoch`` (of these topics, if named) as they become visible, in order.

        Ends when ``timeout`` seconds pass without one; None = never. A commit wakes it; every ``poll`` seconds it
        looks by itself.
        """
        yield from follow.follow(self, self._ids_of(topics), after_epoch, timeout, poll)

    def _ids_of(self, topics: Sequence[TopicId] | None) -> frozenset[int] | None:
        return None if topics is None else frozenset(self._topic_id(topic) for topic in topics)

    # subscriptions

    def tail(
        self,
        topics: Sequence[str] = ("*",),
        *,
        start: str | int | datetime = "latest",
        until: str | int | datetime | None = None,
        ops: Collection[Op | str] | None = None,
        keys: Collection[tuple[str, ...] | str] | None = None,
        since: datetime | None = None,
        timeout: float | None = None,
    ) -> Iterator[Followed]:
        """Rows of topics (names or patterns, ``!`` leaves out) epoch by epoch, as Arrow, changes or typed events,
        without a group: whoever goes on later keeps the ``epoch`` that ended last, and starts there.

        ``start``: "earliest", "latest", behind any position that ``cut`` takes, or offsets in partitions of one topic
        ("2:1500,3:20"). Follows what comes, also topics that come, until ``timeout`` seconds pass without an epoch
        (0: ends at the head); ``until`` ends it at a position. ``ops``, ``keys`` (texts of the key's columns) and
        ``since`` filter: partitions and epochs without such rows are not read. Raises UsageError for what cannot be
        asked, HistoryGone when retention removed what is asked for.
        """
        from tailrace.eventstore.subscriptions.filter import Filter  # subscriptions import the store
        from tailrace.eventstore.subscriptions.tail import tail

        return tail(self, topics, start, until, Filter.of(ops, keys, since), timeout)

    def group(
        self, name: str, topics: Sequence[str] | None = None, *, start: str | int | datetime | None = None
    ) -> Group:
        """The consumer group called ``name``; made when it is not there and ``topics`` (names, or patterns with * and
        ?, ``!`` leaves out) are given. A new one starts at ``start``: "earliest", "latest" (the default), or any
        position that ``cut`` takes. Raises UsageError: no such group, one of other topics, no such position."""
        from tailrace.eventstore.subscriptions.group import Group  # subscriptions import the store

        return Group.open(self, name, topics, start)

    def groups(self) -> list[Group]:
        """All consumer groups, by name."""
        from tailrace.eventstore.subscriptions.group import Group, group_names

        return [Group.open(self, name) for name in group_names(self)]

    @property
    def groups_database(self) -> Catalog:
        """Where the state of consumer groups is kept: opened, with SQLite also made, at the first use."""
        from tailrace.eventstore.catalog.open import open_groups

        with self._groups_lock:
            if self._groups is None:
                self._groups = open_groups(self.catalog)
            return self._groups

    # upkeep

    def seal(self, up_to_epoch: int | None = None) -> int:
        """Turn small epochs into Parquet per topic; readers see no difference. Gives the number of epochs sealed."""
        from tailrace.eventstore.maintenance.files.seal import seal  # upkeep imports the store

        return seal(self, up_to_epoch)

    def merge(self) -> list[Merged]:
        """Make few large files of many small neighbours; readers see no difference. Gives what was merged."""
        from tailrace.eventstore.maintenance.files.merge import merge

        return list(merge(self, self.settings.upkeep.memory_bytes))

    def fold(self) -> list[Folded]:
        """Move rows of old epochs from the catalog to files; look-ups see no difference. Gives what was written."""
        from tailrace.eventstore.maintenance.files.fold import fold

        return list(fold(self, self.settings.upkeep.keep_epochs))

    def maintain(
        self, report: Callable[[str], None] = lambda _: None, *, force_past: Collection[str] = ()
    ) -> Round:
        """One round of upkeep: seal, merge, remove rows by the topics' retention, fold, and remove files that nobody
        needs. ``report`` is told what is under way; retention passes the registered readers named ``force_past``.
        Raises Busy when another process is at it, Fenced when another one took over, UsageError for a policy that a
        topic cannot have."""
        from tailrace.eventstore.maintenance.rounds import maintain

        return maintain(self, report=report, force_past=force_past)

    def compact(
        self,
        topics: Collection[TopicId] | None = None,
        *,
        report: Callable[[str], None] = lambda _: None,
        workers: Workers | None = None,
    ) -> list[Compacted]:
        """Seal, and make state runs of these tables or all (``maintain`` makes those that are worth it): whoever reads
        their state folds them and what is newer. ``workers``: who does the work instead of this process. Raises Busy
        when upkeep runs, Fenced when another one took over."""
        from tailrace.eventstore.catalog.leases import maintaining
        from tailrace.eventstore.maintenance.state_runs.compact import compact

        made = []
        with maintaining(self.catalog):
            self.seal()
            for each in compact(self, topics, at_once=True, workers=workers):
                made.append(each)
                report(f"{each.topic} up to epoch {each.epoch:,}")
        return made

    def verify(
        self,
        topics: Sequence[TopicId] = (),
        *,
        quick: bool = False,
        archives: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> Verified:
        """Look whether the log is what was written, beside whatever runs: every checksum, hash and sum, every file and
        place. ``quick``: not what is in files and blobs; ``archives``: also the files in archives (OperatorError or
        TransientError when one is out of reach). Gives what was found, also when that is damage."""
        from tailrace.eventstore.integrity.verify import verify

        return verify(self, topics, quick=quick, archives=archives, report=report)

    def pinned(self, purpose: str) -> AbstractContextManager[None]:
        """Inside, files that ``segments`` refers to stay, however long it takes. For whoever hands references on."""
        from tailrace.eventstore.catalog.leases import pinned

        return pinned(self.catalog, purpose)

    def collect_orphans(self) -> int:
        """Remove files that no epoch names and no running writer can register any more. Gives their number."""
        from tailrace.eventstore.maintenance.files.orphans import collect_orphans

        return collect_orphans(self)

    def _topic_id(self, topic: TopicId) -> int:
        with self.catalog.read() as connection:
            found = registry.topic_ids(connection, [topic])
            if not found:
                raise registry.unknown_topic(connection, topic)
        return found[topic]
