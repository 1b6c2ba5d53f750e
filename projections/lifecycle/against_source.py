"""Prove that a projection means in the log what its query means in its source.

The query runs in the source, in a snapshot at one LSN. The projection is computed from the log at that LSN, and the two
answers are compared; how, is said in ``verify``. Together with that comparison, of the sink with the log, it proves the
sink. So it does not matter what a runner does to the sink meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

import numpy as np
import pyarrow as pa

from tailrace.eventstore.errors import DifferenceFound, UsageError
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.schema import Column
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.state.input import StateInput
from tailrace.projections.compute.bucket import BucketOutcome, BucketTask, Placement, placement_of
from tailrace.projections.compute.frames import shown_columns
from tailrace.projections.compute.read_plan import Planned, describe_input, plan_input
from tailrace.projections.compute.sampling import Hashes, ListedKeys
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Input, Projection, State
from tailrace.projections.definition.sql.postgres.query import PostgresQuery
from tailrace.projections.definition.sql.source_text import SourceText
from tailrace.projections.definition.sql_query import SqlQuery
from tailrace.projections.generations.difference import Mask
from tailrace.projections.generations.step_files import BucketFiles
from tailrace.projections.lifecycle.row_files import RowFiles, narrow, row_folder, within_reach, write_rows
from tailrace.projections.lifecycle.source_values import values_of
from tailrace.projections.lifecycle.verify import (
    SAMPLES_SHOWN,
    DifferentRow,
    comparable,
    different_row,
    require_live,
)
from tailrace.projections.refresh.compute_all import compute_at
from tailrace.projections.refresh.record import record_failures
from tailrace.projections.refresh.step_input import StepInput
from tailrace.projections.sinks.columns import is_list

_UNLIKE_MOST = 1_000_000
"""Rows that no row of the projection can equal. The hashes of their keys are part of every task."""


class Source(Protocol):
    """The source at ``lsn``, which the log has."""

    @property
    def lsn(self) -> int: ...

    def relation(self, topic: TopicId, columns: Sequence[Column]) -> str:
        """What stands behind FROM for the rows and these columns of a topic, before an alias."""

    def columns(self, query: str) -> Mapping[str, int]:
        """The oids of the types of a query's columns, by name."""

    def texts(
        self, query: str, columns: Mapping[str, int], lists: Collection[str]
    ) -> Iterator[pa.RecordBatch]:
        """The rows: what Postgres prints; of ``lists`` the JSON of arrays."""


OpenSource = Callable[[str, Sequence[TopicId], str], AbstractContextManager[Source]]
"""The source of a name, with the tables of some topics, in a session with a time zone."""


class NotComparable(UsageError):
    """What a projection is made of is not all in one source, or not as it is there."""


@dataclass(frozen=True, slots=True)
class SourceComparison:
    """How a projection differs at ``lsn`` from its query in the source, which has ``rows``. ``only_in_source`` rows are
    missing in the projection, ``only_in_projection`` rows should not be there, ``different`` ones have other values."""

    projection: str
    generation: int
    source: str
    lsn: int
    epoch: int
    rows: int
    only_in_source: int
    only_in_projection: int
    different: int
    samples: tuple[DifferentRow, ...]

    @property
    def equal(self) -> bool:
        return not (self.only_in_source or self.only_in_projection or self.different)


def source_of(ctx: ProjectionContext, projection: Projection) -> str:
    """The source in which a projection's query can be run. Raises NotComparable, with the reason, and UsageError for a
    text that is not one SELECT there."""
    if not isinstance(projection.function, SqlQuery):
        raise _refusal(projection, "is written in Python, and the source can only run SQL")
    for name, each in projection.inputs.items():
        if not isinstance(each, State):
            what = type(each).__name__.lower()
            raise _refusal(projection, f"reads {name} as {what}, which is no table of a source")
        if ctx.store.topic(each.topic_id).kind is not TopicKind.TABLE:
            raise _refusal(projection, f"reads {name}, which is no table of a source")
        if each.erased:
            raise _refusal(projection, f"reads which cells of {name} were erased, which only the log knows")
    sources = sorted({topic.source for topic in projection.topics})
    if len(sources) > 1:
        raise _refusal(projection, f"reads tables of several sources: {', '.join(sources)}")
    _check_policies(ctx, projection, _text(projection.function, projection))
    return sources[0]


def _text(function: SqlQuery, projection: Projection) -> SourceText:
    return SourceText(function.text, _label(projection))


def compare_with_source(ctx: ProjectionContext, name: str, open_source: OpenSource) -> SourceComparison:
    """Compare the live generation's definition over the log with its query in the source. A difference is recorded.

    Raises what ``source_of`` raises, UsageError when nothing is live or the source does not answer the query,
    OperatorError when the generation is frozen, and what ``open_source`` raises."""
    started = datetime.now(UTC)
    projection = ctx.projection(name)
    source = source_of(ctx, projection)
    assert isinstance(projection.function, SqlQuery)
    text = _text(projection.function, projection)
    with record_failures(ctx, name, "verify", require_live(ctx, name)), row_folder(ctx) as folder:
        generation = comparable(ctx, name)
        ctx.report(f"waiting for the log of {source}", 0, None, "")
        zone = projection.function.time_zone if isinstance(projection.function, PostgresQuery) else "UTC"
        with open_source(source, projection.topics, zone) as opened:
            lsn = opened.lsn
            step = StepInput(ctx, projection, generation, ctx.store.cut(f"{source}={format_lsn(lsn)}"))
            query = text.filled(_relations(step, opened), step.cut.commit_ts)
            answer = _Answer(placement_of(generation))
            batches = answer.batches(opened, query, _label(projection))
            files = write_rows(answer.placement, folder, batches, lambda seen: _report(ctx, source, seen))
        outcomes = _outcomes(step, replace(files, placement=answer.chosen()))
    found = _comparison(step, source, lsn, answer, outcomes)
    if not found.equal:
        _record(ctx, found, started)
    return found


def _record(ctx: ProjectionContext, found: SourceComparison, started: datetime) -> None:
    """Record a difference. What is equal to the source says nothing of the sink, whose own comparison is on record."""
    ctx.store.run_records.add(
        RunRecord(
            projection=found.projection,
            generation=found.generation,
            started=started,
            finished=datetime.now(UTC),
            from_epoch=None,
            to_epoch=found.epoch,
            kind="verify",
            reason=f"against its query in {found.source}: {found.different:,} rows with other values,"
            f" {found.only_in_source:,} only in the source, {found.only_in_projection:,} only in the projection",
            rows_upserted=found.different + found.only_in_projection,
            rows_deleted=found.only_in_source,
            status="different",
        )
    )


def _report(ctx: ProjectionContext, source: str, seen: int) -> None:
    ctx.report(f"reading the answer of {source}", seen, None, "rows")


def _check_policies(ctx: ProjectionContext, projection: Projection, text: SourceText) -> None:
    """Raises NotComparable when the query may read a column that the log has otherwise than the source."""
    for name, each in projection.inputs.items():
        for column in _columns(describe_input(ctx.store, each), each):
            if column.policy and text.names(column.name):
                raise _refusal(
                    projection, f"may read {name}.{column.name}, which a column policy changes in the log"
                )


def _relations(step: StepInput, opened: Source) -> dict[str, str]:
    """What stands for each input in the source: the columns that the projection sees, without protected ones."""
    relations: dict[str, str] = {}
    for name, each in step.projection.inputs.items():
        assert isinstance(each, State)
        columns = _columns(plan_input(step.ctx.store, each, step.cut), each)
        relations[name] = opened.relation(each.topic_id, [each for each in columns if not each.policy])
    return relations


def _columns(planned: Planned, source: Input) -> list[Column]:
    assert isinstance(planned, StateInput)
    shown = shown_columns(planned, source)
    return [column for column in planned.selected_columns if column.name in shown]


@dataclass
class _Answer:
    """The source's rows, as they come. ``unlike`` are those that no row of the projection can equal: they have values
    that its columns cannot hold. ``hashes`` are those of their keys, where the keys can be held."""

    placement: Placement
    rows: int = 0
    unlike: int = 0
    hashes: list[Hashes] = field(default_factory=list)
    samples: list[DifferentRow] = field(default_factory=list)

    def batches(self, opened: Source, query: str, label: str) -> Iterator[pa.RecordBatch]:
        """The rows that can be compared, in the schema of the projection."""
        schema = self.placement.schema
        found = opened.columns(query)
        if found.keys() != set(schema.names):
            raise UsageError(
                f"{label} has other columns in the source: {', '.join(found)} instead of {', '.join(schema.names)}",
                hint="give each column of the query its name with AS, in lower case or in quotation marks",
            )
        oids = {name: found[name] for name in schema.names}
        lists = [each.name for each in schema if is_list(each.type)]
        for texts in opened.texts(query, oids, lists):
            self.rows += texts.num_rows
            read = [values_of(texts[name], schema.field(name).type, oid) for name, oid in oids.items()]
            batch = pa.RecordBatch.from_arrays([values for values, _ in read], schema=schema)
            bad = np.logical_or.reduce([mask for _, mask in read])
            if bad.any():
                self._put_aside(
                    texts, batch, dict(zip(schema.names, (mask for _, mask in read), strict=True))
                )
                batch = batch.filter(pa.array(~bad))
            yield batch

    def _put_aside(self, texts: pa.RecordBatch, batch: pa.RecordBatch, masks: Mapping[str, Mask]) -> None:
        key = self.placement.key
        bad = np.logical_or.reduce(list(masks.values()))
        keyed = bad & ~np.logical_or.reduce([masks[name] for name in key])
        self.unlike += int(bad.sum())
        self.hashes.append(self.placement.hashes(batch.filter(pa.array(keyed))).to_numpy())
        if self.unlike > _UNLIKE_MOST:
            names = ", ".join(name for name, mask in masks.items() if mask.any())
            raise DifferenceFound(
                f"more than {_UNLIKE_MOST:,} rows of the source have values that the projection's columns cannot hold"
                f" ({names})",
                hint="the query gives another type there: cast it in the query",
            )
        for at in np.flatnonzero(bad)[: SAMPLES_SHOWN - len(self.samples)].tolist():
            row = {name: texts[name][at].as_py() for name in masks}
            values = {name: row[name] for name, mask in masks.items() if mask[at]}
            held = {name: f"no {batch.schema.field(name).type} equals it" for name in values}
            named = _json({name: row[name] for name in key})
            self.samples.append(DifferentRow("different", named, _json(values), _json(held)))

    def chosen(self) -> Placement:
        """The keys that are left to be compared."""
        if not self.hashes:
            return self.placement
        return narrow(self.placement, ListedKeys(np.concatenate(self.hashes), others=True))


def _outcomes(step: StepInput, files: RowFiles) -> list[BucketOutcome]:
    ctx, projection, generation = step.ctx, step.projection, step.generation
    with (
        attempts.attempt(ctx.store.catalog, projection.name, generation.number, "verify") as attempt,
        within_reach(ctx, generation, attempt, files) as there,
    ):
        task = BucketTask(
            storage=there.storage,
            placement=there.placement,
            previous={bucket: BucketFiles(file) for bucket, file in there.files.items()},
            tolerance=projection.tolerance,
            folder=None,
            attempt="",
        )
        return compute_at(step, task)


def _comparison(
    step: StepInput, source: str, lsn: int, answer: _Answer, outcomes: Sequence[BucketOutcome]
) -> SourceComparison:
    found = [
        different_row(sample, old="source", new="projection")
        for outcome in outcomes
        for sample in outcome.samples
    ]
    turned = [replace(each, expected=each.actual, actual=each.expected) for each in found]
    return SourceComparison(
        projection=step.projection.name,
        generation=step.generation.number,
        source=source,
        lsn=lsn,
        epoch=step.cut.epoch,
        rows=answer.rows,
        only_in_source=sum(outcome.only_old for outcome in outcomes),
        only_in_projection=sum(outcome.only_new for outcome in outcomes),
        different=sum(outcome.different for outcome in outcomes) + answer.unlike,
        samples=(*answer.samples, *turned)[:SAMPLES_SHOWN],
    )


def _json(row: Mapping[str, str | None]) -> str:
    return json.dumps(row, ensure_ascii=False)


def _label(projection: Projection) -> str:
    return f"projection {projection.name!r} ({projection.place})"


def _refusal(projection: Projection, why: str) -> NotComparable:
    return NotComparable(
        f"{_label(projection)} {why}: it cannot be compared with the source",
        hint=f"`tailrace verify {projection.name}` compares its sink with the log, `tailrace verify --source` the log"
        " with the source",
    )
