"""The scalar subqueries of a plan that name no column around them: each has one value for the whole result.

They are found in a plan as Spark analysed it, computed on their own, and replaced by the value that they had. So a plan
over few rows of the inputs can be given what they are over all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MARK = "tailrace input "
"""The alias around an input's plan that tells it from the user's aliases: a name that no function gives."""
_SCALAR = "ScalarSubquery"
_VIEW = "_pyspark_"
_QUERIES = frozenset({_SCALAR, "Exists", "LateralSubquery", "ListQuery"})
_ROWS_SEEN = 2
"""Of a subquery's rows: a second one shows that it has no value, which Spark says itself where the value is needed."""


def marked(frame: DataFrame, name: str) -> DataFrame:
    """An input's DataFrame under its name, so that ``inputs_in`` finds it in plans."""
    return frame.alias(MARK + name).alias(name)


@dataclass(frozen=True, slots=True)
class ScalarSubquery:
    """``expression`` is Spark's; ``defined`` are the common table expressions that it may read."""

    expression: Any
    defined: Sequence[Any]

    @property
    def inputs(self) -> frozenset[str]:
        """The inputs that it reads, where they are ``marked``."""
        return frozenset(name for _, name in self.readings)

    @property
    def readings(self) -> list[tuple[str, str]]:
        """Where it reads an input: the view that stands for it in SQL ("": none does), and its name."""
        found: list[tuple[str, str]] = []
        todo, reached = [self.expression.plan()], set()
        while todo:
            view = ""
            for node in _all_nodes(todo.pop()):
                kind = _class_of(node)
                if kind == "CTERelationRef" and node.cteId() not in reached:
                    reached.add(node.cteId())
                    todo += [each.child() for each in self.defined if each.id() == node.cteId()]
                name = str(node.alias()) if kind == "SubqueryAlias" else ""
                if name.startswith(MARK):
                    found.append((view, name.removeprefix(MARK)))
                    view = ""
                elif name.startswith(_VIEW):
                    view = name
        return found

    @property
    def source(self) -> tuple[str, int] | None:
        """Its text as Spark was given it, and the line it begins in; None of one that is written without SQL."""
        origin = self.expression.origin()
        parts = (origin.sqlText(), origin.startIndex(), origin.stopIndex(), origin.line())
        if not all(part.isDefined() for part in parts):
            return None
        text, start, stop, line = (part.get() for part in parts)
        return str(text)[start : stop + 1], int(line)

    def value(self, spark: SparkSession) -> SubqueryValue:
        """Computed over the inputs as they are in its plan. Raises what Spark raises."""
        plan = self.expression.plan()
        if self.defined:
            jvm = spark._jvm
            assert jvm is not None
            defined = jvm.PythonUtils.toSeq(list(self.defined))
            plan = jvm.org.apache.spark.sql.catalyst.plans.logical.WithCTE(plan, defined)
        frame = _frame(spark, plan)
        return SubqueryValue(frame.limit(_ROWS_SEEN).toArrow(), frame.schema)


@dataclass(frozen=True, slots=True)
class SubqueryValue:
    """The rows of a scalar subquery: one, or none, which is NULL."""

    rows: pa.Table
    schema: StructType

    def is_same(self, other: SubqueryValue) -> bool:
        """Whether both are one value, NULL and NaN too. By their texts, in which -0.0 is not 0.0."""
        return self.schema.fields[0].dataType == other.schema.fields[0].dataType and self._text == other._text

    @property
    def _text(self) -> str:
        return repr(self.rows.column(0).to_pylist() or [None])


def scalar_subqueries(result: DataFrame) -> list[ScalarSubquery]:
    """Those of a result's plan, in its order, without those inside others of them."""
    jvm: Any = result.sparkSession._jvm
    pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.SCALAR_SUBQUERY()
    return list(_in_plan(_jvm_frame(result).queryExecution().analyzed(), (), pattern))


def with_values(result: DataFrame, values: Sequence[SubqueryValue]) -> DataFrame:
    """The result with these values in place of its scalar subqueries, in their order. Raises ValueError when these are
    others than the values are of."""
    spark, frame = result.sparkSession, _jvm_frame(result)
    jvm: Any = spark._jvm
    replaced = jvm.java.util.HashMap()
    for subquery, value in zip(scalar_subqueries(result), values, strict=True):
        rows = _jvm_frame(spark.createDataFrame(value.rows, value.schema))
        held = subquery.expression.withNewPlan(rows.queryExecution().analyzed())
        if not held.dataType().sameType(subquery.expression.dataType()):
            raise ValueError(f"a value is {held.dataType()}, not {subquery.expression.dataType()}")
        replaced.put(subquery.expression, held)
    # A map of Scala's is a partial function, which a plan can be transformed by.
    rule = jvm.PythonUtils.toScalaMap(replaced)
    return _frame(spark, frame.queryExecution().analyzed().transformAllExpressionsWithSubqueries(rule))


def _jvm_frame(frame: DataFrame) -> Any:
    given: Any = frame
    return given._jdf


def _frame(spark: SparkSession, plan: Any) -> DataFrame:
    from pyspark.sql import DataFrame

    session: Any = spark
    made = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return DataFrame(made, spark)


def _in_plan(node: Any, defined: Sequence[Any], pattern: Any) -> Iterator[ScalarSubquery]:
    if not node.containsPattern(pattern):
        return
    if _class_of(node) == "WithCTE":
        defined = (*defined, *_to_list(node.cteDefs()))
    for expression in _to_list(node.expressions()):
        yield from _in_expression(expression, defined, pattern)
    for child in _to_list(node.children()):
        yield from _in_plan(child, defined, pattern)


def _in_expression(node: Any, defined: Sequence[Any], pattern: Any) -> Iterator[ScalarSubquery]:
    if not node.containsPattern(pattern):
        return
    kind = _class_of(node)
    if kind == _SCALAR and node.children().isEmpty():  # its children are the columns that it names around it
        yield ScalarSubquery(node, defined)
        return
    if kind in _QUERIES:
        yield from _in_plan(node.plan(), defined, pattern)
    for child in _to_list(node.children()):
        yield from _in_expression(child, defined, pattern)


def _all_nodes(plan: Any) -> Iterator[Any]:
    """The operators of a plan, and of the plans of its subqueries."""
    yield plan
    for below in (*_to_list(plan.children()), *_to_list(plan.subqueries())):
        yield from _all_nodes(below)


def _class_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _to_list(of_scala: Any) -> list[Any]:
    return [of_scala.apply(at) for at in range(of_scala.size())]
