"""Compare the log with its source: the state of every table must equal what a SELECT returns at one exact position.

The log's state as of a snapshot's LSN (``position``) is compared with the snapshot's rows, cell by cell as Postgres
prints them (so also cells that the typed column cannot hold). Rows are compared by two 64-bit hashes. Cells that were
erased from the log are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.context import Task
from tailrace.cdc.postgres.tables import Table
from tailrace.cdc.repair.digests import DigestBuilder, Digests, Ints, compare, keys_of
from tailrace.cdc.repair.events import retained_events
from tailrace.cdc.repair.position import Patience, SnapshotAtLog, snapshot_at_log
from tailrace.cdc.repair.redactions import ErasedCells
from tailrace.cdc.setup.continuity import require_source
from tailrace.cdc.snapshot.copy import (
    CopyForm,
    CopyUnit,
    copy_chunks,
    plan_copies,
    read_with_fallback,
)
from tailrace.cdc.topics import Topics
from tailrace.eventstore.errors import IncompleteTopic, UsageError
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.postgres_text import postgres_texts
from tailrace.eventstore.model.redacted import erased_ids
from tailrace.eventstore.model.schema import EVENT_SCHEMA, Column
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.settings import PostgresSourceSettings
from tailrace.eventstore.state.state import source_texts
from tailrace.eventstore.store import Store

_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class TopicComparison:
    """One topic against its table at ``lsn``. Counts are of keys; samples are key texts, at most ``_SAMPLES``.

    ``only_in_source_columns`` are not compared: a column that was added since the table's last change is not in the
    log yet. ``only_in_log_columns`` were dropped since. ``skipped`` says why nothing was compared. ``erased`` rows of
    the log have cells that were erased: these are not compared; in ``erased_held`` of them the source has a value.
    """

    topic: TopicId
    lsn: int
    source_rows: int = 0
    log_rows: int = 0
    only_in_source: int = 0
    only_in_log: int = 0
    different: int = 0
    source_samples: tuple[tuple[str | None, ...], ...] = ()
    log_samples: tuple[tuple[str | None, ...], ...] = ()
    different_samples: tuple[tuple[str | None, ...], ...] = ()
    only_in_source_columns: tuple[str, ...] = ()
    only_in_log_columns: tuple[str, ...] = ()
    erased: int = 0
    erased_held: int = 0
    skipped: str = ""

    @property
    def equal(self) -> bool:
        return not (self.skipped or self.only_in_source or self.only_in_log or self.different)


def verify_source(
    store: Store,
    name: str,
    settings: PostgresSourceSettings,
    topics: Sequence[TopicId] | None = None,
    *,
    patience: Patience | None = None,
    report: Callable[[TopicId, int, int], None] = lambda topic, done, total: None,
) -> list[TopicComparison]:
    """Compare topics (default: all tables and domain events of the source) with their tables. ``report`` gets
    the topic whose turn it is, how many topics are done, and of how many.

    Default topics are all but retired ones. A capture must be running, or the log already be far enough. Raises
    TransientError without a capture, and when the log does not reach the position in time, UsageError for a topic that
    is no table or events of the source, OperatorError (privileges, no free slot).
    """
    task = Task.of(store, name, settings)
    require_source(store, name)
    selected = _selected_topics(store, name, topics)
    with snapshot_at_log(task, selected, patience or Patience(), f"verify --source {name}") as snapshot:
        return _Verification(task, snapshot).run(selected, report)


def _selected_topics(store: Store, name: str, wanted: Sequence[TopicId] | None) -> list[TopicId]:
    found = [info for info in store.topics(name) if info.kind is not TopicKind.MESSAGES]
    known = [info.id for info in found]
    for topic in wanted or ():
        if topic not in known:
            store.topic(topic)  # UsageError with names that come close
            raise UsageError(
                f"{topic} is not a table or a category of events of source {name}",
                hint="logical messages leave nothing in the source to compare with",
            )
    return [info.id for info in found if not info.is_retired] if wanted is None else list(wanted)


class _Verification:
    """All comparisons at one position."""

    def __init__(self, task: Task, snapshot: SnapshotAtLog) -> None:
        store, name = task.store, task.name
        self._policies = task.policies
        self._store = store
        self._name = name
        self._address = task.address
        self._snapshot = snapshot.connection
        self._tables = snapshot.tables
        self._lsn = snapshot.lsn
        self._cut = store.cut(f"{name}={format_lsn(snapshot.lsn)}")
        self._topics = Topics.read(store, name)

    def run(
        self,
        topics: Sequence[TopicId],
        report: Callable[[TopicId, int, int], None],
    ) -> list[TopicComparison]:
        compared: list[TopicComparison] = []
        for done, topic in enumerate(topics):
            report(topic, done, len(topics))
            compared.append(self._compare(topic))
        return compared

    def _compare(self, topic: TopicId) -> TopicComparison:
        if self._store.topic(topic).kind is TopicKind.EVENTS:
            return self._events(topic, self._tables.get(0))
        return self._table(topic, self._tables.get(self._topics.relid(topic)))

    def _skip(self, topic: TopicId, reason: str) -> TopicComparison:
        return TopicComparison(topic, self._lsn, skipped=reason)

    def _table(self, topic: TopicId, table: Table | None) -> TopicComparison:
        if topic in self._topics.incomplete:
            return self._skip(topic, f"incomplete: {self._topics.tables[topic].reason}")
        if table is None:
            return self._skip(topic, "the source has no such table any more")
        schema = self._topics.schema(topic)
        here = {column.id: column for column in schema.columns}
        there = {column.id: column for column in table.columns}
        both = [number for number in here if number in there]
        if not all(number in there for number, column in here.items() if column.key):
            return self._skip(topic, "its key has other columns now")
        columns = [here[number] for number in both]
        hidden = {column.id for column in schema.left_out}
        units = plan_copies(self._snapshot, self._address, table, 1)
        names = [there[number].name for number in both]
        key_at = [at for at, column in enumerate(columns) if column.key]

        def compare_in(form: CopyForm) -> TopicComparison:
            erased = ErasedCells(columns, key_at)
            side = _Sides(
                key_at=key_at,
                source=lambda: self._protected_rows(units, names, columns, form),
                log=lambda: self._log_rows(topic, columns, erased),
                erased=erased,
            )
            return side.compare(
                topic,
                self._lsn,
                only_in_source_columns=tuple(
                    column.name
                    for number, column in there.items()
                    if number not in here and number not in hidden
                ),
                only_in_log_columns=tuple(
                    column.name for number, column in here.items() if number not in there
                ),
            )

        try:
            return read_with_fallback(compare_in)
        except IncompleteTopic as error:  # completed after the position
            return self._skip(topic, error.message)

    def _events(self, topic: TopicId, table: Table | None) -> TopicComparison:
        """Events that the log misses, or has otherwise. The source may have pruned events, and retention may have
        removed the log's first ones."""
        if table is None:
            return self._skip(topic, "the source has no table of domain events any more")
        category = topic.parts[1]
        units = [CopyUnit(table, *table.label, only=table.kind != "p")]
        names = ["category", *(column.name for column in EVENT_SCHEMA.columns)]

        def of_category() -> Iterator[Sequence[pa.Array]]:
            for first, *texts in self._source_rows(units, names):
                mask = pa.array([cell == category for cell in first.to_pylist()])
                mask = pc.and_(mask, retained_events(self._store, topic, texts[-1]))  # recorded_at
                yield [cells.filter(mask) for cells in texts]

        key_at = [0, 1]  # stream and version
        erased = ErasedCells(EVENT_SCHEMA.columns, key_at)
        side = _Sides(
            key_at=key_at,
            source=of_category,
            log=lambda: self._logged_events(topic, erased),
            erased=erased,
            prunes=True,
        )
        return side.compare(topic, self._lsn)

    def _source_rows(
        self, units: Sequence[CopyUnit], names: Sequence[str], form: CopyForm = CopyForm.TEXT
    ) -> Iterator[Sequence[pa.Array]]:
        for unit in units:
            yield from copy_chunks(self._snapshot, self._address, unit, names, form)

    def _protected_rows(
        self, units: Sequence[CopyUnit], names: Sequence[str], columns: Sequence[Column], form: CopyForm
    ) -> Iterator[Sequence[pa.Array]]:
        """The source's rows as capture writes them."""
        for texts in self._source_rows(units, names, form):
            yield self._policies.texts(columns, texts)

    def _log_rows(
        self, topic: TopicId, columns: Sequence[Column], erased: ErasedCells
    ) -> Iterator[Sequence[pa.Array]]:
        ids = {column.name: column.id for column in columns}
        for table in source_texts(self._store, topic, self._cut, list(ids)):
            key = [table[column.name].combine_chunks() for column in columns if column.key]
            erased.learn(key, table["_erased"].combine_chunks(), ids)
            yield [table[name].combine_chunks() for name in ids]

    def _logged_events(self, topic: TopicId, erased: ErasedCells) -> Iterator[Sequence[pa.Array]]:
        ids = {column.name: column.id for column in EVENT_SCHEMA.columns}
        names = {number: name for name, number in ids.items()}
        for batch in self._store.read(topic, cut=self._cut, columns=["after", "_raw"]):
            after = batch.column("after")
            texts = [postgres_texts(after.field(name)) for name in ids]
            raw = batch.column("_raw")
            if raw.null_count < len(raw):
                gone = [
                    [names[each] for each in erased_ids(entries) if each in names] or None
                    for entries in raw.to_pylist()
                ]
                erased.learn(texts[:2], pa.array(gone, pa.list_(pa.string())), ids)
            yield texts


@dataclass(frozen=True, slots=True)
class _Sides:
    """Two ways to read the same rows, as texts; each can be read again for samples."""

    key_at: Sequence[int]
    source: Callable[[], Iterator[Sequence[pa.Array]]]
    log: Callable[[], Iterator[Sequence[pa.Array]]]
    erased: ErasedCells  # known once the log was read
    prunes: bool = False  # the source may have deleted rows that the log keeps

    def compare(
        self,
        topic: TopicId,
        lsn: int,
        *,
        only_in_source_columns: tuple[str, ...] = (),
        only_in_log_columns: tuple[str, ...] = (),
    ) -> TopicComparison:
        log = self._digests(self.log())
        source = self._digests(map(self.erased.hide, self.source()))
        difference = compare(source, log)
        only_in_log = difference.right[:0] if self.prunes else difference.right
        return TopicComparison(
            topic=topic,
            lsn=lsn,
            source_rows=len(source),
            log_rows=len(log),
            only_in_source=len(difference.left),
            only_in_log=len(only_in_log),
            different=len(difference.different),
            source_samples=self._keys(self.source, difference.left[:_SAMPLES]),
            log_samples=self._keys(self.log, only_in_log[:_SAMPLES]),
            different_samples=self._keys(self.source, difference.different[:_SAMPLES]),
            only_in_source_columns=only_in_source_columns,
            only_in_log_columns=only_in_log_columns,
            erased=len(self.erased),
            erased_held=self.erased.held,
        )

    def _digests(self, rows: Iterator[Sequence[pa.Array]]) -> Digests:
        builder = DigestBuilder(self.key_at)
        for texts in rows:
            builder.add(texts)
        return builder.finish()

    def _keys(
        self, rows: Callable[[], Iterator[Sequence[pa.Array]]], hashes: Ints
    ) -> tuple[tuple[str | None, ...], ...]:
        if not len(hashes):
            return ()
        found: dict[int, tuple[str | None, ...]] = {}
        for texts in rows():
            found |= keys_of(texts, self.key_at, hashes.tolist())
        return tuple(sorted(found.values(), key=str))
