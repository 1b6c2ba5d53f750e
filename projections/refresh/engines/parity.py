"""The gate before Sail: a definition's rows on it and on Spark are compared once for each generation, release of Sail
and version of the inputs' columns.

Two comparisons, and both have to be equal:

  - *Real rows*: of a step that Spark has just committed, all rows where the inputs are small, else those of sampled
    keys, or the definition over some rows where its values add up.
  - *Edge values*: the function over some rows in which each column has the edge values of its type, on both engines.
    Where Spark raises an error, Sail has to raise one: an integer that wraps around is no result.

Of partial results the definition over them is compared, too. The outcome is kept with the generation; ``check`` and
``projection list`` show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.eventstore import disclosure
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.key_lookup import TooLarge
from tailrace.projections.compute.bucket import BucketOutcome, BucketTask, placement_of
from tailrace.projections.compute.compute import define, require_schema
from tailrace.projections.compute.engine import (
    Engine,
    EngineName,
    SailEngine,
    SparkEngine,
    frames_of_files,
)
from tailrace.projections.compute.frames import local_frame, read_buckets, shown_columns
from tailrace.projections.compute.input_files import input_folder, some_rows
from tailrace.projections.compute.read_plan import ReadPlan
from tailrace.projections.definition.lineage import lineage_of
from tailrace.projections.definition.model import Projection, ProjectionFailed
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.generation import Parity
from tailrace.projections.generations.result_input import ResultInput
from tailrace.projections.generations.step_files import StepFiles, read_result
from tailrace.projections.refresh.by_key.incremental import compare_buckets, restricted_result
from tailrace.projections.refresh.by_key.restricted_inputs import Inputs
from tailrace.projections.refresh.by_key.samples import input_versions, proof_of, sampled_keys
from tailrace.projections.refresh.compute_all import compute_at
from tailrace.projections.refresh.engines.choice import (
    may_be_read_whole,
    parity_of,
    reads_of,
    sail_is_wanted,
    unreadable,
)
from tailrace.projections.refresh.engines.edge_values import edge_rows
from tailrace.projections.refresh.plan import NotIncremental
from tailrace.projections.refresh.step_input import StepInput
from tailrace.projections.spark.errors import let_go, translate_errors
from tailrace.projections.spark.sail import sail_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FEW_ROWS, _PARTS = 30, 4
"""A result of fewer rows is also compared over so many parts of an input."""
_EDGE_ROWS = 500
"""Real rows of each input that edge values are put into."""
_SOME_ROWS, _MOST_PARTIAL = 5_000, 100_000
"""Rows that are compared of a large input whose values add up, and of partial results."""


def compare_engines(step: StepInput, files: StepFiles) -> None:
    """Compare a step that Spark took, of which ``files`` are the result, with Sail, unless that is known."""
    if sail_is_wanted(step.ctx) and parity_of(step) is None:
        require_parity(step, files)


def require_parity(step: StepInput, files: StepFiles) -> Parity | None:
    """Compare Sail's rows with a result of Spark's, and keep what was found. None: Sail would not be given so large
    inputs, and has no keys to be compared on."""
    found = _compared(step, files)
    if found is not None:
        generation = step.generation
        step.ctx.store.derived.set_parity(generation.projection, generation.number, found.to_json())
    return found


def note_failed(step: StepInput, why: str) -> None:
    """Keep that Sail gives other rows of a generation than Spark, seen after it had passed."""
    generation = step.generation
    parity = Parity(sail_version(), input_versions(step), why)
    step.ctx.store.derived.set_parity(generation.projection, generation.number, parity.to_json())


def _compared(step: StepInput, files: StepFiles) -> Parity | None:
    versions = input_versions(step)
    refused = unreadable(reads := reads_of(step))
    if refused is not None:
        return Parity(sail_version(), versions, refused)
    step.ctx.report(f"comparing Sail with Spark for {step.label}", 0, None, "")
    whole, sail = may_be_read_whole(step.ctx, reads), SailEngine(step.ctx)
    try:
        if whole:  # files that Sail reads are those of other projections too, and no part of what it takes
            with translate_errors(step.projection, "reading its inputs"), sail.active():
                sail.frames(step.projection, reads)
        if not whole:
            _require_sampled(step)
        rows = {name: _some_rows(step, reads, name).slice(0, _EDGE_ROWS) for name in reads.inputs}
        if (edges := _edges_differ(step, rows, partial(_keys_of, reads))) is not None:
            return Parity(sail_version(), versions, edges)
        found = difference_on("sail", step, files)
    except NotComparable:
        return None
    except ProjectionFailed as error:
        found = Compared(f"Sail cannot compute it: {' '.join(error.message.split())}")
    over = found.failed is None and step.read_by is not None and _is_equal_over(step, step.read_by, files)
    return Parity(sail_version(), versions, found.failed, found.seconds if whole else None, over)


class NotComparable(Exception):
    """Neither are the inputs small, nor is the projection followed by key."""


@dataclass(frozen=True, slots=True)
class Compared:
    """``failed``: the first row that an engine gives otherwise, in words; None: there is none among those that were
    compared. ``seconds`` are those of the engine."""

    failed: str | None
    seconds: float = 0.0


def difference_on(name: EngineName, step: StepInput, files: StepFiles) -> Compared:
    """Compare what another engine gives with a result, which ``files`` hold. Raises NotComparable, and what computing
    raises."""
    reads, clock = reads_of(step), step.ctx.clock
    whole = may_be_read_whole(step.ctx, reads)
    other = replace(step, on=name, from_files=whole, here=whole)
    with step.ctx.store.pinned(f"projection {step.projection.name}"):
        if not whole:
            adds = step.definition.additive is not None
            return Compared(_some_differ(step, reads) if adds else _different(_sampled(other, files)))
        began = clock()
        outcomes = compute_at(other, _comparing(step, files), files.results)
        seconds = clock() - began
        few = sum(outcome.rows for outcome in outcomes) < _FEW_ROWS
        return Compared(_different(outcomes) or (_parts_differ(step, reads) if few else None), seconds)


def _some_differ(step: StepInput, reads: ReadPlan) -> str | None:
    """What differs over some rows: where values add up, a refresh sees few rows, and no others."""
    rows = {name: _some_rows(step, reads, name) for name in reads.inputs}
    spark, sail = _on_both(step, partial(_local_frames, step.projection, rows))
    return None if spark == sail else "its rows over some rows of its input are others on Sail than on Spark"


def _is_equal_over(step: StepInput, over: StepInput, files: StepFiles) -> bool:
    """Whether both engines give the same rows over partial results, which ``files`` hold, and over edge values."""
    if len(over.definition.inputs) > 1:
        return False  # a function that marks its partial results is given all of its inputs
    ((name, _),) = over.definition.inputs.items()
    generation, pieces = step.generation, []
    for held in files.buckets.values():
        pieces.append(read_result(step.ctx.store.storage, held, generation.schema, generation.key))
        if sum(piece.num_rows for piece in pieces) >= _MOST_PARTIAL:
            break
    if not pieces:
        return False
    rows = pa.concat_tables(pieces).slice(0, _MOST_PARTIAL).drop_columns([HASH]).cast(generation.schema)
    spark, sail = _on_both(over, partial(_local_frames, over.definition, {name: rows}))
    if spark is None or spark != sail:
        return False
    some = {name: rows.slice(0, _EDGE_ROWS)}
    return _edges_differ(over, some, lambda _: list(generation.key)) is None


def _parts_differ(step: StepInput, reads: ReadPlan) -> str | None:
    """What differs where the function is given parts of its largest input: a single number is equal by chance."""
    projection = step.projection
    chosen = _largest_with_numbers(step, reads)
    if chosen is None:
        return None
    name, column = chosen

    def inputs(engine: Engine, part: int) -> dict[str, DataFrame]:
        given = frames_of_files(engine, step.ctx, projection, reads)
        rows = given[name].where(f"pmod(`{column}`, {_PARTS}) = {part}")
        return given | {name: rows.alias(name)}

    for part in range(_PARTS):
        spark, sail = _on_both(step, partial(inputs, part=part))
        if spark != sail:
            return f"its rows over a part of {name} are others on Sail than on Spark"
    return None


def _largest_with_numbers(step: StepInput, reads: ReadPlan) -> tuple[str, str] | None:
    """The input of the most rows that has a column of integers, and that column: one of its key, if there is one."""
    found = []
    for name, planned in reads.inputs.items():
        keys = _keys_of(reads, name)
        numbers = [
            column
            for column in shown_columns(planned, step.projection.inputs[name])
            if pa.types.is_integer(planned.schema.field(column).type)
        ]
        if numbers:
            rows = planned.rows if isinstance(planned, ResultInput) else sum(ref.rows for ref in planned.refs)
            found.append((rows, name, min(numbers, key=lambda column: column not in keys)))
    return max(found)[1:] if found else None


def _comparing(step: StepInput, files: StepFiles) -> BucketTask:
    """Compares with the step's result, and writes nothing."""
    return BucketTask(
        step.ctx.store.storage,
        placement_of(step.generation),
        files.buckets,
        step.projection.tolerance,
        None,
        "",
    )


def _different(outcomes: list[BucketOutcome]) -> str | None:
    samples = [sample for outcome in outcomes for sample in outcome.samples]
    if not samples:
        return None
    return f"its rows on Sail are others than on Spark, for example of key {disclosure.value(samples[0].key)}"


def _require_sampled(step: StepInput) -> None:
    """Raises NotComparable where rows of some keys do not show whether all are equal."""
    proof = proof_of(step)
    if step.definition.additive is None and (proof is None or proof.failed is not None or proof.subqueries):
        raise NotComparable


def _sampled(step: StepInput, files: StepFiles) -> list[BucketOutcome]:
    """The outcomes of comparing some keys."""
    _require_sampled(step)
    lineage, task = lineage_of(step.projection), _comparing(step, files)
    keys = sampled_keys(task, lineage.key, Random(f"{step.generation} {step.cut.epoch}"))
    if keys is None:
        return []
    try:
        with step.engine.active():
            rows = Inputs(step.ctx, step.engine, step.projection, lineage, step.cut).rows_of_keys(keys)
        found = restricted_result(step, lineage, rows, keys)
    except (TooLarge, NotIncremental):
        raise NotComparable from None
    return compare_buckets(task, lineage, keys, found)


def _edges_differ(
    step: StepInput, rows: Mapping[str, pa.Table], keys_of: Callable[[str], list[str]]
) -> str | None:
    """What differs where columns of these ``rows``, besides the keys, have edge values; None when nothing does. Where
    both engines refuse large numbers, the others are compared without them."""
    projection = step.projection
    for extremes in (True, False):
        given = {name: edge_rows(table, keys_of(name), extremes=extremes) for name, table in rows.items()}
        spark, sail = _on_both(step, partial(_local_frames, projection, given))
        if spark is None and sail is None:
            continue
        if spark is None:
            return "it gives rows for edge values of its columns where Spark raises an error"
        if sail is None:
            return "it raises an error for edge values of its columns that Spark computes"
        return None if spark == sail else "its rows for edge values of its columns are others than Spark's"
    return None


def _some_rows(step: StepInput, reads: ReadPlan, name: str) -> pa.Table:
    """Some rows of an input, at each position others, as the function sees them."""
    ctx, planned, source = step.ctx, reads.inputs[name], step.projection.inputs[name]
    names = shown_columns(planned, source)

    def look_up() -> pa.Table:
        random = Random(f"{step.generation} {step.cut.epoch}")
        if step.from_files:  # they are there
            folder, _ = input_folder(ctx, source, planned, step.cut, names)
            return some_rows(folder, names, _SOME_ROWS, random)
        pieces: list[pa.Table] = []
        for bucket in random.sample(range(planned.buckets), planned.buckets):
            for rows in read_buckets(ctx.store.storage, planned, range(bucket, bucket + 1)):
                pieces.append(rows.select(names).slice(0, _SOME_ROWS - sum(map(len, pieces))))
            if sum(map(len, pieces)) >= _SOME_ROWS:
                break
        return pa.concat_tables(pieces).combine_chunks()

    return ctx.round_rows.get(("some", str(step.generation), name, step.cut.epoch), look_up)


def _keys_of(reads: ReadPlan, name: str) -> list[str]:
    planned = reads.inputs[name]
    if not isinstance(planned, StateInput):
        return list(planned.schema.names)
    return [column.name for column in planned.target.key]


def _local_frames(
    projection: Projection, given: Mapping[str, pa.Table], engine: Engine
) -> dict[str, DataFrame]:
    return {name: local_frame(engine.session, projection, name, rows) for name, rows in given.items()}


def _on_both(
    step: StepInput, inputs: Callable[[Engine], Mapping[str, DataFrame]]
) -> tuple[list[str] | None, list[str] | None]:
    """The function's rows on Spark and on Sail, in an order of their own and without columns that have a tolerance.
    None where it fails: in other words on each engine."""
    projection = step.projection
    found: list[list[str] | None] = []
    for engine in (SparkEngine(step.ctx), SailEngine(step.ctx)):
        try:
            with engine.active():
                result = define(projection, inputs(engine), step.cut.commit_ts)
                require_schema(projection, step.generation.schema, str(step.generation), result)
                rows: pa.Table = result.toArrow()
            exact = rows.cast(step.generation.schema).drop_columns([*projection.tolerance])
            found.append(sorted(map(repr, exact.to_pylist())))
        except Exception as error:  # noqa: BLE001 whatever an engine raises
            let_go(error)
            found.append(None)
    spark, sail = found
    return spark, sail
