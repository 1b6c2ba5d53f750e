"""What can be said of a projection's function before it is given a row: its plan over inputs without rows.

The function is called with DataFrames of its inputs' columns whose rows cannot be looked at, and once more: values that
differ then are of clocks or random numbers. Spark analyses what comes back and tells it in one call; ``locality`` and
``determinism`` walk it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.eventstore.errors import IncompleteTopic, TailraceError, TransientError
from tailrace.eventstore.model.schema import NUMERIC
from tailrace.eventstore.model.topic import TopicKind
from tailrace.eventstore.state.state import StateInput
from tailrace.projections.analysis.determinism import Declared, Fault, faults
from tailrace.projections.analysis.locality import MARK, prove
from tailrace.projections.analysis.plan_tree import Node, literals, read
from tailrace.projections.analysis.proof import InputFacts, Proof
from tailrace.projections.analysis.python_clocks import unsteady
from tailrace.projections.compute.compute import define, output_schema
from tailrace.projections.compute.frames import cast_columns, shown_columns
from tailrace.projections.compute.read_plan import Planned, described
from tailrace.projections.definition.findings import DefinitionFinding, Level
from tailrace.projections.definition.lineage import Lineage, lineage_of
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
from tailrace.projections.generations.result_input import ResultInput, live_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.eventstore.store import Store

_LOOKS = "it looks at rows while it defines its result"
_ACTIONS = (
    "checkpoint", "collect", "first", "head", "isEmpty", "localCheckpoint", "pivot", "rdd", "take", "toArrow",
    "toLocalIterator", "toPandas",
)  # fmt: skip
_NO_ROWS = "use joins and aggregates instead of collect; give pivot its values"
_PLACE = ("_partition", "_offset")
_SPOILS = frozenset({"clock", "session", "random", "order", "python"})
"""Faults after which an incremental refresh and a full one need not agree."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """``schema`` is the result's, None when it depends on rows. ``not_local`` say why it cannot be refreshed by keys,
    ``findings`` what is wrong with it in any case, ``unsteady`` which of these make an incremental refresh pointless,
    too; ``never_null``: its plan leaves out rows that have NULL for their key; ``numeric_texts``: columns of the result
    that are numeric in Postgres and text here; ``inputs`` are those of the function, without rows."""

    schema: pa.Schema | None
    not_local: tuple[DefinitionFinding, ...]
    findings: tuple[DefinitionFinding, ...]
    unsteady: tuple[str, ...]
    never_null: bool = False
    numeric_texts: frozenset[str] = frozenset()
    inputs: Mapping[str, Planned] = field(default_factory=dict)

    @property
    def reason(self) -> str | None:
        """The first reason against incremental refreshes; None when there is none."""
        found = [*(obstacle.what for obstacle in self.not_local), *self.unsteady]
        return found[0] if found else None


def analyse(
    spark: SparkSession,
    store: Store,
    projection: Projection,
    failures: list[ProjectionFailed] | None = None,
    readings: Mapping[str, Reading] = MappingProxyType({}),
) -> Analysis:
    """Call the projection's function over inputs without rows and look at its plan.

    Given ``failures``, columns that no input has and a result that cannot be kept go there, and it goes on with what is
    left. Given the ``readings`` of projections whose results it reads, ``numeric`` without a precision is followed
    through them, and one that was never built has the columns that its function gives. Raises ProjectionFailed, with
    the user's file and line, when the function fails or its result cannot be kept, UsageError for unknown topics and
    columns. No rows are read.
    """
    inputs = {name: _planned(store, source, readings.get(name)) for name, source in projection.inputs.items()}
    texts = {name: each.said.numeric_texts for name, each in readings.items() if each.said is not None}
    return replace(_analysed(spark, projection, inputs, texts, failures), inputs=inputs)


def _analysed(
    spark: SparkSession,
    projection: Projection,
    inputs: Mapping[str, Planned],
    texts_of_results: Mapping[str, frozenset[str]],
    failures: list[ProjectionFailed] | None,
) -> Analysis:
    from py4j.protocol import Py4JError

    try:
        with warnings.catch_warnings():  # of toPandas, before it fails: it quotes a whole traceback
            warnings.filterwarnings("ignore", "toPandas attempted Arrow", UserWarning)
            frames, now = _hollow(spark, projection, inputs), datetime.now(UTC)
            if failures is not None:
                frames = _with_unknown(projection, frames, now, failures)
            result, again = define(projection, frames, now), define(projection, frames, now)
    except ProjectionFailed as error:
        if _LOOKS not in error.message:
            raise
        return _unproved(
            projection, None, DefinitionFinding("warn", _LOOKS, error.hint, _where(projection, _ACTIONS))
        )
    schema = _schema(projection, result, failures)
    facts = {name: _facts(projection, name, planned) for name, planned in inputs.items()}
    try:
        told = _told(result)
        if ".LogicalRDD" in told and _holds_rows(result):
            return _unproved(
                projection, schema, DefinitionFinding("warn", _LOOKS, _NO_ROWS, _where(projection, _ACTIONS))
            )
        varies = literals(told) != literals(_told(again))
        texts = {**_numeric_texts(projection, inputs), **texts_of_results}
        return judge(projection, lineage_of(projection), read(told), facts, texts, schema, varies=varies)
    except (AttributeError, LookupError, Py4JError, RecursionError, TypeError, ValueError) as error:
        # A shape of plan that nobody foresaw must not stop a refresh; it is no proof either.
        what = f"its plan cannot be followed ({type(error).__name__})"
        hint = "say trust=True when it keeps keys apart"
        return _unproved(projection, schema, DefinitionFinding("warn", what, hint, projection.place))


@dataclass(frozen=True, slots=True)
class Reading:
    """A projection whose result another one reads. ``said``: its analysis; None where it has a mistake, which is told
    where that one is looked at."""

    definition: Projection
    said: Analysis | None

    def foretold(self) -> ResultInput:
        """Its result as it will be. Raises IncompleteTopic when its plan does not tell the columns."""
        if self.said is None or self.said.schema is None:
            name = self.definition.name
            raise IncompleteTopic(
                f"projection {name!r} was never built, and its definition does not tell its columns",
                hint=f"mend it if something is wrong with it, then tailrace rebuild {name}",
            )
        return ResultInput(self.definition.name, 0, 0, self.said.schema, self.definition.key, 1, 1, (), 0)


def readings_of(
    spark: SparkSession, store: Store, projection: Projection, definitions: Mapping[str, Projection]
) -> dict[str, Reading]:
    """The projections whose results it reads, by input, as far as they are defined."""
    found = {}
    for name, source in projection.inputs.items():
        if isinstance(source, Result) and source.projection in definitions:
            read = definitions[source.projection]
            found[name] = Reading(read, _said_of(spark, store, read, definitions))
    return found


def _said_of(
    spark: SparkSession, store: Store, read: Projection, definitions: Mapping[str, Projection]
) -> Analysis | None:
    try:
        return analyse(spark, store, read, readings=readings_of(spark, store, read, definitions))
    except TransientError:  # Spark went away
        raise
    except TailraceError:
        return None


def is_unbuilt(store: Store, source: Input) -> bool:
    """Is it the result of a projection that was never built?"""
    return isinstance(source, Result) and live_of(store, source.projection) is None


def _planned(store: Store, source: Input, reading: Reading | None) -> Planned:
    return reading.foretold() if reading and is_unbuilt(store, source) else described(store, source)


_MOST_UNKNOWN = 20
"""So many unknown columns are named at once; each takes another call of the function."""


def _with_unknown(
    projection: Projection, frames: dict[str, DataFrame], now: datetime, failures: list[ProjectionFailed]
) -> dict[str, DataFrame]:
    """The inputs with the columns that the function names and none of them has, NULL in each row: so that all of these
    are found, and what else is wrong. Raises ProjectionFailed for what cannot be helped so."""
    from pyspark.sql import functions as F  # noqa: N812

    tried: set[tuple[str, str]] = set()
    for _ in range(_MOST_UNKNOWN):
        try:
            define(projection, frames, now)
            return frames
        except ProjectionFailed as error:
            column, near = _unknown_column(error)
            untried = [name for name in _owners(frames, near) if (name, column) not in tried]
            if not column or not untried:
                raise
            owner = untried[0]
            tried.add((owner, column))
            if all(error.message != known.message for known in failures):
                failures.append(error)
            added = frames[owner].withColumn(column, F.lit(None))
            frames = {**frames, owner: added.alias(MARK + owner).alias(owner)}
    return frames


def _unknown_column(error: ProjectionFailed) -> tuple[str, tuple[str, ...]]:
    """The column that Spark does not find, "" for another failure, and the names that come close."""
    from pyspark.errors import AnalysisException, PySparkAttributeError

    cause = error.__cause__
    if isinstance(cause, PySparkAttributeError):  # orders.customr_id
        return str((cause.getMessageParameters() or {}).get("attr_name", "")), ()
    if not isinstance(cause, AnalysisException) or not str(cause.getCondition()).startswith(
        "UNRESOLVED_COLUMN"
    ):
        return "", ()
    told = cause.getMessageParameters() or {}
    parts = _QUOTED.findall(told.get("objectName", ""))
    return (parts[-1] if parts else ""), (*parts[:-1], *_QUOTED.findall(told.get("proposal", "")))


_QUOTED = re.compile(r"`([^`]+)`")


def _owners(frames: Mapping[str, DataFrame], near: tuple[str, ...]) -> list[str]:
    """The inputs that a name may be meant of, first the one that it is qualified by, or whose columns come close."""
    named = [name for name in near if name in frames]
    others = sorted(frames, key=lambda name: -len(set(near) & set(frames[name].columns)))
    return named[:1] or others


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


def _unproved(projection: Projection, schema: pa.Schema | None, finding: DefinitionFinding) -> Analysis:
    return Analysis(schema, () if projection.trust else (finding,), (), ())


def _where(projection: Projection, calls: Iterable[str]) -> str:
    return SourceLines.of(projection).place(calls)


def judge(
    projection: Projection,
    lineage: Lineage,
    plan: Node,
    facts: Mapping[str, InputFacts],
    numeric_texts: Mapping[str, frozenset[str]],
    schema: pa.Schema | None,
    *,
    varies: bool = False,
) -> Analysis:
    """What a plan says. ``varies``: the function's second call had other values in it."""
    proof = prove(plan, lineage, facts)
    floats = [field.name for field in schema or () if pa.types.is_floating(field.type)]
    states = frozenset(name for name, source in projection.inputs.items() if isinstance(source, State))
    results = {name: each.projection for name, each in projection.inputs.items() if isinstance(each, Result)}
    declared = Declared(
        frozenset(projection.tolerance), projection.trust, facts, numeric_texts, states, results
    )
    told = faults(plan, proof, declared, floats)
    found = told.found
    lines = SourceLines.of(projection)
    constants = _constants(projection, found, varies=varies)
    return Analysis(
        schema,
        () if projection.trust else tuple(_not_local(proof, lines)),
        (
            *_cut(projection, lines),
            *constants,
            *(_finding(fault, lines) for fault in found if fault.kind != "python"),
        ),
        (*(each.what for each in constants), *(fault.what for fault in found if fault.kind in _SPOILS)),
        proof.never_null,
        told.numeric_texts,
    )


def _constants(projection: Projection, found: Iterable[Fault], *, varies: bool) -> list[DefinitionFinding]:
    """Clocks and random numbers that a plan shows only the value of. One that was made where nobody can look shows
    when the function is called again."""
    known = [
        DefinitionFinding("fail", each.what, each.hint, each.place) for each in unsteady(projection.function)
    ]
    if known or not varies or any(fault.kind in ("clock", "random") for fault in found):
        return known
    what = "a value in its plan is another one each time the function is called"
    hint = "give the function a parameter named now for the time; compute other values of the rows'"
    return [DefinitionFinding("fail", what, hint, projection.place)]


_METHODS = {
    "Aggregate": ("groupBy", "groupby", "agg", "count", "sum", "avg", "min", "max"), "Join": ("join", "crossJoin"),
    "Distinct": ("distinct", "dropDuplicates", "drop_duplicates"), "Window": ("over",),
    "Deduplicate": ("dropDuplicates", "drop_duplicates"), "GlobalLimit": ("limit",), "LocalLimit": ("limit",),
    "Tail": ("tail",), "Offset": ("offset",), "Union": ("union", "unionAll", "unionByName"),
    "Except": ("subtract", "exceptAll"), "Intersect": ("intersect", "intersectAll"),
    "MapInPandas": ("mapInPandas",), "MapInArrow": ("mapInArrow",), "FlatMapGroupsInPandas": ("applyInPandas",),
    "FlatMapGroupsInArrow": ("applyInArrow",), "Sample": ("sample",),
}  # fmt: skip


def _not_local(proof: Proof, lines: SourceLines) -> Iterator[DefinitionFinding]:
    for obstacle in proof.obstacles:
        yield DefinitionFinding(
            "warn", obstacle.what, obstacle.hint, lines.place(_METHODS.get(obstacle.node.kind, ()))
        )


_LEVELS: Mapping[str, Level] = {
    "clock": "fail",
    "session": "fail",
    "random": "fail",
    "text": "fail",
    "order": "warn",
    "float": "warn",
}


def _finding(fault: Fault, lines: SourceLines) -> DefinitionFinding:
    return DefinitionFinding(
        _LEVELS[fault.kind], fault.what, fault.hint, lines.place(fault.calls), fault.input, fault.column
    )


def _hollow(
    spark: SparkSession, projection: Projection, inputs: Mapping[str, Planned]
) -> dict[str, DataFrame]:
    """Inputs that have columns and refuse to be computed: a function that looks at rows while it defines its result
    (``collect``, ``count``) would have another plan each time."""
    from pyspark.sql.pandas.types import from_arrow_schema

    frames = {}
    for name, planned in inputs.items():
        source = projection.inputs[name]
        shown = pa.schema([planned.schema.field(column) for column in shown_columns(planned, source)])
        frame = spark.range(1).mapInArrow(_refuse, from_arrow_schema(shown))
        if isinstance(source, State):
            frame = cast_columns(frame, projection, name, source)
        frames[name] = frame.alias(MARK + name).alias(name)
    return frames


def _refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise ProjectionFailed(_LOOKS, hint=_NO_ROWS)


def _told(result: DataFrame) -> str:
    frame: Any = result
    return str(frame._jdf.queryExecution().analyzed().toJSON())


def _holds_rows(result: DataFrame) -> bool:
    """Has its plan rows that another plan gives, which it does not show? So it is behind ``checkpoint`` and ``rdd``;
    ``createDataFrame`` of Python's values has none but those."""
    frame: Any = result
    plan = frame._jdf.queryExecution().analyzed()
    for part in [plan, *_listed(plan.subqueriesAll())]:
        for leaf in _listed(part.collectLeaves()):
            if leaf.getClass().getSimpleName() == "LogicalRDD":
                rows = leaf.rdd()
                if rows.checkpointData().isDefined() or "SQLExecutionRDD" in rows.toDebugString():
                    return True
    return False


def _listed(of_scala: Any) -> list[Any]:
    return [of_scala.apply(at) for at in range(of_scala.size())]


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


def _numeric_texts(projection: Projection, inputs: Mapping[str, Planned]) -> dict[str, frozenset[str]]:
    """Columns that are numeric in Postgres and text in the DataFrame; ``after.price`` of changes."""
    found = {}
    for name, planned in inputs.items():
        source = projection.inputs[name]
        if isinstance(planned, ResultInput) or planned.target.kind is not TopicKind.TABLE:
            continue
        cast = source.cast if isinstance(source, State) else {}
        rows = [""] if isinstance(source, State) else ["key", "after", "before", "_moved_from"]
        found[name] = frozenset(
            f"{row}.{column.name}" if row else column.name
            for row in rows
            for column in planned.target.columns
            if column.type_oid == NUMERIC
            and column.name not in cast
            and _is_text(planned.schema, row, column.name)
        )
    return found


def _is_text(schema: pa.Schema, row: str, column: str) -> bool:
    held = schema.field(row).type if row else schema
    names = [held.field(at).name for at in range(held.num_fields)] if row else schema.names
    return column in names and bool(pa.types.is_string(held.field(column).type))


_WHOLE = re.compile(r"\s*(decimal|dec|numeric)\s*", re.I)


def _cut(projection: Projection, lines: SourceLines) -> Iterator[DefinitionFinding]:
    """Casts that nobody means: Spark's ``decimal`` alone has no place behind the point."""
    for name, source in projection.inputs.items():
        for column, ddl in source.cast.items() if isinstance(source, State) else ():
            if _WHOLE.fullmatch(ddl):
                what = f"input {name!r}: {ddl} is decimal(10,0) in Spark: {column} loses what is behind its point"
                hint = f'say how many digits: cast={{"{column}": "decimal(20,4)"}}'
                yield DefinitionFinding("warn", what, hint, lines.of_input(name), name, column)
