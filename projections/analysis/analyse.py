"""What can be said of a projection's function before it is given a row: its plan over inputs without rows.

The function is called with DataFrames that have its inputs' columns and refuse to give rows, and called once more:
values that differ then come from clocks or random numbers. Spark analyses what comes back; ``locality`` and
``determinism`` walk that plan.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.eventstore.errors import IncompleteTopic, TailraceError, TransientError
from tailrace.eventstore.model.topic import TopicKind
from tailrace.eventstore.state.input import StateInput
from tailrace.projections.analysis.computed_columns import describe_computed
from tailrace.projections.analysis.determinism import Declaration, Fault, faults
from tailrace.projections.analysis.empty_inputs import (
    ACTIONS,
    LOOKS,
    NO_ROWS,
    empty_inputs,
    with_unknown_columns,
)
from tailrace.projections.analysis.followed import followed
from tailrace.projections.analysis.locality.rewritten import rewritten_json
from tailrace.projections.analysis.locality.walk import prove
from tailrace.projections.analysis.meaning.postgres_types import TextType, text_type
from tailrace.projections.analysis.plan_tree import (
    holds_rows,
    nondeterministic_classes,
    plan_constants,
    plan_json,
    read,
)
from tailrace.projections.analysis.python_clocks import Watch, python_clocks, watch_calls
from tailrace.projections.analysis.spread import InputFacts, Proof
from tailrace.projections.analysis.subqueries import describe_subqueries
from tailrace.projections.compute.compute import define, output_schema
from tailrace.projections.compute.read_plan import Planned, describe_input
from tailrace.projections.definition.findings import DefinitionFinding, Level
from tailrace.projections.definition.lineage import Direct, lineage_of
from tailrace.projections.definition.model import (
    Changes,
    Events,
    Input,
    Projection,
    ProjectionFailed,
    Result,
    State,
)
from tailrace.projections.definition.source import SourceLines
from tailrace.projections.definition.sql.postgres.query import PostgresQuery
from tailrace.projections.generations.result_input import ResultInput, live_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.eventstore.store import Store

_LEVELS: Mapping[str, Level] = {
    "clock": "fail", "session": "fail", "random": "fail", "text": "fail", "collation": "warn", "order": "warn",
    "float": "warn", "digits": "fail", "fewer digits": "warn",
}  # fmt: skip
_UNSTABLE = frozenset({"clock", "session", "random", "order", "python"})
"""Faults after which an incremental refresh and a full one need not agree."""
_OF_CONNECT = ("JVM_ATTRIBUTE_NOT_SUPPORTED", "or str, got Column")
"""What pyspark says of columns of Spark Connect that are given to a Spark in a JVM: both classes are called Column."""
_MADE_AT_LOAD = (
    "UDFs that its module makes when it is loaded belong to Spark Connect, which does not show plans",
    "make them inside the function",
)
_METHODS = {
    "Aggregate": ("groupBy", "groupby", "agg", "count", "sum", "avg", "min", "max"), "Join": ("join", "crossJoin"),
    "Distinct": ("distinct", "dropDuplicates", "drop_duplicates"), "Window": ("over",),
    "Deduplicate": ("dropDuplicates", "drop_duplicates"), "GlobalLimit": ("limit",), "LocalLimit": ("limit",),
    "Tail": ("tail",), "Offset": ("offset",), "Union": ("union", "unionAll", "unionByName"),
    "Except": ("subtract", "exceptAll"), "Intersect": ("intersect", "intersectAll"),
    "MapInPandas": ("mapInPandas",), "MapInArrow": ("mapInArrow",), "FlatMapGroupsInPandas": ("applyInPandas",),
    "FlatMapGroupsInArrow": ("applyInArrow",), "Sample": ("sample",),
}  # fmt: skip
"""By which names a source calls what makes an operator."""
_PLACE = ("_partition", "_offset")
_BARE_DECIMAL = re.compile(r"\s*(decimal|dec|numeric)\s*", re.I)


@dataclass(frozen=True, slots=True)
class Analysis:
    """``schema`` is the result's, None when it depends on rows. ``not_local`` says why it cannot be refreshed by keys,
    ``findings`` what is wrong with it in any case, ``unstable`` which of these make an incremental refresh pointless.
    ``never_null``: its plan leaves out rows that have NULL for their key. ``types``: columns of the result
    whose type Spark has not. ``inputs`` are those of the function, without rows. ``subqueries``: those of which a
    refresh by keys asks whether their values changed, with the inputs that they read; ``apart``: the inputs that
    nothing else reads."""

    schema: pa.Schema | None
    not_local: tuple[DefinitionFinding, ...]
    findings: tuple[DefinitionFinding, ...]
    unstable: tuple[str, ...]
    never_null: bool = False
    types: Mapping[str, TextType] = field(default_factory=dict)
    inputs: Mapping[str, Planned] = field(default_factory=dict)
    subqueries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    apart: tuple[str, ...] = ()

    @property
    def reason(self) -> str | None:
        """The first reason against incremental refreshes; None when there is none."""
        return next(iter([*(obstacle.what for obstacle in self.not_local), *self.unstable]), None)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A projection whose result another one reads. ``analysis`` is None where its definition has a mistake; that is
    said where it is checked itself."""

    definition: Projection
    analysis: Analysis | None

    def expected_result(self) -> ResultInput:
        """Its result as it will be. Raises IncompleteTopic when its plan does not tell the columns."""
        if self.analysis is None or self.analysis.schema is None:
            name = self.definition.name
            raise IncompleteTopic(
                f"projection {name!r} was never built, and its definition does not tell its columns",
                hint=f"mend it if something is wrong with it, then tailrace rebuild {name}",
            )
        return ResultInput(self.definition.name, 0, 0, self.analysis.schema, self.definition.key, 1, 1, (), 0)


def upstream_of(
    spark: SparkSession, store: Store, projection: Projection, definitions: Mapping[str, Projection]
) -> dict[str, Upstream]:
    """The projections whose results it reads, by input, as far as they are defined."""
    found = {}
    for name, source in projection.inputs.items():
        if isinstance(source, Result) and source.projection in definitions:
            read = followed(store, definitions[source.projection])
            analysis: Analysis | None = None
            try:
                analysis = analyse(spark, store, read, upstream=upstream_of(spark, store, read, definitions))
            except TransientError:  # Spark went away
                raise
            except TailraceError:
                pass
            found[name] = Upstream(read, analysis)
    return found


def is_unbuilt(store: Store, source: Input) -> bool:
    """Is it the result of a projection that was never built?"""
    return isinstance(source, Result) and live_of(store, source.projection) is None


def analyse(
    spark: SparkSession,
    store: Store,
    projection: Projection,
    failures: list[ProjectionFailed] | None = None,
    upstream: Mapping[str, Upstream] = MappingProxyType({}),
) -> Analysis:
    """Call the projection's function over inputs without rows and look at its plan.

    With ``failures``, columns that no input has and a result that cannot be kept go there, and the analysis goes on
    with what is left. With ``upstream``, the projections whose results it reads, types that Spark has not
    are followed through them, and one that was never built has the columns that its function gives. Raises
    ProjectionFailed, with the user's file and line, when the function fails or its result cannot be kept, UsageError
    for unknown topics and columns. No rows are read.
    """
    inputs = {}
    for name, source in projection.inputs.items():
        expected = name in upstream and is_unbuilt(store, source)
        inputs[name] = upstream[name].expected_result() if expected else describe_input(store, source)
    texts = {name: each.analysis.types for name, each in upstream.items() if each.analysis is not None}
    frames = empty_inputs(spark, projection, inputs)
    declared = _with_computed(projection, declaration_of(projection, inputs, texts), frames)
    return replace(_analyse(projection, frames, declared, failures), inputs=inputs)


def _with_computed(
    projection: Projection, declared: Declaration, frames: Mapping[str, DataFrame]
) -> Declaration:
    """With the parts of the key that inputs say are computed of their columns."""
    paths = lineage_of(projection).paths
    known = {
        name: replace(
            declared.inputs[name], computed=describe_computed(projection, name, frames[name], path.computed)
        )
        for name, path in paths.items()
        if isinstance(path, Direct) and path.computed
    }
    return replace(declared, inputs={**declared.inputs, **known}) if known else declared


def _analyse(
    projection: Projection,
    frames: dict[str, DataFrame],
    declared: Declaration,
    failures: list[ProjectionFailed] | None,
) -> Analysis:
    from py4j.protocol import Py4JError

    try:
        with warnings.catch_warnings():  # of toPandas, before it fails: it quotes a whole traceback
            warnings.filterwarnings("ignore", "toPandas attempted Arrow", UserWarning)
            now = datetime.now(UTC)
            with watch_calls() as watch:
                if failures is not None:
                    frames = with_unknown_columns(projection, frames, now, failures)
                result, again = define(projection, frames, now), define(projection, frames, now)
    except ProjectionFailed as error:
        if any(words in str(error.__cause__) for words in _OF_CONNECT):
            return _unproved_analysis(projection, None, *_MADE_AT_LOAD, ())
        if LOOKS not in error.message:
            raise
        return _unproved_analysis(projection, None, LOOKS, error.hint, ACTIONS)
    schema = _schema(projection, result, failures)
    try:
        text = plan_json(result)
        if ".LogicalRDD" in text and holds_rows(result):
            return _unproved_analysis(projection, schema, LOOKS, NO_ROWS, ACTIONS)
        plan, varies = read(text), plan_constants(result, text) != plan_constants(again, plan_json(again))
        proof = prove(plan, lineage_of(projection), declared.inputs)
        found, types = faults(plan, proof, declared, nondeterministic_classes(result))
        if proof.obstacles:
            proof = _proof_rewritten(projection, result, declared) or proof
        subqueries = describe_subqueries(projection, result) if "ScalarSubquery" in text else {}
    except (AttributeError, LookupError, Py4JError, RecursionError, TypeError, ValueError) as error:
        # A shape of plan that nobody foresaw must not stop a refresh; it is no proof either.
        what = f"its plan cannot be followed ({type(error).__name__})"
        return _unproved_analysis(projection, schema, what, "say trust=True when it keeps keys apart", ())
    lines = SourceLines.of(projection)
    constants = _constants(projection, watch, found, varies=varies)
    return Analysis(
        schema,
        () if projection.trust else tuple(_locality_findings(proof, lines)),
        (*bare_decimals(projection, lines), *constants, *_findings(found, lines)),
        (*(each.what for each in constants), *(each.what for each in found if each.kind in _UNSTABLE)),
        proof.never_null,
        types,
        subqueries=subqueries,
        apart=tuple(
            name for name in projection.inputs if name in set().union(*subqueries.values()) - proof.inputs
        ),
    )


def _proof_rewritten(projection: Projection, result: DataFrame, declared: Declaration) -> Proof | None:
    """The proof on the plan as Spark rewrites it; None where it does not."""
    from py4j.protocol import Py4JError

    try:
        return prove(read(rewritten_json(result)), lineage_of(projection), declared.inputs)
    except (LookupError, Py4JError, RecursionError, TypeError, ValueError):
        return None


def _unproved_analysis(
    projection: Projection, schema: pa.Schema | None, what: str, hint: str, calls: Iterable[str]
) -> Analysis:
    place = SourceLines.of(projection).place(calls)
    return Analysis(
        schema, () if projection.trust else (DefinitionFinding("warn", what, hint, place),), (), ()
    )


def _schema(
    projection: Projection, result: DataFrame, failures: list[ProjectionFailed] | None
) -> pa.Schema | None:
    """The result's columns; those of one that cannot be kept as far as they go."""
    if failures is None:
        return output_schema(projection, result)
    from pyspark.sql import functions as F  # noqa: N812

    names = result.columns
    # NULLs without a type are those of unknown columns; without such, the author's own, for the sink to judge.
    untyped = [field.name for field in result.schema.fields if field.dataType.typeName() == "void"]
    unknown = untyped if failures else []
    absent = [] if len(set(names)) < len(names) else [name for name in projection.key if name not in names]
    try:
        if not unknown:
            return output_schema(projection, result)
    except ProjectionFailed as error:
        failures.append(error)
    for name in (*unknown, *absent):
        result = result.withColumn(name, F.lit(""))
    try:
        return output_schema(projection, result)
    except ProjectionFailed as error:
        if all(error.message != known.message for known in failures):
            failures.append(error)
        return None


def _constants(
    projection: Projection, watch: Watch, found: Iterable[Fault], *, varies: bool
) -> list[DefinitionFinding]:
    """Clocks and random numbers of which a plan shows only the value. ``varies``: the function's second call had other
    values in it, which shows one that no code names."""
    known = python_clocks(inspect.unwrap(projection.function), watch)
    if varies and not known and all(fault.kind not in ("clock", "random") for fault in found):
        what = "a value in its plan is another one each time the function is called"
        hint = "give the function a parameter named now for the time; compute other values of the rows'"
        known = [DefinitionFinding("fail", what, hint, projection.place)]
    return known


def _locality_findings(proof: Proof, lines: SourceLines) -> Iterator[DefinitionFinding]:
    for obstacle in proof.obstacles:
        yield DefinitionFinding(
            "warn", obstacle.what, obstacle.hint, lines.place(_METHODS.get(obstacle.node.kind, ()))
        )


def _findings(found: Iterable[Fault], lines: SourceLines) -> Iterator[DefinitionFinding]:
    for fault in found:
        if fault.kind in _LEVELS:
            place = lines.place(fault.calls)
            yield DefinitionFinding(
                _LEVELS[fault.kind], fault.what, fault.hint, place, fault.input, fault.column
            )


def declaration_of(
    projection: Projection,
    inputs: Mapping[str, Planned],
    types_of_results: Mapping[str, Mapping[str, TextType]],
) -> Declaration:
    """``types_of_results``: the columns of other projections' results whose type Spark has not."""
    return Declaration(
        frozenset(projection.tolerance),
        projection.trust,
        {name: _facts(projection, name, planned) for name, planned in inputs.items()},
        {**_text_types(projection, inputs), **types_of_results},
        frozenset(name for name, source in projection.inputs.items() if isinstance(source, State)),
        {name: each.projection for name, each in projection.inputs.items() if isinstance(each, Result)},
    )


def _facts(projection: Projection, name: str, planned: Planned) -> InputFacts:
    match projection.inputs[name]:
        case State():
            assert isinstance(planned, StateInput)
            key = tuple(column.name for column in planned.target.key)
            return InputFacts(name, () if planned.target.bag else (key,))
        case Changes():
            return InputFacts(name, (_PLACE,), nested=True)
        case Events():
            return InputFacts(name, (_PLACE, ("stream", "version")))
        case Result():
            assert isinstance(planned, ResultInput)
            return InputFacts(name, (planned.key,))


def _text_types(projection: Projection, inputs: Mapping[str, Planned]) -> dict[str, dict[str, TextType]]:
    """Columns whose type Spark has not; ``after.price`` of changes."""
    found: dict[str, dict[str, TextType]] = {}
    in_postgres = isinstance(projection.function, PostgresQuery)
    for name, planned in inputs.items():
        source = projection.inputs[name]
        if isinstance(planned, ResultInput) or planned.target.kind is not TopicKind.TABLE:
            continue
        cast = source.cast if isinstance(source, State) else {}
        rows = [""] if isinstance(source, State) else ["key", "after", "before", "_moved_from"]
        found[name] = {}
        for row in rows:
            for column in planned.target.columns:
                shown = _shown_type(planned.schema, row, column.name)
                if shown is None or column.name in cast:
                    continue
                known = text_type(column, shown, byte_order=projection.collation == "C")
                if known is not None:
                    if not in_postgres:  # a cast to string says there that the text itself is meant
                        known = replace(known, cast_text="", kept_by_cast=False)
                    found[name][f"{row}.{column.name}" if row else column.name] = known
    return found


def _shown_type(schema: pa.Schema, row: str, column: str) -> pa.DataType | None:
    held = schema.field(row).type if row else schema
    names = [held.field(at).name for at in range(held.num_fields)] if row else schema.names
    return held.field(column).type if column in names else None


def bare_decimals(projection: Projection, lines: SourceLines) -> Iterator[DefinitionFinding]:
    """Casts that nobody means: Spark's ``decimal`` alone has no place behind the point."""
    for name, source in projection.inputs.items():
        for column, ddl in source.cast.items() if isinstance(source, State) else ():
            if _BARE_DECIMAL.fullmatch(ddl):
                what = f"input {name!r}: {ddl} is decimal(10,0) in Spark: {column} loses what is behind its point"
                hint = f'say how many digits: cast={{"{column}": "decimal(20,4)"}}'
                yield DefinitionFinding("warn", what, hint, lines.declared_place(name), name, column)
