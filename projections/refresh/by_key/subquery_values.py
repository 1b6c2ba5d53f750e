"""The scalar subqueries of a projection over all rows of their inputs, at the two ends of a step.

While their values stay, they are constants: a change of what they read reaches no key by way of them, and the function
over some keys' rows is given the values that they have over all. When one changed, every key may be another.

A value is never kept. It is computed at the position where the generation is and at the one where the step leads, from
the log as the function's inputs are: so there is none to save with a step, to erase, or to believe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from tailrace.eventstore.model.position import Cut
from tailrace.projections.analysis.empty_inputs import empty_inputs
from tailrace.projections.analysis.subqueries import words_of
from tailrace.projections.compute.compute import define
from tailrace.projections.compute.engine import SparkEngine
from tailrace.projections.compute.read_plan import plan_input, plan_reads
from tailrace.projections.compute.scalar_subqueries import (
    ScalarSubquery,
    SubqueryValue,
    marked,
    scalar_subqueries,
    with_values,
)
from tailrace.projections.definition.lineage import lineage_of
from tailrace.projections.definition.model import Input, Projection, Result
from tailrace.projections.generations.result_input import changed_topics, result_at
from tailrace.projections.refresh.plan import NotIncremental
from tailrace.projections.refresh.step_input import StepInput
from tailrace.projections.spark.errors import FOR_GOOD, translate_errors
from tailrace.projections.spark.masters import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Subqueries = Mapping[str, Sequence[str]]
"""In their author's words, each with the inputs that it reads."""
NO_SUBQUERIES: Subqueries = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The ``values`` of all subqueries where a step leads (none: Spark computes them with the rest), and the words of
    those that were compared: what these read has changed, and they have not."""

    values: Sequence[SubqueryValue] = ()
    compared: tuple[str, ...] = ()


def unchanged_values(step: StepInput, before: Cut, subqueries: Subqueries) -> Unchanged:
    """Raises NotIncremental when a value where the step leads is another than it was ``before``, or cannot be told."""
    if not subqueries:
        return Unchanged()
    names = _read_by(subqueries)
    changed = {name for name in names if _is_changed(step, before, step.projection.inputs[name])}
    if not changed and names <= {*lineage_of(step.projection).unknown}:
        return Unchanged()  # the function is given these inputs whole anyway
    now = _subqueries_at(step, step.cut, names)
    then = _subqueries_at(step, before, names) if changed else now
    if len(then) != len(now):
        raise NotIncremental("its scalar subqueries are not the same each time", "subquery")
    values, compared = [], []
    for subquery, earlier in zip(now, then, strict=True):
        values.append(_value(step, subquery))
        if subquery.inputs & changed:
            words = words_of(step.projection, subquery)
            if not values[-1].is_same(_value(step, earlier)):
                raise NotIncremental(f"the value of {words} changed", "subquery")
            compared.append(words)
    return Unchanged(values, tuple(dict.fromkeys(compared)))


def values_at(step: StepInput, cut: Cut, subqueries: Subqueries) -> list[SubqueryValue]:
    """The values at a cut. Raises NotIncremental when one cannot be told."""
    if not subqueries:
        return []
    return [_value(step, each) for each in _subqueries_at(step, cut, _read_by(subqueries))]


def given_values(projection: Projection, result: DataFrame, values: Sequence[SubqueryValue]) -> DataFrame:
    """A result over some rows of its inputs, with the values that its subqueries have over all. Raises NotIncremental
    when they are not those of its subqueries."""
    if not values:
        return result
    with (
        _followed_or_full("its subqueries cannot be given their values"),
        translate_errors(projection, "being given the values of its subqueries"),
    ):
        return with_values(result, values)


@contextmanager
def _followed_or_full(what: str) -> Iterator[None]:
    """Raises NotIncremental for an error: where everything is computed, it shows in its own words whether it is a
    mistake."""
    try:
        yield
    except FOR_GOOD as error:
        raise NotIncremental(f"{what}: {error.message}", "subquery") from error


def _read_by(subqueries: Subqueries) -> frozenset[str]:
    return frozenset(name for names in subqueries.values() for name in names)


def _is_changed(step: StepInput, before: Cut, source: Input) -> bool:
    store = step.ctx.store
    if isinstance(source, Result):
        then, now = (result_at(store, source.projection, epoch) for epoch in (before.epoch, step.cut.epoch))
        return then is None or now is None or then.step.to_epoch != now.step.to_epoch
    return bool(changed_topics(store, [source.topic_id], before.epoch, step.cut.epoch))


def _subqueries_at(step: StepInput, cut: Cut, names: Collection[str]) -> list[ScalarSubquery]:
    """The subqueries over all rows of these inputs. The others refuse to give rows: no subquery reads them."""
    ctx, projection = step.ctx, step.projection
    if is_connect(ctx.master):  # it has no plans of its own to find them in
        raise NotIncremental(
            "the values of its scalar subqueries are not compared over Spark Connect", "subquery"
        )
    engine = SparkEngine(ctx)  # reads both ends in tasks: of files there are those of one position
    read = [name for name in projection.inputs if name in names]
    others = {
        name: plan_input(ctx.store, source, cut)
        for name, source in projection.inputs.items()
        if name not in names
    }
    with _followed_or_full("the values of its subqueries cannot be told"):
        reads = plan_reads(ctx.store, projection, cut, ctx.parallelism, read)
        with translate_errors(projection, "reading its inputs"):
            given = engine.frames(projection, reads)
            inputs = {name: marked(frame, name) for name, frame in given.items()}
            inputs |= empty_inputs(engine.session, projection, others)
        result = define(projection, inputs, cut.commit_ts)
        with translate_errors(projection, "being looked through"):
            return scalar_subqueries(result)


def _value(step: StepInput, subquery: ScalarSubquery) -> SubqueryValue:
    projection = step.projection
    words = words_of(projection, subquery)
    step.ctx.report(f"computing {words} for {projection.name}", 0, None, "")
    with (
        _followed_or_full(f"the value of {words} cannot be told"),
        translate_errors(projection, f"computing {words}"),
    ):
        return subquery.value(step.ctx.spark)
