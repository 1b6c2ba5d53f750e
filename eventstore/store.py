"""``Store``: what an application opens. It reads as ``Log`` does, and adds writing, consumers, upkeep and checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import update

from tailrace.eventstore.catalog import relocation, tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.catalog.leases import maintainer_lease
from tailrace.eventstore.catalog.open import open_catalog
from tailrace.eventstore.errors import MissingFile, OperatorError, UsageError
from tailrace.eventstore.integrity.findings import VerificationResult
from tailrace.eventstore.integrity.verify import verify
from tailrace.eventstore.log import sources
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.maintenance.files.fold import FoldResult, fold
from tailrace.eventstore.maintenance.files.merge import MergeResult
from tailrace.eventstore.maintenance.files.orphans import collect_orphans
from tailrace.eventstore.maintenance.files.seal import seal
from tailrace.eventstore.maintenance.rounds import Round, maintain, merge_files
from tailrace.eventstore.maintenance.state_runs.compact import CompactionResult, compact
from tailrace.eventstore.maintenance.state_runs.write import Workers
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.state.input import OnUnreadable
from tailrace.eventstore.state.state import state
from tailrace.eventstore.storage import LocalStorage, Storage
from tailrace.eventstore.storage.open import MARKER, open_storage, read_marker, write_marker
from tailrace.eventstore.streams.deciding.transactions import TransactionOwner
from tailrace.eventstore.streams.reacting.manager import ProcessManager
from tailrace.eventstore.subscriptions.domain_events.log_streams import LogStreams
from tailrace.eventstore.subscriptions.domain_events.process_runner import ProcessRunner
from tailrace.eventstore.subscriptions.filter import Filter
from tailrace.eventstore.subscriptions.group import Group, all_groups
from tailrace.eventstore.subscriptions.rows.events import WantedEvents
from tailrace.eventstore.subscriptions.tail import FollowedRows, tail, transaction


class Store(Log):
    """One store: a log with its catalog and segments. Threads may share it; open it once per process."""

    @classmethod
    def open(
        cls, settings: StoreSettings | None = None, *, create: bool = False, root: Path | None = None
    ) -> Store:
        """Open the store that the settings name; relative paths begin at ``root`` (default: the current folder).
        ``create`` makes the catalog and its folders when they are not there.

        Raises OperatorError when there is no store, it has another format, or it may not be used; UsageError for
        settings that cannot be; TransientError when the catalog's server is out of reach.
        """
        settings = settings or StoreSettings()
        base = (root or Path.cwd()).absolute()
        storage = open_storage(settings, base)
        if create:
            storage.prepare()
        catalog = open_catalog(settings.catalog, store_name=settings.name, root=base, create=create)
        try:
            spool = (storage.root if isinstance(storage, LocalStorage) else base / ".tailrace") / "spool"
            store = cls(settings, catalog, storage, spool, base)
            relocation.check(catalog)
            _require_pair(catalog, storage, store.log_id, create=create)
            if create and catalog.kind == "postgres":  # consumers may not make tables there
                store.groups_database  # noqa: B018
            return store
        except BaseException:
            catalog.close()
            raise

    # reading

    def state(
        self,
        topic: TopicId | str,
        as_of: str | int | datetime | None = None,
        *,
        columns: Sequence[str] | None = None,
        on_unreadable: OnUnreadable | Mapping[str, OnUnreadable] = "error",
    ) -> Iterator[pa.Table]:
        """The table as it was at a position (any that ``cut`` takes; default: the head): one row per living key.

        Gives Arrow tables that share no key and have the same columns: those of the topic (or ``columns``), in its
        order, behind ``_hash`` of the key, ``_lsn``, ``_offset`` and ``_epoch`` of the row's last change, and
        ``_erased``, the names of cells that a redaction erased (NULL). ``on_unreadable``, for all columns or by name,
        says what becomes of a value that the column's type cannot hold: "error", "null", or "text" (the whole column as
        the source prints it).

        Raises UsageError for an unknown topic, column or position, IncompleteTopic while the state is not known there,
        HistoryGone when retention removed it, UnreadableCell, and UnknownCell for a value that was never sent.
        """
        cut = self.cut(as_of)
        return state(self, TopicId.of(topic), cut, columns=columns, on_unreadable=on_unreadable)

    # writing

    def take_over(self, source: str, confirmed: int | None = None) -> SourceWriter:
        """Become the one writer of a source: a new term, which fences every earlier writer at its next commit.

        Call it only after the server has let us stream (START_REPLICATION succeeded, or the slot was created):
        otherwise a process that cannot capture would stop one that can. ``confirmed``: up to which LSN the server sends
        nothing again; with it the position is that of the last epoch, as far as the server sends what follows. Raises
        UsageError for an unknown source, OperatorError when the catalog itself is published, IntegrityError when the
        source's position is not that of its epochs.
        """
        row = sources.new_term(self, source, confirmed)
        return SourceWriter(self, topics.source_state(row), row.last_append)

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
        events: WantedEvents | None = None,
        timeout: float | None = None,
    ) -> Iterator[FollowedRows]:
        """Rows of topics (names or patterns, ``!`` leaves out) epoch by epoch, as Arrow, changes or typed events,
        without a group. To go on later, keep the ``epoch`` that ended last, and start there.

        ``start``: "earliest", "latest", behind any position that ``cut`` takes, or offsets in partitions of one topic
        ("2:1500,3:20"). Follows what comes, also topics that come and match a pattern, until ``timeout`` seconds pass
        without an epoch (0: ends at the head); ``until`` ends it at a position. ``ops``, ``keys`` (texts of the key's
        columns) and ``since`` filter: partitions and epochs without such rows are not read. ``events``, models or a
        ``Query``, filters topics of domain events. Raises UsageError for a name that is no topic (a pattern waits for
        one to come), a position or filter that cannot be, HistoryGone when retention removed rows behind the position.
        """
        return tail(self, topics, start, until, Filter.of(ops, keys, since, events), timeout)

    def transaction(self, source: str, lsn: int) -> list[FollowedRows]:
        """All that one transaction of a source did, by topic: rows of tables, domain events, messages. ``lsn`` is that
        of its commit, which every ``Change`` and every ``Recorded`` of the log has; empty where none committed there.

        Raises BeyondLog when the log has not come that far, HistoryGone when retention removed some of it.
        """
        return list(transaction(self, source, lsn))

    def streams(self, source: str) -> LogStreams:
        """The streams of a source as the log has them, in place of a connection in ``load`` and ``state_of``: also what
        their table no longer has."""
        return LogStreams(self, source)

    def process(
        self,
        manager: ProcessManager[Any, Any],
        owner: TransactionOwner,
        topics: Sequence[str],
        *,
        member: str | None = None,
        attempts: int = 5,
    ) -> ProcessRunner:
        """What runs a process manager: ``run()`` reacts to the events of ``topics`` (SOURCE.CATEGORY; they may come
        later), each once, and to its timers, in transactions on ``owner``, a SQLAlchemy engine or a pool of psycopg on
        the source database. Several run beside each other. Begins with the first events there are; the consumer group
        is called ``process-NAME``.

        An event that fails ``attempts`` times is parked with those behind it in its stream (``tailrace group``). Raises
        UsageError for a topic that is none of events, and when the group has others.
        """
        for topic in topics:
            if not TopicId.parse(topic).is_events:
                raise UsageError(
                    f"{topic} is no topic of domain events",
                    hint="a process reacts to events: SOURCE.CATEGORY",
                )
        group = Group.open(self, f"process-{manager.name}", topics, "earliest", may_come=True)
        return ProcessRunner(group, manager, owner, member=member, attempts=attempts)

    def group(
        self, name: str, topics: Sequence[str] | None = None, *, start: str | int | datetime | None = None
    ) -> Group:
        """The consumer group called ``name``; made when it is not there and ``topics`` (names, or patterns with * and
        ?, ``!`` leaves out) are given. A new one starts at ``start``: "earliest", "latest" (the default), or any
        position that ``cut`` takes. Raises UsageError: no such group, one of other topics, a name that is no topic (a
        pattern waits for one to come), no such position."""
        return Group.open(self, name, topics, start)

    def groups(self) -> list[Group]:
        """All consumer groups, by name."""
        return all_groups(self)

    # upkeep

    def seal(self, up_to_epoch: int | None = None) -> int:
        """Turn small epochs into Parquet per topic; readers see no difference. Gives the number of epochs sealed."""
        return seal(self, up_to_epoch)

    def merge(self) -> list[MergeResult]:
        """Make few large files of many small neighbours; readers see no difference. Gives what was merged."""
        return list(merge_files(self))

    def fold(self) -> list[FoldResult]:
        """Move rows of old epochs from the catalog to files; look-ups see no difference. Gives what was written."""
        return list(fold(self, self.settings.upkeep.keep_epochs))

    def maintain(
        self, report: Callable[[str], None] = lambda _: None, *, force_past: Collection[str] = ()
    ) -> Round:
        """One round of upkeep: seal, merge, remove rows by the topics' retention, fold, and remove files that nobody
        needs. ``report`` gets what is under way; retention passes the registered readers named ``force_past``.
        Raises Busy when another process is at it, Fenced when another one took over, UsageError for a policy that a
        topic cannot have."""
        return maintain(self, report=report, force_past=force_past)

    def compact(
        self,
        topics: Collection[TopicId | str] | None = None,
        *,
        report: Callable[[str], None] = lambda _: None,
        workers: Workers | None = None,
    ) -> list[CompactionResult]:
        """Seal, and make state runs of these tables or all (``maintain`` makes those that are worth it): readers of
        their state fold a run and the rows behind it. ``workers`` do the work instead of this process. Raises Busy
        when upkeep runs, Fenced when another one took over."""
        made = []
        wanted = None if topics is None else [TopicId.of(topic) for topic in topics]
        with maintainer_lease(self.catalog):
            self.seal()
            for each in compact(self, wanted, at_once=True, workers=workers):
                made.append(each)
                report(f"{each.topic} up to epoch {each.epoch:,}")
        return made

    def verify(
        self,
        topics: Sequence[TopicId | str] = (),
        *,
        quick: bool = False,
        archives: bool = False,
        head: tuple[int, str] | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> VerificationResult:
        """Look whether the log is what was written, beside whatever runs: every checksum, hash and sum, every file and
        place. ``quick``: not what is in files and blobs; ``archives``: also the files in archives (OperatorError or
        TransientError when one is out of reach); ``head``: number and hash of an epoch that were kept elsewhere. Gives
        what was found, also when that is damage."""
        wanted = [TopicId.of(topic) for topic in topics]
        return verify(self, wanted, quick=quick, archives=archives, head=head, report=report)

    def collect_orphans(self) -> int:
        """Remove files that no epoch names and no running writer can register any more. Gives their number."""
        return collect_orphans(self)


def _require_pair(catalog: Catalog, storage: Storage, log_id: str, *, create: bool) -> None:
    """Catalog and segments belong together: a marker beside the segments names the log. Foreign segments would give
    wrong files to readers, and upkeep would take that log's files for orphans.

    Raises OperatorError when they do not; ``create`` makes a pair of a new catalog and its place.
    """
    if create and not storage.exists(MARKER):
        _mark(catalog, storage, log_id)
    try:
        found = read_marker(storage)
    except MissingFile:
        raise OperatorError(
            f"{storage.label} is not the place of the segments of {catalog.label}: it has no {MARKER}",
            hint="correct store.segments, or restore the segments from the same backup as the catalog",
        ) from None
    if found != log_id:
        raise OperatorError(
            f"the segments in {storage.label} belong to another log ({found}) than {catalog.label} ({log_id})",
            hint="give every store its own store.segments, or restore both from one backup",
        )


def _mark(catalog: Catalog, storage: Storage, log_id: str) -> None:
    """Write the marker, unless the log has begun: then its segments are elsewhere."""
    with catalog.read() as connection:
        if topics.head_epoch(connection):
            return
    with catalog.write() as connection:  # of several creators one writes it, the others wait here
        connection.execute(update(tables.log).values(log_id=log_id))
        if not storage.exists(MARKER):
            write_marker(storage, log_id)
