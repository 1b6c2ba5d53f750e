"""A plan as Spark's optimizer writes it otherwise, for the proof: a query in a condition becomes a join, and the
conditions of a WHERE those of its joins.

Only rules that rewrite what the proof cannot read are applied, in this order. They keep the names of inputs, which the
whole optimizer would take away, and are what Spark itself does to the plan later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.projections.analysis.plan_tree import analysed_plan, json_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PACKAGE = "org.apache.spark.sql.catalyst.optimizer."
_CONDITIONS = (
    "PullupCorrelatedPredicates",  # conditions of an inner query that name the outer one go up to it
    "RewritePredicateSubquery",  # EXISTS and IN are semi joins, their negations anti joins
)
_DEPTH = 3
"""A query in a condition of an inner query is seen when that one is a join."""
_RULES = (
    *_CONDITIONS * _DEPTH,
    "RewriteCorrelatedScalarSubquery",  # a value of each row is a left join with an aggregate
    "BooleanSimplification",  # what each part of an OR asks for stands beside it
    "PushDownPredicates",
    "ReorderJoin",  # tables with commas are joined by the conditions of WHERE
    "PushDownPredicates",
)


def rewritten_json(result: DataFrame) -> str:
    """The plan of a result as ``read`` takes it. Raises Py4JError when Spark cannot rewrite it."""
    frame: Any = result
    find = frame.sparkSession._jvm.java.lang.Class.forName
    plan = analysed_plan(result)
    for rule in _RULES:
        plan = find(f"{_PACKAGE}{rule}$").getField("MODULE$").get(None).apply(plan)
    return json_of(plan)
