"""State runs: rows of the log that make a topic's state, in place of all rows of the same epochs.

A run holds, of the epochs behind ``after`` and up to ``epoch``, the rows that say with everything before what the state
is, now and under whatever comes later: a subsequence of the log. One that begins with the log (``after`` is 0) needs
nothing before it. The run at a topic's start is what retention left of rows that are gone; all others stand beside the
rows that they are made of, and only readers of the state use them in their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, literal, select

from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.errors import damaged_row
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.metadata.log_start import LogStart, holds
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId

AnyRow = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Run:
    """``refs`` are its files in the topic's order; their offsets have gaps."""

    after: int
    epoch: int
    refs: tuple[SegmentRef, ...]

    @property
    def bytes(self) -> int:
        return sum(ref.bytes for ref in self.refs)


def runs_of(connection: Connection, topic: TopicId, topic_id: int) -> list[Run]:
    """A topic's runs, by their ends. One without a row has no files, so it is not there. Raises IntegrityError for a
    file that is said to be of another run than its name says, and when rows of the run at the topic's start are
    missing."""
    table = tables.state_runs
    query = select(table, literal(True).label("sealed")).where(table.c.topic_id == topic_id)
    rows = connection.execute(query.order_by(table.c.epoch, table.c.number)).all()
    for row in rows:
        if not is_named(row):
            raise damaged_row(f"state_runs: path {row.path}", OTHER_RUN)
    _require_start(connection, topic_id, rows)
    return [
        Run(after, epoch, tuple(segment_index.file_ref(topic, row) for row in files))
        for (after, epoch), files in groupby(rows, lambda row: (row.after_epoch, row.epoch))
    ]


def rows_at_start(rows: Iterable[AnyRow], epoch: int) -> int:
    """How many rows stand for those up to an epoch that are gone."""
    return sum(row.rows for row in rows if (row.after_epoch, row.epoch) == (0, epoch))


def _require_start(connection: Connection, topic_id: int, rows: Iterable[AnyRow]) -> None:
    book = tables.lineage
    query = select(book.c.start_epoch, book.c.start_rows).where(book.c.topic_id == topic_id)
    recorded = connection.execute(query).one_or_none()
    if recorded is None or rows_at_start(rows, recorded.start_epoch) != recorded.start_rows:
        raise damaged_row(
            f"state_runs: topic_id {topic_id}",
            "its rows at the topic's start are not as many as lineage says",
        )


OTHER_RUN = "its epochs are not those of the run that its name tells"


def is_named(row: AnyRow) -> bool:
    """Whether a file's name tells the run that its row says. Names given before it did tell none."""
    return terms.numbers_of(row.path) in (None, (row.after_epoch, row.epoch))


def refs_at_start(runs: Sequence[Run], start: LogStart) -> tuple[SegmentRef, ...]:
    """The files that stand for the rows that are gone."""
    return next((run.refs for run in runs if run.epoch == start.epoch), ())


def chain(runs: Sequence[Run], topic: TopicId, start: LogStart, cut: Cut) -> list[Run]:
    """The runs to read for the state at a cut, in order: the longest that begins with the log, then what goes on from
    there. Where one begins behind the end of the one before, all rows between are to be read; where it begins before
    that end (retention cut through it), it gives its later rows only."""
    usable = [run for run in runs if start.epoch <= run.epoch and holds(cut, topic, run.epoch)]
    whole = max((run.epoch for run in usable if not run.after), default=start.epoch)
    found = [run for run in usable if not run.after and run.epoch == whole]
    end = whole
    for run in usable:
        if run.epoch > end:
            later = tuple(
                replace(ref, first_epoch=max(ref.first_epoch, end + 1))
                for ref in run.refs
                if ref.last_epoch > end
            )
            found.append(Run(max(run.after, end), run.epoch, later))
            end = run.epoch
    return found
