"""Which engine takes a step: Sail where it is asked for and proved to give a definition's rows as Spark does.

A first step is always Spark's: it is what Sail's rows are compared with. With Sail, small inputs are rather computed
whole than by key: that reads files which other projections of the round read too, and takes a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.model.schema import unify
from tailrace.eventstore.state.input import DECODED
from tailrace.projections.compute.engine import EngineName
from tailrace.projections.compute.frames import shown_columns
from tailrace.projections.compute.read_plan import ChangesInput, ReadPlan, resolve_reads
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.lineage import Direct, lineage_of
from tailrace.projections.definition.model import State
from tailrace.projections.generations.generation import Parity, files_of
from tailrace.projections.refresh.by_key.samples import input_versions, proof_of
from tailrace.projections.refresh.costs import LATEST
from tailrace.projections.refresh.plan import Full, Incremental
from tailrace.projections.refresh.step_input import StepInput
from tailrace.projections.spark.masters import runs_here
from tailrace.projections.spark.sail import is_installed, require_installed, sail_version

if TYPE_CHECKING:
    from tailrace.projections.refresh.plan import Cause

_TEXT_BYTES = 64
"""What a text of a result is taken to need."""
_QUICK = "everything is computed in less than a second"
_QUICK_SECONDS = 1.0
"""What is computed whole in less is not worth the look for affected keys."""


def sail_is_wanted(ctx: ProjectionContext) -> bool:
    """Whether the settings ask for Sail and it can be had: it shares this process, and so does a local master. Raises
    OperatorError where it is asked for by name and not installed."""
    engine = ctx.settings.spark.engine
    if engine == "sail":
        require_installed()
    return engine != "spark" and is_installed() and runs_here(ctx.settings.spark.master)


def parity_of(step: StepInput) -> Parity | None:
    """What is known of the Sail that is installed, for the columns that the inputs have now; None: it is still to be
    compared."""
    held = step.held.parity
    if held is None or held.engine != sail_version() or dict(held.versions) != input_versions(step):
        return None
    return held


def reads_of(step: StepInput, names: Sequence[str] | None = None) -> ReadPlan:
    """All rows of inputs at the step's position."""
    return resolve_reads(step.ctx.store, step.projection, step.cut, names)


def is_small(ctx: ProjectionContext, reads: ReadPlan) -> bool:
    """Whether inputs together take so little memory that they are read into files of this machine."""
    return reads.stored_bytes * DECODED < ctx.settings.spark.small_bytes


def may_be_read_whole(ctx: ProjectionContext, reads: ReadPlan) -> bool:
    """Whether all rows of inputs are given to Sail."""
    return is_small(ctx, reads) or ctx.settings.spark.engine == "sail"


def unreadable(reads: ReadPlan) -> str | None:
    """Why inputs are not read into files, whatever their size."""
    if reads.computed_inputs:
        return "a result that it reads is computed with it"
    if any(isinstance(each, ChangesInput) and each.keys is not None for each in reads.inputs.values()):
        return "it reads events with values about persons, which are not written to files"
    return None


def choose(
    step: StepInput, decided: Full | Incremental, last: DerivedRun | None
) -> tuple[StepInput, Full | Incremental]:
    """The step on the engine that takes it, and in the way that it is taken there. ``last``: the step before."""
    ctx = step.ctx
    if step.generation.pin is not None or not runs_here(ctx.settings.spark.master):
        return step, decided
    reads = reads_of(step)
    if unreadable(reads) is not None:
        return step, decided
    if last is None:
        return replace(step, from_files=_is_read_again(step, reads) and _is_plain(step, reads)), decided
    held, adds = is_held(step, last), step.definition.additive is not None
    parity = parity_of(step) if sail_is_wanted(ctx) else None
    if parity is None or parity.failed is not None:
        plain = held and is_small(ctx, reads) and _is_plain(step, reads)
        step = replace(step, from_files=plain, here=plain)
        quick = plain and parity is not None and _was_quick(step)
        if quick and isinstance(decided, Incremental) and not adds:
            return step, _in_full(decided, _QUICK)
        return step, decided
    whole = held and may_be_read_whole(ctx, reads)
    on_sail = replace(step, on="sail", from_files=True, here=True)
    if isinstance(decided, Full):
        return (on_sail if whole else step), decided
    if adds:
        return on_sail, decided
    if whole and _is_quick(parity) and not is_row_by_row(step):
        return on_sail, _in_full(decided, _QUICK)
    proof = proof_of(step)
    if proof is None or proof.subqueries:  # their values are compared in Spark's plans
        if whole:
            return on_sail, _in_full(decided, "values of its subqueries are not compared")
        return step, decided
    lineage = lineage_of(step.projection)
    computed = [name for name, path in lineage.paths.items() if isinstance(path, Direct) and path.computed]
    read_whole = [*lineage.unknown, *computed]
    if whole or not read_whole or is_small(ctx, reads_of(step, read_whole)):
        return on_sail, decided
    return step, decided


def _is_read_again(step: StepInput, reads: ReadPlan) -> bool:
    """Whether other builds of this process read the rows of an input, too, and files have room for them."""
    topics = {each.topic for each in step.projection.inputs.values() if isinstance(each, State)}
    room = step.ctx.settings.projections.kept_rows_bytes
    return not topics.isdisjoint(step.ctx.builds.shared) and reads.stored_bytes * DECODED < room


def is_row_by_row(step: StepInput) -> bool:
    """Whether a changed row affects a key of its own: then finding and reading the rows of keys costs next to
    nothing."""
    lineage = lineage_of(step.projection)
    return not lineage.unknown and tables_of_own_keys(step) == [*lineage.paths]


def tables_of_own_keys(step: StepInput) -> list[str]:
    """The inputs that are tables of which each row has a key of the result's to itself."""
    found = []
    for name, way in lineage_of(step.projection).paths.items():
        source = step.projection.inputs[name]
        if isinstance(source, State) and isinstance(way, Direct):
            own = {column.name for column in unify(step.ctx.store.schemas(source.topic_id)).key}
            if own and own <= {*way.columns}:
                found.append(name)
    return found


def for_all_rows(step: StepInput, last: DerivedRun | None) -> StepInput:
    """The step where it is computed whole after all: on Sail only where that may take all rows."""
    if step.on == "spark":
        return step
    if last is not None and is_held(step, last) and may_be_read_whole(step.ctx, reads_of(step)):
        return step
    return replace(step, on="spark", from_files=False, here=False)


def is_quick(step: StepInput) -> bool:
    """Whether Sail takes the step, and everything would take it a moment. Most of that is shared in a round, and paid
    by the first: what a step took then says nothing."""
    parity = parity_of(step) if step.on == "sail" else None
    return parity is not None and _is_quick(parity)


def _is_quick(parity: Parity) -> bool:
    return (parity.seconds or 0.0) < _QUICK_SECONDS


def is_held(step: StepInput, last: DerivedRun) -> bool:
    """Whether this process may hold the whole result, going by the rows of the last one."""
    kinds = step.generation.schema.types
    width = sum(kind.bit_width // 8 if _is_fixed(kind) else _TEXT_BYTES for kind in kinds)
    return files_of(last).rows * width < step.ctx.settings.spark.small_bytes


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _was_quick(step: StepInput) -> bool:
    """Whether the last refreshes that computed everything on this engine took less than a second, as far as is
    known."""
    records = step.ctx.store.run_records.latest(step.projection.name, limit=LATEST, kinds=["full"])
    seconds = [
        record.seconds for record in of_engine(records, step.on) if record.seconds and record.from_epoch
    ]
    return min(seconds, default=0.0) < _QUICK_SECONDS


def _is_plain(step: StepInput, reads: ReadPlan) -> bool:
    """Whether Spark reads all columns from files in the types in which its tasks give them."""
    return all(
        _is_plain_type(planned.schema.field(column).type)
        for name, planned in reads.inputs.items()
        for column in shown_columns(planned, step.projection.inputs[name])
    )


def _is_plain_type(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_floating, pa.types.is_decimal128,
            pa.types.is_string, pa.types.is_binary, pa.types.is_date32, pa.types.is_timestamp,
        )
    )  # fmt: skip


def _in_full(decided: Incremental, why: str, cause: Cause = "cost") -> Full:
    return Full(decided.from_epoch, decided.to_epoch, decided.reason, cause, why)


def of_engine(records: Sequence[RunRecord], engine: EngineName) -> list[RunRecord]:
    """What the engine took: another one's seconds say nothing of it."""
    return [record for record in records if (record.engine or "spark") == engine]
