"""Making state runs beside the log, so that readers of a table's state need not fold all of its history again.

1. ``due`` says for which epochs.
2. The run is written (``write``) by this process or by a cluster's workers; no lock is held.
3. One transaction checks the term and that the topic's start has not moved, adds the run, and retires those that it
   replaces.

A crash before 3 leaves orphans, after it nothing to do. A run is made of rows and says nothing that they do not, so it
may be dropped at any time. Code that rewrites rows must rewrite or drop the topic's runs with them, and advance the
term, so that no run under way is made of the former rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.errors import Fenced
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.files.retired import retire
from tailrace.eventstore.maintenance.state_runs.due import WORTH, DueRun, due_runs
from tailrace.eventstore.maintenance.state_runs.write import RunSpan, Workers, discard, run_values, write_run
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import segment
from tailrace.eventstore.segment.merge import require_content
from tailrace.eventstore.segment.select import Part


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """``kept`` of ``rows`` rows make the state of a topic's epochs behind ``after`` and up to ``epoch``. ``bytes`` is
    the run's size; 0 when it would have saved too little, and was not made."""

    topic: str
    after: int
    epoch: int
    rows: int
    kept: int
    bytes: int


def compact(
    log: Log,
    topics: Collection[TopicId] | None = None,
    *,
    at_once: bool = False,
    workers: Workers | None = None,
) -> Iterator[CompactionResult]:
    """Make the state runs that are due, of these topics or all; ``at_once``: of all rows that are in files. Raises
    Fenced when another maintainer began, or the topic's start moved."""
    term: int | None = None
    for each in due_runs(log, topics, at_once=at_once):
        if term is None:
            term = terms.begin(log.catalog, terms.STATE)
        yield _make(log, each, term, workers)


def _make(log: Log, due: DueRun, term: int, workers: Workers | None) -> CompactionResult:
    topic = due.info.id
    folder, of = segment.folder_of(topic, due.topic_id), (due.after, due.epoch)
    name = partial(terms.new_parquet, folder, terms.STATE, term, of)
    run = write_run(log, topic, RunSpan(due.after, due.epoch), name, workers)
    kept = sum(part.rows for part in run)
    if kept > WORTH * due.rows:
        discard(log.storage, run)
        run = []
    for part in run:
        require_content(log.storage, part.ref(topic), part.content, log.settings.upkeep.memory_bytes)
    failpoints.hit("state_run_written")
    with log.catalog.write() as connection:
        terms.check(connection, terms.STATE, term)
        _swap(connection, due, run)
    failpoints.hit("state_run_swapped")
    size = sum(part.bytes for part in run)
    return CompactionResult(topic.text, due.after, due.epoch, due.rows, kept, size)


def _swap(connection: Connection, due: DueRun, run: list[Part]) -> None:
    runs, offsets = tables.state_runs, tables.topic_offsets
    inspections = due.earlier_inspections if run else (*due.earlier_inspections, due.epoch)
    recorded = connection.execute(
        update(offsets)
        .where(offsets.c.topic_id == due.topic_id, offsets.c.start_epoch == due.start.epoch)
        .values(looks=json.dumps(inspections))
    )
    if recorded.rowcount != 1:
        raise Fenced(
            f"rows of {due.info.id} were removed while its state run was written; nothing was changed",
            hint="the next round makes it",
        )
    if run:
        _retire(
            connection,
            due.topic_id,
            runs.c.epoch > due.after,
            runs.c.epoch <= due.epoch,
            runs.c.epoch != due.start.epoch,
        )
        connection.execute(insert(runs), run_values(due.topic_id, due.after, due.epoch, run))


def _retire(connection: Connection, topic_id: int, *which: ColumnElement[bool]) -> None:
    table = tables.state_runs
    mine = (table.c.topic_id == topic_id, *which)
    former = connection.execute(select(table.c.path, table.c.bytes).where(*mine)).all()
    if former:
        connection.execute(delete(table).where(*mine))
        retire(connection, [(row.path, row.bytes) for row in former])
