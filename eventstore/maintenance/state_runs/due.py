"""When a table gets a state run beside its rows, and of which epochs. Nothing is changed here.

A topic's epochs are spans, one after another. Some have a run; the others were inspected, and a run would save too
little. New rows are worth a run when they have ``upkeep.state_bytes``. The run begins with the oldest span that it is
not small against. So there are few spans, each several times as large as the one behind it, and a span is read again
only when what came behind it has at least a quarter of its bytes.

After a repartition a key's rows are in several partitions. A run that goes on from another is of one incarnation, so it
ends or begins there; only one that begins with the log reaches across, when what came since is not small against it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import log_start
from tailrace.eventstore.metadata.log_start import LogStart
from tailrace.eventstore.metadata.state_runs import Run, chain, refs_at_start, runs_of
from tailrace.eventstore.metadata.topics import head_epoch, oldest_unsealed, topic_info, topic_query
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId, TopicKind

# A span is written again with the next ones when it has at most so many times their bytes.
GROWTH = 4
# A run that keeps a larger part of the rows is not worth its place.
WORTH = 0.5


@dataclass(frozen=True, slots=True)
class InspectedSpan:
    """Epochs behind ``after`` and up to ``epoch``; ``bytes`` are read for their part of the state."""

    after: int
    epoch: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DueRun:
    """A run of one topic's epochs behind ``after`` and up to ``epoch``, which have ``rows`` in the log. ``inspections``
    are the epochs at which a run was considered and would have saved too little."""

    info: TopicInfo
    topic_id: int
    start: LogStart
    after: int
    epoch: int
    rows: int
    inspections: tuple[int, ...]

    @property
    def earlier_inspections(self) -> tuple[int, ...]:
        return tuple(epoch for epoch in self.inspections if epoch <= self.after)


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A file of the log, as much of it as matters here."""

    last_epoch: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """What there is of a topic: its files of sealed epochs, its runs, and where inspections ended."""

    start: LogStart
    inspections: tuple[int, ...]
    files: Sequence[SealedFile]
    runs: Sequence[Run]

    @property
    def epoch(self) -> int:
        return max((file.last_epoch for file in self.files), default=0)

    @property
    def last_inspection(self) -> int:
        return max([self.start.epoch, *self.inspections, *(run.epoch for run in self.runs)])

    @property
    def new_bytes(self) -> int:
        """Bytes of files with rows that were not inspected yet."""
        return self.stored_bytes(self.last_inspection, self.epoch)

    def stored_bytes(self, after: int, epoch: int) -> int:
        return sum(file.bytes for file in self.files if after < file.last_epoch <= epoch)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Epochs behind ``after`` and up to ``epoch``, with so many rows in the log (and the run at its start)."""

    after: int
    epoch: int
    rows: int


def begin(spans: Sequence[InspectedSpan], new_bytes: int, at: int = 0) -> int:
    """The epoch behind which a run of new rows begins: it takes the spans with it that it is not small against.
    ``at``: the answer when there are no spans."""
    total, after = new_bytes, spans[-1].epoch if spans else at
    for span in reversed(spans):
        if span.bytes > GROWTH * total:
            break
        total, after = total + span.bytes, span.after
    return after


def due_runs(
    log: Log, topics: Collection[TopicId] | None = None, *, at_once: bool = False
) -> Iterator[DueRun]:
    """The runs to be made now, of these topics or all. ``at_once``: however few the new rows are."""
    least = 1 if at_once else log.settings.upkeep.state_bytes
    if not least:
        return
    with log.catalog.read() as connection:
        oldest = oldest_unsealed(connection)
        sealed = head_epoch(connection) if oldest is None else oldest - 1
        found = connection.execute(topic_query().order_by(tables.topics.c.id)).all()
        large = _topics_of(connection, least, sealed)
    for row in found:
        info = topic_info(row, row.version)
        if row.id in large and info.kind is TopicKind.TABLE and (topics is None or info.id in topics):
            yield from _due_runs_of(log, info, row.id, sealed, least)


def _topics_of(connection: Connection, least: int, sealed: int) -> set[int]:
    """Topics with so many bytes in files: of many tables, most are smaller, and are not looked at one by one."""
    table = tables.segments.c
    query = select(table.topic_id).where(table.last_epoch <= sealed).group_by(table.topic_id)
    return set(connection.scalars(query.having(func.sum(table.bytes) >= least)))


def _holdings(connection: Connection, topic: TopicId, topic_id: int, sealed: int) -> Holdings:
    segments, offsets = tables.segments, tables.topic_offsets
    files = connection.execute(
        select(segments.c.last_epoch, segments.c.rows, segments.c.bytes).where(
            segments.c.topic_id == topic_id, segments.c.last_epoch <= sealed
        )
    )
    inspections = connection.scalar(select(offsets.c.looks).where(offsets.c.topic_id == topic_id))
    return Holdings(
        start=log_start.read(connection, topic_id),
        inspections=tuple(json.loads(inspections or "[]")),
        files=[SealedFile(row.last_epoch, row.rows, row.bytes) for row in files],
        runs=runs_of(connection, topic, topic_id),
    )


def _due_runs_of(log: Log, info: TopicInfo, topic_id: int, sealed: int, least: int) -> Iterator[DueRun]:
    """The next run; when the caller has made it, perhaps one that goes on from it."""
    latest = log.schemas(info.id)[-1]
    made: Stretch | None = None
    while latest.key:
        with log.catalog.read() as connection:
            held = _holdings(connection, info.id, topic_id, sealed)
        span = stretch(info.id, held, info.partitioning, least, bag=latest.bag)
        if span is None or span == made:
            return
        yield DueRun(info, topic_id, held.start, span.after, span.epoch, span.rows, held.inspections)
        made = span


def stretch(
    topic: TopicId, held: Holdings, partitioning: Partitioning, least: int, *, bag: bool
) -> Stretch | None:
    """The epochs of the next run, once ``least`` bytes were not inspected; None when there is nothing to do. Rows
    without a key are counted, so what some of them leave cannot be known without those before."""
    if held.new_bytes < least:
        return None
    after, epoch, spans = 0, held.epoch, spans_of(topic, held)
    if not bag:
        after = begin(spans, held.new_bytes)
    behind = partitioning.last_change_between(after, epoch)
    if after and behind:
        if held.stored_bytes(held.last_inspection, behind) >= least:
            epoch = behind
            after = begin(spans, held.stored_bytes(held.last_inspection, behind))
            behind = partitioning.last_change_between(after, epoch)
        if behind:
            within = [span for span in spans if span.after >= behind]
            after = begin(within, held.stored_bytes(max(held.last_inspection, behind), epoch), behind)
    rows = sum(file.rows for file in held.files if after < file.last_epoch <= epoch)
    if not after:
        rows += sum(ref.rows for ref in refs_at_start(held.runs, held.start))
    return Stretch(after, epoch, rows)


def spans_of(topic: TopicId, held: Holdings) -> list[InspectedSpan]:
    """All inspected epochs, in order and without gaps."""
    found: list[InspectedSpan] = []
    at = 0
    runs = chain(held.runs, topic, held.start, Cut(held.epoch))
    for run in [*runs, None]:
        upto = held.last_inspection if run is None else run.after
        for end in sorted({epoch for epoch in (*held.inspections, upto) if at < epoch <= upto}):
            found.append(InspectedSpan(at, end, held.stored_bytes(at, end)))
            at = end
        if run is not None:
            found.append(InspectedSpan(at, run.epoch, run.bytes))
            at = run.epoch
    return found
